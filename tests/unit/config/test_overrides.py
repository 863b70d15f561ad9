"""T20, N7: the language of `--params_override` and `--set`."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import ConfigError, format_override, resolve
from tests.support.config.sample import Block, Model, WideBlock, model, resolved

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


def test_items():
    """T20: separators, quotes and brackets as the grammar says."""
    for text, expected in TEXTS:
        data = resolved(params_overrides=[text.replace("D.", "task.train_data.")]).config.task.train_data
        assert {name: getattr(data, name) for name in expected} == expected, text


def test_set_takes_the_rest_of_the_argument():
    found = resolved("task.train_data.input_path=a,task.train_data.seed=3").config.task.train_data
    assert (found.input_path, found.seed) == ("a,task.train_data.seed=3", None)


def test_no_items_change_nothing():
    for text in ("", "  ", "\n"):
        assert resolved(params_overrides=[text]).config == resolved().config


def test_yaml_in_the_flag():
    """T20: a mapping, several lines of YAML, or items."""
    for text in (
        "{trainer: {train_steps: 7}, task.model.text: x}",
        '{"trainer": {"train_steps": 7}, "task": {"model": {"text": "x"}}}',
        "trainer:\n  train_steps: 7\ntask:\n  model: {text: x}\n",
        "# note\n\ntrainer:\n  train_steps: 7\ntask.model.text: x",
        "trainer.train_steps=7\ntask.model.text=x",
    ):
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
    items = [format_override(f"free.v{i}", value) for i, value in enumerate(values)]
    for layers in ({"params_overrides": [separator.join(items)]}, {"sets": items}):
        read = resolve(Model(), **layers).config.free
        assert all(_equal(read[f"v{i}"], value) for i, value in enumerate(values))


@settings(max_examples=40)
@given(st.text(max_size=20), st.text(max_size=20))
def test_any_text_survives_in_a_text_field(first, second):
    items = [format_override("text", first), format_override("maybe_text", second)]
    model = resolve(Model(), params_overrides=[",".join(items)]).config
    assert (model.text, model.maybe_text) == (first, second)


@settings(max_examples=60)
@given(st.text(alphabet="ab=.,;[]{}'\"~+:\n \\0-#!&*", max_size=24))
def test_no_text_breaks_the_parser(text):
    """N7: whatever is typed, the answer is a configuration or a ConfigError."""
    try:
        resolve(Model(), sets=[text], params_overrides=[text])
    except ConfigError as error:
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
