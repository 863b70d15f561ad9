"""E-mails, by a real SMTP server on loopback: encrypted, with a password, and what is said where it fails."""

import asyncio
import logging
import pathlib
import ssl
import subprocess

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP, AuthResult

from official_trainer import config as configuration
from official_trainer.actions.email import Email, EmailConfig
from official_trainer.config import ConfigError, ExperimentConfig
from official_trainer.processes.local import free_ports
from tests.support.action_runs import do
from tests.support.actions.events import Events

PASSWORD = "very-secret-word"


class Mails:
    """What a server got, and how it answers."""

    def __init__(self):
        self.got, self.hangs = [], False

    async def handle_DATA(self, server, session, envelope):
        if self.hangs:
            await asyncio.sleep(1)
        self.got.append((envelope.rcpt_tos, envelope.content.decode(), session.ssl is not None, session.auth_data))
        return "250 OK"


class Encrypted(Controller):
    def factory(self):
        return SMTP(
            self.handler,
            tls_context=self.tls,
            require_starttls=True,
            auth_required=True,
            authenticator=lambda server, session, envelope, mechanism, data: AuthResult(
                success=data.password == PASSWORD.encode(), handled=False, auth_data=data.login
            ),
        )


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"),
        ],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture
def server(certificate, monkeypatch):
    """A server that takes mail after STARTTLS and a password alone; its certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate / "cert.pem"))
    monkeypatch.setenv("MAIL_WORD", PASSWORD)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    running = Encrypted(Mails(), hostname="127.0.0.1", port=free_ports(1)[0])
    running.tls = tls
    running.start()
    yield running
    running.stop()


def settings(server, **options):
    place = {"to": ("me@example.org",), "sender": "runs@example.org", "host": "127.0.0.1", "port": server.port}
    return {**place, "user": "runs", "password_env": "MAIL_WORD", **options}


def told(server, tmp_path, **options):
    action = Email(EmailConfig(**settings(server, **options)))
    action.name = "email"
    return Events(action, tmp_path)


def test_a_run_that_ends_sends_an_email(server, model_dir, caplog):
    """N51: by STARTTLS, with what came of it; the password is nowhere in the run directory or the log."""
    caplog.set_level(logging.DEBUG)
    mail = ", ".join(
        f"{name}: {value}" for name, value in settings(server, to="[me@example.org, you@example.org]").items()
    )
    do(model_dir, f"trainer.actions=[{{type: email, {mail}}}]")
    ((to, text, is_encrypted, login),) = server.handler.got
    assert to == ["me@example.org", "you@example.org"] and is_encrypted and login == b"runs"
    assert "Subject: [end] " in text and "is done at step 40" in text.replace("\r\n ", " ")
    assert "accuracy: 0." in text and model_dir in text.replace("=\r\n", "")
    assert PASSWORD not in caplog.text
    for file in pathlib.Path(model_dir).rglob("*"):
        assert file.is_dir() or PASSWORD.encode() not in file.read_bytes(), file


def test_a_reason_of_several_lines_adds_no_header(server, tmp_path):
    """N51: the text of an error is not the sender's."""
    told(server, tmp_path).end(ValueError("first\nBcc: all@example.org"))
    ((to, text, *_),) = server.handler.got
    assert to == ["me@example.org"] and not [
        line for line in text.partition("\r\n\r\n")[0].splitlines() if line.startswith("Bcc")
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"password_env": "WRONG_WORD"}, "the server answered 535"),
        ({"user": "", "password_env": ""}, "the server answered 530"),
        ({"security": "tls"}, "the connection is not secure"),
        ({"port": 1}, "Connection refused"),
    ],
)
def test_what_the_server_refuses_is_said_without_the_password(server, tmp_path, caplog, monkeypatch, options, said):
    """N51: and training goes on."""
    monkeypatch.setenv("WRONG_WORD", "another-secret")
    told(server, tmp_path, **options).end()
    assert f"the e-mail of event end of step 0: {said}" in caplog.text
    assert "another-secret" not in caplog.text and PASSWORD not in caplog.text and not server.handler.got


def test_a_certificate_that_is_not_trusted(server, tmp_path, caplog, monkeypatch):
    """N51: nothing is sent to a server that may be another one."""
    monkeypatch.delenv("SSL_CERT_FILE")
    told(server, tmp_path).end()
    assert "the connection is not secure: CERTIFICATE_VERIFY_FAILED" in caplog.text and not server.handler.got


def test_a_server_without_encryption_gets_nothing(tmp_path, caplog, monkeypatch):
    """N51: not even the text."""
    monkeypatch.setenv("MAIL_WORD", PASSWORD)
    running = Controller(Mails(), hostname="127.0.0.1", port=free_ports(1)[0])
    running.start()
    try:
        told(running, tmp_path).end()
        assert (
            "the e-mail of event end of step 0: the server does not offer what `security` and `user` need"
            in caplog.text
            and not running.handler.got
        )
        told(running, tmp_path, security="none", user="", password_env="").end()
        assert len(running.handler.got) == 1  # which is asked for
    finally:
        running.stop()


def test_a_server_that_hangs_holds_up_nobody(server, tmp_path, caplog):
    """N51: each answer has its time, in a thread beside training."""
    server.handler.hangs = True
    events = told(server, tmp_path, timeout_seconds=0.3, events=("step", "end"), min_interval_seconds=0)
    events.step(10)
    events.step(20)
    events.end()
    assert "closed the connection, or did not answer within timeout_seconds=0.3" in caplog.text


def test_a_password_that_is_not_there_is_said_at_the_start(server, tmp_path, caplog):
    """N51: by its place."""
    told(server, tmp_path, password_env="", password_file=str(tmp_path / "word"))
    assert f"{tmp_path}/word cannot be read" in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("sender: a@b, host: h", "to: must be set"),
        ("to: [a], sender: a@b, host: h", "to: 'a' is no address such as me@example.org"),
        ("to: [a@b], sender: a@b, host: h, user: me", "user: needs password_env or password_file, and these need user"),
        ("to: [a@b], sender: a@b, host: h, user: me, password_env: A, security: none", "would send the password in"),
        ("to: [a@b], sender: a@b, host: h, user: me, password_env: A, password_file: b", "keep one of the two"),
    ],
)
def test_what_is_wrong_in_the_config_is_said(options, message):
    """N51: at once, with its place."""
    with pytest.raises(ConfigError, match=message):
        configuration.resolve(
            ExperimentConfig(), experiment="x", sets=(f"trainer.actions=[{{type: email, {options}}}]",)
        )
