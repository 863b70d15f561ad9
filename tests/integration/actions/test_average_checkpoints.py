"""The mean of checkpoints and batch-norm statistics, against NumPy; and that a run does not notice."""

import functools
import shutil
import types

import numpy as np
import pytest
import tensorflow as tf

from official_trainer.actions.action import LoopState, Run
from official_trainer.actions.average_checkpoints import AverageCheckpointsConfig, AverageError
from official_trainer.actions.batch_norm import BatchNormError, BatchNormStatistics
from official_trainer.actions.schedule import ActionError
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config.optimization import EMAConfig
from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from official_trainer.tasks.random_streams import RandomStreams
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.cases import cases
from tests.support.runs import assert_same_checkpoint, values

INTERVAL = 4


class NormTask(toy.InMemory):
    """Two batch-norm layers, dropout between them, data shuffled in memory."""

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.BatchNormalization(name="first")(features)
        hidden = keras.layers.Dense(8, "tanh", name="dense")(hidden)
        hidden = keras.layers.Dropout(0.3)(hidden)
        hidden = keras.layers.BatchNormalization(name="second")(hidden)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))


do = toy.runs_of(  # the last step is no multiple of the checkpoint interval
    "norm_run", NormTask, train_steps=22, steps_per_loop=5, summary_interval=8, checkpoint_interval=INTERVAL,
    validation_interval=11, max_to_keep=1,
)  # fmt: skip


AVERAGE = "trainer.actions=[{type: average_checkpoints, last: 3, recalibrate_batch_norm: 4, export: true}]"


def trained(strategy, model_dir, task_cls=NormTask, steps=12, **options):
    """Returns a trainer after some steps, whose checkpoints at each interval are saved, and a view of its run."""
    config = toy.experiment(checkpoint_interval=INTERVAL, **options)
    trainer = toy.build(config, task_cls=task_cls, strategy=strategy)
    store = CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None)
    for step in range(INTERVAL, steps + 1, INTERVAL):
        trainer.train(INTERVAL)
        trainer.checkpoint_state.synchronize()
        trainer.checkpoint_state.before_save()
        store.save(step)
    return trainer, view(trainer, model_dir, store)


def view(trainer, model_dir, store):
    rows = []
    tracker = types.SimpleNamespace(log=lambda split, step, logs: rows.append((split, step, logs)), rows=rows)
    state = LoopState(step=int(trainer.global_step.numpy()))
    return Run(state=state, trainer=trainer, model_dir=model_dir, tracker=tracker, saved_steps=store.steps)


def parts(trainer):
    """Returns what every replica holds, of the model, the optimizer and the metrics of training."""
    metrics = [v for metric in [*trainer.train_metrics, trainer.train_loss] for v in metric.variables]
    variables = [*trainer.model.variables, *trainer.optimizer.variables(), *metrics]
    return [part.numpy() for variable in variables for part in getattr(variable, "values", (variable,))]


class PlainNormTask(NormTask):
    """The same in the order of the arrays, and without dropout, so that NumPy can follow."""

    build_inputs = toy.ToyTask.build_inputs

    def build_model(self):
        features = keras.Input((6,), name="features")
        hidden = keras.layers.BatchNormalization(name="first")(features)
        hidden = keras.layers.Dense(8, "tanh", name="dense")(hidden)
        hidden = keras.layers.BatchNormalization(name="second")(hidden)
        return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))


strategies = pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "mirrored2"))


