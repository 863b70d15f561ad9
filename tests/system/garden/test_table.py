"""docs/project/model_garden.csv: what Model Garden's experiments do here; `-m full` tries all that it says."""

import pytest

from official_trainer.garden import index
from tests.support.cases import cases
from tests.support.garden import data
from tests.support.garden.fill import rows
from tests.support.garden.small import NEEDED, SMALL
from tests.support.garden.tried import COLUMNS, ENDS, WITHOUT_DATA, FailedError, Trial

CELLS = {name: {column: row[column] for column in COLUMNS} for name, row in rows().items()}


def test_the_table_has_a_row_for_each_experiment():
    """T14: as many as the installed release registers."""
    assert list(CELLS) == sorted(index.entries())


def test_what_makes_an_experiment_small_is_of_an_experiment():
    assert {*SMALL, *NEEDED} <= set(index.entries())


@pytest.mark.parametrize("name", cases(list(CELLS), "mock"))
def test_a_row_of_the_table_is_true(name, tmp_path):
    """T14, N14: an experiment is shown, built, trained, killed and continued; the message has what was seen instead."""
    trial = Trial(name, SMALL.get(name), NEEDED.get(name, ()), tmp_path)
    if trial.small and trial.small.data:
        data.write(tmp_path / "tiny_data", [trial.small.data])
    found, seen, fails = {}, [], False
    for column, cell in CELLS[name].items():
        found[column] = "no" if cell else ""  # what is empty has not been tried yet
        if cell and not fails and (trial.small or column in WITHOUT_DATA):
            try:
                found[column] = COLUMNS[column](trial)
            except FailedError as error:
                seen.append(f"{column}: {error}")
                fails = fails or column in ENDS
    assert found == CELLS[name], seen
