"""N7: what is said about bad input: place, path, value, what is allowed, nearest match, fix; all at once."""

import dataclasses
import textwrap
from typing import Literal

import pytest
import yaml

from official_trainer.config import (
    Config,
    ConfigError,
    DataConfig,
    ExperimentConfig,
    FrozenDict,
    OneOf,
    Origin,
    Problem,
    RuntimeConfig,
    TaskConfig,
    TrainerConfig,
    resolve,
)
from official_trainer.config.limits import INTEGERS
from official_trainer.errors import ExitCode, UserError, first_line
from official_trainer.nearest import mistyped, nearest
from tests.support import golden
from tests.support.config.sample import Block, Model, base, problems, resolved

GOLDEN = """\
8 problems in the configuration

a.yaml:2: trainer.train_step: unknown field of TrainerConfig; did you mean 'train_steps'?
    2 |   train_step: 10
      |   ^^^^^^^^^^

a.yaml:3: trainer.steps_per_loop: must be an integer, got '10k'
    3 |   steps_per_loop: 10k  # ten thousand
      |                   ^^^

a.yaml:6: trainer.optimizer_config.optimizer.type: unknown type 'adma'; allowed: sgd, \
adam, adamw, rmsprop, adagrad, lamb, lars; or add optimizers/adma.py to the workspace, or install its package; \
did you mean 'adam'?
    6 |       type: adma
      |             ^^^^

a.yaml:7: trainer.optimizer_config.optimizer.adam.beta_2: must be between 0 and 1, got 2
    7 |       adam: {beta_1: 0.5, beta_2: 2}
      |                                   ^

a.yaml:9: task.num_gpus: unknown field of SampleTask; num_gpus exists at runtime.num_gpus
    9 |   num_gpus: 3
      |   ^^^^^^^^

--set: trainer.train_steps: must be an integer, got the quoted text '10'; remove the quotes
      | --set=trainer.train_steps='10'
      |                           ^^^^

--set: task.model.filters[1]: must be at least 1, got 0
      | --set=task.model.filters=[8, 0]
      |                              ^

a.yaml:12: runtime.enable_xla: cannot be combined with run_eagerly; set one of the two to false
   12 |   enable_xla: true
      |               ^^^^"""


def test_everything_at_once(write):
    """N7: one run shows every problem, with its line and a caret."""
    file = write(
        """\
        trainer:
          train_step: 10
          steps_per_loop: 10k  # ten thousand
          optimizer_config:
            optimizer:
              type: adma
              adam: {beta_1: 0.5, beta_2: 2}
        task:
          num_gpus: 3
        runtime:
          run_eagerly: true
          enable_xla: true
        """
    )
    with pytest.raises(ConfigError) as refused:
        resolved("trainer.train_steps='10'", "task.model.filters=[8, 0]", config_files=[file])
    assert str(refused.value) == GOLDEN
    assert refused.value.exit_code == ExitCode.CONFIG
    assert isinstance(refused.value, UserError)
    assert isinstance(refused.value, ValueError)
    assert [problem.path for problem in refused.value.problems][:2] == ["trainer.train_step", "trainer.steps_per_loop"]


# Messages.


def test_messages(write, request):
    """N7, N30, G4, B1: place, path, what is wrong, value, what is allowed, nearest match, fix; of each mistake once."""
    groups = ["paths and operators", "rules", "actions", "names from elsewhere", "references"]
    say = {
        **dict.fromkeys(groups, lambda given: golden.said_of(base(), sets=given)),
        "values of a field": lambda given: golden.said_of(Model(), sets=given),
        "files": lambda given: golden.said_of(base(), config_files=write(f"{given}\n")),
        "items of --params_override": lambda given: golden.said_of(base(), params_overrides=given),
    }
    golden.check(say, request)