def loaded(directory, step, task_cls=NormTask):
    """Returns the model's values in a checkpoint, in the order of its variables."""
    model = task_cls(None).build_model()
    tf.train.Checkpoint(model=model).read(f"{directory}/ckpt-{step}").expect_partial()
    return [variable.numpy() for variable in model.variables]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run with the action, and the same without."""
    folder = tmp_path_factory.mktemp("runs")
    do(folder / "with", AVERAGE)
    do(folder / "without", "trainer.max_to_keep=10", "trainer.export.at_end=false")
    return folder


def test_the_mean_is_that_of_the_last_checkpoints(runs):
    """G15: in float64, of the weights; the newest one is the model at that step."""
    mean = values(runs / "with" / "averaged", 22)
    parts = [values(runs / "without", step) for step in (16, 20, 22)]
    weights = [name for name in mean if name.startswith("model/") and "moving" not in name]
    assert len(weights) == 8
    for name in weights:
        expected = np.mean([part[name].astype(np.float64) for part in parts], axis=0).astype(np.float32)
        assert mean[name].tobytes() == expected.tobytes(), name
    statistics = [name for name in mean if "moving" in name]
    assert len(statistics) == 4
    assert all(mean[name].tobytes() != parts[-1][name].tobytes() for name in statistics)
    assert mean["global_step/.ATTRIBUTES/VARIABLE_VALUE"] == 22


def test_a_run_does_not_notice(runs):
    """G15: the same weights, slots, metrics and rows, bit for bit, as without."""
    assert_same_checkpoint(runs / "with", runs / "without", 22)
    both = [read_rows(f"{runs}/{name}/metrics.jsonl") for name in ("with", "without")]
    rows, plain = ([{**row, "time": 0} for row in found if row["split"] in ("train", "validation")] for found in both)
    assert rows == plain


def test_the_mean_is_evaluated_saved_and_exported(runs):
    """G15, T19: the same numbers from the row, the checkpoint and the SavedModel."""
    (row,) = [row for row in read_rows(f"{runs}/with/metrics.jsonl") if row["split"] == "averaged"]
    assert (row["step"], row["averaged_checkpoints"]) == (22, 3)
    serve = tf.saved_model.load(f"{runs}/with/export/averaged/22").signatures["serving_default"]
    logits = serve(features=tf.constant(toy.FEATURES))["logits"].numpy()
    loss = keras.losses.sparse_categorical_crossentropy(toy.LABELS, logits, from_logits=True).numpy().mean()
    np.testing.assert_allclose(loss, row["validation_loss"], rtol=1e-5)
    np.testing.assert_allclose((logits.argmax(1) == toy.LABELS).mean(), row["accuracy"], rtol=1e-6)


def test_checkpoints_that_count_are_kept(runs):
    """G15: as long as they may be needed, whatever max_to_keep says."""
    assert committed_steps(f"{runs}/with") == (12, 16, 20, 22)
    assert len(committed_steps(f"{runs}/without")) == 6


# Parts of it, on one replica and on two.


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory):
    """Returns, by strategy, a trainer after twelve steps, the folder of its checkpoints, and a view of its run."""

    @functools.cache
    def of(strategy):
        model_dir = str(tmp_path_factory.mktemp(strategy) / "run")
        return model_dir, *trained(strategy, model_dir)

    return of


@pytest.fixture
def off_interval(trained_once, strategy):
    """A trainer one step after its last checkpoint, as far as actions see: replicas have parts of their own there."""
    model_dir, trainer, run = trained_once(strategy)
    trainer.train_loop_begin()
    trainer.run_steps(1)
    run.tracker.rows.clear()
    run.state.step = 13
    return model_dir, trainer, run


@strategies
def test_all_variables_are_averaged_and_put_back(off_interval):
    """G15: statistics too, unless they are recalibrated; replicas get back each its own."""
    model_dir, trainer, run = off_interval
    before, last = parts(trainer), [v.numpy() for v in trainer.model.variables]
    action = AverageCheckpointsConfig(last=3).build()
    action.on_start(run)
    action.on_step(run)
    toy.assert_bitwise_equal(parts(trainer), before)
    checkpoints = [loaded(model_dir, 8), loaded(model_dir, 12), last]
    assert len(last) == 12
    for found, *each in zip(loaded(f"{model_dir}/averaged", 13), *checkpoints, strict=True):
        expected = np.mean([value.astype(np.float64) for value in each], axis=0).astype(np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=0)
    ((split, step, logs),) = run.tracker.rows
    assert (split, step, logs["averaged_checkpoints"]) == ("averaged", 13, 3)


def test_masked_places_do_not_count():
    """G15: as in the layer's own statistics, which leave them out."""
    features = keras.Input((4, 2))
    masked = keras.layers.Masking(mask_value=9.0)(features)
    model = keras.Model(features, keras.layers.BatchNormalization(name="norm")(masked))
    data = np.random.RandomState(3).randn(5, 4, 2).astype("float32")
    data[1:, 2:] = 9.0
    statistics = BatchNormStatistics(model, tf.distribute.get_strategy(), RandomStreams(model, 0))
    assert statistics.measure([tf.constant(data[:3]), tf.constant(data[3:])], 0) == 2
    statistics.assign()
    shown = data[(data != 9.0).all(-1)]
    np.testing.assert_allclose(model.get_layer("norm").moving_mean, shown.mean(0), rtol=1e-5)
    np.testing.assert_allclose(model.get_layer("norm").moving_variance, shown.var(0), rtol=1e-5)
    assert "call" not in vars(model.get_layer("norm"))


