"""What a Task's `initialize` restores, however it reads: which checkpoint it is given, the count, and the refusals."""

import json
import re

import numpy as np
import pytest
import tensorflow as tf
from official.core import config_definitions

from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config.schema import TaskConfig
from official_trainer.engine import first_weights
from official_trainer.errors import ExitCode
from official_trainer.lazy import keras
from official_trainer.tasks.task import Task
from tests.support.garden.driver import _untouched_process, call, params_of  # noqa: F401
from tests.support.garden.toy import GardenTask
from tests.support.several_tasks import POINTS, SUMS_ROUTINE, Several, SeveralConfig

DATA = "data-00000-of-00001"


class Classifier(keras.Model):
    """Has parts with names, as Model Garden's models have."""

    def __init__(self, classes=3, backbone="backbone"):
        super().__init__()
        self.name_of_backbone = backbone
        layers = [keras.layers.Dense(4), keras.layers.BatchNormalization()]
        setattr(self, backbone, keras.Sequential([keras.Input([6]), *layers], name="backbone"))
        self.head = keras.layers.Dense(classes, name="head")
        self(tf.zeros([1, 6]))

    @property
    def checkpoint_items(self):
        return {"head": self.head, self.name_of_backbone: getattr(self, self.name_of_backbone)}

    def call(self, inputs, training=False):
        return self.head(getattr(self, self.name_of_backbone)(inputs, training=training))


def trained(classes=3, backbone="backbone"):
    """Returns a model whose weights differ from first weights, except the bias of its head."""
    model = Classifier(classes, backbone)
    for number, variable in enumerate(model.variables):
        if "head/bias" not in variable.name:
            variable.assign(tf.random.stateless_normal(variable.shape, seed=[number, 7]))
    return model


def latest(path):
    return tf.train.latest_checkpoint(path) if tf.io.gfile.isdir(path) else path


class Backbone(GardenTask):
    """Restores one part of the model, as Model Garden's vision tasks do with `init_checkpoint_modules: backbone`."""

    def initialize(self, model):
        status = tf.train.Checkpoint(backbone=model.backbone).read(latest(self.task_config.init_checkpoint))
        status.expect_partial().assert_existing_objects_matched()


class Inherited(GardenTask):
    """Has Model Garden's own."""


class Partial(GardenTask):
    """Restores what happens to fit, without a check."""

    def initialize(self, model):
        path = latest(self.task_config.init_checkpoint)
        full(model).read(path).expect_partial()


class Idle(GardenTask):
    """Does not read what its config names."""

    def initialize(self, model):
        pass


class Transposed(GardenTask):
    """Reads names of its own from any checkpoint, one value in another form."""

    def initialize(self, model):
        reader = tf.train.load_checkpoint(self.task_config.init_checkpoint)
        model.head.kernel.assign(tf.transpose(reader.get_tensor("old/kernel_transposed")))
        model.head.bias.assign(reader.get_tensor("old/bias"))


class Distilled(GardenTask):
    """Restores a teacher, which is no part of the model."""

    def build_teacher(self):
        self.teacher = Classifier()
        return self

    def initialize(self, model):
        tf.train.Checkpoint(model=self.teacher).read(self.task_config.init_checkpoint).expect_partial()


class Ours(Task):
    """Has our default."""


def begun(cls, path, model=None):
    """Returns what `initialize` restored, and the model."""
    config = TaskConfig if issubclass(cls, Task) else config_definitions.TaskConfig
    task = cls(config(init_checkpoint=str(path)))
    if cls is Distilled:
        task.build_teacher()
    model = model or Classifier()
    (found,) = first_weights.initialize(task, model, tf.distribute.get_strategy())
    assert task.task_config.init_checkpoint == str(path), "the config is as it was"
    return found, model


def refused(cls, path, model=None):
    """Returns the message with which a run is refused."""
    with pytest.raises(CheckpointError) as caught:
        begun(cls, path, model)
    assert caught.value.exit_code == ExitCode.CONFIG
    assert str(caught.value).startswith("task.init_checkpoint: /")
    return str(caught.value)


