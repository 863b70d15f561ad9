import json
import logging
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tf_keras as keras
from official.modeling.optimization import ema_optimizer

from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import CheckpointError, RunFacts
from official_trainer.checkpoints.restore import read_exactly, read_init_checkpoint
from official_trainer.checkpoints.store import CheckpointStore, StoreOptions
from official_trainer.errors import ExitCode
from tests.support.cases import cases
from tests.support.chaos.tiny import read_newest
from tests.support.checkpoint_damage import flipped as flip

OPTIMIZERS = {
    "legacy_adam": lambda: keras.optimizers.legacy.Adam(1e-2),
    "legacy_momentum": lambda: keras.optimizers.legacy.SGD(keras.optimizers.schedules.CosineDecay(0.1, 10), 0.9),
    "new_adam": lambda: keras.optimizers.Adam(1e-2),
    "legacy_loss_scale": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.legacy.Adam(1e-2)),
    "new_loss_scale": lambda: keras.mixed_precision.LossScaleOptimizer(keras.optimizers.Adam(1e-2)),
    "ema": lambda: ema_optimizer.ExponentialMovingAverage(keras.optimizers.legacy.Adam(1e-2)),
}


def functional():
    inputs = keras.Input((4,))
    block = keras.Sequential(
        [keras.layers.Dense(3, activation="relu"), keras.layers.BatchNormalization()], name="block"
    )
    hidden = block(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(hidden))


class Net(keras.Model):
    """A subclassed model, so that attribute names are the paths in its checkpoints."""

    def __init__(self, hidden="hidden", units=3, head=2, layers=1):
        super().__init__()
        self.name_of_hidden = hidden
        setattr(self, hidden, [keras.layers.Dense(units) for _ in range(layers)])
        self.head = keras.layers.Dense(head, name="head")
        self(tf.zeros((1, 4)))

    def call(self, inputs):
        for layer in getattr(self, self.name_of_hidden):
            inputs = layer(inputs)
        return self.head(inputs)


class Program:
    """A model with its optimizer and step, as a trainer has them."""

    def __init__(self, build_model=functional, optimizer="new_adam", build=True):
        self.model = build_model()
        self.optimizer = OPTIMIZERS[optimizer]()
        self.global_step = tf.Variable(0, dtype=tf.int64)
        if optimizer == "ema":
            self.optimizer.shadow_copy(self.model)
        if build:
            variables = self.model.trainable_variables
            create = getattr(self.optimizer, "_create_all_weights", None) or self.optimizer.build
            create(variables)
        self.checkpoint = tf.train.Checkpoint(global_step=self.global_step, model=self.model, optimizer=self.optimizer)

    def train(self, steps):
        for _ in range(steps):
            with tf.GradientTape() as tape:
                features = tf.random.stateless_normal((8, 4), seed=(1, int(self.global_step)))
                loss = tf.reduce_mean(self.model(features, training=True) ** 2)
            variables = self.model.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
            self.global_step.assign_add(1)
        return self

    def values(self):
        """Everything a checkpoint has to bring back, in an order that only depends on the program."""
        optimizer = self.optimizer.variables
        variables = [*self.model.variables, *(optimizer() if callable(optimizer) else optimizer), self.global_step]
        if hasattr(self.optimizer, "loss_scale"):
            variables.append(self.optimizer.loss_scale)
        return [np.asarray(variable) for variable in variables]

    def fill(self, value):
        for variable in [*self.model.variables, self.global_step]:
            variable.assign(tf.cast(tf.fill(variable.shape, value), variable.dtype))
        return self

    def store(self, directory, **options):
        return CheckpointStore(str(directory), self.checkpoint, **{"max_to_keep": 5, **options})


def net_program(**options):
    return Program(lambda: Net(**options))


def assert_same(actual, expected):
    assert len(actual) == len(expected)
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_array_equal(left, right)


def in_bytes(value):
    return value.shape, value.dtype.name, value.tobytes()


def names(directory):
    return sorted(os.listdir(directory))


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    directory = tmp_path_factory.mktemp("written") / "run"
    program = Program()
    store = program.store(directory)
    for step in (1, 2, 3):
        program.fill(step)
        store.save(step)
    return directory


@pytest.fixture
def saved(written, model_dir):
    """A directory with whole checkpoints of steps 1 to 3; weights are filled with the step."""
    shutil.copytree(written, model_dir)
    return model_dir