def test_images_under_mixed_precision_are_pooled_by_channel():
    """G15: the fused kernel; float16 activations, float32 statistics."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    image = keras.Input((4, 4, 3))
    model = keras.Model(image, keras.layers.BatchNormalization(name="norm")(image))
    data = np.random.RandomState(3).randn(6, 4, 4, 3).astype("float16").astype("float32") * 2 + 1
    data = data.astype("float16").astype("float32")
    statistics = BatchNormStatistics(model, tf.distribute.get_strategy(), RandomStreams(model, 0))
    statistics.measure(iter([tf.constant(data[:2]), tf.constant(data[2:])]), 0)
    statistics.assign()
    np.testing.assert_allclose(model.get_layer("norm").moving_mean, data.mean((0, 1, 2), np.float64), rtol=1e-6)
    np.testing.assert_allclose(model.get_layer("norm").moving_variance, data.var((0, 1, 2), np.float64), rtol=1e-6)


@strategies
def test_weights_come_back_when_something_fails(off_interval, monkeypatch):
    """G15: bit for bit, whatever it was."""
    model_dir, trainer, run = off_interval
    before = parts(trainer)
    action = AverageCheckpointsConfig(last=2, recalibrate_batch_norm=1, directory="failed").build()
    action.on_start(run)

    def fail(state=None):
        changed = parts(trainer)
        assert any(a.tobytes() != b.tobytes() for a, b in zip(changed, before, strict=True))
        raise OSError("the disk is full")

    monkeypatch.setattr(trainer, "eval_end", fail)
    with pytest.raises(OSError, match="the disk is full"):
        action.on_step(run)
    toy.assert_bitwise_equal(parts(trainer), before)
    assert committed_steps(f"{model_dir}/failed") == ()


@pytest.mark.parametrize("strategy", ["off"])
def test_fewer_checkpoints_are_averaged_and_damaged_ones_left_out(off_interval, model_dir, caplog):
    """G15: with a word about it."""
    shared, trainer, _ = off_interval
    shutil.copytree(shared, model_dir)
    run = view(trainer, model_dir, CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None))
    run.state.step = 13
    AverageCheckpointsConfig(last=5, evaluate=False, directory="early").build().on_step(run)
    assert "averaging 4 checkpoints instead of 5 at step 13: 4, 8, 12, 13" in caplog.text
    with open(f"{model_dir}/ckpt-12.data-00000-of-00001", "r+b") as file:
        file.truncate(10)
    AverageCheckpointsConfig(last=2, evaluate=False).build().on_step(run)
    assert "ckpt-12 is damaged and left out: ckpt-12.data-00000-of-00001 has 10 bytes" in caplog.text
    assert [logs["averaged_checkpoints"] for _, _, logs in run.tracker.rows] == [4, 1]
    toy.assert_bitwise_equal(loaded(f"{model_dir}/averaged", 13), [v.numpy() for v in trainer.model.variables])


def test_checkpoints_of_another_model_are_left_out(model_dir, caplog):
    """G15: where trainer.restore_allow_mismatch let a run go on with a changed model."""
    trained("off", model_dir, PlainNormTask, steps=4)

    class Wider(PlainNormTask):
        def build_model(self):
            features = keras.Input((6,), name="features")
            hidden = keras.layers.BatchNormalization(name="first")(features)
            hidden = keras.layers.Dense(9, "tanh", name="dense")(hidden)
            return keras.Model(features, keras.layers.Dense(3, name="logits")(hidden))

    trainer = toy.build(toy.experiment(checkpoint_interval=INTERVAL), task_cls=Wider)
    run = view(trainer, model_dir, CheckpointStore(model_dir, trainer.checkpoint, max_to_keep=None))
    run.state.step = 8
    AverageCheckpointsConfig(last=2, evaluate=False).build().on_step(run)
    assert "ckpt-4 is left out: it holds no dense/kernel:0" in caplog.text


@pytest.mark.parametrize("strategy", ["off"])
def test_fewer_batches_than_asked_for_are_used(off_interval, monkeypatch, caplog):
    """G15: with a word about it."""
    _, trainer, run = off_interval
    monkeypatch.setattr(trainer, "train_dataset", toy.examples(20).batch(10))
    AverageCheckpointsConfig(last=1, recalibrate_batch_norm=3, evaluate=False).build().on_step(run)
    assert "the training data holds 2 batches, not 3" in caplog.text
    monkeypatch.setattr(trainer, "train_dataset", toy.examples(0).batch(10))
    action = AverageCheckpointsConfig(last=1, recalibrate_batch_norm=3).build()
    with pytest.raises(BatchNormError, match="statistics of 2 batch-norm layers cannot be computed: the training data"):
        action.on_step(run)


@strategies
def test_statistics_are_the_pooled_mean_and_variance(strategy, model_dir):
    """G15: over three batches of the training data as one; each layer normalises by the batch its replica sees."""
    trainer, run = trained(strategy, model_dir, PlainNormTask)
    before = [v.numpy() for v in trainer.model.variables]
    action = AverageCheckpointsConfig(last=1, recalibrate_batch_norm=3, evaluate=False).build()
    action.on_start(run)
    action.on_step(run)
    names = [variable.name for variable in trainer.model.variables]
    found = dict(zip(names, loaded(f"{model_dir}/averaged", 12, PlainNormTask), strict=True))
    for variable, value in zip(trainer.model.variables, before, strict=True):
        if "moving" not in variable.name:
            assert found[variable.name].tobytes() == value.tobytes()
    weights = {name: value.astype(np.float64) for name, value in found.items()}
    examples = toy.FEATURES[:30].astype(np.float64)
    seen = []
    for shard in np.split(examples, 6 if strategy == "mirrored2" else 3):
        normalised = (shard - shard.mean(0)) / np.sqrt(shard.var(0) + 1e-3)
        normalised = normalised * weights["first/gamma:0"] + weights["first/beta:0"]
        seen.append(np.tanh(normalised @ weights["dense/kernel:0"] + weights["dense/bias:0"]))
    for layer, pooled in (("first", examples), ("second", np.concatenate(seen))):
        np.testing.assert_allclose(found[f"{layer}/moving_mean:0"], pooled.mean(0), rtol=2e-5, atol=1e-6)
        np.testing.assert_allclose(found[f"{layer}/moving_variance:0"], pooled.var(0), rtol=2e-5)


class UnseededTask(NormTask):
    """Shuffles in a way of its own, with a seed that TensorFlow draws."""

    def build_inputs(self, params, input_context=None):
        size = input_context.get_per_replica_batch_size(params.global_batch_size)
        dataset = toy.examples(toy.NUM_EXAMPLES)
        return dataset.shuffle(50).repeat().batch(size) if params.is_training else dataset.batch(size)


def test_the_data_of_the_run_is_not_touched(model_dir):
    """G15: neither the iterator that trains nor what TensorFlow draws next; and the batches are always the same."""
    trainer, run = trained("off", model_dir, UnseededTask, steps=4)
    other, _ = trained("off", f"{model_dir}-other", UnseededTask, steps=4)
    tf.random.set_seed(5)
    drawn = tf.random.uniform([3]).numpy(), tf.random.uniform([3]).numpy()
    action = AverageCheckpointsConfig(last=2, recalibrate_batch_norm=2).build()
    tf.random.set_seed(5)
    first = tf.random.uniform([3]).numpy()
    epoch, batch = trainer.train_iterator.epoch(4), next(trainer.train_iterator.first_batches())
    action.on_start(run)
    action.on_step(run)
    np.testing.assert_array_equal([first, tf.random.uniform([3]).numpy()], drawn)
    trainer.train(3)
    other.train(3)
    toy.assert_bitwise_equal(parts(trainer), parts(other))
    assert trainer.train_iterator.epoch(4) == epoch
    toy.assert_bitwise_equal(next(trainer.train_iterator.first_batches()), batch)


# What is refused.


def nothing_saved(trainer):
    return view(trainer, "", types.SimpleNamespace(steps=lambda: ()))


def test_a_model_without_batch_norm_is_refused_at_the_start():
    """G15: before the first step; frozen layers do not count, because training does not move them."""
    action = AverageCheckpointsConfig(recalibrate_batch_norm=2).build()
    with pytest.raises(BatchNormError, match=r"has no batch-norm layer that is trained.*leave recalib") as caught:
        action.on_start(nothing_saved(toy.build(toy.experiment())))
    assert caught.value.exit_code == ExitCode.CONFIG
    trainer = toy.build(toy.experiment(), task_cls=NormTask)
    trainer.model.get_layer("first").trainable = trainer.model.get_layer("second").trainable = False
    with pytest.raises(BatchNormError, match="so there is nothing to recalibrate"):
        action.on_start(nothing_saved(trainer))


def test_a_run_that_averages_already_is_refused_before_the_first_step(tmp_path):
    """G15, T13: evaluation could use one of them only."""
    ema = "trainer.optimizer_config.ema={average_decay: 0.9}"
    with pytest.raises(ActionError, match=r"failed in on_start at step 0: .*ema averages") as caught:
        do(tmp_path / "run", AVERAGE, ema)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert committed_steps(f"{tmp_path}/run") == ()
    trainer = toy.build(toy.experiment(ema=EMAConfig(average_decay=0.9)))
    with pytest.raises(AverageError, match="leave out one of the two"):
        AverageCheckpointsConfig().build().on_step(nothing_saved(trainer))
