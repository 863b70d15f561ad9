"""Being asked to stop: SIGTERM and SIGINT become a flag that the loop looks at between windows.

Owns: the signal handlers while a run lasts. Does not own: saving, or how soon the flag is seen (`loop.py`).
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

from official_trainer.errors import ExitCode, UserError


class PreemptedError(UserError, RuntimeError):
    """The run was asked to stop and has saved its state; the same command continues it."""

    exit_code = ExitCode.PREEMPTED


class StopRequest:
    """Set by the first SIGTERM or SIGINT inside its `with` block; the second one acts as if there were no handler."""

    def __init__(self) -> None:
        self.reason: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.reason = signal.Signals(number).name
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._previous.clear()
