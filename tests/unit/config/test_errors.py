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
from official_trainer.errors import ExitCode, UserError, first_line
from official_trainer.nearest import mistyped, nearest
from tests.support.config.sample import Block, Model, base, problems, resolved

GOLDEN = """\
8 problems in the configuration

a.yaml:2: trainer.train_step: unknown field of TrainerConfig; did you mean 'train_steps'?
    2 |   train_step: 10
      |   ^^^^^^^^^^

a.yaml:3: trainer.steps_per_loop: must be an integer, got '10k'
    3 |   steps_per_loop: 10k  # ten thousand
      |                   ^^^

a.yaml:6: trainer.optimizer_config.optimizer.type: not one of the choices, got 'adma'; \
allowed: sgd, adam, adamw, rmsprop, adagrad, lamb, lars; did you mean 'adam'?
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


# Files that cannot be read.

FILES = [
    ("trainer:\n\ttrain_steps: 1\n", "a.yaml:2: a tab in the indentation, where YAML allows spaces only; replace it"),
    ("- 1\n- 2\n", "a.yaml:1: a configuration file holds fields (name: value), not a list"),
    ("hello\n", "a.yaml:1: a configuration file holds fields (name: value), not one value"),
    ("trainer:\n", "a.yaml:1: trainer: nothing is set in this section; indent its fields below it, or remove the line"),
    (
        "trainer:\n  # train_steps: 1\nruntime: {seed: 1}\n",
        "a.yaml:1: trainer: nothing is set in this section; indent its fields below it, or remove the line",
    ),
    ("trainer:\n  train_steps:10\n", "must be a section (TrainerConfig), got 'train_steps:10'; put a space after ':'"),
    (
        "runtime: {seed: 1}\nruntime: {seed: 2}\n",
        "a.yaml:2: 'runtime' appears twice in one section, first on line 1; keep one",
    ),
    (
        "runtime: {seed: 1}\nruntime.seed: 2\n",
        "a.yaml:2: runtime.seed: is set twice in this file, first on line 1; keep one",
    ),
    (
        "runtime: {tpu: !!python/name:os.system ''}\n",
        "a.yaml:1: the tag !!python/name:os.system is not allowed in a configuration; write plain data",
    ),
    ("runtime: !mine {}\n", "the tag !mine is not allowed in a configuration; only !append is allowed"),
    ("? [a]\n: 1\n", "a.yaml:1: a field name must be one word"),
    ("<<: 1\n", "a.yaml:1: '<<' takes a section or a list of sections"),
    ("runtime: {seed: 1\n", "cannot be read as YAML: did not find expected ',' or '}'; a bracket is not closed"),
    ("a: b: c\n", "a.yaml:1: cannot be read as YAML: mapping values are not allowed in this context; quote the value"),
    ("runtime: {tpu: 'x}\n", "cannot be read as YAML: found unexpected end of stream; a quote is not closed"),
    (
        "trainer: |\n  text\n  more\n",
        "trainer: must be a section (TrainerConfig), got the quoted text 'text\\nmore",
    ),
    ("runtime: *gone\n", "a.yaml:1: nothing before this place has the name of this alias; define it there"),
    ("a: 1\n---\nb: 1\n", "a.yaml:2: a second document begins here; remove the '---' line"),
    ("runtime: \x01\n", "cannot be read as YAML: control characters are not allowed"),
    ("task: {model: {free: &a {b: *a}}}\n", "a.yaml:1: an alias must not contain itself; remove it"),
    (
        "task: {model: {integer: !append 1}}\n",
        "is not a list or a mapping, so there is nothing to append to; use '='",
    ),
]


@pytest.mark.parametrize(("text", "said"), FILES)
def test_files(write, text, said):
    """N7: every way a file can be wrong is named with its place."""
    assert said in problems(config_files=[write(text)])[0]


def test_missing_and_unreadable_files(write, tmp_path):
    write("", "lib/common.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"a: \xff")
    (tmp_path / "folder.yaml").mkdir()
    assert problems(config_files=["nowhere/x.yaml", "lib/comon.yaml", "bytes.yaml", "folder.yaml"]) == [
        "there is no configuration file 'nowhere/x.yaml'",
        "there is no configuration file 'lib/comon.yaml'; did you mean 'lib/common.yaml'?",
        "configuration file 'bytes.yaml' is not UTF-8 text (byte 3); save it as UTF-8",
        "cannot read configuration file 'folder.yaml': Is a directory",
    ]
    top = write("base: lib/comon.yaml\n")
    assert problems(config_files=[top]) == [
        "a.yaml:1: there is no configuration file 'lib/comon.yaml'; did you mean 'lib/common.yaml'?"
    ]


# Rules across fields.


def test_a_rule_points_at_what_the_user_set(write):
    """N7: the place is the user's own line even when the field at fault is another."""
    file = write("trainer:\n  train_tf_function: off\n")
    assert problems(config_files=[file]) == [
        "a.yaml:2: trainer.train_tf_while_loop: needs train_tf_function; set train_tf_while_loop=false too"
    ]


def test_a_rule_broken_by_the_experiment_names_it():
    start = ExperimentConfig(runtime=RuntimeConfig(enable_xla=True, run_eagerly=True))
    with pytest.raises(ConfigError, match=r"^experiment mine: runtime\.enable_xla: cannot be combined"):
        resolve(start, experiment="mine")


