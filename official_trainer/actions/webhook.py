"""A request that is posted at events, to a chat or to a service that keeps an eye on runs.

Owns: the request, its retries, and that its address, which is often a secret, is in no message.
Does not own: which event is when, what is said of one, and the thread in which it is sent (`events.py`).
"""

from __future__ import annotations

import dataclasses
import http
import http.client
import json
import os
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from typing import Literal

from official_trainer.actions import events
from official_trainer.actions.action import Run
from official_trainer.actions.events import Event, Happening
from official_trainer.config import ActionConfig, NonNegative, PositiveFloat
from official_trainer.errors import UserError

FIRST_PAUSE_SECONDS = 1.0
"""Pause before the second attempt; each pause after it is twice as long."""

_PASSING = {http.HTTPStatus.REQUEST_TIMEOUT, http.HTTPStatus.TOO_MANY_REQUESTS}


class WebhookError(UserError, RuntimeError):
    """An event could not be posted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WebhookConfig(ActionConfig):
    """Posts a JSON object with `event`, `step`, `experiment`, `model_dir`, `metrics` and `reason` at events.

    Attributes:
      events: when it is posted. `start` of a process; `step` and `eval`: when the action is due, which unset means at
        summaries and after evaluations; `end` of the run, its `failure`, or `preempted`: it was asked to stop and will
        be continued.
      url: where to. It is kept with the config in the run directory, so for a secret set `url_env` instead.
      url_env: name of an environment variable that holds it.
      timeout_seconds: how long an answer is waited for.
      retries: how often an event is posted again, after 1, 2, 4, … seconds, if nobody answers or the server fails.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[Event, ...] = ("end", "failure")
    url: str = ""
    url_env: str = ""
    timeout_seconds: PositiveFloat = 10.0
    retries: NonNegative = 3

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from events.problems(self.events, self.when)
        if self.url and self.url_env:
            yield "url_env", "cannot be set together with url; keep one of the two"
        elif not self.url and not self.url_env:
            yield "url_env", "or url must be set"
        elif self.url and not _is_address(self.url):
            yield "url", "must begin with https:// or http:// and name a host"

    def build(self) -> Webhook:
        return Webhook(
            self.events,
            url=self.url,
            url_env=self.url_env,
            timeout_seconds=self.timeout_seconds,
            retries=self.retries,
        )


class Webhook(events.Teller):
    """Posts events."""

    def __init__(
        self,
        events: tuple[Event, ...] = ("end", "failure"),
        *,
        url: str = "",
        url_env: str = "",
        timeout_seconds: float = 10.0,
        retries: int = 3,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Takes the fields of `WebhookConfig`, and what waits for so many seconds."""
        pauses = FIRST_PAUSE_SECONDS * (2**retries - 1)
        super().__init__(events, end_seconds=(retries + 1) * timeout_seconds + pauses)
        self._url, self._url_env = url, url_env
        self._timeout_seconds, self._attempts, self._sleep = timeout_seconds, retries + 1, sleep
        self._is_over = False

    def on_start(self, run: Run) -> None:
        if self._url_env:
            self._url = os.environ.get(self._url_env, "")
            if not _is_address(self._url):
                what = "holds no address that begins with https:// or http://" if self._url else "is not set"
                raise WebhookError(f"url_env: the environment variable {self._url_env} {what}; nothing is posted")
        super().on_start(run)

    def tell(self, happening: Happening) -> None:
        if not _is_address(self._url):
            return  # said at the start
        body = json.dumps(happening.payload(), allow_nan=False).encode()
        pause = FIRST_PAUSE_SECONDS
        for attempt in range(1, self._attempts + 1):
            problem, is_passing = self._post(body)
            if not problem:
                return
            if not is_passing or self._is_over or attempt == self._attempts:
                break
            self._sleep(pause)
            pause *= 2
        times = f"{attempt} times" if attempt > 1 else "once"
        raise WebhookError(f"event {happening.event} of step {happening.step} was posted {times} in vain: {problem}")

    def give_up(self) -> None:
        self._is_over = True

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Returns what went wrong, or nothing, and whether it may pass.

        No text of an error is handed on, and no error: they may name the address.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "official-trainer"}
        try:
            request = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self._timeout_seconds):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answered {_status(error.code)}", error.code >= 500 or error.code in _PASSING
        except urllib.error.URLError as error:
            return self._explained(error.reason), True
        except (OSError, http.client.HTTPException) as error:
            return self._explained(error), not isinstance(error, http.client.InvalidURL)
        except ValueError:
            return "the address is not valid", False

    def _explained(self, reason: object) -> str:
        if isinstance(reason, TimeoutError):
            return f"no answer within timeout_seconds={self._timeout_seconds:g}"
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) and reason.strerror:
            return reason.strerror
        return type(reason).__name__


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """What is posted goes to the address that was given, or nowhere."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _status(code: int) -> str:
    try:
        return f"{code} {http.HTTPStatus(code).phrase}"
    except ValueError:
        return str(code)
