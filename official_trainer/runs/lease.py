"""The evaluator's lease: while an evaluator lives, the trainer keeps the checkpoints that it has not evaluated yet.

Owns: `continuous_eval/lease.json`, how it is kept alive, and when it is dead.
Does not own: which checkpoints are evaluated (`evaluate.py`), what is deleted (`checkpoints/store.py`). No TensorFlow.

The file holds the `host` and the `pid` of the evaluator, the steps that it has `done` and does not need any more, and
when it was last `renewed`, in Unix seconds by its own clock. To the trainer the lease is alive for `LEASE_SECONDS`
after it has seen the content change, by its own clock, which nobody sets: clocks of two processes are never compared.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

from official_trainer import files
from official_trainer.files import RUN_FILE
from official_trainer.threads import RepeatingThread

_logger = logging.getLogger(__name__)

LEASE_SECONDS = 120.0
"""How long a lease lasts after it was last renewed: long enough to start a dead evaluator again."""

RENEW_SECONDS = 5.0
"""How often a lease is renewed."""

WAIT_SECONDS = 1.0
"""How often an evaluator that came first looks for the run directory."""

MANY_HELD = 10
"""More checkpoints than this that are only kept for an evaluator are worth a warning."""

_FOLDER, _NAME = "continuous_eval", "lease.json"


class EvaluatorLease:
    """The evaluator's side: a lease that is renewed by a thread inside its `with` block.

    It is removed at a normal end only. After an error or a stop it lasts until it is dead, so that an evaluator that
    is started again soon finds every checkpoint. It is written once the trainer has created the run directory.

    Args:
      model_dir: the run directory.
      done: steps that are evaluated already.
      clock: returns the time in Unix seconds, for people.
    """

    def __init__(self, model_dir: str, *, done: Iterable[int] = (), clock: Callable[[], float] = time.time) -> None:
        self._run_file = files.join(model_dir, RUN_FILE)
        self._folder = files.join(model_dir, _FOLDER)
        self._path = files.join(self._folder, _NAME)
        self._done = set(done)
        self._clock = clock
        self._lock = threading.Lock()
        self._is_written = self._has_failed = False
        self._thread = RepeatingThread("lease", self.renew, lambda: RENEW_SECONDS if self._is_written else WAIT_SECONDS)

    def __enter__(self) -> EvaluatorLease:
        self.renew()
        self._thread.start()
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        with self._lock:  # not while it is written
            self._thread.stop()
            if error_type is None:
                files.remove(self._path)

    def done(self, step: int) -> None:
        """Lets retention delete the checkpoint of `step`; called once its results are recorded."""
        self._done = self._done | {step}  # a new set, because the thread may be writing the old one
        self.renew()

    def renew(self) -> None:
        """Writes the lease. An error is logged and the write tried again, because it must not end an evaluation."""
        with self._lock:
            if self._thread.is_stopped:
                return
            try:
                if files.exists(self._run_file):
                    if not self._is_written:
                        files.make_dirs(self._folder)
                        files.remove_temporaries(self._folder, _NAME)
                    lease = {
                        "host": socket.gethostname(),
                        "pid": os.getpid(),
                        "renewed": round(self._clock(), 3),
                        "done": sorted(self._done),
                    }
                    files.write_text_atomically(self._path, json.dumps(lease) + "\n", durable=False)
                    self._is_written, self._has_failed = True, False
            except Exception as error:
                if not self._has_failed:
                    _logger.warning("%s cannot be written: %s; trying again", self._path, error)
                self._has_failed = True


class LeasedSteps:
    """The trainer's side: retention calls it before it deletes.

    Args:
      model_dir: the run directory.
      clock: returns the time in seconds from any origin.
    """

    def __init__(self, model_dir: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = files.join(model_dir, _FOLDER, _NAME)
        self._clock = clock
        self._seen, self._seen_seconds = "", 0.0  # the content, and when it was first seen
        self._has_warned: set[str] = set()

    def __call__(self, steps: Collection[int]) -> Collection[int]:
        """Returns those of `steps`, which would be deleted now, that a live evaluator still needs.

        A lease that is dead or invalid is removed. One that cannot be read now keeps everything.
        """
        now = self._clock()  # before the look: this process may be stopped between the two
        try:
            text = files.read_text(self._path)
            lease = files.parse_json(text)
            done = frozenset(lease["done"])
            evaluator = f"the evaluator on {lease['host']}, process {lease['pid']}"
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            self._warn_once("unreadable", "%s: checkpoints are kept for its evaluator until it can be read", error)
            return steps
        except (LookupError, TypeError, ValueError) as error:
            _logger.warning("%s is removed: not a lease: %r", self._path, error)
            files.remove(self._path)
            return ()
        if text != self._seen:
            self._seen, self._seen_seconds = text, self._clock()
        age_seconds = max(0.0, now - self._seen_seconds)
        if age_seconds > LEASE_SECONDS:
            message = "%s has not renewed its lease for %.0f s: checkpoints are no longer kept for it"
            _logger.warning(message, evaluator, age_seconds)
            files.remove(self._path)
            return ()
        needed = [step for step in steps if step not in done]
        if len(needed) > MANY_HELD:
            self._warn_once(
                "many",
                "%d checkpoints beyond trainer.max_to_keep are kept for %s, which renewed its lease %.0f s ago: it is "
                "slower than training. Set trainer.checkpoint_interval higher, or stop it: %.0f s later they may go.",
                len(needed), evaluator, age_seconds, LEASE_SECONDS,
            )  # fmt: skip
        return needed

    def _warn_once(self, topic: str, message: str, *arguments: Any) -> None:
        if topic not in self._has_warned:
            self._has_warned.add(topic)
            _logger.warning(message, *arguments)
