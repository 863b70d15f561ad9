"""A request that is posted at events, to a chat or to a service that monitors runs.

Owns: the request, its retries, and that its address, which is often a secret, is in no message.
Does not own: when an event occurs, what it holds, and the thread in which it is sent (`events.py`).
"""

from __future__ import annotations

import dataclasses
import html
import http
import http.client
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from official_trainer.actions import events
from official_trainer.actions.action import Run
from official_trainer.actions.command import fill
from official_trainer.actions.events import Event, EventName
from official_trainer.config import ActionConfig, NonNegative, NonNegativeFloat, PositiveFloat
from official_trainer.config.addresses import secret_problem
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
        summaries and after evaluations; `best`: that evaluation is the best so far; `end` of the run, its `failure`,
        `preempted`: it was asked to stop and will be continued, or `stall`: it hangs, and ends.
      url: where to. It is kept with the config in the run directory, so one that looks as if it held a secret is
        refused: set `url_env` instead.
      url_env: name of an environment variable that holds it.
      url_file: a file that holds it, such as a mounted secret.
      text: a message that is posted as `{"text": …}` instead of the object: Slack, Mattermost, Google Chat and others
        take it. `{summary}` is the event in a sentence; `{step}`, `{event}`, `{experiment}`, `{model_dir}`, `{reason}`
        and `{NAME}` of a metric are filled in too.
      min_interval_seconds: events `step`, `eval` and `best` that come sooner after the last of them are left out.
      timeout_seconds: how long an answer is waited for.
      retries: how often an event is posted again, after 1, 2, 4, … seconds, if there is no answer or the server fails.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[EventName, ...] = ("end", "failure")
    url: str = ""
    url_env: str = ""
    url_file: str = ""
    text: str = ""
    min_interval_seconds: NonNegativeFloat = 0.0
    timeout_seconds: PositiveFloat = 10.0
    retries: NonNegative = 3

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from events.field_problems(self.events, self.when)
        given = [name for name in ("url", "url_env", "url_file") if getattr(self, name)]
        if len(given) > 1:
            yield given[1], f"cannot be set together with {given[0]}; keep one of the two"
        elif not given:
            yield "url_env", "url_file or url must be set"
        elif self.url and not _is_address(self.url):
            yield "url", "must begin with https:// or http:// and name a host"
        elif problem := secret_problem(self.url, "put it into an environment variable, and its name into url_env"):
            yield "url", problem

    def build(self) -> Webhook:
        return Webhook(self)


class Webhook(events.Notifier):
    """Posts events, each again after a failure that may pass."""

    def __init__(
        self,
        config: WebhookConfig,
        *,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Takes the section, what waits for so many seconds, and a clock."""
        super().__init__(config, clock=clock)
        self._sleep = sleep

    def on_start(self, run: Run) -> None:
        if problem := self._find_address()[1]:
            raise WebhookError(f"{problem}; nothing is posted")
        super().on_start(run)

    def end_seconds(self) -> float:
        return (self._config.retries + 1) * self._config.timeout_seconds + sum(self._pauses_seconds())

    def send(self, event: Event) -> None:
        if self._find_address()[1]:
            return  # on_start has raised an error
        body = json.dumps(self._message(event), allow_nan=False).encode()
        for attempt, pause_seconds in enumerate([*self._pauses_seconds(), None], 1):
            problem, may_pass = self._post(body)
            if not problem:
                return
            if pause_seconds is None or not may_pass or self._is_aborted:
                times = f"{attempt} times" if attempt > 1 else "once"
                posted = f"event {event['event']} of step {event['step']} was posted {times}"
                raise WebhookError(f"{posted} without success: {problem}")
            self._sleep(pause_seconds)

    def _message(self, event: Event) -> Mapping[str, Any]:
        """Returns what is posted; in a message, values name no user or channel, and make no link."""
        if not self._config.text:
            return event
        values = {**event, "summary": events.summary(event)}
        shown = {
            name: html.escape(value, quote=False) if isinstance(value, str) else value for name, value in values.items()
        }
        return {"text": fill(self._config.text, shown)}

    def _pauses_seconds(self) -> list[float]:
        """Returns the pause before each further attempt."""
        return [FIRST_PAUSE_SECONDS * 2**number for number in range(self._config.retries)]

    def _find_address(self) -> tuple[str, str]:
        """Returns the address, and what is wrong with its place."""
        config = self._config
        if config.url:
            return config.url, ""
        address, problem = events.secret(config.url_env, config.url_file)
        field, place = "url_env", f"the environment variable {config.url_env}"
        if config.url_file:
            field, place = "url_file", config.url_file
        if not problem and not _is_address(address):
            problem = f"{place} holds no address that begins with https:// or http://"
        return address, f"{field}: {problem}" if problem else ""

    def _post(self, body: bytes) -> tuple[str, bool]:
        """Returns the problem, empty if there is none, and whether it may pass.

        The texts of errors, and the errors themselves, may contain the address, so neither leaves this method.
        """
        headers = {"Content-Type": "application/json", "User-Agent": "official-trainer"}
        try:
            request = urllib.request.Request(self._find_address()[0], data=body, headers=headers, method="POST")
            with urllib.request.build_opener(_NoRedirect).open(request, timeout=self._config.timeout_seconds):
                return "", False
        except urllib.error.HTTPError as error:
            error.close()
            answer = f"{error.code} {http.client.responses.get(error.code, '')}".strip()
            return f"the server answered {answer}", error.code >= 500 or error.code in _PASSING
        except urllib.error.URLError as error:
            return self._describe(error.reason), True
        except (OSError, http.client.HTTPException) as error:
            return self._describe(error), not isinstance(error, http.client.InvalidURL)
        except ValueError:
            return "the address is not valid", False

    def _describe(self, reason: object) -> str:
        if isinstance(reason, TimeoutError):
            return f"no answer within timeout_seconds={self._config.timeout_seconds:g}"
        if isinstance(reason, OSError) and not isinstance(reason, ssl.SSLError) and reason.strerror:
            return reason.strerror
        return type(reason).__name__


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect, so that an event reaches the configured address only."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)
