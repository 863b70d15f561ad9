"""A Cloud TPU slice that is replaced when Google takes it away, until its job has ended.

Owns: the states of a slice, and what is done in each of them.
Does not own: gcloud's commands (`tpu.py`), what the slice does (`tpu_startup.sh`), the wait before a restart
(`processes/verdict.py`).

Training does not depend on this: the slice trains by itself, and the supervisor may stop and start at any time. All it
needs is gcloud's description of the slice and two files of the run directory.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from official_trainer import files
from official_trainer.errors import ExitCode
from official_trainer.launch.spec import PLACE
from official_trainer.launch.target import GONE, Argv, Host, Phase, Target, last_error
from official_trainer.launch.targets.tpu_profile import TpuProfile
from official_trainer.processes.verdict import Outcome, Restarts

POLL_SECONDS = 30.0
_FIRST_SECONDS, _LONGEST_SECONDS = 30.0, 900.0  # capacity does not come back within seconds
_FAILURES_IN_A_ROW = 20  # of gcloud: ten minutes without a network

LOG = "train.log"
"""The output of training, copied there each minute and at the end."""

EXIT = "exit.json"
"""How training has ended; not written after a signal to stop."""

LOST = ("FAILED", "SUSPENDED")
"""States from which a slice does not come back by itself."""

_STATUS = "status.json"
_UP = "ACTIVE"
_PERMANENT = ("3", "5", "7", "9", "11", "12", "16")  # of google.rpc.Code: the same request would fail again
_TRANSIENT = (
    "RESOURCE_EXHAUSTED",
    "no more capacity",
    "UNAVAILABLE",
    "DEADLINE_EXCEEDED",
    "ABORTED",
    "INTERNAL",
    "ALREADY_EXISTS",  # the deletion of the old slice has not quite finished
)


class _UnreadableError(Exception):
    """A file of the run directory cannot be read now."""


class SliceSupervisor:
    """Watches one slice.

    Args:
      target: gcloud's commands.
      name: of the slice, which is that of its job.
      submit: the commands that created it.
      model_dir: the run directory.
      host: runs commands, prints and waits.
    """

    def __init__(
        self, target: Target[TpuProfile], name: str, submit: tuple[Argv, ...], model_dir: str, host: Host
    ) -> None:
        self._target, self._name, self._model_dir, self._host = target, name, model_dir, host
        self._create = target.resume(name, submit)
        limit = target.profile.max_restarts
        self._restarts = Restarts(
            limit=None if limit else 0,
            first_seconds=_FIRST_SECONDS,
            longest_seconds=_LONGEST_SECONDS,
            patience=max(limit, 1),
        )
        self._failures = 0
        self._last_report = ""

    def supervise(self) -> Outcome:
        """Returns the outcome of the job once it has ended, or once the user stops the supervisor."""
        while True:
            outcome = self._look()
            if outcome is not None:
                return outcome
            if self._host.wait(POLL_SECONDS):
                return Outcome(code=ExitCode.PREEMPTED, was_asked=True, note=self._runs_on)

    def _look(self) -> Outcome | None:
        """Handles the slice's current state; returns the outcome if the job has ended."""
        ran = self._host.ask(self._target.query((self._name,)))
        (job,) = self._target.states((self._name,), ran)
        if job is GONE:
            return self._give_up(ExitCode.PREEMPTED, "the slice does not exist; a user has deleted it")
        if job.phase is Phase.UNKNOWN:
            return self._handle_failure(f"cannot see the slice: {job.text}")
        slice_ = json.loads(ran.stdout)
        state, name = slice_["state"], slice_["state"]["state"]
        self._report(f"the slice is {name}")
        if name not in (_UP, *LOST):
            self._failures = 0
            return None
        try:
            ended = self._read_json(files.join(self._model_dir, PLACE, EXIT))
        except _UnreadableError as error:  # training may have ended, and then no other slice is needed
            return self._handle_failure(str(error))
        self._failures = 0
        if ended is not None and ended["ended"][:19] > slice_["createTime"][:19]:  # else an earlier slice wrote it
            code = ended["exit_code"]
            log = files.join(self._model_dir, PLACE, LOG)
            self._host.say(f"training has ended with exit code {code}; its log is {log}")
            for argv in () if self._target.profile.keep else self._target.cancel(self._name):
                deleted = self._host.run(argv)
                failure = f"the slice cannot be deleted: {last_error(deleted)}. {self._how_to_delete}"
                self._host.say(failure if deleted.returncode else "slice deleted")
            return Outcome(code=code, note=f"training has ended with exit code {code}" if code else "")
        if name == _UP:
            return None
        if state.get("stateInitiator") == "USER":
            return self._give_up(ExitCode.PREEMPTED, "a user has stopped the slice")
        failure = state.get("failedData", {}).get("error", {})
        why = ": ".join(str(failure[key]) for key in ("code", "message") if failure.get(key))
        if str(failure.get("code")) in _PERMANENT:
            return self._give_up(ExitCode.FAILED, f"the slice has failed with {why}")
        return self._replace(f"{name}{f' ({why})' if why else ''}")

    def _handle_failure(self, what: str) -> Outcome | None:
        self._failures += 1
        self._report(what)
        if self._failures < _FAILURES_IN_A_ROW:
            return None
        note = f"gcloud has failed {self._failures} times in a row: {what}. {self._runs_on}"
        return Outcome(code=ExitCode.RETRY, note=note)

    def _replace(self, why: str) -> Outcome | None:
        """Deletes the rest of the slice and requests another one until it exists; returns an outcome on failure."""
        while True:
            step = None
            with contextlib.suppress(_UnreadableError):
                step = (self._read_json(files.join(self._model_dir, _STATUS)) or {}).get("last_checkpoint_step")
            seconds = self._restarts.next(step)
            if isinstance(seconds, str):
                return self._give_up(ExitCode.FAILED, f"{why}: {seconds}")
            from_step = "from the start" if step is None else f"from step {step}"
            self._host.say(f"{why}: slice {self._restarts.count + 1}, {from_step}, in {seconds:g} s")
            if self._host.wait(seconds):
                note = f"{why}; `official-trainer job resume {self._name}` creates another slice"
                return Outcome(code=ExitCode.PREEMPTED, was_asked=True, note=note)
            failed = next((ran for ran in map(self._host.run, self._create) if ran.returncode), None)
            if failed is None:
                return None
            if not any(sign in failed.stderr for sign in _TRANSIENT):
                return self._give_up(ExitCode.FAILED, f"{why}, and no other slice: {last_error(failed)}")
            why = last_error(failed)

    def _give_up(self, code: ExitCode, why: str) -> Outcome:
        again = f"`official-trainer job resume {self._name}` tries again"
        return Outcome(code=code, note=f"{why}; no other slice is created. {again}")

    @property
    def _runs_on(self) -> str:
        return f"The slice still runs, and costs money. {self._how_to_delete}"

    @property
    def _how_to_delete(self) -> str:
        return f"`official-trainer job cancel {self._name}` deletes it"

    def _report(self, text: str) -> None:
        """Prints a text unless it is the same as the last one."""
        if text != self._last_report:
            self._last_report = text
            self._host.say(text)

    def _read_json(self, url: str) -> dict[str, Any] | None:
        """Returns the content of a JSON file of the run directory; None if there is no such file.

        Raises:
          _UnreadableError: gcloud has failed, or the file holds something else.
        """
        ran = self._host.ask(("gcloud", "storage", "cat", url))
        if "matched no objects" in ran.stderr:
            return None
        if ran.returncode:
            raise _UnreadableError(f"cannot read {url}: {last_error(ran)}")
        try:
            values = json.loads(ran.stdout)
        except ValueError as error:
            raise _UnreadableError(f"cannot read {url}: {error}") from error
        assert isinstance(values, dict)
        return values
