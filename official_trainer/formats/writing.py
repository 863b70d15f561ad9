"""Files of other formats beside a SavedModel: written, read back in clean processes, compared with the model.

Owns: the order of that, the comparison and its limits, what `export.json` says of it, and `contract.json`: the name,
dtype and shape (null: any size) of the inputs and outputs, and what the task says they mean.
Does not own: converting (`convert.py`), reading (`readers.py`), that a folder is whole or absent (`tasks/export.py`).

The model itself, on the CPU, is what every file is compared with: GPUs round products of float32 more coarsely.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.formats import clean_process, convert, readers, samples
from official_trainer.formats.kinds import EXACT, NEEDS, QUANTISED, SIGNATURE, FormatError
from official_trainer.formats.readers import Arrays, value_text
from official_trainer.lazy import tf
from official_trainer.shown import first_few
from official_trainer.tasks import export
from official_trainer.tasks import keras as kerases
from official_trainer.user_code import during

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer
    from official_trainer.runs.job import Job

_logger = logging.getLogger(__name__)

_LEAST_RANGE = 1 / 20
"""Of an output in float32, in parts of its largest value: finer parts it does not tell apart."""


def beside(job: Job, trainer: Trainer) -> export.Beside:
    """Returns what writes the formats of a job's config beside a SavedModel, all of them or none."""
    settings = job.config.trainer.export
    formats = list(dict.fromkeys(settings.formats))

    def write(folder: str) -> Mapping[str, Any]:
        record, failures = Formats(trainer, folder, settings.max_difference).write(formats)
        if failures:
            lines = [f"{name}: {why}" for name, why in failures.items()]
            raise FormatError("\n  ".join(["nothing is exported, because of these formats:", *lines]))
        return record

    return write


