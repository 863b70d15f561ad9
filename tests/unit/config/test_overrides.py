"""T20, N7: the language of `--params_override` and `--set`."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import format_override
from tests.support.config.sample import Block, Model, WideBlock, model, problems, resolved

TEXTS = [
    # A bare value ends only before the next `path=`: no quotes needed.
    ("D.input_path=/a/b,/c/d,D.seed=1", {"input_path": "/a/b,/c/d", "seed": 1}),
    (
        "D.tfds_name=a,D.tfds_split=train[:90%]+test,D.seed=1",
        {"tfds_name": "a", "tfds_split": "train[:90%]+test", "seed": 1},
    ),
    ("D.input_path=a=b", {"input_path": "a=b"}),
    ("D.input_path=it's,D.seed=1", {"input_path": "it's", "seed": 1}),
    (r"D.input_path=C:\x;D.seed=1", {"input_path": r"C:\x", "seed": 1}),
    ("D.input_path=gs://bucket/a*b?c,D.seed=2", {"input_path": "gs://bucket/a*b?c", "seed": 2}),
    ("D.input_path=f(a, b=1),D.seed=2", {"input_path": "f(a, b=1)", "seed": 2}),
    ("D.input_path=a[,D.seed=2", {"input_path": "a[", "seed": 2}),
    ("D.input_path=a),D.seed=2", {"input_path": "a)", "seed": 2}),
    ("D.input_path='a,D.seed=3',D.seed=1", {"input_path": "a,task.train_data.seed=3", "seed": 1}),
    ("D.input_path='it''s'", {"input_path": "it's"}),
    ("D.input_path='a'b", {"input_path": "'a'b"}),
    (r'D.input_path="a\nb\\c\"d\x41\u00e9"', {"input_path": 'a\nb\\c"dA\u00e9'}),
    ("D.input_path=,D.seed=1", {"input_path": "", "seed": 1}),
    ("D.input_path=\nD.seed=1", {"input_path": "", "seed": 1}),
    ("D.seed=1,", {"seed": 1}),
    (
        "  D.seed = 1 ; D.cache = true \n D.tfds_as_supervised=on  ",
        {"seed": 1, "cache": True, "tfds_as_supervised": True},
    ),
    ("D.input_path=[a, 'b,c'],D.seed=1", {"input_path": ("a", "b,c"), "seed": 1}),
    ("D.input_path=['a]', \"}\"],D.seed=1", {"input_path": ("a]", "}"), "seed": 1}),
    ("D.seed=1,D.seed=2", {"seed": 2}),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS)
def test_items(text, expected):
    """T20: separators, quotes and brackets as the grammar says."""
    data = resolved(params_overrides=[text.replace("D.", "task.train_data.")]).config.task.train_data
    assert {name: getattr(data, name) for name in expected} == expected


def test_set_takes_the_rest_of_the_argument():
    found = resolved("task.train_data.input_path=a,task.train_data.seed=3").config.task.train_data
    assert (found.input_path, found.seed) == ("a,task.train_data.seed=3", None)


@pytest.mark.parametrize("text", ["", "  ", "\n"])
def test_no_items_change_nothing(text):
    assert resolved(params_overrides=[text]).config == resolved().config


@pytest.mark.parametrize(
    "text",
    [
        "{trainer: {train_steps: 7}, task.model.text: x}",
        '{"trainer": {"train_steps": 7}, "task": {"model": {"text": "x"}}}',
        "trainer:\n  train_steps: 7\ntask:\n  model: {text: x}\n",
        "# note\n\ntrainer:\n  train_steps: 7\ntask.model.text: x",
        "trainer.train_steps=7\ntask.model.text=x",
    ],
)
def test_yaml_in_the_flag(text):
    """T20: a mapping, several lines of YAML, or items."""
    config = resolved(params_overrides=[text]).config
    assert (config.trainer.train_steps, config.task.model.text) == (7, "x")


def test_a_file_in_the_flag(write):
    """T20: a name that ends like a file and holds no `=` is a file."""
    write("trainer: {train_steps: 7}\n", "my.yaml")
    result = resolved(params_overrides=["my.yaml", "task.model.text=other.yaml"])
    assert (result.config.trainer.train_steps, result.config.task.model.text) == (7, "other.yaml")
    assert str(result.origin("trainer.train_steps")) == "my.yaml:1:24"


# Parts of values.


def test_items_of_lists():
    start = Model(filters=(1, 2, 3), blocks=(Block(), WideBlock()))
    found = model(
        "task.model.filters[1]=20",
        "task.model.filters[-1]=30",
        "task.model.filters.0=10",
        "task.model.blocks[1].width=7",
        "task.model.blocks.0.names=[a, b]",
        "task.model.blocks[0].names[1]=c",
        model=start,
    )
    assert found.filters == (10, 20, 30)
    assert found.blocks == (Block(names=("a", "c")), WideBlock(width=7))


def test_entries_of_mappings():
    start = Model(weights={"a": 1.0, "b": 2.0}, named={"n": Block()})
    found = model("task.model.weights.a=3", "task.model.weights.'x.y'=4", "task.model.named.n.x=5", model=start)
    assert found.weights == {"a": 3.0, "b": 2.0, "x.y": 4.0}
    assert found.named == {"n": Block(x=5)}
    assert model("task.model.free={a: {b: [1]}}", "task.model.free.a.b[0]=2").free == {"a": {"b": (2,)}}


def test_append():
    """N23: `+=` adds one item or several, to a list that may be unset or a single text."""
    assert model("task.model.filters+=128").filters == (32, 64, 128)
    assert model("task.model.filters+=[1, 2]").filters == (32, 64, 1, 2)
    assert model("task.model.either+=a").either == ("a",)
    assert model("task.model.either=a", "task.model.either+=b").either == ("a", "b")
    assert model("task.model.blocks+=[{x: 4}]").blocks == (Block(), Block(x=4))
    assert model("task.model.weights+={a: 1}", "task.model.weights+={b: 2}").weights == {"a": 1.0, "b": 2.0}
    result = resolved("task.model.filters+=128")
    assert str(result.origin("task.model.filters[2]")) == "--set, column 21"
    assert str(result.origin("task.model.filters[0]")) == "class default"


# What is refused.


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("foo", "--set: expected path=value, got 'foo'; write foo=VALUE"),
        ("", "--set: expected path=value, got nothing"),
        ("a b=1", "--set: expected path=value, got 'a b=1'; write path=value or path+=value"),
        ("~a, b=1", "expected path=value, got '~a'"),
        ("trainer.train_step=1", "trainer.train_step: unknown field of TrainerConfig; did you mean 'train_steps'?"),
        ("trainr.train_steps=1", "--set: trainr: unknown field; did you mean 'trainer'?"),
        ("num_gpus=1", "num_gpus: unknown field; num_gpus exists at runtime.num_gpus"),
        ("task.model.filters[5]=1", "task.model.filters[5]: there is no such item; allowed: 0 to 1"),
        ("task.model.nested[0]=[1]", "there is no such item; allowed: none, the list is empty"),
        ("task.model.integer.x=1", "task.model.integer: is an integer, which has no part 'x'"),
        ("task.model.filters.x=1", "is a list of integers at least 1, which has no part 'x'; set it as a whole"),
        ("task.model.integer+=1", "task.model.integer: is not a list or a mapping, so there is nothing to append to"),
        ("task.model.weights+=1", "task.model.weights: only a mapping can be added to a mapping, got '1'"),
        ("task.model.window+=1", "task.model.window: must be a list of 2 items (an integer, a number), got 3 items"),
        ("task.model.filters=1,2", "must be a list of integers at least 1, got '1,2'; write [1,2]"),
        ("task.model.filters=[1", "must be a list of integers at least 1, got '[1'"),
        ("task.model.weights={a:1}", "task.model.weights.'a:1': must be a number, got nothing"),
        (
            "trainer={train_steps:1}",
            "trainer.'train_steps:1': unknown field of TrainerConfig; did you mean 'train_steps'?",
        ),
        ("task.model.weights.a=x", "task.model.weights.a: must be a number, got 'x'"),
        ("task.model.filters[0]=x", "task.model.filters[0]: must be an integer, got 'x'"),
        ("task.model.weights={a: *x}", "--set: nothing before this place has the name of this alias; define it there"),
        (
            "task.model.filters=['1]",
            "--set: cannot be read as YAML: found unexpected end of stream; a quote is not",
        ),
        (
            r'task.model.text="C:\data"',
            "escape character; in double quotes write two backslashes for one",
        ),
        ("trainer=5", "--set: trainer: must be a section (TrainerConfig), got '5'"),
        ("trainer=[1]", "--set: trainer: must be a section (TrainerConfig), got a list"),
        ("trainer=null", "--set: trainer: a section cannot be null; remove it to keep the defaults"),
        ("trainer=", "--set: trainer: nothing is set in this section; set its fields"),
    ],
)
def test_refused(text, said):
    (message,) = problems(text)
    assert said in message


def test_a_broken_item_does_not_hide_the_others():
    """N7: problems of several arguments arrive together."""
    found = problems("foo", "trainer.train_steps=x", params_overrides=["a.b=1,oops", "{a: [}"])
    assert len(found) == 4


# Properties.

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | st.floats() | st.text(max_size=12),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(min_size=1, max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=40)
@given(st.lists(VALUES, min_size=1, max_size=3), st.sampled_from([",", "; ", "\n"]))
def test_what_is_formatted_is_parsed_back(values, separator):
    """T20: `format_override` and the parser are inverse for any value, alone or in a list of items."""
    names = [f"v{i}" for i in range(len(values))]
    items = [format_override(f"task.model.free.{name}", value) for name, value in zip(names, values, strict=True)]
    together = model(params_overrides=[separator.join(items)]).free
    alone = model(*items).free
    for name, value in zip(names, values, strict=True):
        assert _equal(together[name], value)
        assert _equal(alone[name], value)


@settings(max_examples=40)
@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_survives_in_a_text_field(first, second):
    items = [format_override("task.model.text", first), format_override("task.train_data.tfds_data_dir", second)]
    config = resolved(params_overrides=[",".join(items)]).config
    assert (config.task.model.text, config.task.train_data.tfds_data_dir) == (first, second)


@settings(max_examples=60)
@given(st.text(alphabet="ab=.,;[]{}'\"~+:\n \\0-#!&*", max_size=24))
def test_no_text_breaks_the_parser(text):
    """N7: whatever is typed, the answer is a configuration or a ConfigError."""
    try:
        resolved(text, params_overrides=[text])
    except Exception as error:
        assert type(error).__name__ == "ConfigError"
        assert str(error)


def _equal(found, value):
    if isinstance(value, list):
        return isinstance(found, tuple) and len(found) == len(value) and all(map(_equal, found, value))
    if isinstance(value, dict):
        return list(found) == list(value) and all(_equal(found[key], value[key]) for key in value)
    if isinstance(value, float) and math.isnan(value):
        return isinstance(found, float) and math.isnan(found)
    return type(found) is type(value) and found == value


def test_a_path_chooses_the_type_of_an_action():
    changed = resolved("trainer.actions=[{type: early_stopping}]", "trainer.actions[0].type=checkpoint")
    assert [action.type for action in changed.config.trainer.actions] == ["checkpoint"]
