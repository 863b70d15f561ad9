"""The space of a sweep: what is drawn, and what is refused before anything starts."""

import dataclasses
from typing import Literal

import pytest

from official_trainer.config import Config, ConfigError, Fraction, OneOf, Origin, Positive, resolve
from official_trainer.sweeps import space


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(Config):
    """Layers.

    Attributes:
      dropout: share.
      units: number.
    """

    dropout: Fraction = 0.2
    units: Positive = 8


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
    """

    model: Model = Model()
    rate: float = 0.1
    low: int = 1
    high: int = 5
    layers: tuple[int, ...] = (8,)

    def problems(self):
        if self.low > self.high:
            yield "low", "is above high"


def read(texts):
    origins = {path: Origin("file", "space.yaml", 2 + line, 3) for line, path in enumerate(texts)}
    return space.read(texts, origins, lambda sets: resolve(Experiment(), sets=sets))


def first(each):
    return each.choices[0] if each.kind == "choice" else each.low


def test_a_field_of_a_branch_is_drawn_where_the_branch_is_chosen():
    """N21: the one-of is the condition; the order in the file does not matter."""
    found = read({"model.mlp.units": "int(4, 8, 2)", "model.cnn.filters": "int(1, 2)", "model": "choice(cnn, mlp)"})
    assert found.draw(first) == {"model.type": "cnn", "model.cnn.filters": 1}
    assert found.draw(lambda each: "mlp" if each.kind == "choice" else 4) == {"model.type": "mlp", "model.mlp.units": 4}
    assert read({"model.mlp.dropout": "float(0, 0.5)"}).draw(first) == {"model.mlp.dropout": 0.0}


def test_what_is_drawn_is_an_override_of_the_same_value():
    """Numbers keep their bits, choices may be lists."""
    found = read({"rate": "log(1e-5, 1e-1)", "layers": "choice([8, 8], [16])"})
    values = {"rate": 0.1 + 0.2, "layers": "[8, 8]"}
    config = resolve(Experiment(), sets=found.overrides(values)).config
    assert (config.rate, config.layers) == (0.1 + 0.2, (8, 8))


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"rat": "log(1, 2)"}, r"space.yaml:2: rat: unknown field; did you mean 'rate'\?"),
        ({"rate": "lag(1, 2)"}, r"rate: is no distribution, got 'lag\(1, 2\)'; allowed: .*; did you mean 'log'\?"),
        ({"rate": "0.1"}, r"rate: is no distribution, got '0.1'; allowed: float\(low, high\), int"),
        ({"rate": "log(1, 2, 3)"}, r"rate: write log\(low, high\), got"),
        ({"rate": "log(0, 1)"}, r"rate: needs bounds above 0, got 'log\(0, 1\)'; write float\(low, high\), or"),
        ({"rate": "float(2, 1)"}, r"rate: has an empty range; the first bound must be below the second, got"),
        ({"rate": "float(0, inf)"}, r"rate: needs finite bounds, got 'inf'"),
        ({"rate": "float(0, x)"}, r"rate: must be a number, got 'x'"),
        ({"low": "int(1, 4, 2)"}, r"low: needs a step of at least 1 that leads from one bound to the other, got"),
        ({"low": "float(1, 4)"}, r"low: with 2\.854\d*, must be an integer, .*; write int\(1, 4\)"),
        ({"low": "int(1, 9)"}, r"space.yaml:2: low: with 9, is above high"),
        ({"model.mlp.dropout": "float(0, 1.5)"}, r"model.mlp.dropout: with 1.5, must be .*"),
        ({"model": "choice(mlp, rnn)"}, r"model.type: with rnn, not one of the choices.*allowed: mlp, cnn"),
        (
            {"model": "choice(mlp, cnn)", "model.type": "choice(mlp, cnn)"},
            r"space.yaml:3: model.type: is drawn twice; keep one of the two",
        ),
        ({"model": "choice(mlp)"}, r"model.type: needs two choices or more, all different, got 'choice\(mlp\)'"),
        (
            {"model.cnn.filters": "int(1, 2)"},
            r"model.cnn.filters: is never drawn: model.type is never 'cnn'; add 'model.type: choice\(mlp, cnn\)'",
        ),
        (
            {"model.mlp": "choice({units: 2}, {units: 4})", "model.mlp.units": "int(1, 2)"},
            r"space.yaml:3: model.mlp.units: is a part of model.mlp, which is drawn as a whole; keep one of them",
        ),
    ],
)
def test_what_the_experiment_does_not_take_is_refused_at_its_line(texts, message):
    """N21: before anything starts, with place, value and fix."""
    with pytest.raises(ConfigError, match=message):
        read(texts)


def test_all_problems_are_reported_together():
    """Two lines, two problems."""
    with pytest.raises(ConfigError) as caught:
        read({"rat": "log(1, 2)", "hig": "int(1, 2)"})
    assert [problem.origin.line for problem in caught.value.problems] == [2, 3]
