"""A Cloud TPU slice that is made anew when it is taken away, until its job has ended.

Owns: what each state of a slice calls for. Does not own: gcloud's commands (`tpu.py`), what the slice does
(`tpu_startup.py`), the wait between two tries (`launch/local/restarts.py`).

Nothing here is needed for training to go on: it sits in front of a slice that trains by itself, and may be stopped and
started at any time. What it has to know is what gcloud says of the slice, and two files of the run directory.
"""

from __future__ import annotations

import json
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.launch.local.restarts import Restarts
from official_trainer.launch.target import Hands, Ran, Rendered, Submitted, Target
from official_trainer.launch.targets import tpu_startup
from official_trainer.launch.targets.tpu import LOST, TpuProfile, state_of
from official_trainer.launch.verdict import Outcome

POLL_SECONDS = 30.0
_FIRST_SECONDS, _LONGEST_SECONDS = 30.0, 900.0  # more capacity is not there a second later
_FAILURES_IN_A_ROW = 20  # of gcloud: ten minutes without a network

_STATUS = "status.json"
_UP = ("ACTIVE", "READY")
_PERMANENT = ("3", "5", "7", "9", "11", "12", "16")  # of google.rpc.Code: the same request would fail again
_TRANSIENT = (
    "RESOURCE_EXHAUSTED",
    "no more capacity",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "INTERNAL",
    "ALREADY_EXISTS",  # what was deleted is not quite gone
)


class SliceSupervisor:
    """Watches one slice.

    Args:
      target: gcloud's commands.
      job: what was submitted.
      rendered: what it is made anew from.
      model_dir: the run directory.
    """

    def __init__(
        self, target: Target[TpuProfile], job: Submitted[TpuProfile], rendered: Rendered, model_dir: str
    ) -> None:
        self._target, self._job, self._model_dir = target, job, model_dir
        self._profile = job.profile
        self._make = target.resume(job, rendered)
        limit = self._profile.max_restarts
        self._restarts = Restarts(
            limit=None if limit else 0,
            first_seconds=_FIRST_SECONDS,
            longest_seconds=_LONGEST_SECONDS,
            patience=max(limit, 1),
        )
        self._failures = 0
        self._said = ""

    def supervise(self, hands: Hands) -> Outcome:
        self._run, self._say, self._wait = hands.run, hands.say, hands.wait
        while True:
            outcome = self._look()
            if outcome is not None:
                return outcome
            if self._wait(POLL_SECONDS):
                return Outcome(code=ExitCode.PREEMPTED, was_asked=True, note=self._runs_on)

    def _look(self) -> Outcome | None:
        """Does what the slice calls for now; returns how the job has ended if it has."""
        ran = self._run(self._target.status(self._job))
        if ran.code:
            return self._not_described(ran)
        self._failures = 0
        state = state_of(ran.out)
        self._tell(f"the slice is {state.name}")
        if state.name not in (*_UP, *LOST):
            return None
        ended = self._read(tpu_startup.exit_path(self._model_dir))
        if ended is not None and ended["ended"][:19] > state.created[:19]:  # else it is of a slice before this one
            return self._ended(ended["exit_code"])
        if state.name in _UP:
            return None
        if state.by_user:
            return self._given_up(ExitCode.PREEMPTED, "somebody has stopped the slice")
        if state.error.partition(":")[0] in _PERMANENT:
            return self._given_up(ExitCode.FAILED, f"the slice has failed with {state.error}")
        return self._make_anew(f"{state.name}{f' ({state.error})' if state.error else ''}")

    def _not_described(self, ran: Ran) -> Outcome | None:
        if "NOT_FOUND" in ran.err:
            return self._given_up(ExitCode.PREEMPTED, "there is no slice; somebody has deleted it")
        self._failures += 1
        self._tell(f"cannot see the slice: {_complaint(ran)}")
        if self._failures < _FAILURES_IN_A_ROW:
            return None
        note = f"gcloud has failed {self._failures} times in a row: {_complaint(ran)}. {self._runs_on}"
        return Outcome(code=ExitCode.RETRY, note=note)

    def _make_anew(self, why: str) -> Outcome | None:
        """Deletes what is left and asks for another slice, until there is one; returns an outcome if not."""
        while True:
            status = self._read(files.join(self._model_dir, _STATUS)) or {}
            step = status.get("last_checkpoint_step")
            seconds = self._restarts.next(step)
            if isinstance(seconds, str):
                return self._given_up(ExitCode.FAILED, f"{why}: {seconds}")
            from_step = "from the start" if step is None else f"from step {step}"
            self._say(f"{why}: slice {self._restarts.count + 1}, {from_step}, in {seconds:g} s")
            if self._wait(seconds):
                note = f"{why}; `official-trainer job resume {self._job.name}` makes another slice"
                return Outcome(code=ExitCode.PREEMPTED, was_asked=True, note=note)
            failed = next((ran for ran in map(self._run, self._make) if ran.code), None)
            if failed is None:
                return None
            if not any(sign in failed.err for sign in _TRANSIENT):
                return self._given_up(ExitCode.FAILED, f"{why}, and there is no other: {_complaint(failed)}")
            why = _complaint(failed)

    def _ended(self, code: int) -> Outcome:
        """The job is over, so the slice is of no use any more."""
        log = tpu_startup.log_path(self._model_dir)
        self._say(f"training has ended with exit code {code}; its log is {log}")
        if not self._profile.keep:
            for argv in self._target.cancel(self._job):
                ran = self._run(argv)
                self._say(
                    f"the slice cannot be deleted: {_complaint(ran)}. {self._costs}" if ran.code else "slice deleted"
                )
        return Outcome(code=code, note=f"training has ended with exit code {code}" if code else "")

    def _given_up(self, code: ExitCode, why: str) -> Outcome:
        return Outcome(
            code=code, note=f"{why}; not made anew. `official-trainer job resume {self._job.name}` tries again"
        )

    @property
    def _runs_on(self) -> str:
        return f"The slice runs on, and is paid for. {self._costs}"

    @property
    def _costs(self) -> str:
        return f"`official-trainer job cancel {self._job.name}` deletes it"

    def _tell(self, text: str) -> None:
        """Says something once, until there is something else to say."""
        if text != self._said:
            self._said = text
            self._say(text)

    def _read(self, url: str) -> dict[str, Any] | None:
        """Returns what a file of the run directory says; None if there is none, or it cannot be read now."""
        ran = self._run(("gcloud", "storage", "cat", url))
        if ran.code:
            return None
        values = json.loads(ran.out)
        assert isinstance(values, dict)
        return values


def _complaint(ran: Ran) -> str:
    """Returns the last line of what a command has complained about."""
    return next((line for line in reversed(ran.err.splitlines()) if line.strip()), f"exit code {ran.code}")
