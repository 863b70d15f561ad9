"""An e-mail that is sent at events.

Owns: the message, the connection to the server, and that the password is in no message, log or file of the run.
Does not own: when an event occurs, its words, and the thread in which it is sent (`events.py`).
"""

from __future__ import annotations

import dataclasses
import smtplib
import ssl
from collections.abc import Iterator
from email.message import EmailMessage
from typing import Literal

from official_trainer.actions import events
from official_trainer.actions.action import Run
from official_trainer.actions.events import Event, EventName
from official_trainer.config import ActionConfig, NonNegativeFloat, Positive, PositiveFloat
from official_trainer.errors import UserError
from official_trainer.shown import printable

_LONGEST_SUBJECT = 150


class EmailError(UserError, RuntimeError):
    """An e-mail could not be sent."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmailConfig(ActionConfig):
    """Sends an e-mail at events, by SMTP.

    Attributes:
      events: when it is sent. `start` of a process; `step` and `eval`: when the action is due, which unset means at
        summaries and after evaluations; `best`: that evaluation is the best so far; `end` of the run, its `failure`,
        `preempted`: it was asked to stop and will be continued, or `stall`: it hangs, and ends.
      to: the addresses that get it.
      sender: the address that it comes from.
      host: the mail server.
      port: of the server.
      security: `starttls` encrypts a connection that begins in plain text, and sends nothing where the server cannot;
        `tls` one from its beginning, usually at port 465; `none` is for a server on this machine.
      user: the name for the server; unset sends without one.
      password_env: name of an environment variable that holds the password.
      password_file: a file that holds it, such as a mounted secret.
      timeout_seconds: how long each answer of the server is waited for.
      min_interval_seconds: events `step`, `eval` and `best` that come sooner after the last of them are left out.
    """

    on_error: Literal["fail", "warn", "disable"] = "warn"
    events: tuple[EventName, ...] = ("end", "failure", "stall")
    to: tuple[str, ...] = ()
    sender: str = ""
    host: str = ""
    port: Positive = 587
    security: Literal["starttls", "tls", "none"] = "starttls"
    user: str = ""
    password_env: str = ""
    password_file: str = ""
    timeout_seconds: PositiveFloat = 10.0
    min_interval_seconds: NonNegativeFloat = 600.0

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from events.field_problems(self.events, self.when)
        for name in ("to", "sender", "host"):
            if not getattr(self, name):
                yield name, "must be set"
        for name, addresses in (("to", self.to), ("sender", (self.sender,))):
            if wrong := [each for each in addresses if each and (each.count("@") != 1 or not each.isprintable())]:
                yield name, f"{wrong[0]!r} is no address such as me@example.org"
        if self.password_env and self.password_file:
            yield "password_file", "cannot be set together with password_env; keep one of the two"
        if bool(self.user) != bool(self.password_env or self.password_file):
            yield "user", "needs password_env or password_file, and these need user"
        if self.user and self.security == "none":
            yield "security", "none would send the password in plain text; use starttls or tls"

    def build(self) -> Email:
        return Email(self)


class Email(events.Notifier):
    """Sends each event as an e-mail."""

    def on_start(self, run: Run) -> None:
        if problem := self._password()[1]:
            raise EmailError(f"{problem}; nothing is sent")
        super().on_start(run)

    def end_seconds(self) -> float:
        return 3 * self._config.timeout_seconds

    def send(self, event: Event) -> None:
        config, said = self._config, events.summary(event)
        password, problem = self._password()
        if problem:
            return  # on_start has raised an error
        message = EmailMessage()
        message["From"], message["To"] = config.sender, ", ".join(config.to)
        subject = f"[{event['event']}] {said.splitlines()[0]}"
        message["Subject"] = printable(subject)[:_LONGEST_SUBJECT].replace("\t", " ")
        message.set_content("\n".join([said, "", *(f"{name}: {value}" for name, value in event["metrics"].items())]))
        try:
            self._deliver(message, password)
        except (OSError, smtplib.SMTPException) as error:  # whose text may hold what was sent
            said = _said(error, config.timeout_seconds)
            raise EmailError(f"the e-mail of event {event['event']} of step {event['step']}: {said}") from None

    def _deliver(self, message: EmailMessage, password: str) -> None:
        config, context = self._config, ssl.create_default_context()
        place = (config.host, config.port)
        if config.security == "tls":
            server: smtplib.SMTP = smtplib.SMTP_SSL(*place, timeout=config.timeout_seconds, context=context)
        else:
            server = smtplib.SMTP(*place, timeout=config.timeout_seconds)
        with server:
            if config.security == "starttls":
                server.starttls(context=context)
            if config.user:
                server.login(config.user, password)
            server.send_message(message)

    def _password(self) -> tuple[str, str]:
        config = self._config
        return events.secret(config.password_env, config.password_file) if config.user else ("", "")


def _said(error: Exception, timeout_seconds: float) -> str:
    """Returns what went wrong, without what the server or the client said."""
    if isinstance(error, smtplib.SMTPResponseException):
        return f"the server answered {error.smtp_code}"
    if isinstance(error, ssl.SSLError):
        return f"the connection is not secure: {error.reason or type(error).__name__}"
    if isinstance(error, TimeoutError | smtplib.SMTPServerDisconnected):
        return f"the server closed the connection, or did not answer within timeout_seconds={timeout_seconds:g}"
    if isinstance(error, smtplib.SMTPNotSupportedError):
        return "the server does not offer what `security` and `user` need"
    strerror = getattr(error, "strerror", None)
    return strerror if isinstance(strerror, str) else type(error).__name__
