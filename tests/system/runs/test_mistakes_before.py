"""Mistakes found before the first step: in registration, in Python configs, in what the methods of a Task return.

Each message says in a few lines where it is, what is allowed and what to do; `check` refuses what `train` refuses.
"""

import dataclasses

import pytest

from official_trainer.lazy import tf
from official_trainer.tasks import contract
from tests.support import mistakes, several_tasks
from tests.support.cases import cases, full
from tests.support.mistakes import MORE, Mistake

METRICS = 'return [keras.metrics.SparseCategoricalAccuracy(name="accuracy"), Share(name="share")]'
FACTORY = '@register_config_factory("tickets")'
READ = 'return inputs.from_arrays(({"text": text, "age": age}, label), params, input_context).map(prepare)'
TASK = "@register_task_cls(TicketsConfig)"
CONFIG = '''@dataclasses.dataclass(frozen=True, kw_only=True)
class TicketsConfig(TaskConfig):
    """Tickets and their classifier."""
'''
LARGE = {"data = DataConfig(global_batch_size=8)": "data = DataConfig(global_batch_size=64)"}


def creates(optimizer):
    return {MORE: f"    @classmethod\n    def create_optimizer(cls, *sections):\n        {optimizer}\n{MORE}"}


RETURNED = [
    Mistake(
        name="a_metric_class",
        changes={METRICS: "return [keras.metrics.SparseCategoricalAccuracy]"},
        at="return [keras",
        words=("a list with the class SparseCategoricalAccuracy", "write SparseCategoricalAccuracy(…)"),
    ),
    Mistake(
        name="the_name_of_a_metric",
        changes={METRICS: 'return ["accuracy"]'},
        at='return ["accuracy"]',
        words=("a list with 'accuracy'", "return objects of keras.metrics"),
    ),
    Mistake(
        name="a_function_as_a_metric",
        changes={METRICS: "return [keras.losses.mean_squared_error]"},
        at="return [keras",
        words=("a list with a function", "MeanMetricWrapper makes one of a function"),
    ),
    Mistake(
        name="a_dictionary_of_metrics",
        changes={METRICS: 'return {"share": Share(name="share")}'},
        at='return {"share"',
        words=("must return a list of metrics, and returned a dict", "[keras.metrics.MeanSquaredError(name='error')]"),
    ),
    Mistake(
        name="one_metric_without_a_list",
        changes={METRICS: 'return Share(name="share")'},
        at="return Share",
        words=("returned a Share", "return a list, such as"),
    ),
    Mistake(
        name="no_metrics_returned",
        changes={METRICS: METRICS.removeprefix("return ")},
        at="def build_metrics",
        words=("returned nothing (None)", "or [] for none", "is a `return` missing?"),
    ),
    Mistake(
        name="a_metric_of_keras_3",
        changes={METRICS: "import keras as other\n\n        return [other.metrics.SparseCategoricalAccuracy()]"},
        at="return [other",
        words=("SparseCategoricalAccuracy is of Keras 3", "take both from `from official_trainer.lazy import keras`"),
    ),
    Mistake(
        name="the_name_of_an_optimizer",
        changes=creates('return "adam"'),
        at='return "adam"',
        words=("returned 'adam'", "keras.optimizers.Adam(1e-3)", "trainer.optimizer_config.optimizer.type=adam"),
    ),
    Mistake(
        name="an_optimizer_class",
        changes=creates("return keras.optimizers.Adam"),
        at="return keras.optimizers",
        words=("returned the class Adam", "write Adam(…)"),
    ),
    Mistake(
        name="no_optimizer_returned",
        changes=creates("keras.optimizers.Adam(0.1)"),
        at="def create_optimizer",
        words=("returned nothing (None)", "is a `return` missing?"),
    ),
    Mistake(
        name="no_model_returned",
        changes={"return keras.Model": "keras.Model"},
        at="def build_model",
        words=("build_model must return a model, and returned nothing (None)", "is a `return` missing?"),
    ),
    Mistake(
        name="a_model_of_keras_3",
        changes={"        text, age = keras": "        import keras\n\n        text, age = keras"},
        at=METRICS,
        words=("the model Functional of Keras 3", "SparseCategoricalAccuracy is of Keras 2", "`import keras`"),
    ),
    Mistake(
        name="a_layer_of_keras_3",
        changes={
            "import dataclasses\n": "import dataclasses\n\nimport keras as other\n",
            "keras.layers.Dense(3": "other.layers.Dense(3",
        },
        at="return keras.Model",
        words=("neither trained", "take all layers from one Keras"),
    ),
    Mistake(
        name="a_variable_that_no_layer_has",
        changes={"(joined)\n": "(joined) + tf.Variable(1.0, name='shift')\n"},
        at="return keras.Model",
        words=("'shift:0', which is no variable of its layers", "create it in a layer, with add_weight"),
    ),
    Mistake(
        name="an_input_of_keras_3",
        changes={
            "import dataclasses\n": "import dataclasses\n\nimport keras as other\n",
            "text, age = keras.Input([32]": "text, age = other.Input([32]",
        },
        at="keras.layers.Concatenate()",
        words=("Layers of Keras 2, that is tf_keras, and of Keras 3 are in one model",),
    ),
    Mistake(
        name="no_dataset_returned",
        changes={"return inputs.from_arrays": "inputs.from_arrays"},
        at="def build_inputs",
        words=("while building validation_data", "it returned nothing; is a `return` missing?"),
    ),
    Mistake(
        name="arrays_in_place_of_a_dataset",
        changes={READ: 'return {"text": text, "age": age}, label'},
        at='return {"text": text, "age": age}, label',
        words=("must return a tf.data.Dataset of batches, but it returned tuple",),
    ),
    Mistake(
        name="a_dataset_without_batches",
        changes={READ: 'return tf.data.Dataset.from_tensor_slices(({"text": text, "age": age}, label)).repeat()'},
        at="return tf.data.Dataset",
        words=("is a single int64 without a batch dimension", "Batch the dataset, for example with .batch("),
    ),
    Mistake(
        name="arrays_of_different_lengths",
        changes={"label = np.arange(16) % 3": "label = np.arange(15) % 3"},
        at="return inputs.from_arrays",
        words=("differ in their number of examples", "arrays[1] has 15"),
        code=3,
    ),
    Mistake(
        name="a_file_that_is_not_there",
        changes={"label = np.arange(16) % 3": "label = np.load('labels.npy')"},
        at="np.load",
        words=("while building validation_data", "No such file or directory: 'labels.npy'"),
        code=3,
    ),
    Mistake(
        name="a_task_that_takes_no_config",
        changes={MORE: f"    def __init__(self):\n        super().__init__()\n{MORE}"},
        at="class TicketsTask",
        words=("a Task is made with (params, logging_dir=None, name=None)", "write def __init__(self, params, **opt"),
    ),
    Mistake(
        name="a_class_that_is_no_task",
        changes={"class TicketsTask(Task):": "class TicketsTask:"},
        at="class TicketsTask",
        words=("TicketsTask has no train_step", "class TicketsTask(Task)"),
    ),
]

