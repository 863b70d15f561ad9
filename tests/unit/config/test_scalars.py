"""N7: each type accepts exactly its spellings, the same in a file, an override, YAML in a flag and `--set`."""

import math

import pytest

from official_trainer.config import ConfigError, resolve
from tests.support.config.sample import Model, model, resolved

ACCEPTED = [
    ("integer", "10", 10),
    ("integer", "-3", -3),
    ("integer", "+3", 3),
    ("integer", "0", 0),
    ("integer", "1_000", 1000),
    ("integer", "1e2", 100),
    ("integer", "5e-0", 5),
    ("integer", "1_0.0", 10),
    ("integer", "0x1F", 31),
    ("integer", "0o17", 15),
    ("integer", "-0b11", -3),
    ("maybe_integer", "9223372036854775807", 2**63 - 1),
    ("maybe_integer", "-0x8000000000000000", -(2**63)),
    ("number", "100000000000000000000", 1e20),
    ("count", "100000000000000000000", 1e20),
    ("anything", "'100000000000000000000'", "100000000000000000000"),
    ("anything", "1e20", 1e20),
    ("number", "1e-4", 1e-4),
    ("number", "1.5e6", 1.5e6),
    ("number", "1.e6", 1e6),
    ("number", "2.5E4", 2.5e4),
    ("number", "1_000", 1000.0),
    ("number", "-.5", -0.5),
    ("number", "0x10", 16.0),
    ("number", "inf", math.inf),
    ("number", "-.inf", -math.inf),
    ("number", "+.Inf", math.inf),
    ("truth", "true", True),
    ("truth", "True", True),
    ("truth", "yes", True),
    ("truth", "ON", True),
    ("truth", "off", False),
    ("truth", "no", False),
    ("truth", "false", False),
    ("text", "off", "off"),
    ("text", "1e-4", "1e-4"),
    ("text", "1.10", "1.10"),
    ("text", "010", "010"),
    ("text", "1:30", "1:30"),
    ("text", "2020-01-01", "2020-01-01"),
    ("text", "'10'", "10"),
    ("text", "'null'", "null"),
    ("text", "''", ""),
    ("word", "off", "off"),
    ("word", "'sgd'", "sgd"),
    ("level", "2", 2),
    ("padding", "None", "None"),
    ("maybe_integer", "null", None),
    ("maybe_integer", "~", None),
    ("maybe_integer", "None", None),
    ("maybe_integer", "7", 7),
    ("maybe_text", "null", None),
    ("maybe_text", "'null'", "null"),
    ("either", "a", "a"),
    ("either", "[a, b]", ("a", "b")),
    ("count", "3", 3),
    ("count", "3.0", 3.0),
    ("count", "1e3", 1000.0),
    ("flag_or_text", "true", True),
    ("flag_or_text", "off", "off"),
    ("flag_or_text", "'true'", "true"),
    ("many", "auto", "auto"),
    ("many", "4", 4),
    ("scale", "dynamic", "dynamic"),
    ("scale", "128", 128.0),
    ("scale", "null", None),
    ("filters", "[1, 2, 1e1]", (1, 2, 10)),
    ("filters", "[]", ()),
    ("window", "[3, 1e-3]", (3, 1e-3)),
    ("nested", "[[1, 2], []]", ((1, 2), ())),
    ("plain_list", "[1, .5]", (1.0, 0.5)),
    ("weights", "{a: 1, 'b c': 1e-3}", {"a": 1.0, "b c": 1e-3}),
    (
        "free",
        "{a: 1e3, b: off, c: 010, d: [1, '1'], e: null, f: true}",
        {"a": 1e3, "b": "off", "c": "010", "d": (1, "1"), "e": None, "f": True},
    ),
    ("anything", "0x10", 16),
    ("anything", "'1'", "1"),
    ("anything", "1.", 1.0),
    ("anything", "abc", "abc"),
    ("maybe_anything", "1e1", 10.0),
    ("maybe_anything", "[1]", (1,)),
    ("maybe_anything", "null", None),
    ("nothing", "null", None),
]


def _doors(write, field, text):
    """Returns the same value as an item of `--set`, in a file, as an item of several, and in YAML in a flag."""
    return [
        {"sets": [f"{field}={text}"]},
        {"config_files": [write(f"{field}: {text}\n")]},
        {"params_overrides": [f"{field}={text},nothing=null"]},
        {"params_overrides": [f"{{{field}: {text}}}"]},
    ]


def test_accepted_the_same_everywhere(write):
    """N7: a spelling means the same in a file, an override, YAML in a flag and `--set`."""
    for field, text, value in ACCEPTED:
        for layers in _doors(write, field, text):
            read = getattr(resolve(Model(), **layers).config, field)
            assert read == value, text
            assert type(read) is type(value) or isinstance(read, dict), text


REFUSED = [
    ("integer", "10k", "must be an integer, got '10k'"),
    ("integer", "'10'", "must be an integer, got the quoted text '10'; remove the quotes"),
    ("integer", "null", "must be an integer, got null; give a value, or remove it to keep the default"),
    ("text", "[a]", "must be text, got a list"),
    ("weights", "{a: x}", "weights.a: must be a number, got 'x'"),
    ("integer", "0" * 500, "must be an integer of at most 400 characters"),
    ("integer", "0x" + "f" * 5000, "must be an integer of at most 400 characters"),
    ("free", "{a: [" + "9" * 5000 + "]}", "free.a[0]: must be an integer of at most 400 characters"),
    ("number", "0x" + "f" * 300, "must be an integer"),
]


def test_refused_the_same_everywhere(write):
    """N7, N34: the words are the same by every door; `messages.yaml` has those of all types."""
    for field, text, said in REFUSED:
        for layers in _doors(write, field, text):
            with pytest.raises(ConfigError) as refused:
                resolve(Model(), **layers)
            (problem,) = refused.value.problems
            assert said in problem.message
            assert problem.path.startswith(field)


def test_thousands_are_not_grouped_by_commas_and_nan_is_a_number():
    assert math.isnan(model("task.model.number=.nan").number)
    with pytest.raises(ConfigError, match=r"must be an integer, got '1,000'"):
        model("task.model.integer=1,000")


def test_nothing_is_null_where_null_is_allowed_and_no_text_elsewhere():
    assert model("task.model.maybe_integer=").maybe_integer is None
    assert model("task.model.text=").text == ""


def test_a_list_is_held_as_a_tuple_and_a_mapping_is_frozen():
    found = model("task.model.weights={a: 1}", "task.model.plain_list=[1]")
    assert found.plain_list == (1.0,)
    with pytest.raises(TypeError, match="frozen configuration"):
        found.weights["a"] = 2


def test_the_text_of_a_dedicated_flag_is_taken_as_it_is():
    assert resolved(flags=[("--name", "task.model.text", "a,b=c [d")]).config.task.model.text == "a,b=c [d"