class Formats:
    """The formats of one model."""

    def __init__(self, trainer: Trainer, folder: str, max_difference: float) -> None:
        """Takes the model, as it is in the trainer now.

        Args:
          trainer: task, model and data.
          folder: of a SavedModel, into which files go.
          max_difference: as in `trainer.export`.
        """
        self._trainer, self._task, self._model = trainer, trainer.task, trainer.model
        self._folder, self._max_difference = folder, max_difference
        self._features = samples.read(trainer)
        named = [samples.named(self._model, features) for features in self._features]
        self._function = samples.function_of(self._task, self._model, self._features[0])
        with tf.device("CPU:0"), export.from_initial_states(self._model):
            self._wanted: list[Arrays] = [readers.host(self._function(batch)) for batch in named]
        self._inputs: list[Arrays] = [readers.host(batch) for batch in named]
        specs = self._function.structured_input_signature[0][0], self._function.structured_outputs
        about: Mapping[str, Any] = {}
        if hasattr(self._task, "build_contract"):  # Model Garden's tasks have none
            with during("describing the model", task=self._task, method="build_contract"):
                about = self._task.build_contract(self._model)
        inputs, outputs = map(_described, specs)
        self._contract = {"inputs": inputs, "outputs": outputs, "about": about}

    def write(self, formats: Sequence[str]) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        """Writes and measures formats; none is in the folder if one of them fails.

        Returns:
          The part of `export.json`, and why formats failed, by their names.
        """
        if refused := self._refused(formats):
            return {"formats": {}}, refused
        _logger.info("writing and comparing %s", ", ".join(formats))
        beside = None if files.is_url(self._folder) else os.path.dirname(self._folder)
        measured: dict[str, dict[str, Any]] = {}
        with tempfile.TemporaryDirectory(dir=beside) as work:
            contract = json.dumps(self._contract, indent=1) + "\n"
            files.write_text_atomically(files.join(work, export.CONTRACT), contract)
            failures = self._converted([name for name in formats if name in NEEDS], work)
            for name in (name for name in formats if name not in failures):
                try:
                    measured[name] = self._measured(name, work)
                except FormatError as error:
                    failures[name] = str(error)
            if not failures:
                written = [export.FORMAT_FILES[name] for name in measured if name != "saved_model"]
                for file in (export.CONTRACT, *written):
                    files.copy(files.join(work, file), files.join(self._folder, file))
        examples = sum(len(next(iter(batch.values()))) for batch in self._inputs)
        return {"examples": examples, "formats": measured}, failures

    def _refused(self, formats: Sequence[str]) -> dict[str, str]:
        """Returns why formats cannot be written, before any is."""
        states = kerases.recurrent_states(self._model)
        if states and (stateless := {"onnx", "tflite_int8"} & {*formats}):
            why = "it keeps no state of a layer from one call to the next; build the model with stateful=False"
            return dict.fromkeys(sorted(stateless), why)
        graph = self._function.graph.as_graph_def()
        nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
        if "onnx" in formats and (lookups := [node.name for node in nodes if node.op.startswith("LookupTable")]):
            what = f"ONNX has no tables, and the model looks values up in one: {first_few(lookups)}"
            return {"onnx": f"{what}; look values up in build_inputs, and let the model take the numbers"}
        return {}

    def _converted(self, formats: Sequence[str], work: str) -> dict[str, str]:
        """Converts what needs a converter; returns why some could not be."""
        if not formats:
            return {}
        calibration: list[Arrays] = []
        if "tflite_int8" in formats:  # on other examples than those that it is compared on
            training = samples.read(self._trainer, "train_data")
            calibration = [samples.arrays(self._model, features) for features in training]
        source = files.join(work, "source")
        export.write_functions(source, self._model, {SIGNATURE: self._function})
        paths = {name: files.join(work, export.FORMAT_FILES[name]) for name in formats}
        try:
            failures = clean_process.call(convert.write, source, calibration, paths)
        except FormatError as error:  # the process crashed
            return dict.fromkeys(formats, str(error))
        if failures and self._trainer.config.runtime.mixed_precision_dtype == "bfloat16":
            fix = "the model computes in bfloat16; export with runtime.mixed_precision_dtype=float32"
            failures = {name: f"{fix}. {why}" for name, why in failures.items()}
        return failures

    def _measured(self, name: str, work: str) -> dict[str, Any]:
        """Returns what `export.json` says of a format, whose file is read back in a clean process.

        Raises:
          FormatError: it cannot be written or read, or differs more than it may.
        """
        path = self._folder if name == "saved_model" else files.join(work, export.FORMAT_FILES[name])
        if name == "weights":
            self._save(path)
            self._check_values(clean_process.call(readers.values_in, path))
            return {**_file(path), "difference": {}, "limit": 0.0}
        inputs: Sequence[Arrays] = self._inputs
        wanted: Sequence[Arrays] = self._wanted
        about: dict[str, Any] = {}
        if name == "saved_model":
            function = export.signatures_of(self._task, self._model)[0].get(SIGNATURE)
            inputs_and_outputs = None
            if function is not None:
                with export.from_initial_states(self._model):
                    inputs_and_outputs = samples.for_signature(function, self._inputs)
            if inputs_and_outputs is None:
                return {"not_compared": "it has no serving_default that takes features or random numbers"}
            inputs, wanted = inputs_and_outputs
            about = {} if inputs is self._inputs else {"compared_on": "random inputs of its signature"}
        elif name == "keras":  # it holds the model without the task's predict_step
            call = readers.of_keras(self._model, self._features[0])
            with export.from_initial_states(self._model):
                wanted = [call(batch) for batch in inputs]
            self._save(path)
        try:
            outputs = clean_process.call(readers.outputs, path, inputs)
        except FormatError as error:
            raise FormatError(f"it cannot be read back: {error}") from error
        if name != "saved_model":
            about = _file(path)
        return {**about, **self._compared(name, wanted, outputs)}

    def _save(self, path: str) -> None:
        try:
            if path.endswith(".keras"):
                self._model.save(path)
            else:
                self._model.save_weights(path)
        except Exception as error:  # of Keras, or of the user's get_config
            raise FormatError(f"Keras cannot save it: {type(error).__name__}: {error}") from error

    def _check_values(self, values: Sequence[str]) -> None:
        unmatched = Counter(values)
        variables = kerases.of(self._model).variables(self._model)
        missing = []
        for variable in variables:
            text = value_text(variable.numpy())
            if not unmatched[text]:
                missing.append(variable.name)
            unmatched -= Counter([text])
        if missing:
            what = f"Keras left out {len(missing)} of {len(variables)} arrays of the model: {first_few(missing)}"
            raise FormatError(f"{what}; it does not save layers in lists of lists, for example")

    def _compared(self, name: str, wanted: Sequence[Arrays], outputs: Sequence[Arrays]) -> dict[str, Any]:
        """Returns how far the outputs of a file are from those of the model.

        Raises:
          FormatError: further than its format may.
        """
        import numpy as np

        is_quantised = name in QUANTISED
        least = 0.0 if is_quantised else _LEAST_RANGE
        difference = {
            output: differences([batch[output] for batch in wanted], [batch[output] for batch in outputs], least=least)
            for output in wanted[0]
            if all(output in batch for batch in outputs)
        }
        if absent := [output for output in wanted[0] if output not in difference]:
            raise FormatError(f"it has no output {', '.join(absent)}; it has {', '.join(outputs[0])}")
        limit = self._max_difference if is_quantised else EXACT
        which = "mean" if is_quantised else "max"
        for output, values in difference.items():
            if values[which] > limit:
                fix = "; trainer.export.max_difference allows more" if is_quantised else ""
                numbers = np.concatenate([np.ravel(batch[output]) for batch in wanted])
                if numbers.dtype.kind == "f" and (count := np.count_nonzero(~np.isfinite(numbers))):
                    fix = f"; {count:,} of the {numbers.size:,} numbers that the model itself computes are not finite"
                raise FormatError(
                    f"its output {output!r} differs from the model's by {values[which]:.2g} of its range ({which}), "
                    f"and {limit:g} is allowed{fix}"
                )
        return {"difference": difference, "limit": limit, "limit_of": which}


