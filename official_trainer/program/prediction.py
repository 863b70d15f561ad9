"""`predict`: a model's outputs for all examples of a call, in Keras's structure, on the engine's inference step.

Owns: making arrays from a source of batches, and calling callbacks. Does not own: the step and joining the parts of
replicas (`engine/inference.py`), or the meaning of arguments (`program.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from official_trainer.engine.inference import Inference
from official_trainer.engine.train_iterator import DatasetBuilder
from official_trainer.inputs import DataError, InputContext
from official_trainer.lazy import keras, tf
from official_trainer.program.callbacks import steps_between_calls
from official_trainer.program.data import Source
from official_trainer.tasks.variables import has_unbuilt_layers


class Prediction:
    """Predicts with one model, under the strategy in scope at construction."""

    def __init__(self, model: keras.Model, infer: Callable[[Any], Any], *, seed: int) -> None:
        """Takes the model, a function that returns its outputs for a batch (traced), and the seed of random numbers."""
        self._model, self._infer, self._seed = model, infer, seed
        self.is_traced = not model.run_eagerly
        self._inference = Inference(self, model, seed=seed, use_tf_function=self.is_traced)
        self._structure: Any = None

    def run(self, data: Source, steps: int | None, callbacks: Any) -> Any:
        """Returns the outputs for each example: arrays `[examples, …]` in the structure that the model returns.

        One batch at a time is on the device; its outputs are on the host before the next batch is read.

        Args:
          data: batches; only x is used.
          steps: number of batches; None for all.
          callbacks: a `keras.callbacks.CallbackList`.

        Raises:
          DataError: there is no batch.
          OutputError: an output has no row for each example.
        """
        found: list[list[Any]] = []
        count, done, every = steps or data.batches_per_epoch, 0, steps_between_calls(self._model)
        callbacks.on_predict_begin()
        batches = self._inference.batches(self._dataset(data, steps))
        while count is None or done < count:
            callbacks.on_predict_batch_begin(done)
            taken = list(itertools.islice(batches, every if count is None else min(every, count - done)))
            if not taken:
                break
            done += len(taken)
            found.append(_joined([list(columns.values()) for _, columns in taken]))
            callbacks.on_predict_batch_end(done - 1, {"outputs": self._packed(found[-1])})
        if not found:
            raise DataError("there is nothing to predict: the data has no batch")
        callbacks.on_predict_end()
        return self._packed(_joined(found))

    def _dataset(self, data: Source, steps: int | None) -> Any:
        builder = DatasetBuilder(_Data(data, steps), data.section, training=False, seed=self._seed)
        if has_unbuilt_layers(self._model):
            create_variables(self.inference_step, self._model, builder.element_spec())
        return builder.build()

    def inference_step(self, inputs: Any, model: keras.Model) -> dict[str, Any]:
        """Returns the model's outputs, named by their positions; traced."""
        outputs = self._infer(inputs[0]["batch"])
        self._structure = tf.nest.map_structure(lambda output: None, outputs)
        return {f"{place:06d}": output for place, output in enumerate(tf.nest.flatten(outputs))}

    def _packed(self, values: list[Any]) -> Any:
        return tf.nest.pack_sequence_as(self._structure, values)


class _Data:
    """The batches of a call, as a task builds them."""

    def __init__(self, data: Source, steps: int | None) -> None:
        self._data, self._steps = data, steps

    def build_inputs(self, params: Any, input_context: Any = None) -> tf.data.Dataset:
        """Returns batches in a dictionary, which the inference step does not take for (x, y)."""
        context = InputContext.adopt(input_context)
        limit = -1 if self._steps is None else self._steps * context.elements_per_step
        return self._data.build_inputs(params, context).take(limit).map(lambda *batch: ({"batch": batch},))


def create_variables(step: Callable[[Any, Any], Any], model: keras.Model, spec: Any) -> None:
    """Creates weights and metrics that need a first call, by tracing `step(batch, model)`, which never runs."""
    strategy = tf.distribute.get_strategy()

    def traced(batch: Any) -> None:
        strategy.run(step, args=(batch, model))

    tf.function(traced).get_concrete_function(spec)


def _joined(parts: list[list[Any]]) -> list[Any]:
    """Returns the concatenated rows of several batches, for each output."""
    return parts[0] if len(parts) == 1 else [np.concatenate(column) for column in zip(*parts, strict=True)]
