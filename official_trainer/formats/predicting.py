"""Predictions by an exported model: the same rows as those of the run, for the experiment's data.

Owns: batches of outputs of a file, in the form that those of a checkpoint have (`engine/inference.py`).
Does not own: reading data and writing rows (`runs/predict.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.engine.inference import Columns, Inference, joined, num_examples_of, numbered
from official_trainer.formats import contract as contracts
from official_trainer.formats import readers, samples
from official_trainer.formats.kinds import SIGNATURE, FormatError, kind_of, refuse_missing
from official_trainer.formats.readers import Arrays, Function
from official_trainer.tasks import export
from official_trainer.tasks.task import features_and_labels

if TYPE_CHECKING:
    from official_trainer.engine.trainer import Trainer


def digest(path: str) -> str:
    """Returns what is the same for the same model.

    Raises:
      UnknownFileError: there is none.
      FormatError: its library is not installed.
    """
    if refuse_missing(path) != "saved_model":
        return files.sha256(path)
    return hashlib.sha256(json.dumps(export.checksums(path), sort_keys=True).encode()).hexdigest()


def inference(path: str, trainer: Trainer, section: str) -> Any:
    """Returns the inference of a file; the task's `predict_step` calls a model of Keras, as that of a checkpoint.

    Raises:
      FormatError: the contract of the file is not that of the task and of the first batch of this data section.
    """
    kind, contract = kind_of(path), contracts.read(path)
    contracts.check_task(path, contract, contracts.said_by(trainer.task, trainer.model))
    (features, _), *_ = samples.read(trainer, section, batches=1)
    inputs = samples.arrays(trainer.model, features)
    contracts.check_inputs(path, contract, inputs)
    contracts.warn_of_scale(path, contract, inputs)
    if kind == "weights":
        trainer.model.load_weights(path)
        return Inference(trainer.task, trainer.model, streams=trainer.context.streams)
    if kind == "keras":
        return Inference(trainer.task, readers.load_keras(path), seed=trainer.config.runtime.seed)
    found = readers.signatures(path)
    if SIGNATURE not in found:
        raise FormatError(f"{path} has no {SIGNATURE}; it has {', '.join(found)}; name a file of another format")
    return FileInference(path, *found[SIGNATURE], trainer)


class FileInference:
    """The outputs of a file.

    Attributes:
      strategy: that of the data.
    """

    def __init__(self, path: str, contract: contracts.Contract, function: Function, trainer: Trainer) -> None:
        self._path, self._contract, self._function = path, contract, function
        self._model, self.strategy = trainer.model, trainer.strategy

    def batches(
        self,
        dataset: Any,
        first: int = 0,
        waiting: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Iterator[tuple[int, Columns]]:
        """Yields what `Inference.batches` does.

        Raises:
          FormatError: the data are not what the file takes.
          OutputError: an output has no row for each example.
        """
        iterator = iter(dataset)
        for number, batch in numbered(lambda number: next(iterator), first, waiting):
            parts = self.strategy.experimental_local_results(batch)
            counts = [int(num_examples_of(part)) for part in parts]
            outputs = [self._outputs(part) for part, count in zip(parts, counts, strict=True) if count]
            if outputs:
                columns = {name: [each[name] for each in outputs] for name in outputs[0]}
                yield number, joined(columns, [*filter(None, counts)], self._path)

    def _outputs(self, part: Any) -> Arrays:
        inputs = samples.arrays(self._model, features_and_labels(part)[0])
        contracts.check_inputs(self._path, self._contract, inputs)
        return self._function({row["name"]: inputs[row["name"]] for row in self._contract["inputs"]})
