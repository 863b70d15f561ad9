"""The space of a sweep: what is drawn, and what is refused before anything starts."""

import dataclasses
from typing import Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import Config, ConfigError, Fraction, OneOf, Origin, Positive, resolve
from official_trainer.config.fields import path_of
from official_trainer.sweeps import space
from official_trainer.sweeps.settings import SweepConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Config):
    """Layers.

    Attributes:
      dropout: share.
      units: number.
      more: units of more layers.
    """

    dropout: Fraction = 0.2
    units: Positive = 8
    more: tuple[Positive, ...] = ()

    def problems(self):
        if len(self.more) > 4:
            yield "more", "has more than 4"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CNN(Config):
    """Convolutions.

    Attributes:
      filters: number.
    """

    filters: Positive = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model(OneOf):
    """A network.

    Attributes:
      type: which.
      mlp: layers.
      cnn: convolutions.
    """

    type: Literal["mlp", "cnn"] | None = "mlp"
    mlp: MLP = MLP()
    cnn: CNN = CNN()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment(Config):
    """All.

    Attributes:
      model: the network.
      rate: step size.
      low: below high.
      high: above low.
      layers: units of each.
      limit: none, or a number.
      flag: on or off.
    """

    model: Model = Model()
    rate: float = 0.1
    low: int = 1
    high: int = 5
    layers: tuple[int, ...] = (8,)
    limit: float | None = 0.1
    flag: bool = False

    def problems(self):
        if self.low > self.high:
            yield "low", "is above high"


def resolved(sets):
    return resolve(Experiment(), sets=sets)


def read(texts):
    """Reads a space as from a file, in which the first field is on line 2, and each is on a line of its own."""
    found = {path: Origin("file", "space.yaml", 2 + line, 3) for line, path in enumerate(texts)}
    return space.read(texts, lambda keys: found[keys[0]], resolved)


def first(each):
    return next(each.tried)


def drawn(found, **chosen):
    """What is drawn with these values of some dimensions, and the first one of the others."""
    return found.draw(lambda each: chosen.get(each.path.rpartition(".")[2], first(each)))


NAMED = {"choice": {"small": {"type": "mlp", "mlp": {"units": 2}}, "conv": {"type": "cnn", "cnn": {"filters": 3}}}}


def test_a_field_of_a_branch_is_drawn_where_the_branch_is_chosen():
    """N21: the one-of is the condition; the order in the file does not matter, and the path stays as it was written."""
    found = read({"model.mlp.units": "int(4, 8, 2)", "model.cnn.filters": "int(1, 2)", "model": "choice(cnn, mlp)"})
    assert drawn(found) == {"model": "cnn", "model.cnn.filters": 1}
    assert drawn(found, model="mlp") == {"model": "mlp", "model.mlp.units": 4}
    assert drawn(read({"model.mlp.dropout": "float(0, 0.5)"})) == {"model.mlp.dropout": 0.0}
    assert drawn(read({"model.cnn.filters": "int(1, 2)", "model.type": "choice(cnn, mlp)"})) == {
        "model.type": "cnn",
        "model.cnn.filters": 1,
    }


def test_whole_sections_are_choices_with_names():
    """N21: the record shows the name; a field that the section does not set can be drawn beside it."""
    found = read({"model": NAMED, "model.mlp.dropout": "float(0, 0.5)"})
    assert drawn(found, model="conv") == {"model": "conv"}
    values = drawn(found, model="small", dropout=0.5)
    assert values == {"model": "small", "model.mlp.dropout": 0.5}
    model = resolved(found.overrides(values)).config.model
    assert (model.type, model.mlp) == ("mlp", MLP(units=2, dropout=0.5))
    assert resolved(found.overrides({"model": "conv"})).config.model.cnn == CNN(filters=3)
    found = read({"model": "choice({type: mlp, mlp: {units: 3}}, cnn)", "model.cnn.filters": "int(1, 2)"})
    assert drawn(found) == {"model": "{type: mlp, mlp: {units: 3}}"}
    assert resolved(found.overrides(drawn(found))).config.model.mlp.units == 3


def test_the_length_of_a_list_is_drawn_and_then_each_item():
    """N21: as many items as the length says; together they are one override, in a branch where that is chosen."""
    found = read({"layers": "list(1, 3, int(8, 32, 8))"})
    assert [each.path for each in found.dimensions] == ["layers[length]", "layers[0]", "layers[1]", "layers[2]"]
    values = found.draw(lambda each: 2 if each.is_length else 16)
    assert values == {"layers[length]": 2, "layers[0]": 16, "layers[1]": 16}
    assert found.overrides(values) == ["layers=[16, 16]"]
    assert drawn(read({"layers": "list(0, 2, choice(4, 5))"})) == {"layers[length]": 0}
    found = read({"model": "choice(mlp, cnn)", "model.mlp.more": "list(1, 2, logint(1, 64))"})
    assert drawn(found, model="cnn") == {"model": "cnn"}
    assert drawn(found) == {"model": "mlp", "model.mlp.more[length]": 1, "model.mlp.more[0]": 1}


