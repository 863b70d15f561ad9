"""The command that tries all experiments of Model Garden and writes docs/project/model_garden.md."""

import re

from official_trainer.garden import index
from tests.support.garden import small, table


def test_the_page_has_a_row_for_each_experiment():
    """T14: as many as the installed release registers."""
    rows = re.findall(r"^\| `(.+?)` \|", table.PAGE.read_text().partition(table.BEGIN)[2], re.MULTILINE)
    assert rows == sorted(index.entries())


def test_what_makes_an_experiment_small_is_of_an_experiment():
    assert {*small.SMALL, *small.NEEDED} <= set(index.entries())


def test_the_command_goes_on_where_it_was(tmp_path, monkeypatch):
    """T14, N14: what is known is not tried again; an experiment is killed and continued, and what fails is said."""
    page, flags = tmp_path / "page.md", ["--only=mock", f"--cache={tmp_path / 'cache'}"]
    page.write_text(f"before\n{table.BEGIN}\n{table.END}\nafter\n")
    monkeypatch.setattr(table, "PAGE", page)
    table.main(flags)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert "| `mock` | yes | 3 | yes | yes | yes | yes | – | – | with `trainer.optimizer_config.optimizer=sgd`" in text
    assert "exports: official/utils/testing/mock_task.py:" in text
    assert " MockTask: the model was not built with tf_keras.Input" in text
    monkeypatch.setattr(table, "try_one", None)
    table.main(flags)
    assert page.read_text() == text