def _file(path: str) -> dict[str, Any]:
    return {"file": files.base_name(path), "bytes": files.size_bytes(path)}


def differences(wanted: Sequence[Any], outputs: Sequence[Any], *, least: float) -> dict[str, float]:
    """Returns how far arrays are from those of the model, as `max` and `mean`, in parts of their range.

    Texts and truth values differ by 1 where they are not equal. NaN is equal to NaN. Arrays of other shapes differ by
    infinity, and numbers one of which is not finite.

    Args:
      wanted: of the model.
      outputs: of the file.
      least: how small a range may be, in parts of the largest value.
    """
    import numpy as np

    if any(a.shape != b.shape for a, b in zip(wanted, outputs, strict=True)):
        return {"max": float("inf"), "mean": float("inf")}
    a, b = (np.concatenate([np.ravel(array) for array in arrays]) for arrays in (wanted, outputs))
    if not a.size:
        return {"max": 0.0, "mean": 0.0}
    if a.dtype.kind in "bOSU":
        apart = (a != b).astype(float)
        return {"max": float(apart.max()), "mean": float(apart.mean())}
    a, b = a.astype(np.float64), b.astype(np.float64)
    finite = a[np.isfinite(a)] if np.isfinite(a).any() else np.zeros(1)
    largest = float(np.abs(finite).max())
    span = max(float(np.ptp(finite)), largest * least) or largest or 1.0
    with np.errstate(invalid="ignore"):  # infinities are equal, and have no difference
        apart = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b)) / span
    apart[np.isnan(apart)] = np.inf
    return {"max": float(apart.max()), "mean": float(apart.mean())}


def _described(specs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns what a contract says of the `TensorSpec`s of a function's inputs or outputs."""
    rows = []
    for name, spec in specs.items():
        shape = None if spec.shape.rank is None else spec.shape.as_list()
        rows.append({"name": name, "dtype": spec.dtype.name, "shape": shape})
    return rows