# Saving and what is written.


def test_the_manifest_tells_what_a_checkpoint_holds(model_dir):
    """N3: sizes, checksums, versions and the caller's own data are in the commit mark."""
    store = Program().store(model_dir, run=RunFacts(experiment="digits", commit="abc"))
    store.save(7, {"best": 0.5})
    assert manifest.read(model_dir, 7).step == 7
    assert names(model_dir) == ["checkpoint", "ckpt-7.data-00000-of-00001", "ckpt-7.index", "ckpt-7.manifest.json"]
    on_disk = json.loads(pathlib.Path(model_dir, "ckpt-7.manifest.json").read_text())
    assert on_disk["format_version"] == 1
    facts = {"experiment": "digits", "config": None, "gin": {}, "commit": "abc", "data": None}
    assert on_disk["run"] == {**facts, "validation_sources": [], "last_row": None}
    assert manifest.read(model_dir, 7).run == RunFacts(experiment="digits", commit="abc", validation_sources=[])
    assert on_disk["extra"] == {"best": 0.5}
    assert set(on_disk["versions"]) == {"python", "tensorflow", "keras", "tf_keras", "official_trainer"}
    assert set(on_disk["files"]) == {"ckpt-7.data-00000-of-00001", "ckpt-7.index"}
    for name, file in on_disk["files"].items():
        assert file["size_bytes"] == os.path.getsize(os.path.join(model_dir, name))


def test_other_tools_find_the_newest_checkpoint(saved):
    """T20: TensorFlow's pointer names the committed checkpoints."""
    state = tf.train.get_checkpoint_state(saved)
    assert tf.train.latest_checkpoint(saved) == os.path.join(saved, "ckpt-3")
    assert [os.path.basename(path) for path in state.all_model_checkpoint_paths] == ["ckpt-1", "ckpt-2", "ckpt-3"]
    status = Program().checkpoint.read(tf.train.latest_checkpoint(saved))
    status.assert_existing_objects_matched()


def test_a_committed_step_is_written_once_unless_asked(saved):
    program = Program().fill(9)
    store = program.store(saved)
    store.save(3)
    assert np.all(np.asarray(tf.train.load_variable(store.prefix(3), "global_step/.ATTRIBUTES/VARIABLE_VALUE")) == 3)
    store.save(3, overwrite=True)
    assert np.all(np.asarray(tf.train.load_variable(store.prefix(3), "global_step/.ATTRIBUTES/VARIABLE_VALUE")) == 9)
    assert store.steps() == (1, 2, 3)


# Restoring.


@pytest.mark.parametrize(
    ("optimizer", "build"),
    # Weight averaging creates its variables with the program (`shadow_copy`), so it is always built.
    cases(
        [*((name, True) for name in OPTIMIZERS), *((name, False) for name in OPTIMIZERS if name != "ema")],
        ("ema", True),
        ("new_loss_scale", True),
        ("legacy_loss_scale", False),
    ),
)
def test_everything_comes_back_bit_for_bit(model_dir, optimizer, build):
    """N4: weights, statistics, slots and counters; and training goes on as if it had never stopped."""
    program = Program(optimizer=optimizer).train(3)
    program.store(model_dir).save(3)
    at_save = program.values()
    program.train(2)

    fresh = Program(optimizer=optimizer, build=build)
    report = fresh.store(model_dir).restore()
    assert report.step == 3
    assert report.is_exact
    if build:
        assert not report.deferred
        assert_same(fresh.values(), at_save)
    fresh.train(2)
    # An optimizer that was built late lists its variables in another order.
    assert sorted(map(in_bytes, fresh.values())) == sorted(map(in_bytes, program.values()))


def test_unbuilt_optimizers_are_counted_as_deferred(model_dir):
    Program(optimizer="legacy_adam").train(1).store(model_dir).save(1)
    report = Program(optimizer="legacy_adam", build=False).store(model_dir).restore()
    assert len(report.deferred) == 5 + 2 * 6  # hyperparameters, and two slots for each trainable variable
    assert "17 more are restored when an optimizer or a metric creates its variables" in str(report)


