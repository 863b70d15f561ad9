"""A sweep whose study a database keeps: a real PostgreSQL, which every tool of Optuna opens."""

import functools
import os

import optuna
import pytest

from official_trainer.sweeps import results
from tests.support.forked import Child
from tests.support.processes.from_here import fork_processes
from tests.support.sweeps.drivers import OUT, Sweep, run_verb
from tests.support.sweeps.postgresql import needs_postgresql, postgresql

RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"
SPACE = f"space: {{{RATE}: 'log(1e-3, 1)'}}\ntrials: 3\n"


def swept(sweep, name, url):
    """Returns a driver that takes the URL from its environment."""
    words = ["sweep", "points", "--space=space.yaml", f"--model_dir={OUT}", "--storage=env:STUDY"]
    folder = sweep.folder / name
    folder.mkdir()
    target, options = functools.partial(run_verb, words), {"first": fork_processes, "starts_processes": True}
    return Child(target, cwd=sweep.folder, folder=folder, env={"STUDY": url}, **options)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=needs_postgresql)])
def url(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/study.db"
    else:
        with postgresql() as server:
            yield server.url


def test_a_database_keeps_the_study_of_two_drivers(url, tmp_path, monkeypatch):
    """N21: it is Optuna's own, no file has its password, and `show` reads it."""
    sweep = Sweep(tmp_path / "sweep", SPACE)
    drivers = [swept(sweep, name, url) for name in ("one", "two")]
    for driver in drivers:
        done = driver.wait()
        assert done.code == 0, done.out + done.err
    storage = optuna.storages.RDBStorage(url)
    (name,) = optuna.get_all_study_names(storage)
    study = optuna.load_study(study_name=name, storage=storage)
    assert name.startswith(f"{OUT}-") and [trial.state.name for trial in study.trials] == ["COMPLETE"] * 3
    assert study.best_value == min(trial.value for trial in study.trials)
    storage.engine.dispose()
    assert not (sweep.directory / "study.log").exists()
    assert "secret" not in (sweep.directory / "sweep.json").read_text()
    monkeypatch.setitem(os.environ, "STUDY", url)
    assert results.summary(str(sweep.directory))["counts"] == {"complete": 3}
