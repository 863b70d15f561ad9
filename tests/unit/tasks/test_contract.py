"""N28: methods of a user's that cannot be called as the engine calls them are refused when their object is made.

All that works is taken: other names, defaults, `*args`, static methods, decorators, partial functions, properties.
"""

import functools
import re

import pytest

from official_trainer import MultiTask, Task
from official_trainer.actions import Action
from official_trainer.actions.schedule import Schedule
from official_trainer.config import ActionConfig
from official_trainer.tasks import contract
from official_trainer.tasks.contract import ContractError
from official_trainer.user_code import notes_on


def counted(function):
    @functools.wraps(function)
    def call(self, *args, **kwargs):
        return function(self, 1, *args, **kwargs)

    return call


def of(**methods):
    return type("Own", (Task,), methods)(None)


class Garden:
    """The parts of a Task that Model Garden's driver calls; its own steps call the others as they like."""

    build_model = validation_step = aggregate_logs = Task.build_model
    build_inputs = Task.build_inputs
    train_step = Task.train_step

    def build_losses(self, model_outputs, num_replicas, model):
        """As of a project of Model Garden."""

    def inference_step(self, model, inputs, require_num_frames=True):
        """As of a project of Model Garden."""


class OwnSteps(Task):
    """Its steps call the other methods."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        """Takes what the engine passes."""

    def validation_step(self, inputs, model, metrics=None):
        """Takes what the engine passes."""

    def build_losses(self, outputs):
        """Called by its own steps."""

    def process_metrics(self, outputs):
        """Called by its own steps."""

    def after_step(self):
        """Called by its own steps."""


TAKEN = {
    "nothing": of(),
    "several tasks": MultiTask.__new__(MultiTask),
    "own steps": OwnSteps(None),
    "other names": of(train_step=lambda self, batch, model, optimizer, metrics: 0, initialize=lambda self, net: 0),
    "more with defaults": of(build_metrics=lambda self, training=True, *, extra=0: [], build_model=lambda self, a=1: 0),
    "any": of(build_metrics=lambda *args, **kwargs: [], train_step=lambda self, *args, **options: {}),
    "without a context": of(build_inputs=lambda self, params: 0),
    "a name of another argument for all": of(train_step=lambda self, *inputs, **model: {}),
    "any options of the data": of(build_inputs=lambda self, params, **options: 0),
    "a static method": of(build_model=staticmethod(lambda: 0), build_metrics=staticmethod(lambda training: [])),
    "a class method": of(build_metrics=classmethod(lambda cls, training: [])),
    "a partial function": of(build_metrics=functools.partial(lambda scale, training: [], 2)),
    "a partial method": of(build_metrics=functools.partialmethod(lambda self, scale, training: [], 2)),
    "a decorator that adds an argument": of(build_metrics=counted(lambda self, number, training: [])),
    "a property": of(build_losses=property(lambda self: lambda labels, outputs: 0)),
    "an optimizer as a method": of(create_optimizer=lambda self, optimizer_config, runtime_config: 0),
    "a prediction without labels": of(predict_step=lambda self, inputs, model: 0),
    "a class of C": of(build_model=dict),
}


def test_what_can_be_called_is_taken():
    """N28: nothing that works is refused."""
    for name, task in TAKEN.items():
        assert contract.check_task(task) is None, name


class Adversarial(Task):
    """Has a step of its own, and is never evaluated."""

    def train_step(self, inputs, model, optimizer, metrics=None):
        """Takes what the engine passes."""

    def build_losses(self, real, made, noise):
        """Called by its own step."""


def test_what_only_evaluations_call_is_asked_for_where_there_are_some():
    """N28: `--mode=train` calls neither the validation step nor, through it, the losses."""
    with pytest.raises(ContractError, match="build_losses: the engine calls"):
        contract.task_of(Adversarial, None, "")
    assert contract.task_of(Adversarial, None, "", evaluates=False)
    with pytest.raises(ContractError, match="build_losses: the engine calls"):
        contract.check_task(of(build_losses=lambda self: 0), uncalled=contract.OF_EVALUATIONS)


def test_a_method_that_is_assigned_is_taken():
    """N28: as a Program does with `build_inputs`."""
    task = of()
    task.build_losses = lambda labels, outputs: 0
    contract.check_task(task)
    task.build_losses = lambda labels: 0
    with pytest.raises(ContractError, match="build_losses"):
        contract.check_task(task)


REFUSED = {
    "build_model": (lambda self, size: 0, "build_model()", "'size'; write def build_model(self)"),
    "build_inputs": (lambda self: 0, "build_inputs(params, input_context=…)", "(self, params, input_context)"),
    "build_metrics": (lambda self: [], "build_metrics(training=…)", "def build_metrics(self, training)"),
    "create_optimizer": (classmethod(lambda cls, config: 0), "create_optimizer(optimizer_config, runtime_config)",
                         "write def create_optimizer(self, optimizer_config, runtime_config)"),
    "initialize": (lambda self: 0, "initialize(model)", "def initialize(self, model)"),
    "train_step": (lambda self, batch, net, opt: 0, "train_step(inputs, model=…, optimizer=…, metrics=…)", "'net'"),
    "validation_step": (lambda self, inputs, model: 0, "validation_step(inputs, model=…, metrics=…)", "'metrics'"),
    "inference_step": (lambda self, inputs: 0, "inference_step(inputs, model)", "inference_step(self, inputs, model)"),
    "predict_step": (lambda self: 0, "predict_step(inputs, model, labels)", "(self, inputs, model, labels)"),
    "build_losses": (lambda self, labels: 0, "build_losses(labels, model_outputs)", "too many positional arguments"),
    "process_metrics": (lambda self, metrics: 0, "process_metrics(metrics, labels, model_outputs)", "too many"),
    "after_step": (lambda self: 0, "after_step(model)", "def after_step(self, model)"),
    "aggregate_logs": (lambda self, logs: 0, "aggregate_logs(state, step_logs)", "(self, state, step_logs)"),
    "reduce_aggregated_logs": (lambda self, logs: 0, "reduce_aggregated_logs(aggregated_logs, global_step=…)", "'glob"),
    "build_actions": (lambda self: 0, "build_actions(trainer)", "def build_actions(self, trainer)"),
    "build_signatures": (lambda self: 0, "build_signatures(model)", "def build_signatures(self, model)"),
    "build_contract": (lambda self: 0, "build_contract(model)", "def build_contract(self, model)"),
}  # fmt: skip


def test_what_cannot_be_called_is_refused():
    """N28: with the call, Python's reason and the right first line; a report adds the line of the method."""
    for name, (method, call, words) in REFUSED.items():
        with pytest.raises(ContractError) as caught:
            contract.check_task(of(**{name: method}))
        assert str(caught.value).startswith(f"Own.{name}: the engine calls {call}, which fails: ")
        assert words in str(caught.value)
        assert notes_on(caught.value)["method"] == name


