"""The study of a sweep in a real PostgreSQL, which two drivers write and one of them is killed."""

import os
import signal
import subprocess
import sys

import pytest

from tests.support.sweeps.postgresql import needs_postgresql, postgresql

SPACE = "space: {task.model.mlp.dropout: 'float(0, 0.5)'}\nsampler: RandomSampler\ntrials: 8\n"


@pytest.fixture
def database():
    with postgresql() as found:
        yield found


def driver(tmp_path, database, *words):
    (tmp_path / "space.yaml").write_text(SPACE)
    flags = [f"--space={tmp_path}/space.yaml", f"--model_dir={tmp_path}/sweep", "--storage=env:SWEEP_DB", *words]
    overrides = ["trainer.train_steps=200", "trainer.validation_interval=100"]
    argv = [sys.executable, "-m", "official_trainer", "sweep", "digits_mlp", *flags, *overrides]
    environ = {**os.environ, "SWEEP_DB": database.url}
    return subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@needs_postgresql
def test_two_drivers_write_one_study_and_one_of_them_is_killed(tmp_path, database):
    """N21: no trial is lost, none is there twice, none seems to run."""
    first, second = driver(tmp_path, database, "--join"), driver(tmp_path, database, "--join")
    said = []
    for line in first.stdout:
        said.append(line)
        if "complete" in line:
            break
    else:
        pytest.fail(f"no trial was completed: {said}")
    first.send_signal(signal.SIGKILL)
    output = second.communicate(timeout=240)[0]
    first.communicate()
    assert second.returncode == 0, output
    database.expect_trials(tmp_path / "sweep")
    assert len(database.trials()) >= 8 and "secret" not in output


@needs_postgresql
def test_a_database_that_is_stopped_stops_nothing_and_catches_up(tmp_path, database):
    """N21: one warning, and the same command writes what is missing."""
    process = driver(tmp_path, database)
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "trial 1 complete" in line:
            database.stop()
    assert process.wait() == 0, "".join(lines)
    said = [each for each in lines if "storage=env:SWEEP_DB" in each]
    assert "cannot be written" in said[0] and "the same command, given again" in said[-1] and len(said) == 2
    assert "secret" not in "".join(lines)
    database.start()
    again = driver(tmp_path, database)
    output = again.communicate(timeout=120)[0]
    assert again.returncode == 0 and "storage=" not in output
    database.expect_trials(tmp_path / "sweep")


@needs_postgresql
def test_a_database_that_is_down_is_named_before_the_first_trial(tmp_path, database):
    """N21: without its password."""
    database.stop()
    process = driver(tmp_path, database)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 2, output
    assert "storage=env:SWEEP_DB cannot be used" in output and "Start the database" in output
    assert "secret" not in output and not (tmp_path / "sweep" / "trials").exists()
