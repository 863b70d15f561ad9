"""Sections whose class `type` chooses, and the triggers of actions, in YAML and in Python."""

import dataclasses
import sys
import textwrap

import pytest
import yaml

from official_trainer.actions.replica_integrity import ReplicaIntegrityConfig
from official_trainer.actions.schedule import Schedule
from official_trainer.config import (
    ConfigError,
    CustomScheduleConfig,
    ExperimentConfig,
    TrainerConfig,
    When,
    dump,
    explain,
    installed,
    opt,
    resolve,
)
from official_trainer.config import components as component_module
from official_trainer.config.compare import changes
from official_trainer.config.components import ActionConfig
from official_trainer.tasks import registry
from tests.support.packages import entry_point

FOLDERS = "actions", "experiments", "schedules"
RATE = "trainer.optimizer_config.learning_rate"


def resolved(text, base=None):
    return resolve(base or ExperimentConfig(), sets=[f"trainer.actions={text}"])


def action(text):
    (found,) = resolved(f"[{text}]").config.trainer.actions
    return found


def said(text, base=None):
    with pytest.raises(ConfigError) as caught:
        resolved(text, base)
    return [problem.message for problem in caught.value.problems]


# Actions.


def test_type_chooses_the_class():
    """B1: a mapping, or the type alone; typed and checked like the rest."""
    found = action("{type: replica_integrity, name: fine, when: {every: 5}, priority: -1, on_error: warn}")
    assert found == ReplicaIntegrityConfig(name="fine", when=When(every=5), priority=-1, on_error="warn")
    assert action("replica_integrity") == ReplicaIntegrityConfig()
    assert found.type == "replica_integrity"


def test_dump_and_reload_are_equal():
    """B1, N7: with nested triggers; nothing of a trigger is written that is not set."""
    before = resolved(
        "[replica_integrity, {type: replica_integrity, name: b, when: {any: [after_eval, {not: {every: 5}}, "
        "{exponential: {start: 3}}, {every_seconds: 2, measure_from: start}]}}]"
    )
    text = dump(before)
    assert "null" not in text.partition("any:")[2].partition("priority")[0]
    assert resolve(ExperimentConfig(), params_overrides=[text]).config == before.config
    assert dump(resolve(ExperimentConfig(), params_overrides=[text])) == text
    assert yaml.safe_load(text)["trainer"]["actions"][1]["when"]["any"][:2] == [
        {"after_eval": True},
        {"not": {"every": 5}},
    ]


def test_the_same_in_python():
    """B1: a factory writes what YAML would say, and overrides go on from there."""
    base = ExperimentConfig(trainer=TrainerConfig(actions=(ReplicaIntegrityConfig(when=When(every=7)),)))
    assert (
        resolve(base).config.trainer.actions
        == resolved("[{type: replica_integrity, when: {every: 7}}]").config.trainer.actions
    )
    changed = resolve(
        base, sets=["trainer.actions[0].when={at_end: true}", "trainer.actions+=[{type: replica_integrity, name: b}]"]
    )
    assert [a.when for a in changed.config.trainer.actions] == [When(at_end=True), When(after_summary=True)]
    assert resolve(base, sets=["trainer.actions[0].when=after_eval"]).config.trainer.actions[0].when == When(
        after_eval=True
    )


def test_explain_knows_the_field():
    """N8: also the one whose name is a keyword."""
    found = resolved("[{type: replica_integrity, when: {not: {every: 3}}}]")
    assert "at the multiples of this step" in explain(found, "trainer.actions[0].when.not.every")
    assert "the steps at which this is not due" in explain(found, "trainer.actions[0].when")


def test_a_changed_trigger_is_one_change():
    """N9: said as a whole, and undone as a whole."""
    before = yaml.safe_load(dump(resolved("[{type: replica_integrity, when: {every: 3}}]")))
    (change,) = changes(before, resolved("[{type: replica_integrity, when: {not: {every: 3}}}]"))
    assert (change.path, change.before, change.after) == (
        "trainer.actions[0].when",
        {"every": 3},
        {"not": {"every": 3}},
    )
    assert resolve(resolved("[replica_integrity]").config, sets=list(change.undo)).config.trainer.actions[
        0
    ].when == When(every=3)


def test_config_of_an_action_says_when_and_how():
    """G1: name, priority and policy go to the action that is built."""
    schedule = Schedule(
        [action("{type: replica_integrity, name: x, when: {every: 3}, priority: 7, on_error: disable}")]
    )
    (built,) = schedule.actions
    assert (built.name, built.priority, built.on_error, built.when) == ("x", 7, "disable", When(every=3))