TRACKER = """class Lines(Tracker):
    def log(self, step, values):
        print(step, values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinesConfig(TrackerConfig):
    def build(self, place):
        return Lines()


"""
ARGUMENTS = [
    Mistake(
        name="metrics_without_their_argument",
        changes={"build_metrics(self, training=True)": "build_metrics(self)"},
        at="def build_metrics",
        words=("calls build_metrics(training=…), which fails", "write def build_metrics(self, training)"),
    ),
    Mistake(
        name="a_fold_without_its_state",
        changes={"aggregate_logs(self, state, step_logs)": "aggregate_logs(self, step_logs)"},
        at="def aggregate_logs",
        words=("calls aggregate_logs(state, step_logs), which fails: too many positional arguments",),
        verb="check",
    ),
    Mistake(
        name="a_hook_without_the_run",
        changes={"on_step(self, run)": "on_step(self)"},
        at="def on_step",
        words=("calls on_step(run), which fails", "write def on_step(self, run)"),
    ),
    Mistake(
        name="a_tracker_without_the_split",
        changes={
            "from official_trainer.config import DataConfig": "from official_trainer.tracking import Tracker\n"
            "from official_trainer.config import TrackerConfig, DataConfig",
            "def prepare": f"{TRACKER}def prepare",
            "            train_steps=4,": "            trackers=(LinesConfig(type='lines', on_error='fail'),),\n"
            "            train_steps=4,",
        },
        at="def log",
        words=("calls log(split, step, values), which fails", "write def log(self, split, step, values)"),
    ),
    Mistake(
        name="a_decorated_method",
        changes={
            "build_metrics(self, training=True)": "build_metrics(self)",
            "    def build_metrics": "    @counted\n    def build_metrics",
            "def prepare": "def counted(function):\n    return lambda *args, **named: function(*args, **named)\n\n\n"
            "def prepare",
        },
        at="return lambda",
        method="<lambda>",
        words=("while building the run", "build_metrics() got an unexpected keyword argument 'training'"),
    ),
]