def test_a_mirrored_program_restores_what_an_undistributed_one_saved(model_dir):
    """T16, N4: variables on two replicas, both equal to what was saved."""
    program = Program(optimizer="legacy_adam").train(2)
    program.store(model_dir).save(2)
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        mirrored = Program(optimizer="legacy_adam")
    assert mirrored.store(model_dir).restore().is_exact
    assert_same(mirrored.values(), program.values())
    for variable, expected in zip(mirrored.model.variables, program.model.variables, strict=True):
        assert len(variable.values) == 2
        for replica in variable.values:
            np.testing.assert_array_equal(replica, expected)


def test_generators_tables_and_compiled_models_are_state_too(model_dir):
    """N2: whatever TensorFlow saves is matched, not only the model's weights."""

    def build(words, seed):
        model = functional()
        model.compile(optimizer=keras.optimizers.Adam(), loss="mse")
        table = tf.lookup.experimental.MutableHashTable(tf.string, tf.int64, default_value=-1)
        for number, word in enumerate(words):
            table.insert(word, number)
        generator = tf.random.Generator.from_seed(seed)
        return tf.train.Checkpoint(model=model, table=table, generator=generator)

    saved = build(["a", "b"], seed=1)
    CheckpointStore(model_dir, saved, max_to_keep=1).save(1)
    fresh = build([], seed=2)
    assert CheckpointStore(model_dir, fresh, max_to_keep=1).restore().is_exact
    assert int(fresh.table.lookup(tf.constant("b"))) == 1
    assert_same([fresh.generator.normal((3,))], [saved.generator.normal((3,))])
    smaller = tf.train.Checkpoint(model=saved.model, generator=saved.generator)
    with pytest.raises(CheckpointError, match=r"extra: in the checkpoint, not in the program \(1\):\n    table"):
        CheckpointStore(model_dir, smaller, max_to_keep=1).restore()
    larger = tf.train.Checkpoint(
        model=saved.model, table=saved.table, generator=saved.generator, other=build([], 1).table
    )
    with pytest.raises(CheckpointError, match=r"missing: in the program, not in the checkpoint \(1\):\n    other"):
        CheckpointStore(model_dir, larger, max_to_keep=1).restore()


def test_a_save_counter_on_either_side_does_not_matter(model_dir, tmp_path):
    """`tf.train.Checkpoint.save` and `restore` add a counter to the checkpoint object itself."""
    program = Program()
    program.checkpoint.restore(program.checkpoint.write(str(tmp_path / "elsewhere")))
    program.store(model_dir).save(1)
    assert Program().store(model_dir).restore().is_exact
    other = Program()
    other.checkpoint.save(str(tmp_path / "counted"))
    assert other.store(model_dir).restore().is_exact


def test_a_fresh_directory_restores_nothing(model_dir):
    assert Program().store(model_dir).restore() is None
    os.makedirs(model_dir)
    assert Program().store(model_dir).restore() is None
    assert names(model_dir) == []


def test_the_report_reads_well(saved):
    report = Program(optimizer="new_adam").store(saved).restore()
    assert str(report) == f"{saved}/ckpt-3 (step 3): 23 variables match, 392 bytes"


# A checkpoint of another model.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": "encoder"}, r"missing: in the program, not in the checkpoint \(2\):\n    model/encoder/0/kernel"),
        ({"hidden": "encoder"}, r"extra: in the checkpoint, not in the program \(2\):\n    model/hidden/0/kernel"),
        (
            {"head": 7},
            r"wrong shape or dtype \(6\):\n"
            r"    model/head/kernel \(.*head/kernel\): "
            r"float32 \[3, 2\] in the checkpoint, float32 \[3, 7\] in the program",
        ),
        ({"layers": 2, "units": 3}, r"missing: in the program, not in the checkpoint \(6\)"),
        ({"layers": 0}, r"extra: in the checkpoint, not in the program \(6\)"),
    ],
    ids=["renamed", "lost", "reshaped", "added", "dropped"],
)
def test_another_model_is_refused_and_nothing_is_assigned(model_dir, change, message):
    """N4: every unmatched variable is reported before any value is read."""
    net_program().train(1).store(model_dir).save(1)
    other = net_program(**change)
    before = other.values()
    with pytest.raises(CheckpointError, match=r"^checkpoint of another model; nothing was restored\.") as caught:
        other.store(model_dir).restore()
    assert re.search(message, str(caught.value)), str(caught.value)
    assert f"task.init_checkpoint={model_dir}/ckpt-1" in str(caught.value)
    assert_same(other.values(), before)