# A workspace's own.

OWN = '''
import dataclasses

from official_trainer.actions import Action
from official_trainer.config import ActionConfig, Positive


@dataclasses.dataclass(frozen=True, kw_only=True)
class GreetConfig(ActionConfig):
    """Says hello.

    Attributes:
      times: how often.
    """

    times: Positive = 1

    def build(self):
        return Greet(self.times)


class Greet(Action):
    def __init__(self, times):
        self.times = times
'''


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    """A workspace in use, whose modules go away again."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "actions").mkdir()
    (tmp_path / "schedules").mkdir()
    before, path = list(component_module._workspace), list(sys.path)
    registry.enter(tmp_path)
    yield tmp_path
    component_module._workspace[:] = before
    sys.path[:] = path
    for name in [name for name in sys.modules if name.partition(".")[0] in FOLDERS]:
        del sys.modules[name]


def test_an_own_action_is_one_file(workspace):
    """G1, B1: found by name, typed and checked, beside those that are there."""
    (workspace / "actions" / "greet.py").write_text(textwrap.dedent(OWN))
    found = action("{type: greet, times: 3}")
    assert (found.type, found.times, found.build().times) == ("greet", 3, 3)
    assert "must be at least 1, got 0" in said("[{type: greet, times: 0}]")[0]
    assert list(ActionConfig.names())[-1] == "greet"
    assert action("replica_integrity").type == "replica_integrity"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import nothing_of_it  # (ActionConfig)",
            "actions/greet.py cannot be imported: ModuleNotFoundError: No",
        ),
        ("x = 1  # (ActionConfig)", "must define one ActionConfig; it defines 0"),
        (OWN + OWN.replace("GreetConfig", "OtherConfig"), "must define one ActionConfig; it defines 2"),
    ],
)
def test_an_own_action_that_is_wrong_is_said(workspace, text, message):
    """N7: with its file."""
    (workspace / "actions" / "greet.py").write_text(textwrap.dedent(text))
    assert message in said("[greet]")[0]


def test_a_name_that_is_there_twice_is_refused(workspace):
    """T14: ours and the workspace's."""
    (workspace / "actions" / "replica_integrity.py").write_text(textwrap.dedent(OWN))
    assert (
        "exists twice, in the package and in the workspace; rename actions/replica_integrity.py"
        in said("[replica_integrity]")[0]
    )


# Those of installed packages.

SHOUT = """
    import dataclasses
    from official_trainer.config import TrackerConfig

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class ShoutConfig(TrackerConfig):
        file: str = "shout.txt"
"""


@pytest.fixture
def package(workspace, monkeypatch):
    """Writes an installed package whose entry point names a module with this text."""

    def install(text, name, group="actions", package="greetings"):
        folder = workspace / package
        entry_point(folder, f"{package}_module", name, group, package)
        (folder / f"{package}_module.py").write_text(textwrap.dedent(text))
        monkeypatch.syspath_prepend(folder)
        monkeypatch.delitem(sys.modules, f"{package}_module", raising=False)

    return install


def test_an_action_and_a_tracker_of_installed_packages(package):
    """T27: by the names of their entry points, also when their classes are used in Python and in what is written."""
    package(OWN, "well-met")
    package(SHOUT, "shout", "trackers", "shouting")
    found = resolve(
        ExperimentConfig(), sets=["trainer.actions=[{type: well-met, times: 3}]", "trainer.trackers=[{type: shout}]"]
    ).config
    (greet,), (shout,) = found.trainer.actions, found.trainer.trackers
    assert (greet.type, greet.times, greet.build().times) == ("well-met", 3, 3)
    assert (shout.type, shout.file) == ("shout", "shout.txt")
    assert "must be at least 1, got 0" in said("[{type: well-met, times: 0}]")[0]
    python = ExperimentConfig(trainer=TrainerConfig(actions=(type(greet)(times=3),), trackers=(type(shout)(),)))
    assert resolve(ExperimentConfig(), params_overrides=[dump(python)]).config == python
    message = said("[welmet]")[0]
    assert "unknown type 'welmet'" in message and "did you mean 'well-met'" in message


