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


def to_tflite(source: str, format_name: str, batches: Sequence[Arrays]) -> bytes:
    """Returns a SavedModel as one of the formats of LiteRT; inputs and outputs keep their types in all of them."""
    converter = tf.lite.TFLiteConverter.from_saved_model(source, signature_keys=[SIGNATURE])
    if format_name != "tflite":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if format_name == "tflite_float16":
        converter.target_spec.supported_types = [tf.float16]
    if format_name == "tflite_int8":

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
    call = tf.function(lambda features: function(**features), input_signature=[specs])
    model, _ = tf2onnx.convert.from_function(
        call, input_signature=[specs], opset=_OPSET, custom_op_handlers={"Erfc": (_erfc, [])}
    )
    traced = call.get_concrete_function(specs)
    # Constants that the model keeps, such as those of a Normalization, would be inputs of the file.
    captured = traced.captured_inputs
    for tensor, value in zip(traced.inputs[len(traced.inputs) - len(captured) :], captured, strict=True):
        for constant in [graph_input for graph_input in model.graph.input if graph_input.name == tensor.name]:
            model.graph.input.remove(constant)
            model.graph.initializer.append(onnx.numpy_helper.from_array(value.numpy(), tensor.name))
    serialized: bytes = model.SerializeToString()
    return serialized


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
        if match := re.search(pattern, text):
            lead = "needs operations that LiteRT has not: " if "ops" in pattern else ""
            return f"{lead}{match[1].strip()}"[:300]
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
    for format_name, path in paths.items():
        try:
            content = to_onnx(source) if format_name == "onnx" else to_tflite(source, format_name, batches)
            files.write_bytes_atomically(path, content)
        except Exception as error:  # a converter raises errors of its own
            errors[format_name] = reason(error)
    return errors
