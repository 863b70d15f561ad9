"""The study of a sweep in a real PostgreSQL, which two drivers write and one of them is killed."""

import functools
import itertools
import time

import pytest

from tests import ROOT
from tests.support.docs.children import run_command
from tests.support.forked import Child
from tests.support.sweeps.postgresql import needs_postgresql, postgresql

TRIALS = 4
SPACE = f"space: {{task.model.mlp.dropout: 'float(0, 0.5)'}}\nsampler: RandomSampler\ntrials: {TRIALS}\n"
TIMEOUT_SECONDS = 240
_numbers = itertools.count()


@pytest.fixture
def database():
    with postgresql() as found:
        yield found


def driver(tmp_path, database, *words):
    (tmp_path / "space.yaml").write_text(SPACE)
    flags = [f"--space={tmp_path}/space.yaml", f"--model_dir={tmp_path}/sweep", "--storage=env:SWEEP_DB", *words]
    overrides = ["trainer.train_steps=200", "trainer.validation_interval=100", "trainer.export.at_end=false"]
    target = functools.partial(run_command, "official-trainer", ["sweep", "digits_mlp", *flags, *overrides])
    folder = tmp_path / f"driver-{next(_numbers)}"
    folder.mkdir()
    return Child(target, cwd=ROOT, folder=folder, env={"SWEEP_DB": database.url})


def until_said(driver, text):
    end = time.monotonic() + TIMEOUT_SECONDS
    while text not in driver.out:
        assert driver.process.exitcode is None and time.monotonic() < end, driver.out + driver.err
        time.sleep(0.05)


def done(driver):
    """Returns the exit code, and all that was said."""
    ended = driver.wait()
    return ended.code, ended.out + ended.err


@needs_postgresql
def test_two_drivers_write_one_study_though_one_of_them_is_killed_and_the_database_stops(tmp_path, database):
    """N21: no trial is lost, none is there twice, none seems to run; the same command writes what is missing."""
    first, second = driver(tmp_path, database, "--join"), driver(tmp_path, database, "--join")
    until_said(first, "complete")
    first.process.kill()
    until_said(second, "complete")
    database.stop()
    code, output = done(second)
    assert code == 0, output
    said = [each for each in output.splitlines() if "storage=env:SWEEP_DB" in each]
    assert "cannot be written" in said[0] and "the same command, given again" in said[-1] and len(said) == 2
    assert "secret" not in output
    database.start()
    code, output = done(driver(tmp_path, database))
    assert code == 0 and "storage=" not in output
    database.expect_trials(tmp_path / "sweep")
    assert len(database.trials()) >= TRIALS