def test_what_has_a_file_is_used_without_asking_for_packages(workspace, package, monkeypatch):
    """T27: neither another package nor reading what is installed changes what was there before."""
    package(SHOUT, "replica_integrity")
    package(SHOUT, "greet", package="others")
    (workspace / "actions" / "greet.py").write_text(textwrap.dedent(OWN))
    assert set(ActionConfig.names()) >= {"greet", "replica_integrity"}
    monkeypatch.setattr(installed, "points", None)
    assert action("greet").build().times == 1
    assert action("replica_integrity") == ReplicaIntegrityConfig()


def test_two_packages_with_one_name_are_named(package):
    """N7: which of them is meant is not known."""
    package(OWN, "greet")
    package(OWN, "greet", package="others")
    assert "the type greet is in two packages, greetings and others: pip uninstall " in said("[greet]")[0]


# What is beside the branches of a one-of.

TRIANGLE = '''
import dataclasses

from official_trainer.config import CustomScheduleConfig, Positive, PositiveFloat


@dataclasses.dataclass(frozen=True, kw_only=True)
class TriangleConfig(CustomScheduleConfig):
    """Up and down.

    Attributes:
      high: the highest rate.
      half_steps: steps up to it.
    """

    high: PositiveFloat = 0.02
    half_steps: Positive | None = None

    def follows(self):
        yield "half_steps", "trainer.train_steps"
'''


def rate(*sets, base=None):
    return resolve(base or ExperimentConfig(), sets=[f"{RATE}{text}" for text in sets])


def test_a_schedule_of_the_workspace_is_a_branch_like_any_other(workspace):
    """T15: in Model Garden's form, in any order, from Python, written, explained, compared and changed again."""
    (workspace / "schedules" / "triangle.py").write_text(TRIANGLE)
    yaml_form = rate(
        ".triangle.high=0.1", ".type=triangle", base=ExperimentConfig(trainer=TrainerConfig(train_steps=9))
    )
    section = yaml_form.config.trainer.optimizer_config.learning_rate.get()
    assert (section.high, section.half_steps) == (0.1, 9)
    assert "the highest rate" in explain(yaml_form, f"{RATE}.triangle.high")
    assert resolve(ExperimentConfig(), params_overrides=[dump(yaml_form)]).config == yaml_form.config
    python = ExperimentConfig(trainer=TrainerConfig(train_steps=9, optimizer_config=opt.adam(section)))
    assert python.trainer.optimizer_config.learning_rate == yaml_form.config.trainer.optimizer_config.learning_rate
    written = yaml.safe_load(dump(yaml_form))
    (change,) = changes(written, rate(".triangle.high=0.2", base=yaml_form.config))
    assert (change.path, change.before, change.after) == (f"{RATE}.triangle.high", 0.1, 0.2)
    other = rate("={type: constant}", base=yaml_form.config).config
    assert other.trainer.optimizer_config.learning_rate.get().learning_rate == 0.1


def test_a_schedule_of_a_package(package):
    """T15, T27: by the name of its entry point."""
    package(TRIANGLE, "triangle", "schedules")
    assert rate("=triangle").config.trainer.optimizer_config.learning_rate.get().high == 0.02


@pytest.mark.parametrize(
    ("file", "text", "sets", "message"),
    [
        ("triangle", TRIANGLE, "=triangel", "unknown type 'triangel'; allowed: constant, stepwise, exponential, "
         "polynomial, cosine, power, power_linear, power_with_offset, step_cosine_with_offset, triangle; or add "
         "schedules/triangel.py to the workspace, or install its package; did you mean 'triangle'?"),
        ("cosine", TRIANGLE, "=cosine", "type 'cosine' exists twice, in the package and in the workspace; rename "
         "schedules/cosine.py"),
        ("triangle", TRIANGLE, "={type: triangle, triangle: {high: fast}}", "must be a number, got 'fast'"),
        ("triangle", TRIANGLE.replace(" = 0.02", ""), "=triangle", "field 'high' needs a default, which may be None"),
    ],
)  # fmt: skip
def test_a_schedule_of_the_workspace_that_is_wrong(workspace, file, text, sets, message):
    """T15, N7: with the place, the nearest, and what is allowed."""
    (workspace / "schedules" / f"{file}.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        rate(sets)
    assert message in str(caught.value)


def test_a_schedule_that_has_no_name(workspace):
    """T15: a class that no file in `schedules/` defines would not be found when its run is opened."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class LocalConfig(CustomScheduleConfig):
        pass

    with pytest.raises(ConfigError, match=r"LocalConfig: is not found by a name; .* to schedules/NAME\.py"):
        opt.adam(LocalConfig())