REGISTERED = [
    Mistake(
        name="a_syntax_error",
        changes={"return (state or 0)": "return (state or 0"},
        at="return (state or 0 +",
        words=("cannot be imported: SyntaxError: '(' was never closed", "^"),
    ),
    Mistake(
        name="an_import_of_what_is_not_there",
        changes={"import numpy as np": "import numpyy as np"},
        at="import numpyy",
        words=("No module named 'numpyy'", "did you mean 'numpy'?"),
    ),
    Mistake(
        name="an_import_of_a_name_that_is_not_there",
        changes={"import Task, inputs, register": "import Task, input, register"},
        at="import Task, input,",
        words=("cannot import name 'input' from 'official_trainer'", "did you mean 'inputs'?"),
    ),
    Mistake(
        name="a_name_that_is_not_defined",
        changes={"class Counter(Action)": "class Counter(Actoin)"},
        at="class Counter",
        words=("name 'Actoin' is not defined", "did you mean 'Action'?"),
    ),
    Mistake(
        name="an_attribute_that_is_misspelled",
        changes={"class Share(keras.metrics.Mean)": "class Share(keras.metrics.Meann)"},
        at="class Share",
        words=("Meann", "did you mean 'Mean'?"),
    ),
    Mistake(
        name="an_experiment_registered_twice",
        changes={FACTORY: f"{FACTORY}\ndef first():\n    return ExperimentConfig()\n\n\n{FACTORY}"},
        at="def tickets",
        words=("experiment 'tickets' is registered twice", "rename one"),
    ),
    Mistake(
        name="a_factory_without_its_name",
        changes={FACTORY: "@register_config_factory"},
        at="@register_config_factory",
        words=('write @register_config_factory("tickets")',),
    ),
    Mistake(
        name="a_registration_with_a_misspelled_argument",
        changes={FACTORY: '@register_config_factory(nam="tickets")'},
        at="@register_config_factory",
        words=("unexpected keyword argument 'nam'",),
    ),
    Mistake(
        name="a_factory_with_an_argument",
        changes={"def tickets():": "def tickets(params):"},
        at="@register_config_factory",
        words=("a factory is a function without arguments, and tickets is not one",),
    ),
    Mistake(
        name="a_factory_that_returns_nothing",
        changes={"    return ExperimentConfig(": "    ExperimentConfig("},
        at="def tickets",
        words=(
            "must return an ExperimentConfig, got nothing",
            "write `return` before the config at the end",
        ),
    ),
    Mistake(
        name="a_factory_that_returns_a_section",
        changes={"    return ExperimentConfig(": "    return TrainerConfig()\n    return ExperimentConfig("},
        at="def tickets",
        words=("must return an ExperimentConfig, got a TrainerConfig",),
    ),
    Mistake(
        name="a_task_registered_for_text",
        changes={TASK: '@register_task_cls("TicketsConfig")'},
        at="@register_task_cls",
        words=("got 'TicketsConfig'", "write @register_task_cls(TicketsConfig)"),
    ),
    Mistake(
        name="a_task_registered_without_its_config",
        changes={TASK: "@register_task_cls"},
        at="@register_task_cls",
        words=("needs the class of the task's config", "write @register_task_cls(CONFIG)"),
    ),
    Mistake(
        name="a_task_registered_for_another_class",
        changes={CONFIG: CONFIG.replace("(TaskConfig)", "")},
        at="@register_task_cls",
        words=("got <class 'experiments.tickets.TicketsConfig'>", "a subclass of config.TaskConfig"),
    ),
    Mistake(
        name="two_tasks_of_one_config",
        changes={FACTORY: f"{TASK}\nclass Other(TicketsTask):\n    pass\n\n\n{FACTORY}"},
        at="class Other",
        words=("the Task of TicketsConfig is registered twice, at experiments/tickets.py:", "rename one"),
    ),
    Mistake(
        name="an_import_that_ends_the_process",
        changes={"import numpy as np": "import numpy as np, sys; sys.exit(3)"},
        at="sys.exit(3)",
        words=("cannot be imported: it ends the process; raise an error instead",),
    ),
    Mistake(
        name="a_task_that_is_not_registered",
        changes={f"{TASK}\n": ""},
        at="class TicketsConfig",
        words=(
            "no Task class is registered for",
            "put @register_task_cls(TicketsConfig) above its Task class, and import",
        ),
    ),
]

