"""Predictions by an exported model: the same rows as those of the run, for the experiment's data.

Owns: batches of outputs of a file, in the form that those of a checkpoint have (`engine/inference.py`).
Does not own: reading data and writing rows (`runs/predict.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.engine.inference import Columns, Inference, joined, num_examples_of, numbered
from official_trainer.errors import UserError
from official_trainer.formats import contract as contracts
from official_trainer.formats import readers, samples
from official_trainer.formats.kinds import UnknownFileError, kind_of, refuse_missing
from official_trainer.formats.readers import Arrays
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
    return hashlib.sha256(json.dumps(_checksums(path), sort_keys=True).encode()).hexdigest()


def _checksums(directory: str) -> dict[str, str]:
    """Returns the checksum of each file in a folder by its path there."""
    checksums: dict[str, str] = {}
    for name in files.list_dir(directory):
        path = files.join(directory, name)
        if files.is_dir(path):
            checksums |= {f"{name}/{inner}": checksum for inner, checksum in _checksums(path).items()}
        else:
            checksums[name] = files.sha256(path)
    return checksums


def inference(path: str, trainer: Trainer) -> Any:
    """Returns the inference of a file; the task's `predict_step` calls a model of Keras, as that of a checkpoint.

    Raises:
      FormatError: the file cannot be used.
      UnknownFileError: its library cannot read it.
    """
    try:
        format_name = kind_of(path)
        if format_name == "weights":
            trainer.model.load_weights(path)
            return Inference(trainer.task, trainer.model, streams=trainer.context.streams)
        if format_name == "keras":
            return Inference(trainer.task, readers.load_keras(path), seed=trainer.config.runtime.seed)
        return FileInference(path, trainer)
    except UserError:
        raise
    except Exception as error:  # of the library of the format
        why = " ".join(str(error).split())
        raise UnknownFileError(f"{path} cannot be read: {why}; name a whole file of this format") from error


class FileInference:
    """The outputs of a file.

    Attributes:
      strategy: that of the data.
    """

    def __init__(self, path: str, trainer: Trainer) -> None:
        self._path, self._model, self.strategy = path, trainer.model, trainer.strategy
        self._contract, self._function = readers.opened(path)

    def batches(self, dataset: Any, first: int = 0) -> Iterator[tuple[int, Columns]]:
        """Yields what `Inference.batches` does.

        Raises:
          FormatError: the data are not what the file takes.
          OutputError: an output has no row for each example.
        """
        iterator = iter(dataset)
        for number, batch in numbered(lambda number: next(iterator), first):
            replica_batches = self.strategy.experimental_local_results(batch)
            counts = [int(num_examples_of(replica_batch)) for replica_batch in replica_batches]
            sized = zip(replica_batches, counts, strict=True)
            outputs = [self._outputs(replica_batch) for replica_batch, count in sized if count]
            columns = {name: [output[name] for output in outputs] for name in (outputs or [{}])[0]}
            yield number, joined(columns, [*filter(None, counts)], self._path)

    def _outputs(self, replica_batch: Any) -> Arrays:
        inputs = samples.arrays(self._model, features_and_labels(replica_batch)[0])
        contracts.check_inputs(self._path, self._contract, inputs)
        return self._function({row["name"]: inputs[row["name"]] for row in self._contract["inputs"]})
