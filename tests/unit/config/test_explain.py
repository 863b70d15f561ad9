"""N8: what a field means and why it has its value."""

import re

import pytest

from official_trainer.config import ConfigError, explain
from tests.support.config.sample import Model, resolved

LEAF = """\
trainer.optimizer_config.optimizer.adam.beta_1: a number between 0 and 1
  decay of the first moment.

  value    0.5
  default  0.9
  allowed  between 0 and 1
  set by   class default     0.9
           a.yaml:4:21       0.7
           --set, column 48  0.5
"""

SECTION = """\
task.model.shape: Shape
  A one-of whose choices are its fields.

  type    square  which.
  round   …       round.
* square  …       square.
"""


def test_a_leaf(write):
    """N8: type, meaning, value, default, range, and everyone who set it."""
    file = write(
        """\
        trainer:
          optimizer_config:
            optimizer: {type: adam}
            optimizer.adam: {beta_1: 0.7}
        """
    )
    result = resolved("trainer.optimizer_config.optimizer.adam.beta_1=0.5", config_files=[file])
    text = explain(result, "trainer.optimizer_config.optimizer.adam.beta_1")
    assert text == LEAF.replace("4:21", "4:30")


def test_a_section():
    assert explain(resolved("task.model.shape=square"), "task.model.shape") == SECTION


def test_long_meanings_are_wrapped_under_themselves():
    lines = explain(resolved(), "runtime").splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any(re.match(r"  distribution_strategy +auto +`auto` uses", line) for line in lines)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("task.model.word", "  allowed  adam, sgd, off"),
        ("task.model.scale", "  allowed  dynamic, greater than 0, null"),
        ("runtime.num_gpus", "  allowed  at least 0, null"),
        ("task.model.at_most", "  allowed  at most 2"),
        ("task.model.filters", "  value    [32, 64]"),
        ("task.model.filters[-1]", "task.model.filters[1]"),
        ("task.model.weights.a", "  value    1.0"),
        ("task.model.blocks[0].x", "task.model.blocks[0].x: an integer"),
        ("trainer.train_steps", "           experiment sample  100"),
        ("trainer", "trainer: TrainerConfig"),
        ("trainer.optimizer_config", "  optimizer      none  Which optimizer updates the weights."),
        ("task.model.truth", "  a truth value, or not."),
        ("task.model.named", "task.model.named: a mapping to sections (Block)"),
        ("trainer.optimizer_config.ema", "  value    null"),
    ],
)
def test_lines(path, line):
    assert line in explain(resolved(model=Model(weights={"a": 1.0})), path).splitlines()


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("trainer.train_step", "trainer.train_step: unknown field of TrainerConfig; did you mean 'train_steps'?"),
        ("num_gpus", "num_gpus: unknown field; num_gpus exists at runtime.num_gpus"),
        ("task.model.filters[7]", "there is no such item; allowed: 0 to 1"),
        ("trainer.train_steps.x", "trainer.train_steps is 100, which has no fields"),
        ("task.model.zzzzzz", "unknown field of Model; allowed: integer, number, truth, text"),
        ("not a path", "unknown field; allowed: task, trainer, runtime"),
    ],
)
def test_unknown_paths(path, said):
    """N7, N8: the nearest match, as for any other unknown field."""
    with pytest.raises(ConfigError) as refused:
        explain(resolved(), path)
    assert said in str(refused.value)