DECLARED = [
    Mistake(
        name="a_config_that_is_no_dataclass",
        changes={CONFIG: 'class TicketsConfig(TaskConfig):\n    """Tickets."""\n\n    units: int = 8\n'},
        at="units: int",
        words=("'units' is not a field", "put @dataclasses.dataclass(frozen=True, kw_only=True) on the class"),
    ),
    Mistake(
        name="a_config_that_is_not_frozen",
        changes={CONFIG: CONFIG.replace("(frozen=True, kw_only=True)", "")},
        at="@dataclasses.dataclass",
        words=("cannot inherit non-frozen dataclass", "write @dataclasses.dataclass(frozen=True, kw_only=True)"),
    ),
    Mistake(
        name="a_default_that_can_change",
        changes={CONFIG: f"{CONFIG}\n    units: list[int] = [8]\n"},
        at="@dataclasses.dataclass",
        words=("mutable default <class 'list'> for field units", "give 'units' a tuple"),
    ),
    Mistake(
        name="a_section_that_is_no_config",
        changes={CONFIG: f"class Model:\n    units = 8\n\n\n{CONFIG}\n    model: Model = Model()\n"},
        at="model: Model",
        words=("field 'model' has type Model, which a configuration", "a section is a dataclass and a subclass"),
    ),
    Mistake(
        name="a_field_that_is_misspelled",
        changes={"summary_interval=2": "sumary_interval=2"},
        at="trainer=TrainerConfig(",
        words=("TrainerConfig has no field 'sumary_interval'", "did you mean 'summary_interval'?"),
    ),
    Mistake(
        name="a_value_of_another_type",
        changes={"train_steps=4": "train_steps=4.5"},
        at="def tickets",
        words=("trainer.train_steps: must be an integer, got 4.5",),
    ),
    Mistake(
        name="a_number_in_place_of_a_section",
        changes={"constant=opt.ConstantLrConfig(learning_rate=0.01)": "constant=0.01"},
        at="def tickets",
        words=("learning_rate.constant: must be a section (ConstantLrConfig), got 0.01",),
    ),
    Mistake(
        name="a_misspelled_field_that_is_assigned",
        changes={"    return ExperimentConfig(": "    data.global_bach_size = 9\n    return ExperimentConfig("},
        at="data.global_bach_size = 9",
        words=("cannot assign to field 'global_bach_size'", "a config is frozen", "did you mean 'global_batch_size'?"),
    ),
    Mistake(
        name="a_field_that_is_assigned",
        changes={"    return ExperimentConfig(": "    data.global_batch_size = 9\n    return ExperimentConfig("},
        at="data.global_batch_size = 9",
        words=("a config is frozen", "use .replace(global_batch_size=…), which returns a copy"),
    ),
]


OF_CONFIGS = [dataclasses.replace(each, code=2) for each in (*REGISTERED, *DECLARED)]


@pytest.mark.parametrize("mistake", [*RETURNED, *ARGUMENTS, *OF_CONFIGS], ids=lambda each: each.name)
def test_a_mistake_before_the_first_step(mistake, tmp_path, monkeypatch):
    """N28: the user's line, what is wrong, and the fix; no frame of this package."""
    mistakes.check(mistake, mistakes.outcome(mistake, tmp_path, monkeypatch))


def test_a_syntax_error_elsewhere_leaves_the_name_unknown(tmp_path, monkeypatch):
    """N28: a file that does not name the experiment is no reason, only a hint."""
    (tmp_path / "experiments").mkdir()
    broken = "def broken(:\n    register_config_factory\n"
    (tmp_path / "experiments" / "other.py").write_text(broken)
    found = mistakes.outcome_of(["train", "tickets"], tmp_path, monkeypatch)
    assert found.message.startswith("error: unknown experiment 'tickets'; ")
    assert "experiments/other.py:1: its experiments are not listed: " in " ".join(found.message.split())
    assert found.code == 2