def test_a_rule_that_only_repeats_an_unreadable_value_is_silent():
    rate = "trainer.optimizer_config.learning_rate"
    found = problems(f"{rate}=cosine", f"{rate}.cosine.decay_steps=10k", f"{rate}.cosine.initial_learning_rat=1")
    assert [said.partition(": ")[2].partition(":")[0] for said in found] == [
        f"{rate}.cosine.decay_steps",
        f"{rate}.cosine.initial_learning_rat",
    ]


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithPicky(TaskConfig):
    picky: Picky = Picky()


@pytest.mark.parametrize(
    ("start", "said"),
    [
        (base().replace(trainer=TrainerConfig(train_steps="abc")), "experiment x: trainer.train_steps: must be an int"),
        (base().replace(trainer=TrainerConfig(train_steps=True)), "trainer.train_steps: must be an integer, got true"),
        (base().replace(trainer=TrainerConfig(train_steps=-1)), "trainer.train_steps: must be at least 0, got -1"),
        (base().replace(trainer=TrainerConfig(train_steps=None)), "train_steps: must be an integer, got null"),
        (base().replace(task=5), "experiment x: task: must be a section (TaskConfig), got 5"),
        (base().replace(task=DataConfig()), "task: must be a section (TaskConfig), got a DataConfig"),
        (base(Model(word="adma")), "task.model.word: must be 'adam', 'sgd' or 'off', got 'adma'"),
        (base(Model(scale="x")), "task.model.scale: must be 'dynamic', a number greater than 0 or null, got 'x'"),
        (base(Model(filters=(1, "b"))), "task.model.filters[1]: must be an integer, got 'b'"),
        (base(Model(filters=(0,))), "task.model.filters[0]: must be at least 1, got 0"),
        (base(Model(window=(1,))), "task.model.window: must be a list of 2 items (an integer, a number), got 1 item"),
        (base(Model(weights={"a": "b"})), "task.model.weights.a: must be a number, got 'b'"),
        (base(Model(weights={1: 2.0})), "task.model.weights: must be a mapping to numbers, got {1: 2.0}"),
        (base(Model(anything=object)), "task.model.anything: must be any value, got <class 'object'>"),
        (base(Model(blocks=(Block(x="a"),))), "task.model.blocks[0].x: must be an integer, got 'a'"),
        (ExperimentConfig(task=Broken()), "class default: task.default: must be an integer, got 'abc'"),
        (
            ExperimentConfig(task=WithPicky(picky=Picky(type="lft"))),
            "experiment x: task.picky.type: must be 'left', got 'lft'; did you mean 'left'?",
        ),
    ],
)
def test_mistakes_in_python_name_the_factory_or_the_class(start, said):
    """N7: what the factory put in is checked like everything else."""
    with pytest.raises(ConfigError) as refused:
        resolve(start, experiment="x")
    assert said in refused.value.problems[0].message
    assert len(refused.value.problems) == 1


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


@pytest.mark.parametrize(
    ("section", "line", "said"),
    [
        (Undecorated(), "extra:", "'extra' is not a field; put @dataclasses.dataclass(frozen=True, kw_only=True)"),
        (Promising(), "type:", "type allows 'right', for which the class has no field; declare the field"),
        (Unreadable(), "items:", "field 'items' has type set[int], which a configuration cannot contain"),
        (
            Unknown(),
            "class Unknown",
            "the type 'Nowhere' cannot be found; define or import it at the top of the module",
        ),
        (Shadowing(), "replace:", "a field must not be called 'replace', which is a method of every section"),
    ],
)
def test_classes_declared_wrongly(section, line, said):
    """N7: a class that no text can be read into says which field is at fault, at its line, and what to do."""
    with pytest.raises(ConfigError) as refused:
        resolve(ExperimentConfig(task=TaskConfig(model=section)))
    (problem,) = refused.value.problems
    assert said in problem.message
    assert problem.message.startswith("tests/unit/config/test_errors.py:")
    assert problem.origin is not None
    assert problem.origin.text.splitlines()[problem.origin.line - 1].strip().startswith(line)


def test_fields_without_a_default():
    assert resolved("task.model.strict={size: 3}").config.task.model.strict.size == 3
    assert resolved("task.model.strict.size=3").config.task.model.strict.size == 3
    (said,) = problems("task.model.strict={other: 3}")
    assert said == "--set: task.model.strict: Strict needs size; set it here"
    (said,) = problems("task.model.strict={size: x}")
    assert "must be an integer" in said
    resolve(ExperimentConfig(task=TaskConfig(model=NeedsValue(size=1))), sets=["task.model.size=2"])


def test_a_section_may_refuse_its_values():
    (said,) = problems("task.model.strict={size: 300}")
    assert said == "--set: task.model.strict: Strict refuses these values: size is too large for other"


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


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("train_step", "train_steps"),
        ("tarin_steps", "train_steps"),
        ("TRAIN_STEPS", "train_steps"),
        ("zzz", None),
    ],
)
def test_nearest(word, first):
    options = ["train_steps", "train_epochs", "validation_steps", "max_to_keep"]
    assert (nearest(word, options) or [None])[0] == first


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
