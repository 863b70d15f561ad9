"""Following a run: what is yielded when, and an evaluator beside a trainer, as processes that die and fall behind."""

import json
import os
import signal
from pathlib import Path

import pytest

from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import Manifest, committed_steps
from official_trainer.config import RuntimeConfig
from official_trainer.runs import evaluate
from official_trainer.runs.health.watchdog import Watchdog
from official_trainer.stopping import PreemptedError, StopRequest
from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.forked import Command, run_command
from tests.support.waiting import until


class Run:
    """A run directory on a clock of its own: something happens while a follower sleeps."""

    def __init__(self, folder, script=()):
        self.folder, self.seconds, self._script, self.done = folder, 0.0, list(script), set()

    def commit(self, *steps):
        self.folder.mkdir(exist_ok=True)
        for step in steps:
            described = {"x": {"size_bytes": 0, "sha256": ""}}
            rest = {"versions": {}, "run": manifest.RunFacts(), "extra": {}}
            manifest.write(str(self.folder), Manifest(step=step, created="", files=described, **rest))

    def delete(self, step):
        (self.folder / manifest.name(step)).unlink()

    def finish(self):
        (self.folder / "run.json").write_text(json.dumps({"run_id": "x", "status": "done"}))

    def monotonic(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        if self._script:
            self._script.pop(0)(self)

    def follow(self, timeout_seconds=100, stop=None):
        is_done, stop = self.done.__contains__, stop or StopRequest()
        return evaluate.new_checkpoints(str(self.folder), timeout_seconds, stop, is_done=is_done, clock=self)

    def follow_and_do(self, **options):
        steps = []
        for step in self.follow(**options):
            steps.append(step)
            self.done.add(step)
        return steps


def test_each_step_once_oldest_first_until_the_run_is_done(tmp_path):
    """N14: also those that came while an older one was evaluated, and the last before the end mark."""
    script = [lambda r: r.commit(10, 20), lambda r: None, lambda r: r.commit(30), lambda r: (r.commit(40), r.finish())]
    assert Run(tmp_path / "run", script).follow_and_do() == [10, 20, 30, 40]


def test_a_step_that_went_while_it_was_read_and_came_back_is_yielded_again(tmp_path):
    """N14: a damaged checkpoint that the trainer saved anew is a checkpoint like any other."""
    run = Run(tmp_path / "run", [lambda r: (r.commit(20), r.finish())])
    run.commit(10, 20)
    steps = []
    for step in run.follow():
        steps.append(step)
        if steps == [10, 20]:
            run.delete(20)  # it is damaged, and saved anew
        else:
            run.done.add(step)
    assert steps == [10, 20, 20]


def test_it_gives_up_when_nothing_comes(tmp_path, caplog):
    """T10, N14: the wait counts from the last checkpoint; said once that it waits."""
    run = Run(tmp_path / "run", [lambda r: None] * 50 + [lambda r: r.commit(10)])
    assert run.follow_and_do(timeout_seconds=60) == [10]
    assert run.seconds == pytest.approx(51 + 61, abs=2)
    assert caplog.text.count("waiting for a checkpoint") == 1
    assert "giving up" in caplog.text


def test_a_stop_ends_the_wait(tmp_path):
    """N5, N14: the same command continues with the next checkpoint."""
    stop = StopRequest()
    run = Run(tmp_path / "run", [lambda r: setattr(stop, "reason", "SIGTERM")])
    with pytest.raises(PreemptedError, match=r"SIGTERM; the same command continues with the next checkpoint"):
        run.follow_and_do(stop=stop)


def test_waiting_for_a_checkpoint_is_no_stall_and_an_evaluation_may_be(tmp_path):
    """N12: nor are looks at the directory, as long as they come to an end."""
    run, stalls = Run(tmp_path / "run", [lambda r: None] * 5000 + [lambda r: r.commit(10)]), []
    runtime = RuntimeConfig(stall_floor_seconds=20, stall_startup_seconds=20)
    watchdog = Watchdog(runtime, str(tmp_path), end=lambda message, _: stalls.append(message))  # polls once a second

    def sleep(seconds):
        watchdog.poll()
        Run.sleep(run, seconds)

    run.sleep, is_done, stop = sleep, run.done.__contains__, StopRequest()
    steps = evaluate.new_checkpoints(str(run.folder), 10_000, stop, is_done=is_done, enter=watchdog.enter, clock=run)
    assert next(steps) == 10
    assert run.seconds > 5000
    assert stalls == []
    for _ in range(21):
        watchdog.poll()
    assert ["while evaluating at step 10" in stall for stall in stalls] == [True]


# Processes.

STEPS = tuple(range(10, 201, 10))
WORDS = [
    "--experiment=digits_mlp",
    "--config_file=configs/smoke/digits_mlp.yaml",
    "--set=trainer.max_to_keep=1",
    "--set=trainer.export.at_end=false",
]


def argv_of(model_dir, mode, last_step):
    return ["train", *WORDS, f"--mode={mode}", f"--model_dir={model_dir}", f"--set=trainer.train_steps={last_step}"]


def train(model_dir, folder, last_step=STEPS[-1]):
    folder.mkdir(exist_ok=True)
    done = run_command(argv_of(model_dir, "train", last_step), cwd=ROOT, folder=folder)
    assert done.code == 0, done.err
    return done


@pytest.fixture
def start_evaluator(model_dir, tmp_path):
    """Starts evaluators; none outlives the test, not even one that is stopped and so cannot hear SIGTERM."""
    started = []

    def start(name):
        folder = tmp_path / name
        folder.mkdir()
        started.append(Command(argv_of(model_dir, "continuous_eval", STEPS[-1]), cwd=ROOT, folder=folder))
        return started[-1]

    yield start
    for command in started:
        command.process.kill()
        command.process.join()


def interrupted(model_dir):
    """Makes a run that has ended look like one that was cut off on its way to the last step."""
    path = Path(model_dir, "run.json")
    run = json.loads(path.read_text())
    path.write_text(json.dumps({**run, "status": "stopped", "steps": {**run["steps"], "end": STEPS[-1]}}))


def evaluated(model_dir):
    path = Path(model_dir, "continuous_eval", "metrics.jsonl")
    return [row["step"] for row in read_rows(str(path))] if path.exists() else []


def leased(model_dir):
    """Returns the steps that a lease says are done, or None if there is no lease."""
    path = Path(model_dir, "continuous_eval", "lease.json")
    return json.loads(path.read_text())["done"] if path.exists() else None


def test_a_slow_evaluator_that_is_killed_evaluates_every_checkpoint_exactly_once(model_dir, tmp_path, start_evaluator):
    """N14, C6: the trainer keeps one, and what a live evaluator has not seen; kills leave no gap and no double."""
    train(model_dir, tmp_path / "first", last_step=10)
    interrupted(model_dir)
    slow = start_evaluator("slow")
    until(lambda: leased(model_dir) == [10])
    os.kill(slow.process.pid, signal.SIGSTOP)  # as slow as can be
    said = train(model_dir, tmp_path / "second").err
    assert committed_steps(model_dir) == STEPS[1:]
    assert f"checkpoints beyond trainer.max_to_keep are kept for the evaluator on {os.uname().nodename}, " in said
    assert said.count("are kept for the evaluator") == 1

    os.kill(slow.process.pid, signal.SIGCONT)
    for rows in (3, 6):
        until(lambda rows=rows: len(evaluated(model_dir)) >= rows)
        slow.process.kill()
        assert slow.wait().code in (-signal.SIGKILL, 0)  # on a busy machine it may have ended before
        done = evaluated(model_dir)
        Path(model_dir, "continuous_eval", "lease.json").unlink(missing_ok=True)  # so that the next one's is seen
        slow = start_evaluator(f"after {rows}")
        until(lambda: leased(model_dir) is not None)
        assert set(done) <= set(leased(model_dir))  # what has a row is not kept for it
    ended = slow.wait()
    assert ended.code == 0, ended.err
    assert evaluated(model_dir) == list(STEPS)
    assert leased(model_dir) is None
    assert committed_steps(model_dir) == STEPS[-1:]  # training has ended, so the evaluator deletes what it held
