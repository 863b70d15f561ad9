"""Real workers of which one is slower, or none: who is named, when, and what is said.

    python -m tests.support.distributed.slow_workers [full]

Steps compute 40 ms and take about 50. One worker of two to four computes 8 ms longer; or reads its next batch, beside
the step, in 60 ms; or waits some 0.4 s more for each save, one every 2 s. Healthy runs have one to four processes
beside them that keep the cores busy at times. Each run ends as soon as a worker is named, or after 35 s. With `full`
there are 100 healthy runs, and each fault in each worker.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests import ROOT
from tests.support.distributed.clusters import LocalCluster

WORKSPACE = ROOT / "tests/support/distributed/slowed"
SECONDS = 35.0
LIMIT_SECONDS = 30.0
BUSY = """
import random, time
while True:
    end = time.monotonic() + random.random()
    while time.monotonic() < end:
        pass
    time.sleep(random.random())
"""
SLOWED = {"input": "input:0.06", "compute": "compute:0.008", "save": ""}


def slow_disk():
    """Makes each sync of a file in this process take longer."""
    sync = os.fsync

    def fsync(descriptor):
        time.sleep(0.2)
        sync(descriptor)

    os.fsync = fsync


def _record(model_dir, name):
    try:
        return json.loads((model_dir / name).read_text())
    except (FileNotFoundError, ValueError):
        return {}


def run(folder, *, workers, slow=None, phase="", slowed="", work=False, seconds=SECONDS):
    """Returns who was named, as in `run.json`, and after how many seconds of training; None if no worker was."""
    saves = 40 if phase == "save" else 100_000
    sets = (
        "runtime.distribution_strategy=multi_worker_mirrored",
        "task.train_data.global_batch_size=24",
        "task.validation_data.global_batch_size=24",
        f"trainer.checkpoint_interval={saves}",
        "trainer.summary_interval=200",
        "trainer.async_checkpoint=false",
        "trainer.steps_per_loop=20",
    )
    argv = ["train", "--experiment=slowed", f"--model_dir={folder}/run", "--mode=train", *(f"--set={s}" for s in sets)]
    env = {"COMPUTE": "work"} if work else {}
    model_dir = Path(folder, "run")
    with LocalCluster({"worker": workers}, argv=argv, cwd=WORKSPACE, folder=f"{folder}/output", env=env) as started:
        for index in range(workers):
            is_slow = index == slow
            if is_slow and phase == "save":
                started.first("worker", index, slow_disk)
            started.start("worker", index, env={"SLOWED": slowed or SLOWED[phase]} if is_slow else {})
        deadline = time.monotonic() + 120
        while not (_record(model_dir, "status.json").get("step") or 0):
            assert time.monotonic() < deadline and started.is_alive("worker", 0), started.outputs()
            time.sleep(0.2)
        began = time.monotonic()
        while time.monotonic() < began + seconds:
            assert started.is_alive("worker", 0), started.outputs()
            if (found := _record(model_dir, "run.json").get("slow_worker")) is not None:
                return found, time.monotonic() - began
            time.sleep(0.1)
    return None, seconds


def faults(full):
    for workers in (2, 3, 4) if full else (2, 4):
        for phase in ("input", "compute"):
            for slow in range(workers) if full else (workers - 1,):
                yield workers, slow, phase
        yield workers, 0, "save"


def main(full):
    wrong = 0
    for workers, slow, phase in faults(full):
        with tempfile.TemporaryDirectory() as folder:
            found, seconds = run(folder, workers=workers, slow=slow, phase=phase)
        is_right = found is not None and (found["worker"], found["phase"]) == (slow, phase) and seconds <= LIMIT_SECONDS
        wrong += not is_right
        said = (
            "no worker is named" if found is None else f"worker {found['worker']} {found['phase']}: {found['evidence']}"
        )
        print(
            f"{'ok   ' if is_right else 'WRONG'} {workers} workers, {slow} slow in {phase}: {seconds:.0f} s, {said}",
            flush=True,
        )
    wrong += healthy(100 if full else 3)
    return wrong


def healthy(count):
    """Runs healthy workers beside processes that keep the cores busy; returns how often one was named."""
    wrong, draw = 0, random.Random(0)
    for number in range(count):
        hogs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(draw.randint(1, 4))]
        try:
            with tempfile.TemporaryDirectory() as folder:
                workers, work = draw.randint(2, 4), draw.random() < 0.5
                found, _ = run(folder, workers=workers, work=work)
        finally:
            for hog in hogs:
                hog.kill()
                hog.wait()
        wrong += found is not None
        said = "" if found is None else f" FALSE ALARM {found}"
        print(f"healthy {number}: {workers} workers, {'work' if work else 'wait'}, {len(hogs)} busy{said}", flush=True)
    return wrong


if __name__ == "__main__":
    sys.exit(main("full" in sys.argv[1:]) > 0)
