"""Kubeflow Trainer: progress, time left and metrics of a run, posted to the address that the platform gives.

Owns: when and how they are posted, and that the percentage never goes back. Does not own: what is told of a run
(`run_metrics.py`); the job whose pods have the variables (`launch/targets/kubeflow.py`).

A thread asks for the newest numbers, posts them and pauses, so training waits for nothing but the last post, for
`LAST_SECONDS`. The platform shows what it got last and cannot be asked, and a run that was killed goes on from an
earlier step. So a percentage is on record in the run directory before it is posted, and none below it is posted later.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import logging
import os
import threading
import time
import urllib.parse
from collections.abc import Mapping
from typing import Any

from official_trainer import files
from official_trainer.config import PositiveFloat, TrackerConfig
from official_trainer.threads import RepeatingThread, run_bounded
from official_trainer.tracking import Outcome, Place
from official_trainer.tracking.run_metrics import MetricsTracker

_logger = logging.getLogger(__name__)

URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN, CA = "KUBEFLOW_TRAINER_SERVER_TOKEN", "KUBEFLOW_TRAINER_SERVER_CA_CERT"
"""Variables of the platform: the address, and the files with the token and the certificate of its authority."""

JOB = "JOBSET_UID"
"""The variable by which a job is told from an earlier one of its name; `launch kubeflow` sets it."""

RECORD = "kubeflow.json"
"""In the run directory: the highest percentage that the platform may have seen."""

POST_SECONDS = 5.0
"""How long the platform may take to connect, and for each part of its answer."""
LAST_SECONDS = 5.0
"""How long the end of a run waits for the last post."""

_LONGEST_PAUSE_SECONDS = 300.0  # after failures; a server that asks for a longer one gets it, up to a day
_DAY_SECONDS = 86400.0
_MOST_METRICS, _LONGEST_NAME_BYTES = 256, 64  # what the platform takes
_MOST_SECONDS = 2**31 - 1
_READ_BYTES = 1 << 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class KubeflowConfig(TrackerConfig):
    """Progress, time left and metrics for Kubeflow Trainer. It is on without a section where the platform asks for it.

    Attributes:
      post_seconds: how often they are posted; null posts nothing.
    """

    post_seconds: PositiveFloat | None = 10.0

    def build(self, place: Place) -> KubeflowTracker:
        return KubeflowTracker(place, self.post_seconds, os.environ)


def is_asked_for(environ: Mapping[str, str]) -> bool:
    """Returns whether the platform has given an address for progress."""
    return bool(environ.get(URL) and environ.get(TOKEN) and environ.get(CA))


class KubeflowTracker(MetricsTracker):
    """Posts what one process of a run does, from `describe` to `close`.

    Args:
      place: the run.
      post_seconds: between posts; None for none.
      environ: with the platform's variables; without them nothing is posted.
    """

    def __init__(self, place: Place, post_seconds: float | None, environ: Mapping[str, str]) -> None:
        super().__init__(place)
        self._progress = Progress(place, environ.get(JOB) or environ.get(URL, ""))
        self._environ, self._post_seconds = dict(environ), post_seconds
        self._posting: RepeatingThread | None = None
        self._lock = threading.Lock()  # one post at a time, so that the last one is the newest
        self._pause_seconds = post_seconds or 0.0
        self._next_at = 0.0
        self._is_done = self._has_warned = False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Starts to post; not earlier, so that an evaluation by itself posts nothing."""
        if self._post_seconds is not None and is_asked_for(self._environ) and self._posting is None:
            self._metrics.begin()
            self._posting = RepeatingThread("kubeflow-progress", self._post, lambda: self._pause_seconds)
            self._posting.start()

    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        self._is_done = outcome.status == "done"

    def close(self) -> None:
        """Posts once more, if the platform answers in time and has not asked for a longer pause."""
        if self._posting is not None:
            self._posting.stop()
            self._posting = None
            run_bounded(self._post_last, LAST_SECONDS, "kubeflow-last")

    def _post_last(self) -> None:
        time.sleep(max(0.0, self._next_at - time.monotonic()))
        self._post()

    def _post(self) -> None:
        """Posts the newest numbers, and sets how long the next pause is."""
        with self._lock:
            asked_seconds: float | None = None
            try:
                if (status := status_of(self._metrics.samples(), self._progress, is_done=self._is_done)) is None:
                    return
                code, asked_seconds = _send({"trainerStatus": status}, self._environ)
                why = "" if code == 200 else f"it answered {code}"
            except Exception as error:  # also of the file system that holds the record
                why = f"{type(error).__name__}: {error}"
            assert self._post_seconds is not None
            if not why:
                self._pause_seconds = self._post_seconds
                return
            longer = min(2 * self._pause_seconds, max(_LONGEST_PAUSE_SECONDS, self._post_seconds))
            self._pause_seconds = longer if asked_seconds is None else max(asked_seconds, self._post_seconds)
            self._next_at = time.monotonic() + (asked_seconds or 0.0)
            if not self._has_warned:
                self._has_warned = True
                what = "the progress of this run was not posted to Kubeflow Trainer, and will be tried again: %s"
                _logger.warning(what, why)