def full(model):
    """Returns what Model Garden's driver saves of a model."""
    return tf.train.Checkpoint(model=model, **model.checkpoint_items)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with two checkpoints of a trained model, and no pointer file; and the model."""
    folder, model = tmp_path_factory.mktemp("source"), trained()
    full(Classifier()).write(str(folder / "ckpt-40"))
    full(model).write(str(folder / "ckpt-60"))
    return folder, model


WHOLE = ["", "ckpt-60", "ckpt-60.index", f"ckpt-60.{DATA}"]


@pytest.mark.parametrize(("cls", "names"), [(Inherited, [""]), (Partial, WHOLE), (Ours, WHOLE)])
def test_every_way_to_name_a_checkpoint_restores_it(source, cls, names):
    """T6: also where the Task's own `initialize` asks TensorFlow for the newest one, and checks nothing."""
    folder, donor = source
    for named in names:
        found, model = begun(cls, folder / named if named else f"{folder}/")
        assert (found.path, found.restored, found.variables) == (f"{folder}/ckpt-60", 7, 8), "the head's bias is 0"
        for ours, theirs in zip(model.variables, donor.variables, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_a_home_is_expanded(source, monkeypatch):
    """T6: for an `initialize` of the Task, too."""
    folder, _ = source
    monkeypatch.setenv("HOME", str(folder.parent))
    found, _ = begun(Inherited, f"~/{folder.name}/ckpt-60")
    assert (found.path, found.restored) == (f"{folder}/ckpt-60", 7)


def test_the_part_that_is_restored_is_counted(source):
    """T6: the other part keeps its first weights."""
    folder, _ = source
    found, _ = begun(Backbone, folder)
    said = f"task.init_checkpoint: 6 of 8 variables have new values from {folder}/ckpt-60, which holds 8 values"
    assert str(found) == said


def test_a_task_that_reads_nothing_is_refused(source):
    """T6: zero variables have new values."""
    said = refused(Idle, source[0])
    assert "restores none of the 8 variables of the model: Idle.initialize changed none of them. It holds " in said


@pytest.mark.parametrize(("cls", "number"), [(Transposed, 2), (Distilled, 7)])
def test_what_a_task_reads_in_its_own_way_is_counted(tmp_path, cls, number):
    """T6: names and forms of its own, another model than the one that trains."""
    donor = trained()
    path = tmp_path / "ckpt-1"
    if cls is Distilled:
        tf.train.Checkpoint(model=donor).write(str(path))
    else:
        values = {"old/kernel_transposed": tf.random.normal([3, 4]), "old/bias": tf.random.normal([3])}
        tf.raw_ops.SaveV2(
            prefix=str(path), tensor_names=[*values], shape_and_slices=["", ""], tensors=[*values.values()]
        )
    found, _ = begun(cls, path)
    assert (found.path, found.restored) == (str(path), number)
    assert found.variables == (16 if cls is Distilled else 8)


def by_name(path):
    """Writes a checkpoint as TensorFlow 1 does."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        for name, shape in {"resnet/conv/kernel": [6, 4], "resnet/conv/bias": [4]}.items():
            tf.compat.v1.get_variable(name, shape)
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver().save(session, str(path), write_state=False)


def test_a_place_that_gives_no_weights_is_refused_whatever_the_task_calls(places):
    """T6: before the first step, with the path and what is there; of what can be read, `initialize` is called."""
    for what, says, *classes in (
        ("empty", "holds no checkpoint: it is empty", Partial),
        ("nowhere", "does not exist", Partial),
        ("saved", "is a SavedModel, and its values are damaged: variables.index is missing", Partial),
        ("notes.h5", "is not a checkpoint", Inherited, Partial, Backbone, Ours),
        ("other", "encoder", Inherited, Partial, Backbone, Ours),
        ("named/model.ckpt-60", "TensorFlow 1", Inherited, Partial, Backbone, Ours),
        ("cut", "is damaged", Inherited, Ours),
        ("cut/ckpt-60", "cut/ckpt-60 ", Inherited, Partial, Backbone, Ours),
    ):
        for cls in classes:
            said = refused(cls, places / what)
            assert str(places / what) in said and says in said, (cls, said)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("places")
    for name in ("empty", "saved", "named", "cut"):
        (folder / name).mkdir()
    (folder / "saved" / "saved_model.pb").write_bytes(b"")
    (folder / "notes.h5").write_text("x")
    tf.train.Checkpoint(encoder=trained().backbone).write(str(folder / "other" / "ckpt-1"))
    by_name(folder / "named" / "model.ckpt-60")
    full(trained()).write(str(folder / "cut" / "ckpt-60"))
    data = folder / "cut" / f"ckpt-60.{DATA}"
    data.write_bytes(data.read_bytes()[:100])
    return folder


def test_an_initialize_that_fails_says_what_the_checkpoint_holds(tmp_path):
    """T6: TensorFlow shows the objects that it has not restored with their values."""
    donor = trained()
    donor.head = keras.layers.Dense(3, use_bias=False)
    donor.head.build([None, 4])
    full(donor).write(str(tmp_path / "ckpt-60"))
    assert refused(Inherited, tmp_path).splitlines() == [
        f"task.init_checkpoint: {tmp_path}/ckpt-60 does not fit what Inherited.initialize restores: Found 1 Python "
        "objects that were not bound to checkpointed values, likely due to changes in the Python program.",
        "It holds 7 values: backbone (6), head (1). The model has 8 variables.",
        "Name a checkpoint that holds what it restores.",
    ]


def test_replicas_are_counted_once(source):
    """T6: under a strategy each variable is one on each replica."""
    strategy = tf.distribute.MirroredStrategy(tf.config.list_logical_devices("CPU"))
    with strategy.scope():
        model, task = Classifier(), Partial(config_definitions.TaskConfig(init_checkpoint=str(source[0])))
    (found,) = first_weights.initialize(task, model, strategy)
    assert (found.restored, found.variables) == (7, 8)
    assert strategy.num_replicas_in_sync == 2


# Several tasks.


def several(tmp_path, **paths):
    """Returns what tasks of one model restore, each from the checkpoint that is named for it."""

    def named(task):
        return str(tmp_path / paths[task]) if task in paths else ""

    routines = [
        each.replace(task_config=each.task_config.replace(init_checkpoint=named(each.task_name)))
        for each in (POINTS, SUMS_ROUTINE)
    ]
    task = Several(SeveralConfig(task_routines=tuple(routines), init_checkpoint=named("all")))
    return first_weights.initialize(task, task.build_model(), tf.distribute.get_strategy())


def test_each_of_several_tasks_has_its_own_count(tmp_path):
    """T6, T21: of the model of all, and of the parts."""
    donor = Several(SeveralConfig(task_routines=(POINTS, SUMS_ROUTINE))).build_model()
    for number, variable in enumerate(donor.variables):
        variable.assign(tf.random.stateless_normal(variable.shape, seed=[number, 7]))
    tf.train.Checkpoint(model=donor).write(str(tmp_path / "all"))
    tf.train.Checkpoint(model=donor.sub_tasks["sums"]).write(str(tmp_path / "sums"))
    (tmp_path / "empty").mkdir()
    place = "task.task_routines[1].task_config.init_checkpoint"
    assert list(map(str, several(tmp_path, all="all", sums="sums"))) == [
        f"task.init_checkpoint: 6 of 6 variables have new values from {tmp_path}/all, which holds 6 values",
        f"{place}: 4 of 4 variables have new values from {tmp_path}/sums, which holds 4 values",
    ]
    with pytest.raises(CheckpointError, match=re.escape(f"{place}: {tmp_path}/empty holds no checkpoint")):
        several(tmp_path, all="all", sums="empty")


# In a run.


def run(model_dir, path, mode="train", steps=2, cls=GardenTask):
    params = params_of(train_steps=steps, checkpoint_interval=2)
    params.task.init_checkpoint = str(path)
    return call(model_dir, mode, params, cls(params.task))


def recorded(model_dir):
    return json.loads((model_dir / "run.json").read_text())["init_checkpoint"]


def test_a_run_prints_and_records_what_was_restored_also_after_a_restart(tmp_path, capsys):
    """T6: a Task of Model Garden's; the weights are those of the first process, and so is the record."""
    source, model_dir, fresh = tmp_path / "source", tmp_path / "run", tmp_path / "fresh"
    model = GardenTask(None).build_model()
    tf.train.Checkpoint(model=model).write(str(source / "ckpt-60"))
    run(model_dir, source)
    line = f"task.init_checkpoint: 2 of 4 variables have new values from {source}/ckpt-60, which holds 4 values"
    assert line in capsys.readouterr().out
    expected = [
        {"field": "task.init_checkpoint", "path": f"{source}/ckpt-60", "restored": 2, "variables": 4, "values": 4}
    ]
    assert recorded(model_dir) == expected
    for file in source.iterdir():
        file.unlink()
    run(model_dir, source, steps=4)
    assert line not in capsys.readouterr().out
    assert recorded(model_dir) == expected
    with pytest.raises(CheckpointError, match="is empty"):
        run(fresh, source)
    assert not fresh.exists()
    with pytest.raises(CheckpointError, match="is empty"):
        run(tmp_path / "evaluated", source, mode="eval")
