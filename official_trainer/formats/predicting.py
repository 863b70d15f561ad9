"""Predictions by an exported model: the same rows as those of the run, for the experiment's data.

Owns: batches of outputs of a file, in the form that those of a checkpoint have (`engine/inference.py`).
Does not own: reading data and writing rows (`runs/predict.py`).
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.engine.inference import Columns, Inference
from official_trainer.formats import contract as contracts
from official_trainer.formats import samples
from official_trainer.formats.kinds import kind_of, refuse_missing
from official_trainer.formats.readers import Reader, load_keras
from official_trainer.lazy import tf
from official_trainer.tasks import export

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
    found = hashlib.sha256()
    for folder in (path, files.join(path, "variables")):
        for name in sorted(files.list_dir(folder)):
            if name != export.CARD and files.is_file(files.join(folder, name)):
                found.update(files.sha256(files.join(folder, name)).encode())
    return found.hexdigest()


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
        return Inference(trainer.task, load_keras(path), seed=trainer.config.runtime.seed)
    return FileInference(Reader(path), trainer)


class FileInference:
    """The outputs of a file.

    Attributes:
      strategy: that of the data.
    """

    def __init__(self, reader: Reader, trainer: Trainer) -> None:
        self._reader, self._model, self.strategy = reader, trainer.model, trainer.strategy

    def batches(
        self,
        dataset: Any,
        first: int = 0,
        waiting: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> Iterator[tuple[int, Columns]]:
        """Yields what `Inference.batches` does.

        Raises:
          FormatError: the data are not what the file takes.
        """
        import numpy as np

        iterator, number = iter(dataset), first
        while True:
            try:
                with waiting():
                    batch = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            parts = []
            for part in self.strategy.experimental_local_results(batch):
                features = part[0] if isinstance(part, tuple) and len(part) == 2 else part
                inputs = samples.arrays(self._model, features)
                if all(len(value) for value in inputs.values()):
                    parts.append(self._reader(inputs))
            if parts:
                yield number, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            number += 1
