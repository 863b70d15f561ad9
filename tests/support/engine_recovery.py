"""A task whose batches tests choose, for whole runs whose loss is not finite; and what these runs leave behind."""

import numpy as np
import pytest
import tensorflow as tf
from official.modeling import optimization as garden_optimization

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy

BAD_STEP = 37
"""Step whose batch holds a value that is not a number."""


class Stream:
    """What the task reads; tests put batches into it, and take them out."""

    bad_index: int | None = BAD_STEP - 1
    bad_too: tuple[int, ...] = ()
    loud: tuple[int, ...] = ()
    without: tuple[int, ...] = ()
    is_first_stage = False


def batches():
    """A hundred and twenty batches in a fixed order, one of them bad."""
    for index in range(120):
        rows = np.arange(index * 10, index * 10 + 10) % toy.NUM_EXAMPLES
        features = toy.FEATURES[rows].copy()
        if index == Stream.bad_index or index in Stream.bad_too:
            features[3, 2] = np.nan
        if index in Stream.loud:
            features[3, 2] = 1e6
        if index not in Stream.without:
            yield features, toy.LABELS[rows]


class BadBatchTask(toy.ToyTask):
    """The toy task on batches that tests choose; its first layer is frozen in a first stage."""

    def build_model(self):
        model = super().build_model()
        model.layers[1].trainable = not Stream.is_first_stage
        return model

    def build_inputs(self, params, input_context=None):
        if not params.is_training:
            return super().build_inputs(params, input_context)
        features, labels = (np.concatenate(part) for part in zip(*batches(), strict=True))
        options = tf.data.Options()
        options.autotune.enabled = False
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        return tf.data.Dataset.from_tensor_slices((features, labels)).batch(size).with_options(options)

    def train_step(self, inputs, model, optimizer, metrics=None):
        logs = super().train_step(inputs, model, optimizer, metrics)
        loud = tf.reduce_max(tf.abs(inputs[0]))  # a batch that is loud has a large loss, and nothing else
        return {**logs, self.loss: logs[self.loss] + tf.nn.relu(loud - 100.0)}


do = toy.runs_of(
    "bad_batch", BadBatchTask, train_steps=60, summary_interval=10, checkpoint_interval=10, validation_interval=30,
    steps_per_loop=1000, export=toy.NO_EXPORT,
)  # fmt: skip


def choose_batches(monkeypatch):
    """Returns the stream for one test: one batch is bad, and none is missing."""
    monkeypatch.setattr(Stream, "bad_index", BAD_STEP - 1)
    for name in ("bad_too", "loud", "without"):
        monkeypatch.setattr(Stream, name, ())
    monkeypatch.setattr(Stream, "is_first_stage", False)
    return Stream


COSINE = "trainer.optimizer_config.learning_rate={type: cosine, cosine: {initial_learning_rate: 0.02, decay_steps: 99}}"
RATES = {
    "constant": (),
    "schedule": (COSINE,),
    "mirrored": (COSINE, "runtime.distribution_strategy=mirrored"),
    "warmup": ("trainer.optimizer_config.warmup={type: linear, linear: {warmup_steps: 50}}",),
    "float16": ("runtime.mixed_precision_dtype=float16", "runtime.loss_scale=8"),
    "experimental": ("trainer.optimizer_config.warmup={type: linear, linear: {warmup_steps: 50}}",),
}
HALVED = ("trainer.recovery_max_trials=2", "trainer.recovery_learning_rate_scale=0.5")


def new_optimizer(task, config, runtime):
    factory = garden_optimization.OptimizerFactory(config)
    return factory.build_optimizer(factory.build_learning_rate(), use_legacy_optimizer=False)


def rates(model_dir):
    rows = read_rows(f"{model_dir}/metrics.jsonl")
    return {row["step"]: row["learning_rate"] for row in rows if row["split"] == "train"}


def assert_batch_is_found(model_dir, strategy):
    """Runs into the bad batch; it must be found, and written down with the tensors of its step."""
    with pytest.raises(
        NonFiniteError,
        match=rf"loss is nan.*\nthe batch of step {BAD_STEP} is the first with such a loss; it .*step-{BAD_STEP}",
    ) as caught:
        do(model_dir, f"runtime.distribution_strategy={strategy}")
    shape, replica = ("5,6", ", on replica 0") if strategy == "mirrored" else ("10,6", "")
    assert f"\n  features float32[{shape}]: 1 value is nan in column 2, in row 3{replica}\n" in str(caught.value)
    assert "BadBatchTask.build_inputs yields them, at tests/support/engine_recovery.py:" in str(caught.value)
    assert caught.value.bad_step == BAD_STEP
    assert committed_steps(model_dir) == (10, 20, 30)
    with np.load(f"{model_dir}/non_finite/step-{BAD_STEP}/batch.npz") as batch:
        assert np.isnan(batch["replica_0.features"][3, 2])
    assert ("train", 60) not in {(row["split"], row["step"]) for row in read_rows(f"{model_dir}/metrics.jsonl")}
