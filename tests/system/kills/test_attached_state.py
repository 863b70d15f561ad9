"""State that is not in one model and one optimizer: killed and continued, or refused by name; `check` agrees."""

import dataclasses
import functools
import itertools
import re

import pytest

from official_trainer.checkpoints.manifest import committed_steps
from tests import ROOT
from tests.support.chaos import compare, disk, inside
from tests.support.chaos.contract import Step, check
from tests.support.distributed.clusters import LocalCluster
from tests.support.forked import Command, run_command
from tests.support.runs import contents, differences
from tests.system.kills.cases import STEP_BY_STEP, assigned, command

WORKSPACE = ROOT / "tests" / "support" / "attached_state"
SOURCE = (WORKSPACE / "experiments" / "attached.py").read_text()
PROGRAMS = [re.sub("(?<!^)([A-Z])", r"_\1", name).lower() for name in re.findall(r"@program\nclass (\w+)", SOURCE)]
REFUSED = {"unseen_table": "MutableHashTable", "made_late": "task/late"}
KERASES = "keras", "tf_keras"
STRATEGIES = {"off": (), "mirrored": ("runtime={{distribution_strategy: mirrored, num_logical_cpus: 2}}",)}
IMPOSSIBLE = {(program, "tf_keras", "mirrored") for program in PROGRAMS if program.startswith("recurrent")}
"""Keras 2 refuses recurrent layers with a state under a strategy."""


def arguments(program, keras, strategy="off"):
    sets = f"task.program={program}", f"task.keras={keras}", "trainer.export.at_end=false", *STRATEGIES[strategy]
    return ["--experiment=attached", *assigned(*sets, "trainer.checkpoint_interval=4")]


def same_in_any_order(broken, unbroken):
    """Compares runs; a hash table writes its entries in an order of its own."""
    found = compare.differences(broken, unbroken)
    others = [line for line in found.pop("variables", ()) if "/table-" not in line]
    return {**found, **({"variables": others} if others else {})}


def variants():
    """Yields every program in both Kerases on one replica and on two; each once by default, the others in turn."""
    for number, program in enumerate(program for program in PROGRAMS if program not in REFUSED):
        ways = [way for way in itertools.product(KERASES, STRATEGIES) if (program, *way) not in IMPOSSIBLE]
        for way in ways:
            marks = () if way == ways[number % len(ways)] else pytest.mark.full
            yield pytest.param(program, *way, marks=marks, id="-".join((program, *way)))


@pytest.mark.parametrize(("program", "keras", "strategy"), [*variants()])
def test_a_killed_run_loses_none(program, keras, strategy, shared, tmp_path):
    """N52: it ends with the bits of an unbroken run."""
    words = arguments(program, keras, strategy)
    case = command(f"attached-{program}-{keras}-{strategy}", *words, cwd=WORKSPACE)
    case = dataclasses.replace(case, compare=same_in_any_order)
    check(shared, case, [Step(6)], tmp_path, (STEP_BY_STEP,))


@pytest.mark.parametrize("keras", ["keras", pytest.param("tf_keras", marks=pytest.mark.full)])
def test_a_killed_run_keeps_its_own_schedule_and_optimizer(keras, shared, tmp_path):
    """T15, N1: rates, slots and weights are those of an unbroken run, and so are the rows that have the rates."""
    names = ("learning_rate=triangle", "optimizer=heavy_ball", "warmup={{type: linear, linear: {{warmup_steps: 3}}}}")
    words = [
        *arguments("several_optimizers", keras),
        *assigned(*(f"trainer.optimizer_config.{name}" for name in names)),
    ]
    case = command(f"attached-own-schedule-{keras}", *words, cwd=WORKSPACE)
    check(shared, case, [Step(6)], tmp_path, (STEP_BY_STEP,))


CHECKED = {*REFUSED, "statistics"}
"""By default; the others in the full tier."""


