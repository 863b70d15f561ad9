"""LiteRT and ONNX of a SavedModel.

Owns: the settings of TensorFlow's and tf2onnx's converters, the reason why one fails. Does not own: what is converted,
and the comparison (`writing.py`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.formats.kinds import SIGNATURE
from official_trainer.formats.readers import Arrays
from official_trainer.lazy import tf

_OPSET = 18


def to_tflite(source: str, kind: str, batches: Sequence[Arrays]) -> bytes:
    """Returns a SavedModel as LiteRT; its inputs and outputs keep their types in every kind."""
    converter = tf.lite.TFLiteConverter.from_saved_model(source, signature_keys=[SIGNATURE])
    if kind != "tflite":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "tflite_float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind == "tflite_int8":

        def examples() -> Iterator[tuple[str, Arrays]]:
            for batch in batches:
                yield SIGNATURE, batch

        converter.representative_dataset = examples
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]  # else some stay float32
    converted: bytes = converter.convert()
    return converted


def to_onnx(source: str) -> bytes:
    """Returns a SavedModel as ONNX."""
    import onnx
    import tf2onnx

    loaded = tf.saved_model.load(source)  # it holds the variables of its functions
    function = loaded.signatures[SIGNATURE]
    specs = dict(function.structured_input_signature[1])
    whole = tf.function(lambda features: function(**features), input_signature=[specs])
    model, _ = tf2onnx.convert.from_function(
        whole, input_signature=[specs], opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
    )
    traced = whole.get_concrete_function(specs)
    # Constants that the model keeps, such as those of a Normalization, would be inputs of the file.
    captured = traced.captured_inputs
    for tensor, value in zip(traced.inputs[len(traced.inputs) - len(captured) :], captured, strict=True):
        taken = [each for each in model.graph.input if each.name == tensor.name]
        for each in taken:
            model.graph.input.remove(each)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), tensor.name))
    found: bytes = model.SerializeToString()
    return found


def _erfc(graph: Any, node: Any, name: str, args: Any) -> None:
    """Writes TensorFlow's Erfc, of an exact GELU, which ONNX has not, as 1 - Erf."""
    import numpy as np

    shapes, dtypes, outputs = node.output_shapes, node.output_dtypes, list(node.output)
    one = graph.make_const(f"{node.name}/one", np.array(1.0, np.float32)).output[0]
    erf = graph.make_node("Erf", list(node.input), shapes=shapes, dtypes=dtypes).output[0]
    graph.remove_node(node.name)
    graph.make_node("Sub", [one, erf], name=node.name, outputs=outputs, shapes=shapes, dtypes=dtypes)


def reason(error: BaseException) -> str:
    """Returns the line of a converter's message that says what it cannot convert."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    if "TensorListReserve" in text:
        return "LiteRT has no recurrent layer whose state has any batch size; build the layer with unroll=True"
    for pattern in (
        r"(?:Flex|TF Select|Custom) ops: ([^\n]*)",
        r"error: (failed to legalize[^\n]*)",
        r"error: ([^\n]*)",
    ):
        if found := re.search(pattern, text):
            lead = "needs operations that LiteRT has not: " if "ops" in pattern else ""
            return f"{lead}{found[1].strip()}"[:300]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[-1] if lines else ''}"[:300]


def write(source: str, batches: Sequence[Arrays], paths: Mapping[str, str]) -> dict[str, str]:
    """Writes formats of a SavedModel; returns why some could not be, by their names.

    Args:
      source: the SavedModel.
      batches: of its inputs, which calibrate int8.
      paths: of the files, by format.
    """
    errors = {}
    for kind, path in paths.items():
        try:
            files.write_bytes_atomically(path, to_onnx(source) if kind == "onnx" else to_tflite(source, kind, batches))
        except Exception as error:  # of any kind: a converter has its own
            errors[kind] = reason(error)
    return errors