@pytest.mark.parametrize(
    ("saved_with", "restored_with"),
    [("legacy_adam", "legacy_momentum"), ("legacy_momentum", "legacy_adam"), ("new_adam", "legacy_adam")],
)
def test_another_optimizer_is_refused(model_dir, saved_with, restored_with):
    Program(optimizer=saved_with).train(1).store(model_dir).save(1)
    with pytest.raises(CheckpointError, match="checkpoint of another model"):
        Program(optimizer=restored_with).store(model_dir).restore()


def test_optimizer_state_of_a_variable_that_is_no_longer_trained_is_refused(model_dir):
    """N54: with the variable's name, and the flag that allows it."""
    Program(optimizer="legacy_adam").train(1).store(model_dir).save(1)

    def frozen():
        model = functional()
        model.get_layer("head").trainable = False
        return model

    with pytest.raises(
        CheckpointError, match=r"(?s)extra: in the checkpoint.* \(4\):\n.*head/kernel.*--allow_config_change"
    ):
        Program(frozen, optimizer="legacy_adam").store(model_dir).restore()


def test_another_dtype_is_refused(model_dir):
    CheckpointStore(model_dir, tf.train.Checkpoint(x=tf.Variable(1.0)), max_to_keep=1).save(1)
    store = CheckpointStore(model_dir, tf.train.Checkpoint(x=tf.Variable(1, dtype=tf.int32)), max_to_keep=1)
    with pytest.raises(CheckpointError, match=r"x .*float32 \[\] in the checkpoint, int32 \[\] in the program"):
        store.restore()


def test_variables_shared_on_one_side_only_are_refused(model_dir):
    shared = tf.Variable(1.0)
    CheckpointStore(model_dir, tf.train.Checkpoint(a=shared, b=shared), max_to_keep=1).save(1)
    apart = CheckpointStore(model_dir, tf.train.Checkpoint(a=tf.Variable(0.0), b=tf.Variable(0.0)), max_to_keep=1)
    with pytest.raises(CheckpointError, match=r"missing: in the program, not in the checkpoint \(1\):\n    b "):
        apart.restore()


def test_long_lists_are_cut(model_dir):
    net_program().store(model_dir).save(1)
    with pytest.raises(CheckpointError, match=r"missing: .* \(12\):\n(    .*\n){5}    … and 7 more"):
        net_program(layers=3).store(model_dir).restore()


# Damage.


@pytest.mark.parametrize(("place", "message"), [(0, "is damaged: "), (-1, "cannot be read: ")])
def test_a_checkpoint_that_is_damaged_after_it_was_verified_stops_the_run(saved, place, message):
    """By TensorFlow's own checksums."""
    data = pathlib.Path(saved, "ckpt-3.data-00000-of-00001")
    content = bytearray(data.read_bytes())
    content[place] ^= 1
    data.write_bytes(content)
    with pytest.raises(CheckpointError, match=f"ckpt-3 {message}"):
        read_exactly(Program().checkpoint, f"{saved}/ckpt-3", 3)


def test_a_manifest_from_the_future_is_not_taken_for_damage(saved, monkeypatch):
    with monkeypatch.context() as future:
        future.setattr("official_trainer.checkpoints.manifest.FORMAT_VERSION", 2)
        Program().store(saved).save(4)
    with pytest.raises(
        CheckpointError, match=r"ckpt-4.manifest.json: format version is 2, .* reads up to 1\. Upgrade off"
    ):
        Program().store(saved).restore()


def test_checkpoints_of_another_tool_are_refused(model_dir):
    """N3: they cannot be verified, and ours would be lost among them."""
    program = Program()
    tf.train.CheckpointManager(program.checkpoint, model_dir, max_to_keep=2).save()
    before = names(model_dir)
    for attempt in (program.store(model_dir).restore, lambda: program.store(model_dir).save(5)):
        with pytest.raises(
            CheckpointError, match=r"without manifests: ckpt-1\..*task\.init_checkpoint=.*run"
        ) as caught:
            attempt()
        assert caught.value.exit_code == ExitCode.CONFIG
    assert names(model_dir) == before


# Retention and leftovers.


def test_the_newest_are_kept_and_a_lower_limit_holds_at_once(model_dir):
    """C6: `max_to_keep`."""
    program = Program()
    store = program.store(model_dir, max_to_keep=3)
    for step in range(1, 6):
        store.save(step)
    assert store.steps() == (3, 4, 5)
    lower = program.store(model_dir, max_to_keep=1)
    lower.restore()
    assert lower.steps() == (5,)
    assert not [name for name in names(model_dir) if re.match(r"ckpt-[1-4]\.", name)]


