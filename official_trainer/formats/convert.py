"""LiteRT and ONNX of a SavedModel, converted in a process of its own: a converter that crashes ends no training.

Owns: the settings of TensorFlow's and tf2onnx's converters. Does not own: what is converted, and the comparison
(`writing.py`).

`python -m official_trainer.formats.convert REQUEST` reads a JSON file with `source` (a SavedModel), `inputs`
(an .npz of batches, which calibrate int8), `contract` and `files` (paths by format), and writes `errors`, a JSON file
with the message of each format that failed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from official_trainer import files
from official_trainer.formats import contract as contracts
from official_trainer.formats.readers import batches_in
from official_trainer.lazy import tf

_OPSET = 18
_SIGNATURE = "serving_default"


def to_tflite(source: str, kind: str, batches: list[dict[str, Any]]) -> bytes:
    """Returns a SavedModel as LiteRT; its inputs and outputs keep their types in every kind."""
    converter = tf.lite.TFLiteConverter.from_saved_model(source, signature_keys=[_SIGNATURE])
    if kind != "tflite":
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if kind == "tflite_float16":
        converter.target_spec.supported_types = [tf.float16]
    if kind == "tflite_int8":

        def examples() -> Iterator[tuple[str, dict[str, Any]]]:
            for batch in batches:
                yield _SIGNATURE, batch

        converter.representative_dataset = examples
        converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]  # else some stay float32
    converted: bytes = converter.convert()
    return converted


def to_onnx(source: str) -> bytes:
    """Returns a SavedModel as ONNX."""
    import onnx
    import tf2onnx

    loaded = tf.saved_model.load(source)  # it holds the variables of its functions
    function = loaded.signatures[_SIGNATURE]
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


def main(request_path: str) -> None:
    """Does what a request says, in this process."""
    request = json.loads(Path(request_path).read_text())
    source, batches, errors = request["source"], batches_in(request["inputs"]), {}
    wanted: Mapping[str, str] = request["files"]
    for kind, path in wanted.items():
        try:
            made = to_onnx(source) if kind == "onnx" else to_tflite(source, kind, batches)
            files.write_bytes_atomically(path, made)
            contracts.embed(path, request["contract"])
        except Exception as error:  # of any kind: a converter has its own
            errors[kind] = reason(error)
    Path(request["errors"]).write_text(json.dumps(errors))


if __name__ == "__main__":
    main(sys.argv[1])
