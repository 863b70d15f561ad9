"""What is true of a run directory after each process that had it, however that ended."""

import json
import re
from pathlib import Path

from official_trainer.checkpoints.manifest import committed_steps, damage
from tests.support.chaos.compare import id_lines
from tests.support.checkpoint_damage import PARTS, cut_in_half

SPARE_EVENT_FILES = 6  # the config as text and for the HParams tab; one without a point yet in each of the folders
LITTER = re.compile(r"^(?!.*\.writing-).*\.tmp-(\d+)")  # an export's is removed by the next export, not by a save


class RunDirectory:
    """A run continues at its newest checkpoint, loses none, and holds hardly more than an unbroken one.

    Args:
      run: the directory.
      unbroken: that of an unbroken run.
    """

    def __init__(self, run, unbroken):
        self._run, self._unbroken = Path(run), Path(unbroken)

    def newest(self):
        """Returns the newest step that is committed and whole; 0 if there is none."""
        return newest(self._run)

    def damage_newest(self, count):
        """Damages the newest checkpoints, which the next process has to pass over."""
        for step in committed_steps(str(self._run))[-count:]:
            cut_in_half(self._run / f"ckpt-{step}{PARTS['data']}")

    def says(self, step):
        """Returns what a process says that continues from a step."""
        return f"continuing from step {step}" if step != newest(self._unbroken) else ""

    def phase(self, process):
        """Returns what `process` did when it died: the phase in status.json, `import` before it wrote one."""
        status = read_status(self._run)
        if status.get("pid") != process:
            return "import"
        logs = Path(f"{self._run}.ids").exists()
        traced = any(pid == process for pid, _, _ in id_lines(self._run))
        return "trace" if logs and status["phase"] == "train" and not traced else status["phase"]

    def check(self, before, process):
        """`process` continued at `before`, lost no checkpoint, and left what an unbroken run leaves."""
        after = newest(self._run)
        first = next((step for pid, step, _ in id_lines(self._run) if pid == process), before)
        story = f"{before} was the newest checkpoint; {first} was trained next, then {after} was newest"
        assert after >= before and first == before, story
        status = read_status(self._run)
        if status.get("pid") == process and status.get("last_checkpoint_step") is not None:
            self._check_size(process)

    def check_stopped(self):
        """What was trained is saved: the last step that was begun ends the last whole window."""
        status = read_status(self._run)
        assert (status["phase"], status["exit_code"]) == ("stopped", 143)
        assert status["last_checkpoint_step"] == newest(self._run)
        steps = [step for process, step, _ in id_lines(self._run) if process == status["pid"]]
        assert not steps or newest(self._run) == steps[-1] + 1

    def _check_size(self, process):
        """Once a process that continues has saved; event files apart: each start that wrote a point has begun one."""
        litter = [name for name in sizes(self._run) if (left := LITTER.search(name)) and left[1] != str(process)]
        assert litter == [], f"left by dead processes: {litter}"
        (files, total), (allowed_files, allowed_total) = _measure(self._run), _measure(self._unbroken)
        assert files <= 2 * allowed_files and total <= 2 * allowed_total, f"{files} files of {total} bytes"
        events = [name for name in sizes(self._run) if ".tfevents." in name]
        path = self._run / "metrics.jsonl"
        rows = path.read_text().count("\n") if path.exists() else 0
        assert len(events) <= rows + SPARE_EVENT_FILES, f"{len(events)} event files for {rows} rows"


def newest(run):
    return max((step for step in committed_steps(str(run)) if damage(str(run), step) is None), default=0)


def read_status(run):
    path = Path(run) / "status.json"
    return json.loads(path.read_text()) if path.exists() else {}


def sizes(run):
    """Returns the size of each file below `run`, by its relative path."""
    return {str(p.relative_to(run)): p.stat().st_size for p in Path(run).rglob("*") if p.is_file()}


def _measure(run):
    held = [size for name, size in sizes(run).items() if ".tfevents." not in name]
    return len(held), sum(held)