@pytest.mark.parametrize(
    "program",
    [pytest.param(program, marks=() if program in CHECKED else pytest.mark.full) for program in PROGRAMS],
)
def test_check_agrees(program, tmp_path):
    """N52: it refuses what a run refuses, with the name, the line and the way out, and nothing else."""
    keras = KERASES[PROGRAMS.index(program) % 2]
    words = ["attached", *arguments(program, keras)[1:], "--set=trainer.export.at_end=true"]
    if program.startswith("recurrent"):
        words.append("--set=task.keras=keras")
    completed = run_command(["check", *words, f"--model_dir={tmp_path}/run"], cwd=WORKSPACE, folder=tmp_path)
    assert completed.code == (1 if program in REFUSED else 0), completed
    if program in REFUSED:
        trained = run_command(
            ["train", *arguments(program, keras), f"--model_dir={tmp_path}/run"], cwd=WORKSPACE, folder=tmp_path
        )
        for each in (completed, trained):
            assert each.code == 1
            said = " ".join(each.err.split())
            assert f"the step changes {REFUSED[program]} (" in said, said
            assert "experiments/attached.py:" in said
            assert "unsaved_state = (" in said
        assert not committed_steps(f"{tmp_path}/run")


def test_predictions_of_a_recurrent_model_continue(tmp_path):
    """N18, N52: those of an unbroken command, whose layers have seen the batches before."""
    words = [word for word in arguments("recurrent", "keras") if "export" not in word]
    run_command(["train", *words, f"--model_dir={tmp_path}/run"], cwd=WORKSPACE, folder=tmp_path)

    def predict(output, first=None):
        argv = ["predict", f"--model_dir={tmp_path}/run", f"--output={tmp_path}/{output}", "--shard_size=4"]
        child = Command([*argv, "--format=npy"], cwd=WORKSPACE, folder=tmp_path, first=first)
        return child.wait()

    disk.require()
    log = tmp_path / "changes"
    assert predict("unbroken", functools.partial(disk.arm, f"{tmp_path}/unbroken", log=str(log))).code == 0
    whole, middle = contents(tmp_path / "unbroken"), len(log.read_text().splitlines()) // 2
    assert predict("broken", functools.partial(disk.arm, f"{tmp_path}/broken", middle, -9)).code == -9
    assert 0 < len(list((tmp_path / "broken").glob("*.npy"))) < len(list((tmp_path / "unbroken").glob("*.npy")))
    assert predict("broken").code == 0
    assert contents(tmp_path / "broken") == whole


TWO_WORKERS = ["several_optimizers", "teacher", "memory_bank", "generators"]


@pytest.mark.parametrize(
    ("program", "keras"),
    [
        pytest.param(program, keras, marks=() if number == 5 else pytest.mark.full)
        for number, (program, keras) in enumerate(itertools.product(TWO_WORKERS, KERASES))
    ],
)
def test_two_workers_lose_none(program, keras, tmp_path):
    """N52: the chief of two workers is killed; both start again."""

    def run(name, killed=None):
        folder = tmp_path / name
        argv = ["train", f"--model_dir={folder}/run", *arguments(program, keras)]
        argv += assigned("runtime.distribution_strategy=multi_worker_mirrored", STEP_BY_STEP)
        with LocalCluster({"worker": 2}, argv=argv, cwd=WORKSPACE, folder=folder) as cluster:
            if killed is not None:
                cluster.first("worker", 0, functools.partial(inside.strike_at_step, killed, 9))
            codes = cluster.start_all().wait_all(240)
        return folder / "run", codes, cluster

    unbroken, codes, _ = run("unbroken")
    assert set(codes.values()) == {0}
    broken, codes, _ = run("broken", killed=6)
    assert codes == {("worker", 0): -9, ("worker", 1): 75}
    assert 0 < max(committed_steps(str(broken))) < 12
    broken, codes, _ = run("broken")
    assert set(codes.values()) == {0}
    assert differences(broken, unbroken) == []