@pytest.mark.parametrize(
    ("name", "method", "words"),
    [
        ("build_losses", lambda self, model_outputs, labels, aux_losses=None: 0, "'model_outputs' would be the labels"),
        ("process_metrics", lambda self, labels, model_outputs, metrics: 0, "'labels' would be the metrics"),
        ("inference_step", lambda self, model, inputs: 0, "'model' would be the inputs"),
        ("aggregate_logs", lambda self, step_logs, state=None: 0, "'step_logs' would be the state"),
    ],
)
def test_arguments_in_another_order_are_refused(name, method, words):
    """N28: they are passed by their position; a loss of labels and outputs may have a value with both exchanged."""
    with pytest.raises(ContractError) as caught:
        contract.check_task(of(**{name: method}))
    text = " ".join(str(caught.value).split())
    assert words in text
    assert f"write def {name}(self, " in text


def test_every_method_of_a_task_is_known():
    """N28: one that comes to the contract needs its call."""
    public = {name for name, value in vars(Task).items() if callable(value) and not name.startswith("_")}
    assert public | {"create_optimizer"} == set(REFUSED)


def test_a_method_without_self_and_several_at_once():
    """N28: all are named."""
    task = of(build_model=lambda: 0, build_metrics=lambda self: [])
    with pytest.raises(ContractError) as caught:
        contract.check_task(task)
    first, second = str(caught.value).splitlines()
    assert first.startswith("Own.build_model: the engine calls build_model(), which fails: it takes no argument, not ")
    assert second.startswith("Own.build_metrics: ")


def test_a_task_of_model_garden_is_asked_for_what_the_engine_calls():
    """N28, T1: the methods that only its own steps call are its own affair."""
    with pytest.raises(ContractError) as caught:
        contract.check_task(Garden())
    named = re.findall(r"Garden\.(\w+): ", str(caught.value))
    assert named == ["validation_step", "aggregate_logs"]


class Short(Action):
    def on_eval(self, run):
        """Takes too little."""


class ShortConfig(ActionConfig):
    def build(self, run):
        """Takes too much."""


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Short(), "Short.on_eval: the engine calls on_eval(run, logs), which fails: too many positional argu"
                  "ments; write def on_eval(self, run, logs)"),
        (ShortConfig(type="short"), "ShortConfig.build: the engine calls build(), which fails: missing a required "
                                    "argument: 'run'; write def build(self)"),
        (lambda run, logs: None, "an action that is a function is called as <lambda>(logs), which fails: missing a"),
    ],
)  # fmt: skip
def test_an_action_is_refused(source, words):
    """N28: its hooks, its config; a function."""
    with pytest.raises(TypeError) as caught:
        Schedule([source])
    assert words in " ".join(str(caught.value).split())


def test_an_action_that_may_fail_is_a_warning(caplog):
    """N28: with `on_error: warn` the run goes on, as it does when the hook is called."""
    action = Short()
    action.on_error = "warn"
    Schedule([action])
    assert "the engine calls on_eval(run, logs), which fails" in " ".join(caplog.text.split())