class Progress:
    """The percentage of a job as its platform may see it: it never falls, whatever process posts it.

    Args:
      place: of the run, with the record.
      job: tells the job from others that continue the run; the percentage of a new one begins anew.
    """

    def __init__(self, place: Place, job: str) -> None:
        self._place, self._job = place, job
        self._seen: int | None = None

    def percent(self, wanted: int) -> int:
        """Returns `wanted`, or the highest before it; it is on record before it can be posted.

        Raises:
          OSError: it cannot be recorded, so it must not be posted.
        """
        if self._seen is None:
            path = files.join(self._place.directory, RECORD)
            kept = files.read_json(path) if files.exists(path) else {}
            self._seen = int(kept["percent"]) if kept.get("job") == self._job else 0
        if wanted > self._seen:
            text = json.dumps({"job": self._job, "percent": wanted}) + "\n"
            files.write_text_atomically(files.join(self._place.directory, RECORD), text)
            self._seen = wanted
        return self._seen


def status_of(samples: list[Any], progress: Progress, *, is_done: bool) -> dict[str, Any] | None:
    """Returns what the platform gets, in its words; None of a run that does not say how far it is.

    Args:
      samples: of `RunMetrics`.
      progress: of the job.
      is_done: whether the run has ended as it should; until then there is some work left.
    """
    numbers = {name: value for name, _, value in samples if name in ("step", "end_step", "remaining_seconds")}
    step, end_step = numbers.get("step"), numbers.get("end_step")
    if step is None or not end_step:
        return None
    percent = 100 if is_done else min(99, int(100 * step / end_step))
    found: dict[str, Any] = {"progressPercentage": progress.percent(percent)}
    left = 0.0 if is_done else numbers.get("remaining_seconds")
    if left is not None:
        found["estimatedRemainingSeconds"] = min(int(left), _MOST_SECONDS)
    named = ((f"{labels['split']}/{labels['name']}", value) for name, labels, value in samples if name == "metric")
    short = [(name, value) for name, value in named if len(name.encode()) <= _LONGEST_NAME_BYTES]
    found["metrics"] = [{"name": name, "value": f"{value:.6g}"} for name, value in short[:_MOST_METRICS]]
    found["lastUpdatedTime"] = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return found


def _send(body: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[int, float | None]:
    """Returns the code of the platform's answer, and how many seconds it asks to wait.

    Raises:
      ValueError: the address would send the token as plain text.
      OSError: the platform is not there, does not answer, or is another one.
    """
    import http.client
    import ssl

    url = urllib.parse.urlsplit(environ[URL])
    if url.scheme != "https" or not url.hostname:
        raise ValueError(f"{URL} is {environ[URL]!r}; it must begin with https://")
    # Both files are replaced while a run runs.
    context = ssl.create_default_context(cafile=environ[CA])
    headers = {"Authorization": f"Bearer {files.read_text(environ[TOKEN]).strip()}", "Content-Type": "application/json"}
    connection = http.client.HTTPSConnection(url.hostname, url.port, timeout=POST_SECONDS, context=context)
    with contextlib.closing(connection):
        connection.request("POST", url.path, json.dumps(body, ensure_ascii=False).encode(), headers)
        answer = connection.getresponse()
        answer.read(_READ_BYTES)
        seconds = answer.headers.get("Retry-After", "")
        return answer.status, min(float(seconds), _DAY_SECONDS) if seconds.isdecimal() else None  # or it is a date
