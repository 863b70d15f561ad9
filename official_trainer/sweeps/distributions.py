"""The language of a space: `log(1e-5, 1e-1)`, `int(32, 256, 32)`, `choice(a, b)`, as Optuna's distributions.

Owns: reading a distribution, what is wrong with its text, and a drawn value as an override has it.
Does not own: whether the experiment takes the values (`space.py`), drawing (`study.py`).

Named choices are a mapping, `choice: {small: …, large: …}`; everything else is text.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from official_trainer.config import ConfigError, Problem, flow, scalars
from official_trainer.config.errors import best_match

Value = str | int | float
"""A value that was drawn: a number, or the text or the name of a choice."""

Written = str | Mapping[str, Mapping[str, Any]]
"""A distribution as it is in the file of a sweep."""

FORMS = {
    "float": "float(low, high) or float(low, high, step)",
    "int": "int(low, high) or int(low, high, step)",
    "log": "log(low, high)",
    "logint": "logint(low, high)",
    "choice": "choice(a, b, …)",
}
_CALL = re.compile(r"\s*([A-Za-z_]+)\s*\((.*)\)\s*", re.DOTALL)
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*"|[\[{(\]}),]|[^\[{(\]}),'"]+|['"]""", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Field:
    """A field that is drawn.

    Attributes:
      path: of the field, as it is written in the space.
      distribution: from which its values are drawn.
      texts: of a choice, the value of each as an override has it; empty for numbers.
      branches: the one-ofs around the field, outermost first, each with the branch that the field is in.
    """

    path: str
    distribution: CategoricalDistribution | FloatDistribution | IntDistribution
    texts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    branches: tuple[tuple[str, str], ...] = ()

    @property
    def edges(self) -> tuple[Value, Value]:
        """The lowest and the highest number, or the first and the last choice."""
        if isinstance(self.distribution, CategoricalDistribution):
            choices = tuple(self.texts)
            return choices[0], choices[-1]
        return self.distribution.low, self.distribution.high

    def text(self, value: Value) -> str:
        """Returns a value as an override has it."""
        return self.texts[str(value)] if self.texts else flow(value)

    def suggest(self, trial: optuna.Trial) -> None:
        """Draws a value, or keeps the one that the trial has."""
        drawn = self.distribution
        if isinstance(drawn, CategoricalDistribution):
            trial.suggest_categorical(self.path, drawn.choices)
        elif isinstance(drawn, IntDistribution):
            trial.suggest_int(self.path, drawn.low, drawn.high, step=drawn.step, log=drawn.log)
        else:
            trial.suggest_float(self.path, drawn.low, drawn.high, step=drawn.step, log=drawn.log)


def read(path: str, written: Written) -> Field:
    """Returns a field with its distribution.

    Args:
      path: of the field.
      written: its distribution.

    Raises:
      ConfigError: it is wrong.
    """
    if not isinstance(written, str):
        if set(written) != {"choice"}:
            name = next((name for name in written if name != "choice"), "")
            raise _wrong(path, "is no distribution", name, "choice: {NAME: VALUE, …}, or a text", ["choice"])
        return _choice(path, {name: flow(value) for name, value in written["choice"].items()})
    call = _CALL.fullmatch(written)
    if call is None or call[1] not in FORMS:
        raise _wrong(path, "is no distribution", call[1] if call else written, ", ".join(FORMS.values()), list(FORMS))
    word, arguments = call[1], _split(call[2])
    if word == "choice":
        if len(set(arguments)) < len(arguments) or not all(arguments):
            raise _wrong(path, "needs choices that are all different", written)
        return _choice(path, {text: text for text in arguments})
    if len(arguments) not in ((2, 3) if word in ("int", "float") else (2,)):
        raise _wrong(path, f"write {FORMS[word]}", written)
    return Field(path, _range(path, word, written, arguments))


def _choice(path: str, texts: Mapping[str, str]) -> Field:
    if len(texts) < 2:
        raise _wrong(path, "needs two choices or more")
    return Field(path, CategoricalDistribution(tuple(texts)), texts)


def _range(path: str, word: str, written: str, arguments: Sequence[str]) -> FloatDistribution | IntDistribution:
    is_integer, is_log = word in ("int", "logint"), word in ("log", "logint")
    numbers: list[Any] = []
    for text in arguments:
        try:
            numbers.append(scalars.value_of(text, int if is_integer else float, quoted=False))
        except scalars.MisreadError as error:
            problem = Problem(path=path, got=f"'{text}'", **error.details)  # type: ignore[arg-type] # texts
            raise ConfigError([problem]) from None
    low, high, *step = numbers
    if not low < high:
        raise _wrong(path, "has an empty range; the first bound must be below the second", written)
    if is_log and low <= 0:
        other = "int" if is_integer else "float"
        raise _wrong(path, f"needs bounds above 0; write {other}(low, high), or another bound", written)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a step does not lead to the upper bound, which is an error here
        try:
            if is_integer:
                distribution: Any = IntDistribution(low, high, log=is_log, step=step[0] if step else 1)
            else:
                distribution = FloatDistribution(low, high, log=is_log, step=step[0] if step else None)
        except ValueError as error:
            raise _wrong(path, str(error), written) from None
    if distribution.high != high:
        raise _wrong(path, "needs a step that leads from one bound to the other", written)
    return distribution


def _wrong(path: str, what: str, got: str = "", allowed: str = "", words: Sequence[str] = ()) -> ConfigError:
    near = best_match(got, words)
    return ConfigError([Problem(what, path, got=f"'{got}'" if got else "", allowed="" if near else allowed, near=near)])


def _split(text: str) -> list[str]:
    """Splits at the commas that are outside of brackets and quotes."""
    words = [""]
    depth = 0
    for token in _TOKEN.findall(text):
        depth += (token in "[{(") - (token in "]})")
        if token == "," and depth == 0:
            words.append("")
        else:
            words[-1] += token
    return [word.strip() for word in words]
