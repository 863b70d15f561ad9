"""Runs over every source of random access that are killed, and go on with as many replicas or with others."""

import functools
import itertools
import json
import os
import pickle
import random
import select

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import SourceConfig
from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos import compare
from tests.support.chaos.contract import RUN, Broken, Case, Part, Step
from tests.support.chaos.run_directory import RunDirectory
from tests.support.forked import Command
from tests.support.runs import bits
from tests.support.source_cases import all_cases

WORKSPACE = ROOT / "tests" / "support" / "chaos" / "workspace"
COUNT, BATCH, STEPS = 53, 16, 24
ONE = "runtime={distribution_strategy: off}", "--allow_config_change"
TWO = "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}", "--allow_config_change"
PROCESSES = "task.train_data={workers: 4, use_multiprocessing: true}"
ENDS_SECONDS = 60


def written(name, folder):
    """Writes a source; returns the settings of a run over it."""
    made = all_cases()[name](folder, COUNT)
    if isinstance(made, SourceConfig):
        return [f"task.train_data.source={json.dumps(made.as_dict())}"]
    (folder / "source.pickle").write_bytes(pickle.dumps(made))
    return [f"task.pickled={folder}/source.pickle"]


def start(name, shared, folder, *more, first=None):
    """Starts a run; all runs over a source read the same files."""
    data = shared.made(f"source-{name}", functools.partial(_write, name))
    sets = *json.loads((data / "words.json").read_text()), *more
    words = [word if word.startswith("--") else f"--set={word}" for word in sets]
    argv = ["train", "--experiment=sourced", "--mode=train", f"--model_dir={folder}/{RUN}", *words]
    return Command(argv, cwd=WORKSPACE, folder=folder, first=first, starts_processes=PROCESSES in more)


def _write(name, folder):
    (folder / "words.json").write_text(json.dumps(written(name, folder)))


def seen(run):
    """Returns the examples that each process had in each step, in the order of its replicas."""
    found = {}
    for process, step, what in compare.id_lines(run):
        replica, listed = what.split(" ")
        found.setdefault((process, step), {})[int(replica)] = [int(number) for number in listed.split(",")]
    return {key: [number for replica in sorted(parts) for number in parts[replica]] for key, parts in found.items()}


def differences(broken, unbroken):
    """Returns which steps have other examples, and which weights of the model and of Adam differ."""
    whole = {step: examples for (_, step), examples in seen(unbroken).items()}
    assert sorted(whole) == list(range(STEPS)) and all(len(examples) == BATCH for examples in whole.values())
    had = seen(broken)
    wrong = [
        f"step {step}: {examples}, not {whole[step]}"
        for (_, step), examples in had.items()
        if examples != whole[step] and not (len(examples) < BATCH and {*examples} < {*whole[step]})  # killed in it
    ]
    complete = {step for (_, step), examples in had.items() if len(examples) == BATCH}
    missing = [f"step {step} is missing" for step in whole.keys() - complete]
    left, right = ({n: v for n, v in bits(run / f"ckpt-{STEPS}").items() if _trains(n)} for run in (broken, unbroken))
    assert len(right) >= 4, "a matrix, two slots of Adam, its step"
    weights = [name for name in left.keys() | right.keys() if left.get(name) != right.get(name)]
    found = {"ids": wrong + missing, "weights": weights}
    return {kind: texts for kind, texts in found.items() if texts}


def _trains(name):
    return name.startswith(("model/", "optimizer/"))


class Directory(RunDirectory):
    """A run on other replicas may hold other numbers of files; the order of ids is compared at the end."""

    def check(self, before, process):
        assert self.newest() >= before


def case(name):
    return Case(f"sourced-{name.replace(' ', '_')}", functools.partial(start, name), differences, Directory)


def strikes_of(chance, count):
    """Yields, in turn, strikes before one of the first changes on disk of a process, and after a step, ever later."""
    for number in range(count):
        part = chance.uniform(number / count, (number + 0.9) / count)
        yield Step(1 + int(part * (STEPS - 1))) if number % 2 else Part(chance.uniform(0, 0.3))


RUNS = [(name, run, 5) for name in sorted(all_cases()) for run in range(4)]
QUICK = [(name, 0, 2) for name in ("parquet", "grain MapDataset", "mixture in a mixture", "packed")]
"""One of each way to read; `test_elastic.py` has the order of every source on every fleet."""


@pytest.mark.parametrize(("name", "run", "kills"), cases([*QUICK, *RUNS], *QUICK))
def test_killed_and_continued_on_any_number_of_replicas(name, run, kills, shared, tmp_path, request):
    """N41, N42, N44, N1: the same examples in each step, and weights; every second run changes its replicas."""
    chance = random.Random(f"{request.config.getoption('--chaos-seed')}/{name}/{run}")
    fleets = itertools.cycle([ONE, TWO] if run % 2 == 0 else [ONE])
    for strike in strikes_of(chance, kills):
        if not Broken(shared, case(name), tmp_path / "run", next(fleets)).is_struck(strike):
            raise AssertionError(f"{strike} came too late")
    last = Broken(shared, case(name), tmp_path / "run", next(fleets))
    last.finish()
    last.check_end()


PICKLED = ["list", "parquet", "npy", "tfrecord"]
"""Those that a process can read without the modules of tests."""


@pytest.mark.parametrize("name", cases(PICKLED, "parquet"))
def test_no_worker_process_is_left_by_a_kill(name, shared, tmp_path):
    """N41: of those that read for a run that is killed; the run goes on with threads."""
    broken = Broken(shared, case(name), tmp_path / "run", (PROCESSES,))
    assert broken.is_struck(Step(9))
    workers = {int(line) for line in (tmp_path / "run" / f"{RUN}.workers").read_text().split()}
    assert 2 <= len(workers) <= 4, "they start when there is work for one more"
    assert [pid for pid in workers if not _ends(pid)] == []
    Broken(shared, case(name), tmp_path / "run").finish()
    broken.check_end()


def _ends(pid):
    """Waits until a process that is no child of this one has ended; returns whether it has."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ended, _, _ = select.select([handle], [], [], ENDS_SECONDS)
    os.close(handle)
    return bool(ended)


def test_other_examples_are_found(shared, tmp_path):
    """N42: a run that goes on with another order is told from one that does not."""
    broken = Broken(shared, case("list"), tmp_path / "run", ONE)
    assert broken.is_struck(Step(9))
    Broken(shared, case("list"), tmp_path / "run", ("task.train_data.seed=3", "--allow_config_change")).finish()
    assert broken.differences().keys() == {"ids", "weights"}
    assert committed_steps(str(tmp_path / "run" / RUN))[-1] == STEPS