def test_methods_that_nothing_calls_are_said(tmp_path, monkeypatch):
    """N28: a misspelled one is not called, so the task would train without it."""
    changes = {"def build_metrics": "def build_metircs"}
    found = mistakes.outcome(Mistake(name="", changes=changes, verb="check"), tmp_path, monkeypatch)
    assert "nothing calls TicketsTask.build_metircs; did you mean build_metrics?" in " ".join(found.text.split())
    assert found.code == 0, found.text


STEP = """    def train_step(self, inputs, model, optimizer, metrics=None):
        return super().train_step(inputs, model, optimizer)

"""


def test_metrics_that_a_step_leaves_out_are_said(tmp_path, monkeypatch):
    """N28, N32: a step of one's own has to update them, or they would be shown as 0."""
    found = mistakes.outcome(Mistake(name="", changes={MORE: STEP}), tmp_path, monkeypatch)
    said = "no step has updated accuracy and share: TicketsTask.train_step has to call self.process_metrics(metrics, "
    assert found.text.count(said) == 1
    assert found.code == 0, found.text


MEAN_SQUARES = {
    "return keras.losses.sparse_categorical_crossentropy(labels, model_outputs, from_logits=True)": "labels = "
    "tf.cast(labels, tf.float32)\n        return keras.losses.mean_squared_error(labels, model_outputs)",
    "keras.layers.Dense(3,": "keras.layers.Dense(1,",
    METRICS: "return []",
}


@pytest.mark.parametrize("values", [[], full(["runtime.distribution_strategy=mirrored"])], ids=["off", "mirrored"])
def test_labels_that_are_combined_with_the_outputs_of_other_examples_are_said(values, tmp_path, monkeypatch):
    """N28: labels [8] and outputs [8, 1] would train on a difference [8, 8] without a word."""
    mistake = Mistake(name="", changes=MEAN_SQUARES, verb="check", values=tuple(values))
    found = mistakes.outcome(mistake, tmp_path, monkeypatch)
    size = 4 if values else 8
    said = f"TicketsTask.build_losses combines labels int64 ({size},) and outputs float32 ({size}, 1): each label with "
    assert found.text.count(said) == 1, found.text
    assert found.code == 0


OWN = """    def build_metric(self):
        return 1

    @property
    def after_steps(self):
        return 2

"""


def test_the_models_of_several_tasks_are_no_mistake(caplog):
    """N28: `build_models` of a `MultiTask` is called."""
    contract.check_class(several_tasks.Several)
    assert caplog.messages == []


def test_what_only_looks_like_a_mistake_is_not_mentioned(tmp_path, monkeypatch):
    """N28: a loss of Keras that reshapes; methods that the class calls itself or has, and what is no method."""
    changes = {**MEAN_SQUARES, MORE: OWN + MORE, METRICS: "return [self.build_metric()][:0]"}
    changes[next(iter(changes))] = "return keras.losses.MeanSquaredError(reduction='none')(labels, model_outputs)"
    found = mistakes.outcome(Mistake(name="", changes=changes, verb="check"), tmp_path, monkeypatch)
    assert "nothing calls" not in found.text
    assert "combines labels" not in found.text
    assert found.code == 0, found.text


# Data.


@pytest.mark.parametrize("verb", cases(["train", "check"], "train"))
def test_a_batch_that_is_larger_than_the_data(verb, tmp_path, monkeypatch):
    """N28: arrays repeat within a batch, which is said before training."""
    found = mistakes.outcome(Mistake(name="", changes=LARGE, verb=verb), tmp_path, monkeypatch)
    said = "warning: task.train_data: a batch of 64 is larger than the data, which has 16 examples, so each batch"
    assert said in found.text
    assert "set task.train_data.global_batch_size to at most 16" in found.text
    assert found.text.count("larger than the data") == 1
    assert found.code == 0


FROM_FILES = {
    "return inputs.from_arrays((": "return inputs.from_tfrecords(params, input_context, parse_fn=parse)\n        ((",
    "def prepare(": "def parse(record):\n    read = tf.io.parse_single_example(record, {'x': tf.io.FixedLenFeature([], "
    "tf.int64)})\n    x = tf.cast(read['x'], tf.float32)\n    return {'text': tf.fill([32], x), 'age': x[None]}, "
    "read['x']\n\n\ndef prepare(",
    '{"text": text, "age": age}, label), params, input_context).map(prepare)': "text, age, label))",
}