def test_what_is_drawn_is_an_override_of_the_same_value():
    """Numbers keep their bits, choices may be lists, null and booleans."""
    found = read(
        {
            "rate": "log(1e-5, 1e-1)",
            "layers": "choice([8, 8], [16])",
            "limit": "choice(null, 0.5)",
            "flag": "choice(true, false)",
        }
    )
    values = {"rate": 0.1 + 0.2, "layers": "[8, 8]", "limit": "null", "flag": "true"}
    config = resolved(found.overrides(values)).config
    assert (config.rate, config.layers, config.limit, config.flag) == (0.1 + 0.2, (8, 8), None, True)


def test_a_number_with_a_step_is_as_one_would_write_it():
    """0.3, not 0.30000000000000004."""
    (each,) = read({"rate": "float(0, 0.5, 0.1)"}).dimensions
    assert [each.settled(k * 0.1) for k in range(6)] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"rat": "log(1, 2)"}, r"space.yaml:2: rat: unknown field; did you mean 'rate'\?"),
        ({"rate": "lag(1, 2)"}, r"rate: is no distribution, got 'lag'; did you mean 'log'\?"),
        ({"rate": "0.1"}, r"rate: is no distribution, got '0.1'; allowed: float\(low, high\) or float\("),
        ({"rate": "log(1, 2, 3)"}, r"rate: write log\(low, high\), got"),
        ({"rate": "log(0, 1)"}, r"rate: needs bounds above 0, got 'log\(0, 1\)'; write float\(low, high\), or"),
        ({"rate": "float(2, 1)"}, r"rate: has an empty range; the first bound must be below the second, got"),
        ({"rate": "float(0, inf)"}, r"rate: needs finite bounds, got 'inf'"),
        ({"rate": "float(0, x)"}, r"rate: must be a number, got 'x'"),
        ({"rate": "float(0, 1, 0.3)"}, r"rate: needs a step above 0 that leads from one bound to the other, got"),
        ({"low": "float(1, 4)"}, r"low: with 2\.854\d*, must be an integer, .*; write int\(1, 4\)"),
        ({"low": "log(1, 4)"}, r"low: with 2\.854\d*, must be an integer, .*; write logint\(1, 4\)"),
        ({"low": "int(1, 9)"}, r"space.yaml:2: low: with 9, is above high"),
        ({"model.mlp.dropout": "float(0, 1.5)"}, r"model.mlp.dropout: with 1.5, must be .*"),
        ({"model": "choice(mlp, rnn)"}, r"model: with rnn, not one of the choices.*allowed: mlp, cnn"),
        (
            {"model": "choice(mlp, cnn)", "model.type": "choice(mlp, cnn)"},
            r"space.yaml:3: model.type: is drawn twice; keep one of the two",
        ),
        ({"model": "choice(mlp)"}, r"model: needs two choices or more, all different, got 'choice\(mlp\)'"),
        ({"model": {"choice": {"a": {"type": "mlp"}}}}, r"model: needs two choices or more$"),
        ({"model": {"choise": {"a": {"type": "mlp"}}}}, r"model: is no distribution, got 'choise'; allowed: choice: "),
        ({"low": "choice(1, 2, 0x1)"}, r"low: 1 and 0x1 are the same value, got '0x1'"),
        ({"model.cnn.filters": "int(1, 2)"}, r"filters: is never drawn: model.type is never 'cnn'; add 'model: choice"),
        (
            {"model.mlp": "choice({units: 2}, {units: 4})", "model.mlp.units": "int(1, 2)"},
            r"space.yaml:3: model.mlp.units: is also set by model.mlp, where that is \{units: 2\}; leave it out of one",
        ),
        (
            {"layers": "list(1, 2, int(1, 4))", "layers[0]": "int(1, 2)"},
            r"space.yaml:3: layers\[0\]: is a part of layers, which is drawn as a whole; keep one of them",
        ),
        ({"layers": "list(2, 1, int(1, 4))"}, r"layers: needs lengths from 0 to 100, the shorter one first, got"),
        ({"layers": "list(1, int(1, 4))"}, r"layers: write list\(shortest, longest, DISTRIBUTION\), got"),
        ({"layers": "list(1, 2, list(1, 2, int(1, 4)))"}, r"layers: draws the items of a list from another list, got"),
        ({"layers": "list(1, 2, float(1, 4))"}, r"layers: with 2\.854\d*, must be an integer, .*; write int\(1, 4\)"),
        ({"model.mlp.more": "list(1, 5, int(1, 4))"}, r"model.mlp.more: with 5 items, has more than 4"),
    ],
)
def test_what_the_experiment_does_not_take_is_refused_at_its_line(texts, message):
    """N21: before anything starts, with place, value and fix."""
    with pytest.raises(ConfigError, match=message):
        read(texts)


