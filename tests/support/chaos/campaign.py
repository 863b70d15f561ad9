"""A campaign: one variant of the run is killed again and again, and what it ends with compared with an unbroken run.

Owns: where kills strike, and what must be true after each of them. Looks at files and exit codes only.
"""

import collections
import dataclasses
import functools
import json
import os
import random
import re
import shutil
import signal
import time
from pathlib import Path

from official_trainer.checkpoints.manifest import committed_steps
from tests.support.chaos import inside
from tests.support.chaos.compare import differences, id_lines
from tests.support.chaos.runs import STEPS_PER_LOOP, Variant


@dataclasses.dataclass
class Tally:
    """What happened; sums of these make the table at the end.

    Attributes:
      trials: runs that were compared.
      kills: processes killed.
      mismatches: runs that were not like the unbroken one.
      found_out: runs with something left out on purpose, which were not.
      lost_checkpoints: starts that did not continue at the newest checkpoint.
      peak_bytes: the largest run directory.
      seconds: time that all this took.
      phases: kills by what the process did.
    """

    trials: int = 0
    kills: int = 0
    mismatches: int = 0
    found_out: int = 0
    lost_checkpoints: int = 0
    peak_bytes: int = 0
    seconds: float = 0.0
    phases: dict[str, int] = dataclasses.field(default_factory=collections.Counter)


class Campaign:
    """Kills until there were `kills` of them; whenever a run reaches its end, compares it and begins another.

    Args:
      workspace: where runs happen.
      number: which variant, and together with `seed` which kills.
      seed: seed of all campaigns.
      strikes_at: `instants` in time, or `writes` to the run directory.
    """

    def __init__(self, workspace, number, *, seed, strikes_at):
        self._workspace = workspace
        self._variant = Variant.number(number)
        self._steps_per_loop = STEPS_PER_LOOP[number % 3]
        self._random = random.Random(f"{seed}/{number}/{strikes_at}")
        self._strikes_at = strikes_at
        self._folder = workspace.folder / f"campaign-{number}-{strikes_at}"
        self._unbroken = workspace.unbroken(self._variant)
        self._limit = Limit(self._unbroken.model_dir)
        self._sets = []
        self.story = []
        self.tally = Tally()

    def run(self, kills):
        """Returns what went wrong, as text; empty if nothing did."""
        start = time.monotonic()
        shutil.rmtree(self._folder, ignore_errors=True)
        problem = ""
        while self.tally.kills < kills and not problem:
            problem = self._trial(kills)
        if not problem:
            shutil.rmtree(self._folder)
        self.tally.seconds = time.monotonic() - start
        return problem

    def _trial(self, kills):
        """One run directory, from nothing to the end of the run."""
        self.tally.trials += 1
        model_dir = self._folder / f"run-{self.tally.trials}"
        self.story.append(f"{model_dir} ({self._variant.name}, steps_per_loop={self._steps_per_loop})")
        code = None
        while code != 0:
            before = newest(model_dir)
            process, code, problem = self._attempt(model_dir, strikes=self.tally.kills < kills)
            problem = problem or self._lost(model_dir, before, process) or self._limit.problem(model_dir, process)
            if problem:
                return problem
        if found := differences(model_dir, self._unbroken.model_dir):
            self.tally.mismatches += 1
            return "\n".join(f"{kind}: {text}" for kind, texts in found.items() for text in texts)
        return ""

    def _attempt(self, model_dir, *, strikes):
        """Starts the command and, if `strikes`, kills it; returns process, exit code and what else went wrong."""
        instant, first = self._next_strike(model_dir) if strikes else (None, None)
        sets = [f"trainer.steps_per_loop={self._steps_per_loop}", *self._sets]
        command = self._workspace.start(model_dir, self._variant, *sets, first=first)
        process = command.process
        if instant is not None:
            process.join(instant)
            if process.is_alive():
                os.kill(process.pid, signal.SIGKILL)
        completed = command.wait()
        if completed.code == -signal.SIGKILL and strikes:
            self._count_kill(model_dir, process.pid)
        elif completed.code == 0:
            self.story.append("  reached its end")
        else:
            return process.pid, completed.code, f"exit code {completed.code}:\n{completed.err}"
        return process.pid, completed.code, ""

    def _next_strike(self, model_dir):
        if self._strikes_at == "instants":
            instant = self._random.uniform(0.0, self._unbroken.seconds)
            self.story.append(f"  kill after {instant:.3f} s")
            return instant, None
        number = self._random.randint(1, self._unbroken.writes)
        self.story.append(f"  kill before write {number}")
        return None, functools.partial(inside.kill_at_write, number, str(model_dir))

    def _count_kill(self, model_dir, process):
        phase = phase_of(model_dir, process)
        self.story[-1] += f": {phase}, newest checkpoint {newest(model_dir)}"
        self.tally.kills += 1
        self.tally.phases[phase] += 1
        self.tally.peak_bytes = max(self.tally.peak_bytes, sum(sizes(model_dir).values()))

    def _lost(self, model_dir, before, process):
        """A run continues at its newest checkpoint, and no checkpoint goes away but for a newer one."""
        after = newest(model_dir)
        first = next((step for pid, step, _ in id_lines(model_dir) if pid == process), before)
        quarantine = [str(path) for path in model_dir.glob("quarantine/*")]
        if after >= before and first == before and not quarantine:
            return ""
        self.tally.lost_checkpoints += 1
        return f"{before} was the newest checkpoint; {first} was trained next, then {after} was newest; {quarantine}"