def test_some_are_kept_for_ever_and_what_is_in_use_while_it_is(model_dir):
    """C6: `keep_every_steps`; whoever uses a checkpoint is asked only about those that would go."""
    program = Program()
    asked, in_use = [], {1, 2, 6}
    options = StoreOptions(keep_every_steps=4, in_use=lambda steps: (asked.append(tuple(steps)), in_use)[1])
    store = program.store(model_dir, max_to_keep=1, options=options)
    for step in range(1, 8):
        store.save(step)
    assert store.steps() == (1, 2, 4, 6, 7)
    assert asked == [(1,), (1, 2), (1, 2, 3), (1, 2), (1, 2, 5), (1, 2, 6)]
    in_use.clear()
    store.save(5)  # which is kept, though its step is not the newest
    assert store.steps() == (4, 5, 7)
    store.save(8)
    assert store.steps() == (4, 8)
    program.store(model_dir, max_to_keep=1).restore()
    assert store.steps() == (8,)


def test_a_checkpoint_can_be_deleted(saved):
    store = Program().store(saved)
    store.delete(3)
    store.delete(3)
    assert store.steps() == (1, 2)
    assert not any(name.startswith("ckpt-3") for name in names(saved))
    assert tf.train.latest_checkpoint(saved) == os.path.join(saved, "ckpt-2")


def test_leftovers_of_dead_saves_are_collected(saved):
    """N3, C6: what killed saves and deletions leave does not stay, so the disk is bounded by what is kept."""
    part = "ckpt-4_temp/part-00000-of-00001"
    left = ["ckpt-4.saving", "ckpt-5.saving.tmp-7-0a1b2c3d", "ckpt-4.index", f"{part}.index", f"{part}.data.tempstate7"]
    for name in (*left, "ckpt-3.saving", "ckpt-3.manifest.json.tmp-123-0a1b2c3d", "checkpoint.tmp-7-0a1b2c3d"):
        pathlib.Path(saved, name).parent.mkdir(exist_ok=True)
        pathlib.Path(saved, name).touch()
    pathlib.Path(saved, "ckpt-1.manifest.json").unlink()
    report = Program().store(saved).restore()
    assert report.step == 3
    assert names(saved) == [
        "checkpoint",
        *[f"ckpt-{step}.{part}" for step in (2, 3) for part in ("data-00000-of-00001", "index", "manifest.json")],
    ]


def test_a_run_killed_in_its_first_save_starts_again(model_dir):
    """N1: nothing had been committed, so nothing is lost; the mark of the save tells it from damage."""
    Program().store(model_dir).save(1)
    pathlib.Path(model_dir, "ckpt-1.manifest.json").unlink()
    pathlib.Path(model_dir, "ckpt-1.saving").touch()
    program = Program()
    store = program.store(model_dir)
    assert store.restore() is None
    assert names(model_dir) == ["checkpoint"]
    store.save(1)
    assert Program().store(model_dir).restore().step == 1


def test_files_of_others_are_left_alone(saved):
    """N3: only files named as a checkpoint's are ever moved or deleted."""
    foreign = ["ckpt-notes.txt", "ckpt-01.index", "ckpt-1.backup", "my-ckpt-1.index", "events.out", "ckpt-2.index.bak"]
    foreign += ["checkpoint.tmp-x", "checkpoint.old", "my-ckpt-9_temp", "ckpt-9_temporary"]
    for name in foreign:
        pathlib.Path(saved, name).write_text("mine")
    store = Program().store(saved, max_to_keep=1)
    store.restore()
    store.save(4)
    assert store.steps() == (4,)
    assert set(foreign) <= set(names(saved))


def test_a_reader_changes_nothing(saved):
    """Evaluation beside a running trainer must not touch what that one writes."""
    flip(pathlib.Path(saved, "ckpt-3.index"))
    pathlib.Path(saved, "ckpt-4.saving").touch()
    before = names(saved)
    assert read_newest(Program().checkpoint, saved) == 2
    assert names(saved) == before


