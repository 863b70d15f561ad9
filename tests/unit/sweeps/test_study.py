"""The study of a sweep: samplers and pruners by their names, the seed of a draw, the journal."""

import os
import signal
import time

import optuna
import pytest

from official_trainer.config import ConfigError
from official_trainer.sweeps import distributions, study
from official_trainer.sweeps.settings import Objective, SweepConfig, SweepError
from official_trainer.sweeps.space import Space
from official_trainer.sweeps.study import Draws, FileLock
from tests.support import golden

OBJECTIVE = Objective("loss", "min", "best")
WRITTEN = {"rate": "log(1e-3, 1)", "units": "int(1, 8)"}
SPACE = Space([distributions.read(path, text) for path, text in WRITTEN.items()], lambda sets: None)


def opened(directory, settings):
    directory.mkdir(exist_ok=True)
    return Draws(study.create(study.storage_of(str(directory)), OBJECTIVE), SPACE, settings)


def drawn(directory, settings, count=4, *, anew=False):
    """Returns what is drawn for trials, by one process or by a new one for each."""
    draws = opened(directory, settings)
    for _ in range(count):
        draws = opened(directory, settings) if anew else draws
        trial = draws.draw()
        draws.study.tell(trial.number, trial.params["rate"] + trial.params["units"])
    return [trial.params for trial in draws.study.trials]


@pytest.mark.parametrize(
    "sampler",
    [
        {"type": "TPESampler", "n_startup_trials": 2, "multivariate": True},
        {"type": "CmaEsSampler", "n_startup_trials": 1},
        {"type": "NSGAIISampler", "population_size": 2, "crossover": {"type": "UniformCrossover"}},
        "RandomSampler",
        {"type": "QMCSampler", "scramble": True},
    ],
    ids=lambda sampler: sampler if isinstance(sampler, str) else sampler["type"],
)
def test_what_is_drawn_depends_on_the_trials_before_it_alone(sampler, tmp_path):
    """N21: not on the process that draws; another seed draws others."""
    settings = SweepConfig(sampler=sampler)
    first = drawn(tmp_path / "a", settings)
    assert drawn(tmp_path / "b", settings, anew=True) == first
    assert drawn(tmp_path / "c", SweepConfig(sampler=sampler, seed=1)) != first
    assert len({str(params) for params in first}) == len(first)


def test_a_trial_whose_draw_was_cut_off_gets_the_values_that_it_lacks(tmp_path):
    """N21: it keeps those that it has, and its number."""
    draws = opened(tmp_path, SweepConfig())
    trial = draws.study.ask()
    rate = trial.suggest_float("rate", 1e-3, 1, log=True)
    draws = opened(tmp_path, SweepConfig())
    again = draws.draw(draws.study.trials[0])
    assert again.number == 0 and again.params["rate"] == rate and again.params.keys() == WRITTEN.keys()


def test_what_optuna_does_not_take_is_said_before_the_first_trial(request):
    """N21: an unknown class or argument with the nearest one, and Optuna's own words for the rest."""

    def say(fields):
        with pytest.raises(ConfigError) as caught:
            study.rehearse(SweepConfig(**fields), SPACE, OBJECTIVE)
        return str(caught.value)

    golden.check({"sweeps": say}, request)


def test_a_pruner_may_wrap_another():
    """N21: an argument that is an object of Optuna is a mapping with its type."""
    pruner = {"type": "PatientPruner", "patience": 1, "wrapped_pruner": {"type": "MedianPruner"}}
    assert isinstance(study.pruner_of(SweepConfig(pruner=pruner)), optuna.pruners.PatientPruner)
    assert study.pruner_of(SweepConfig()) is None


def test_a_journal_outlives_processes_that_are_killed_while_they_write(tmp_path):
    """N21: its lock ends with them, and Optuna alone reads it."""
    for number in range(4):
        if (pid := os.fork()) == 0:
            drawn(tmp_path, SweepConfig(sampler="RandomSampler"), 10_000)
        time.sleep(0.1 + number / 100)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        drawn(tmp_path, SweepConfig(sampler="RandomSampler"), 1)
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "study.log"))
    alone = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    assert len(alone.trials) > 4 and alone.direction.name == "MINIMIZE"


def test_a_line_that_is_half_there_is_dropped_by_the_next_that_writes(tmp_path):
    """N21: a full disk leaves one; with another line behind it, Optuna could not read the journal."""
    drawn(tmp_path, SweepConfig(), 1)
    with open(tmp_path / "study.log", "a") as file:
        file.write('{"op_code": 4, "wor')
    assert len(drawn(tmp_path, SweepConfig(), 1)) == 2
    assert len(opened(tmp_path, SweepConfig()).study.trials) == 2


def test_a_damaged_journal_is_an_error_with_its_path(tmp_path):
    """N21: one line, exit code 3."""
    drawn(tmp_path, SweepConfig(), 1)
    path = tmp_path / "study.log"
    path.write_text(path.read_text().replace('"op_code"', '"op', 1))
    with pytest.raises(SweepError, match=r"study.log cannot be read \(.*\); put a good copy back") as caught:
        opened(tmp_path, SweepConfig())
    assert caught.value.exit_code == 3


def test_a_lock_is_held_by_one_process(tmp_path):
    """N21: and given back at the end of its block."""
    lock, other = FileLock(str(tmp_path / "lock")), FileLock(str(tmp_path / "lock"))
    with lock:
        if (pid := os.fork()) == 0:
            other.acquire()
            os._exit(7)
        time.sleep(0.1)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