def test_missing_and_unreadable_files(write, tmp_path):
    write("", "lib/common.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    (tmp_path / "folder.yaml").mkdir()
    write("import keras\n", "x.py")
    assert problems(config_files=["nowhere/x.yaml", "lib/comon.yaml", "bytes.yaml", "folder.yaml", "x.py"]) == [
        "there is no configuration file 'nowhere/x.yaml'",
        "there is no configuration file 'lib/comon.yaml'; did you mean 'lib/common.yaml'?",
        "configuration file 'bytes.yaml' is not UTF-8 text (byte 3); save it as UTF-8",
        "cannot read configuration file 'folder.yaml': Is a directory",
        "'x.py' is Python, and a configuration file is YAML; give the name of an experiment that it registers, with "
        "--experiment",
    ]
    top = write("base: lib/comon.yaml\n")
    assert problems(config_files=[top]) == [
        "a.yaml:1: there is no configuration file 'lib/comon.yaml'; did you mean 'lib/common.yaml'?"
    ]


# Rules across fields.


def test_a_rule_broken_by_the_experiment_names_it():
    start = ExperimentConfig(runtime=RuntimeConfig(enable_xla=True, run_eagerly=True))
    with pytest.raises(ConfigError, match=r"^experiment mine: runtime\.enable_xla: cannot be combined"):
        resolve(start, experiment="mine")


def test_rules_of_branches_that_do_not_count_are_silent():
    assert resolved("trainer.optimizer_config.warmup.type=null").config.trainer.optimizer_config.warmup.type is None


# Python-side mistakes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Broken(TaskConfig):
    default: int = "abc"  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picky(OneOf):
    type: str | None = None
    left: Block = Block()


IN_PYTHON = [
    (base().replace(trainer=TrainerConfig(train_steps="abc")), "experiment x: trainer.train_steps: must be an integer"),
    (base().replace(trainer=TrainerConfig(train_steps=True)), "trainer.train_steps: must be an integer, got true"),
    (base().replace(trainer=TrainerConfig(train_steps=-1)), "trainer.train_steps: must be at least 0, got -1"),
    (base().replace(trainer=TrainerConfig(train_steps=None)), "train_steps: must be an integer, got null"),
    (base().replace(task=5), "experiment x: task: must be a section (TaskConfig), got 5"),
    (base().replace(task=DataConfig()), "task: must be a section (TaskConfig), got a DataConfig"),
    (Model(word="adma"), "word: must be 'adam', 'sgd' or 'off', got 'adma'"),
    (Model(scale="x"), "scale: must be 'dynamic', a number greater than 0 or null, got 'x'"),
    (Model(filters=(1, "b")), "filters[1]: must be an integer, got 'b'"),
    (Model(window=(1,)), "window: must be a list of 2 items (an integer, a number), got 1 item"),
    (Model(weights={"a": "b"}), "weights.a: must be a number, got 'b'"),
    (Model(weights={"a": "1e-3"}), "weights.a: must be a number, got '1e-3'; remove the quotes"),
    (Model(weights={1: 2.0}), "weights: must be a mapping to numbers, got {1: 2.0}"),
    (Model(anything=object), "anything: must be any value, got <class 'object'>"),
    (Model(blocks=(Block(x="a"),)), "blocks[0].x: must be an integer, got 'a'"),
    (ExperimentConfig(task=Broken()), "class default: task.default: must be an integer, got 'abc'"),
    (Picky(type="lft"), "type: must be 'left', got 'lft'; did you mean 'left'?"),
    (Model(integer=10**30), f"experiment x: integer: must be {INTEGERS}"),
    (Model(integer=10**5000), f"must be {INTEGERS}, got an integer of 16610 bits"),
    (Model(integer=1e300), f"integer: must be {INTEGERS}, got 1e"),
    (Model(text="a\ud800"), "text: must be text that UTF-8 can hold, which character 2 is not, got 'a\\ud8"),
    (Model(weights={"\udce9": 1}), "must be text that UTF-8 can hold, which character 1 is not; write it as UTF-8"),
    (Model(anything=[{"a": (2**63,)}]), f"anything[0].a[0]: must be {INTEGERS}"),
]


def test_mistakes_in_python_name_the_factory_or_the_class():
    """N7, N34: what the factory put in is checked like everything else, and is what a file could hold."""
    for start, said in IN_PYTHON:
        with pytest.raises(ConfigError) as refused:
            resolve(start, experiment="x")
        (problem,) = refused.value.problems
        assert said in problem.message


def test_python_values_take_the_one_form_of_their_type():
    config = resolved(
        model=Model(
            number=1, integer=2.0, filters=[1, 2], weights={"a": 1}, blocks=[Block(names=["n"])], anything=[{"a": [1]}]
        )
    ).config.task.model
    assert (type(config.number), type(config.integer)) == (float, int)
    assert config.filters == (1, 2)
    assert config.weights == FrozenDict(a=1.0)
    assert config.blocks == (Block(names=("n",)),)
    assert config.anything == ({"a": (1,)},)
    assert hash(config) == hash(config.replace())


# Classes that cannot be configured.


class Undecorated(Config):
    extra: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unreadable(Config):
    items: set[int] = frozenset()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(Config):
    items: "Nowhere" = None  # noqa: F821


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shadowing(Config):
    replace: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Promising(OneOf):
    type: Literal["left", "right"] | None = None
    left: Block = Block()


@dataclasses.dataclass(frozen=True, kw_only=True)
class NeedsValue(Config):
    size: int


DECLARED_WRONGLY = [
    (Undecorated(), "extra:", "'extra' is not a field; put @dataclasses.dataclass(frozen=True, kw_only=True)"),
    (Promising(), "type:", "type allows 'right', for which the class has no field; declare the field"),
    (Unreadable(), "items:", "field 'items' has type set[int], which a configuration cannot contain"),
    (Unknown(), "class Unknown", "the type 'Nowhere' cannot be found; define or import it at the top of the module"),
    (Shadowing(), "replace:", "a field must not be called 'replace', which is a method of every section"),
]


def test_classes_declared_wrongly():
    """N7: a class that no text can be read into says which field is at fault, at its line, and what to do."""
    for section, line, said in DECLARED_WRONGLY:
        with pytest.raises(ConfigError) as refused:
            resolve(section)
        (problem,) = refused.value.problems
        assert said in problem.message
        assert problem.message.startswith("tests/unit/config/test_errors.py:")
        assert problem.origin.text.splitlines()[problem.origin.line - 1].strip().startswith(line)


def test_fields_without_a_default():
    assert resolved("task.model.strict={size: 3}").config.task.model.strict.size == 3
    assert resolved("task.model.strict.size=3").config.task.model.strict.size == 3
    resolve(ExperimentConfig(task=TaskConfig(model=NeedsValue(size=1))), sets=["task.model.size=2"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class LikeGarden(Config):
    names: tuple[str, ...] | None = ()

    @classmethod
    def is_read_as_garden(cls, name):
        return True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[null]", "names[0]: in Model Garden's class it must be text, and its code receives null"),
        (
            "abc",
            "names: in Model Garden's class it must be a list of texts or null, and its code receives 'abc'; "
            "write ['abc'], or each letter counts as an item",
        ),
    ],
)
def test_what_only_model_garden_accepts_is_a_warning(text, said):
    """T14: with advice where there is some."""
    (warning,) = resolve(
        ExperimentConfig(task=TaskConfig(model=LikeGarden())), sets=[f"task.model.names={text}"]
    ).warnings
    assert warning.message == f"--set: task.model.{said}"


# Rendering.


def test_long_lines_are_cut_around_the_caret(write):
    file = write("task: {model: {text: " + "a" * 300 + ", integer: x}}\n")
    with pytest.raises(ConfigError) as refused:
        resolved(config_files=[file])
    _, line, caret = str(refused.value).splitlines()
    assert len(line) <= 120
    assert line[caret.index("^")] == "x"


def test_a_line_of_a_flag_with_several_lines_has_its_number():
    text = "trainer:\n  train_steps: x\n"
    with pytest.raises(ConfigError) as refused:
        resolve(base(), params_overrides=[text])
    assert str(refused.value) == textwrap.dedent(
        """\
        --params_override: trainer.train_steps: must be an integer, got 'x'
            2 |   train_steps: x
              |                ^"""
    )
    assert str(refused.value.problems[0].origin) == "--params_override, line 2, column 16"


def test_the_password_of_a_url_is_not_repeated(write):
    """N2: in a message, which may be kept; the caret is below the value all the same."""
    file = write("task: {model: {integer: 'postgresql://me:secret@host/db'}}\n")
    with pytest.raises(ConfigError) as refused:
        resolved(config_files=[file])
    _, line, caret = str(refused.value).splitlines()
    assert "secret" not in line and line[caret.index("^") : caret.rindex("^") + 1] == "'postgresql://me:***@host/db'"


def test_long_values_are_shortened():
    (said,) = problems("trainer.train_steps=" + "a" * 500)
    assert len(said) < 160 and "…" in said


def test_the_same_problem_is_said_once():
    problem = Problem("is wrong", "a.b", origin=Origin("file", "f", 1, 1))
    assert ConfigError([problem, problem]).problems == (problem,)


def test_nearest():
    """N7: a slip, letters in another order, capital letters; no name for what is like none."""
    options = ["train_steps", "train_epochs", "validation_steps", "max_to_keep"]
    for word in ("train_step", "tarin_steps", "TRAIN_STEPS"):
        assert nearest(word, options)[0] == "train_steps"
    assert nearest("zzz", options) == []


def test_without_the_c_library_the_answers_are_the_same(write, monkeypatch):
    """N7, N34: PyYAML's own reader marks plain text differently; nothing may depend on it."""
    monkeypatch.setattr(yaml, "__with_libyaml__", False)
    assert "nested more than 64 levels deep" in problems(config_files=[write("a: " + "[" * 10_000)])[0]
    file = write("task: {model: {text: 1e-4, integer: '1', filters: [1, x], word: |\n  adam}}\n", "bad.yaml")
    assert "YAML" in problems(config_files=[file])[0]
    file = write("task: {model: {text: 1e-4, integer: '1', filters: [1, x]}}\n")
    assert problems(config_files=[file]) == [
        "a.yaml:1: task.model.integer: must be an integer, got the quoted text '1'; remove the quotes",
        "a.yaml:1: task.model.filters[1]: must be an integer, got 'x'",
    ]
    assert "a tab in the indentation" in problems(config_files=[write("trainer:\n\ttrain_steps: 1\n")])[0]
    assert "control characters" not in problems(config_files=[write("runtime: \x01\n")])[0]
    good = resolved(config_files=[write("task: {model: {text: 1e-4, maybe_integer: ~}}\n")]).config.task.model
    assert (good.text, good.maybe_integer) == ("1e-4", None)


def test_a_message_of_one_long_line_is_read_at_once():
    """N28: an error that lists thousands of ids must not hold up its own report; this took hours."""
    text = "unknown ids: " + "1234567, " * 100_000
    assert first_line(ValueError(text)) == text.strip()


def test_names_that_are_like_nothing_are_near_to_nothing():
    """N7: neither a word of a letter or two, nor a module that shares the first half of its name with another one."""
    assert nearest("adam", ["lamb", "adamax", "adam", "adamw", "nadam"]) == ["adam", "nadam", "adamw"]
    assert nearest("x", ["y", "tf"]) == nearest("df", ["f", "tf", "dt"]) == []
    modules = ["tensorflow_models", "tensorflow_hub", "numpy", "yaml", "sklearn"]
    assert [mistyped(name, modules) for name in ("tensorflow_addons", "tensorflow_io", "toml", "skimage")] == [""] * 4
    names = {"numpyy": "numpy", "sklaern": "sklearn", "tensorflow_modle": "tensorflow_models"}
    assert {name: mistyped(name, modules) for name in names} == names