class EndlessCampaign(Campaign):
    """Kills one run again and again that never gets to its end: nothing may pile up in its directory."""

    def __init__(self, workspace, *, seed):
        super().__init__(workspace, 0, seed=seed, strikes_at="writes")
        self._folder = workspace.folder / "endless"
        self._sets = [
            "trainer.train_steps=100000",
            "trainer.checkpoint_interval=1",
            "trainer.validation_interval=100000",
        ]

    def _trial(self, kills):
        model_dir = self._folder / "run"
        before = newest(model_dir)
        process, _, problem = self._attempt(model_dir, strikes=True)
        return problem or self._lost(model_dir, before, process) or self._limit.problem(model_dir, process)


class Limit:
    """How much a run directory may hold once a process that continues it has saved: hardly more than an unbroken run's.

    Event files are counted apart: each start that wrote a point has begun one.
    """

    def __init__(self, unbroken):
        self._files, self._bytes = self._measure(unbroken)

    def problem(self, model_dir, process):
        """Returns what there is too much of, as text; empty if nothing, or if `process` did not save."""
        status = read_status(model_dir)
        if status.get("pid") != process or status.get("last_checkpoint_step") is None:
            return ""
        litter = [name for name in sizes(model_dir) if (left := LITTER.search(name)) and left[1] != str(process)]
        if litter:
            return f"left by dead processes: {litter}"
        num_files, num_bytes = self._measure(model_dir)
        if num_files > 2 * self._files or num_bytes > 2 * self._bytes:
            return f"{num_files} files of {num_bytes} bytes, unbroken {self._files} of {self._bytes}"
        events = [name for name in sizes(model_dir) if ".tfevents." in name]
        rows = (model_dir / "metrics.jsonl").read_text().count("\n") if (model_dir / "metrics.jsonl").exists() else 0
        if len(events) > rows + SPARE_EVENT_FILES:
            return f"{len(events)} event files for {rows} rows"
        return ""

    def _measure(self, model_dir):
        held = [size for name, size in sizes(model_dir).items() if ".tfevents." not in name]
        return len(held), sum(held)


SPARE_EVENT_FILES = 6  # the config as text and for the HParams tab; one without a point yet in each of the folders
LITTER = re.compile(r"(?:\.tmp-|write-test-?)(\d*)")


def sizes(model_dir):
    """Returns the size of each file below `model_dir`, by its relative path."""
    return {str(p.relative_to(model_dir)): p.stat().st_size for p in Path(model_dir).rglob("*") if p.is_file()}


def newest(model_dir):
    """Returns the newest committed step; 0 if there is none."""
    return max(committed_steps(str(model_dir)), default=0)


def read_status(model_dir):
    path = Path(model_dir) / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def phase_of(model_dir, process):
    """Returns what `process` did when it died: the phase in status.json, `import` before it wrote one."""
    status = read_status(model_dir)
    if status.get("pid") != process:
        return "import"
    traced = any(pid == process for pid, _, _ in id_lines(model_dir))
    return "trace" if status["phase"] == "train" and not traced else status["phase"]