def test_checkpoints_on_a_url():
    """C6: object stores have no fsync and no rename; the same calls work."""
    directory = "ram://checkpoints/run"
    program = Program().fill(1)
    store = program.store(directory, max_to_keep=1)
    assert store.restore() is None
    store.save(1)
    program.fill(2)
    store.save(2)
    fresh = Program()
    assert fresh.store(directory).restore().step == 2
    assert int(fresh.global_step) == 2
    assert store.steps() == (2,)


# Another run's weights.


def test_init_checkpoint_restores_the_model_and_nothing_else(saved, caplog):
    """T6: strict, with a report; optimizer and step of the other run are none of our business."""
    program = Program(optimizer="legacy_adam")
    with caplog.at_level(logging.INFO):
        report = read_init_checkpoint(f"{saved}/ckpt-2", {"model": program.model})
    assert len(report.restored) == len(program.model.variables)
    assert all(np.all(np.asarray(variable) == 2) for variable in program.model.variables)
    assert int(program.global_step) == 0
    assert f"initial weights from {saved}/ckpt-2: 8 variables match" in caplog.text


def test_init_checkpoint_reads_what_keras_save_weights_writes(tmp_path):
    """T6: the model itself is the root of such a checkpoint."""
    Program().fill(5).model.save_weights(str(tmp_path / "weights"))
    program = Program()
    assert len(read_init_checkpoint(str(tmp_path / "weights"), {"model": program.model}).restored) == 8
    assert all(np.all(np.asarray(variable) == 5) for variable in program.model.variables)


def test_init_checkpoint_variables_may_only_be_missing_by_name(model_dir):
    """T6, N4: a new head, in another shape or added, is allowed by pattern only."""
    net_program().fill(5).store(model_dir).save(1)
    wider = Net(head=7)
    before = [np.asarray(variable) for variable in wider.variables]
    with pytest.raises(CheckpointError, match=r"2 of 4 variables cannot be restored; nothing was restored") as caught:
        read_init_checkpoint(model_dir, {"model": wider})
    assert "task.init_checkpoint_allow_missing, for example [" in str(caught.value)
    assert "head/*]" in str(caught.value)
    assert_same([np.asarray(variable) for variable in wider.variables], before)
    report = read_init_checkpoint(model_dir, {"model": wider}, allow_missing=["head/*"])
    assert len(report.wrong_shape) == 2
    assert np.all(np.asarray(wider.hidden[0].kernel) == 5)
    assert_same([np.asarray(variable) for variable in wider.head.variables], before[-2:])

    deeper = Net(layers=2, units=3)
    with pytest.raises(CheckpointError, match=r"model/hidden/1/kernel \(.*\) float32 \[3, 3\]"):
        read_init_checkpoint(model_dir, {"model": deeper}, allow_missing=["head/*"])
    report = read_init_checkpoint(model_dir, {"model": deeper}, allow_missing=["hidden/1/*"])
    assert len(report.missing) == 2
    assert np.all(np.asarray(deeper.head.kernel) == 5)


def test_init_checkpoint_may_hold_more_than_the_model(model_dir):
    net_program().fill(5).store(model_dir).save(1)
    model = Net(layers=0, head=3)
    model.head = keras.layers.Dense(2)
    model.head.build((None, 3))
    report = read_init_checkpoint(model_dir, {"model": model})
    assert [spec.key for spec in report.extra] == ["model/hidden/0/kernel", "model/hidden/0/bias"]


def test_init_checkpoint_patterns_must_mean_something(saved):
    model = functional()
    with pytest.raises(CheckpointError, match=r"allow_missing: 'haed/\*' matches no variable of the model"):
        read_init_checkpoint(saved, {"model": model}, allow_missing=["haed/*"])


def test_init_checkpoint_that_restores_nothing_is_refused(saved):
    """T6: zero restored variables is an error."""
    with pytest.raises(CheckpointError, match=r"restores no variable of encoder; it holds .*model.*optimizer"):
        read_init_checkpoint(saved, {"encoder": Net()})


def test_init_checkpoint_that_is_no_object_checkpoint_is_refused(tmp_path):
    (tmp_path / "broken.index").write_text("x")
    with pytest.raises(CheckpointError, match=r"broken cannot be read: "):
        read_init_checkpoint(str(tmp_path / "broken"), {"model": Net()})
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.get_variable("x", (), use_resource=False)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "old"))
    with pytest.raises(CheckpointError, match=r"has no object graph: it was written by TensorFlow 1\. Convert it"):
        read_init_checkpoint(str(tmp_path / "old"), {"model": Net()})
