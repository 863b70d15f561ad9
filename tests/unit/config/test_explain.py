"""N8: what a field means and why it has its value."""

import re

import pytest

from official_trainer.config import ConfigError, explain, settings
from tests.support.config.sample import Model, resolved

LEAF = """\
trainer.optimizer_config.optimizer.adam.beta_1: a number between 0 and 1
  decay of the first moment.

  value    0.5
  default  0.9
  set by   --set, column 48
"""

SECTION = """\
task.model.shape: Shape
  A one-of whose choices are its fields.

  type    square  which.
  round   …       round.
* square  …       square.
"""


def test_a_leaf(write):
    """N8: type, meaning, value, default, range, and who set it."""
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
    assert text == LEAF
    beta = explain(resolved(config_files=[file]), "trainer.optimizer_config.optimizer.adam.beta_1")
    assert beta.endswith("  set by   a.yaml:4:30\n")


def test_a_section():
    assert explain(resolved("task.model.shape=square"), "task.model.shape") == SECTION


def test_long_meanings_are_wrapped_under_themselves():
    lines = explain(resolved(), "runtime").splitlines()
    assert all(len(line) <= 100 for line in lines)
    assert any(re.match(r"  distribution_strategy +auto +`auto` uses", line) for line in lines)


LINES = {
    "task.model.word": "task.model.word: 'adam', 'sgd' or 'off'",
    "task.model.filters": "  value    [32, 64]",
    "task.model.filters[-1]": "task.model.filters[1]",
    "task.model.weights.a": "  value    1.0",
    "task.model.blocks[0].x": "task.model.blocks[0].x: an integer",
    "trainer.train_steps": "  set by   experiment sample",
    "trainer": "trainer: TrainerConfig",
    "trainer.optimizer_config": "  optimizer      none  Which optimizer updates the weights.",
    "task.model.truth": "  a truth value, or not.",
    "task.model.named": "task.model.named: a mapping to sections (Block)",
}


def test_lines():
    """N8: of values, items, entries and sections."""
    result = resolved(model=Model(weights={"a": 1.0}))
    for path, line in LINES.items():
        assert line in explain(result, path).splitlines(), path


UNKNOWN = {
    "trainer.train_step": "trainer.train_step: unknown field of TrainerConfig; did you mean 'train_steps'?",
    "task.model.filters[7]": "there is no such item; allowed: 0 to 1",
    "trainer.train_steps.x": "trainer.train_steps is 100, which has no fields",
    "task.model.zzzzzz": "unknown field of Model; allowed: integer, number, truth, text",
    "not a path": "unknown field; allowed: task, trainer, runtime",
}


def test_unknown_paths():
    """N7, N8: the nearest match, as for any other unknown field."""
    for path, said in UNKNOWN.items():
        with pytest.raises(ConfigError) as refused:
            explain(resolved(), path)
        assert said in str(refused.value)


def test_settings_are_all_fields_that_are_written():
    """G16: each field once, with the path that sets it; of a one-of the choice and the fields of what is chosen."""
    found = [setting.path for setting in settings(resolved("task.model.shape=square").config)]
    assert len(found) == len(set(found))
    shape = [path for path in found if path.startswith("task.model.shape")]
    assert shape == ["task.model.shape", *(f"task.model.shape.square.{name}" for name in ("x", "names", "width"))]
    assert {"task.model.blocks[0].x", "task.model.filters", "trainer.train_steps", "runtime.seed"} <= set(found)
    assert not {"task", "task.model", "task.model.blocks", "task.model.blocks[0]"} & set(found)


def test_a_setting_can_be_given_as_it_stands():
    """G16: path and value of each, as items of `--set`, change nothing."""
    before = resolved("task.model.shape=square", "task.model.named.a.x=2")
    again = [f"{setting.path}={setting.value}" for setting in settings(before.config)]
    again = [item for item in again if not item.startswith("trainer.optimizer_config") or not item.endswith("null")]
    assert resolved("task.model.shape=square", "task.model.named.a.x=2", *again).config == before.config


SETTINGS = [
    ("trainer.train_steps", "trainer", "100", "an integer at least 0"),
    ("task.model.truth", "task.model", "false", "true or false"),
    ("task.model.level", "task.model", "1", "1, 2 or 3"),
    ("task.model.scale", "task.model", "null", "'dynamic', a number greater than 0 or null"),
    ("task.model.shape", "task.model", "null", "'round' or 'square'"),
    ("task.model.maybe_section", "task.model", "null", "a section (Block) or null; the section has x, names"),
    ("task.model.blocks[0].x", "task.model.blocks[0]", "1", "an integer"),
    ("task.model.named.a.x", "task.model.named.a", "2", "an integer"),
]


def test_a_setting():
    """G16: value, type in words, meaning."""
    found = {setting.path: setting for setting in settings(resolved("task.model.named.a.x=2").config)}
    for path, section, value, kind in SETTINGS:
        assert (found[path].section, found[path].value, found[path].kind) == (section, value, kind)
    meanings = {name: found[f"task.model.{name}"].meaning for name in ("truth", "integer", "text")}
    assert meanings == {"truth": "a truth value, or not.", "integer": "an integer.", "text": ""}


def test_a_key_with_a_control_character_is_shown_as_an_escape():
    """N34: a terminal shows it and does not obey it."""
    text = explain(resolved('task.init_checkpoint_names={"\\x1f": no_name}'), "task.init_checkpoint_names")
    assert "\\x1f" in text and "\x1f" not in text
