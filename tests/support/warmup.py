"""Warm-up requests of a SavedModel, as TensorFlow Serving reads them; its messages, as its `.proto` files have them."""

import functools

import tensorflow as tf
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

FIELDS = descriptor_pb2.FieldDescriptorProto
MESSAGES = {
    "ModelSpec": [("name", 1, ""), ("signature_name", 3, "")],
    "PredictRequest": [("model_spec", 1, "ModelSpec"), ("inputs", 2, "Input*")],
    "Input": [("key", 1, ""), ("value", 2, "tensorflow.TensorProto")],
    "PredictLog": [("request", 1, "PredictRequest")],
    "PredictionLog": [("predict_log", 6, "PredictLog")],
}
"""The fields that are used of each message, each with its number and its type; `*` is repeated, as maps are encoded."""


@functools.cache
def prediction_log():
    """Returns the class of a `PredictionLog`."""
    tf.make_tensor_proto(0)  # registers TensorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="warmup.proto", package="warmup", dependency=["tensorflow/core/framework/tensor.proto"], syntax="proto3"
    )
    for message, fields in MESSAGES.items():
        added = file.message_type.add(name=message)
        for name, number, kind in fields:
            label = FIELDS.LABEL_REPEATED if kind.endswith("*") else FIELDS.LABEL_OPTIONAL
            field = added.field.add(name=name, number=number, label=label, type=FIELDS.TYPE_STRING)
            if kind := kind.rstrip("*"):
                field.type, field.type_name = FIELDS.TYPE_MESSAGE, f".{kind if '.' in kind else 'warmup.' + kind}"
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("warmup.PredictionLog"))


def read(directory):
    """Returns `(signature, inputs by name)` of each request in a SavedModel; fails on any field that is not known."""
    path = f"{directory}/assets.extra/tf_serving_warmup_requests"
    found = []
    for record in tf.data.TFRecordDataset(path).as_numpy_iterator():
        log = prediction_log().FromString(record)
        assert log.SerializeToString(deterministic=True) == record
        request = log.predict_log.request
        inputs = {each.key: tf.make_ndarray(each.value) for each in request.inputs}
        found.append((request.model_spec.signature_name, inputs))
    return found