def test_records_fewer_than_a_batch(tmp_path, monkeypatch):
    """N28: also of files, which are not read whole to find out."""
    with tf.io.TFRecordWriter(str(tmp_path / "few")) as writer:
        for number in range(3):
            value = tf.train.Feature(int64_list=tf.train.Int64List(value=[number]))
            writer.write(tf.train.Example(features=tf.train.Features(feature={"x": value})).SerializeToString())
    values = tuple(f"task.{name}.input_path={tmp_path / 'few'}" for name in ("train_data", "validation_data"))
    found = mistakes.outcome(Mistake(name="", changes=FROM_FILES, verb="check", values=values), tmp_path, monkeypatch)
    assert "a batch of 8 is larger than the data, which has 3 examples" in found.text
    assert found.code == 0, found.text


def test_data_without_a_batch(tmp_path, monkeypatch):
    """N28: where no step could be made, the run does not begin."""
    whole = "return tf.data.Dataset.from_tensors(({'text': text, 'age': age}, label)).unbatch().batch(64, "
    whole += "drop_remainder=True)\n        return inputs.from_arrays(("
    mistake = Mistake(
        name="",
        changes={"return inputs.from_arrays((": whole},
        words=("the training data holds no batch", "set a smaller global_batch_size"),
        code=3,
    )
    mistakes.check(mistake, mistakes.outcome(mistake, tmp_path, monkeypatch))


# What `train` refuses at its start, `check` refuses too.

STOPPING = "trainer.actions=[{{type: early_stopping, monitor: {}}}]"
REFUSED = {
    "a metric that there is not": (STOPPING.format("ticket"), "did you mean 'tickets'?"),
    "two keepers of one folder": (
        "trainer.actions=[{type: checkpoint, directory: a}, {type: checkpoint, directory: a, name: b}]",
        "like that of another checkpoint, and each would delete the other's",
    ),
    "a program that is not there": (
        "trainer.actions=[{type: command, argv: [no-such-program], on_error: fail}]",
        "'no-such-program' is not on the PATH",
    ),
    "an average of averages": (
        "trainer.actions=[{type: average_checkpoints}];trainer.optimizer_config.ema={average_decay: 0.9}",
        "averages the weights already",
    ),
    "a mode that needs a directory": ("--mode=continuous_train_and_eval", "task.init_checkpoint"),
    "first weights that are not there": ("task.init_checkpoint=/nowhere/ckpt-1", "/nowhere/ckpt-1"),
    "no steps": ("trainer.train_steps=0", "nothing to train"),
    "a loss above its bound": ("trainer.loss_upper_bound=1e-9", "above trainer.loss_upper_bound"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_check_refuses_what_train_refuses(name, tmp_path, monkeypatch):
    """N10, N28: with the same exit code and the same words."""
    values, words = REFUSED[name]
    values = tuple(values.split(";"))
    codes = []
    for verb in ("check", "train"):
        (tmp_path / verb).mkdir()
        found = mistakes.outcome(Mistake(name=name, changes={}, verb=verb, values=values), tmp_path / verb, monkeypatch)
        assert words in " ".join(found.message.split()), found.text
        codes.append(found.code)
    assert codes[0] == codes[1] != 0


def test_check_refuses_what_a_config_change_would_do_to_the_run(tmp_path, monkeypatch):
    """N10: as `train` does, with the same flag against it."""
    trained = mistakes.outcome(Mistake(name="", changes={}), tmp_path, monkeypatch)
    assert trained.code == 0, trained.text
    changed = "trainer.optimizer_config.optimizer.type=sgd"
    for flags, code in (((), 2), (("--allow_config_change",), 0)):
        found = mistakes.outcome(
            Mistake(name="", changes={}, verb="check", values=(changed, *flags)), tmp_path, monkeypatch
        )
        assert found.code == code, found.text
        assert ("--allow_config_change" in found.message) == bool(code)


@pytest.mark.parametrize(("verb", "told"), cases([("check", False), ("train", True)], ("check", False)))
def test_check_tells_nobody(verb, told, tmp_path, monkeypatch):
    """N10: it calls the start of all actions, and of a dry run no event is sent."""
    action = f"trainer.actions=[{{type: command, argv: [touch, {tmp_path / 'told'}], events: [start]}}]"
    found = mistakes.outcome(Mistake(name="", changes={}, verb=verb, values=(action,)), tmp_path, monkeypatch)
    assert found.code == 0, found.text
    assert (tmp_path / "told").exists() == told