@pytest.mark.parametrize("count", [1000, 1001])
@pytest.mark.parametrize("is_named", [False, True])
def test_too_many_choices_are_refused_before_any_is_tried(count, is_named):
    """N21: each choice is tried with the whole config of the experiment once, and 10,000 would take minutes."""
    tried = []
    choices = list(map(str, range(6, 6 + count)))
    texts = {"high": {"choice": dict(zip(choices, range(6, 6 + count), strict=True))}}
    if not is_named:
        texts = {"high": f"choice({', '.join(choices)})"}

    def read_it():
        return space.read(texts, lambda keys: None, lambda sets: tried.append(sets) or resolved(sets))

    if count == 1000:
        assert len(read_it().dimensions[0].choices) == 1000 and len(tried) == 1 + 1000
        return
    message = r"high: has 1,001 choices, .* at most 1,000 are allowed, got .1006.; write .* int\(low, high, step\)"
    with pytest.raises(ConfigError, match=message):
        read_it()
    assert len(tried) == 1


FILE = """
space:
  model:
    choice:
      small: {type: mlp, mlp: {unit: 2}}
      large: {type: mlp, mlp: {units: 0}}
  rat: log(1, 2)
  high: choice(5, x, 0)
  layers: "list(1, 3, int(1, y))"
  model.cnn.filters: int(1, 2)
"""


def test_all_problems_are_reported_together_at_line_and_column(tmp_path):
    """N21: a choice that is misspelled is said beside mistakes of other fields; what may follow from one is not."""
    (tmp_path / "space.yaml").write_text(FILE)
    file = resolve(SweepConfig(), config_files=[str(tmp_path / "space.yaml")])
    with pytest.raises(ConfigError) as caught:
        space.read(file.config.space, lambda keys: file.trail.origin(path_of(("space", *keys))), resolved)
    found = [(each.origin.line, each.origin.column, each.length, each.path) for each in caught.value.problems]
    assert found == [
        (5, 38, 1, "model"),
        (6, 39, 1, "model"),
        (7, 8, 9, "rat"),
        (8, 19, 1, "high"),
        (8, 22, 1, "high"),
        (9, 11, 1, "layers"),
    ]


@st.composite
def spaces(draw):
    """A space that the experiment takes."""
    low, high = sorted(draw(st.lists(st.integers(1, 4), min_size=2, max_size=2, unique=True)))
    width = draw(st.integers(1, 3))
    possible = {
        "model": st.sampled_from(["choice(mlp, cnn)", "choice(cnn, {type: mlp})", NAMED]),
        "model.mlp.dropout": st.sampled_from(["float(0, 0.5)", "float(0, 0.5, 0.05)", "choice(0, 0.1)"]),
        "model.mlp.more": st.just(f"list({low}, {high}, logint({width}, {width + 9}))"),
        "rate": st.sampled_from(["log(1e-6, 1)", "float(-1, 1)", "choice(1e-3, .nan)"]),
        "layers": st.just(f"list({low - 1}, {high}, choice(1, {width + 1}))"),
        "limit": st.just("choice(null, 0.25)"),
        "flag": st.just("choice(false, true)"),
    }
    names = draw(st.lists(st.sampled_from(sorted(possible)), min_size=1, unique=True))
    return {name: draw(possible[name]) for name in names}


@settings(max_examples=25, deadline=None)
@given(spaces(), st.randoms(use_true_random=False))
def test_a_space_that_was_checked_draws_only_what_the_experiment_takes(texts, random):
    """N21: and the config then holds what was drawn."""

    def choose(each):
        if each.kind == "choice":
            return random.choice(each.choices)
        if each.kind in ("int", "logint"):
            return random.randint(int(each.low), int(each.high))
        return random.uniform(each.low, each.high)

    found = read(texts)
    values = found.draw(choose)
    config = resolved(found.overrides(values)).config
    if "model.mlp.dropout" in values:
        assert config.model.type == "mlp" and config.model.mlp.dropout == float(values["model.mlp.dropout"])
    elif "model.mlp.dropout" in texts:
        assert config.model.type == "cnn"
    if "layers" in texts:
        items = [values[f"layers[{index}]"] for index in range(values["layers[length]"])]
        assert config.layers == tuple(map(int, items))
    assert found.overrides(values) == found.overrides(dict(reversed(values.items())))


def test_a_space_without_a_config_is_checked_by_its_language():
    """N21: for functions; a list is one value, and choices are read as YAML."""
    texts = {"units": "list(1, 2, int(8, 64))", "kind": "choice(relu, 2, null)", "net": NAMED, "rate": "log(1, 10)"}
    found = space.read_free(texts, lambda keys: None)
    values = drawn(found, kind="null", net="conv") | {"units[length]": 2, "units[1]": 9}
    objects = {"units": (8, 9), "kind": None, "net": {"type": "cnn", "cnn": {"filters": 3}}, "rate": 1.0}
    assert found.objects(values) == objects
    with pytest.raises(ConfigError, match=r"(?s)units: must be an integer, got 'x'.*kind: with {a: b: c}, .*as YAML"):
        space.read_free({"units": "int(x, 3)", "kind": "choice(2, {a: b: c})"}, lambda keys: None)
