"""Webhooks, against a real server: what is posted, retries, their order, and that the address is in no message."""

import contextlib
import http.server
import json
import logging
import pathlib
import socket
import threading

import pytest

from official_trainer import config as configuration
from official_trainer.actions.schedule import ActionError
from official_trainer.actions.webhook import Webhook, WebhookConfig
from official_trainer.config import ConfigError, ExperimentConfig
from tests.support.action_runs import NAME, do
from tests.support.actions.events import Events
from tests.support.runs import differences

SECRET = "T0123-very-secret"


class Server:
    """A server that answers as the test says, one answer for each request, then always with 200."""

    def __init__(self):
        self.posts, self.answers, self.go_on, self.came = [], [], threading.Event(), threading.Event()
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                server.posts.append((self.path, dict(self.headers), json.loads(body)))
                server.came.set()
                answer = server.answers.pop(0) if server.answers else 200
                if answer == "slow":
                    server.go_on.wait(60)
                    answer = 200
                if answer == "hang up":
                    return
                with contextlib.suppress(BrokenPipeError):
                    if answer == "nonsense":
                        self.wfile.write(f"no http, but {SECRET}\r\n".encode())
                        return
                    self.send_response(answer, f"because of {SECRET}")
                    if answer == 302:
                        self.send_header("Location", f"http://127.0.0.1:{server.port}/elsewhere")
                    self.end_headers()

            def do_GET(self):
                server.posts.append((self.path, {}, "GET"))

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hooks/{SECRET}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def events(self):
        return [(post[2]["event"], post[2]["step"]) for post in self.posts]

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    yield server
    server.close()


class Posts(Events):
    """Events of a webhook that waits on no clock."""

    def __init__(self, tmp_path, events, on_error="fail", **options):
        self.pauses = []
        action = Webhook(WebhookConfig(events=events, **options), sleep=self.pauses.append)
        action.name = "webhook"
        super().__init__(action, tmp_path, on_error)


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def test_a_run_posts_what_happens(model_dir, tmp_path, server, monkeypatch, caplog):
    """In order, as JSON, to an address that is nowhere in the run directory or the log; the run is as one without."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("CHAT_URL", server.url)
    server.answers = [200, 500]
    do(model_dir, "trainer.actions=[{type: webhook, url_env: CHAT_URL, events: [start, eval, end], retries: 1}]")
    assert server.events == [("start", 0), ("eval", 20), ("eval", 20), ("eval", 40), ("end", 40)]
    path, headers, end = server.posts[-1]
    assert path == f"/hooks/{SECRET}"
    assert (headers["Content-Type"], headers["User-Agent"]) == ("application/json", "official-trainer")
    assert end.keys() == {"event", "step", "experiment", "model_dir", "metrics", "reason"}
    assert (end["experiment"], end["model_dir"], end["reason"]) == (NAME, model_dir, None)
    assert end["metrics"] == server.posts[-2][2]["metrics"] and "accuracy" in end["metrics"]
    assert SECRET not in caplog.text
    for file in pathlib.Path(model_dir).rglob("*"):
        assert file.is_dir() or SECRET.encode() not in file.read_bytes(), file
    do(tmp_path / "plain")
    assert differences(model_dir, str(tmp_path / "plain")) == []


def test_numbers_that_are_none_are_posted_as_words(tmp_path, server):
    """Strict JSON has no NaN."""
    told = Posts(tmp_path, ("step",), url=server.url)
    told.step(10, loss=float("nan"), rate=float("inf"), accuracy=0.5)
    told.end()
    assert server.posts[0][2]["metrics"] == {"loss": "NaN", "rate": "Infinity", "accuracy": 0.5}


def test_a_message_for_a_chat(tmp_path, server):
    """N51: `text` is what Slack and others take; what a value holds notifies no channel and makes no link."""
    told = Posts(tmp_path, ("step", "failure"), url=server.url, text="*{event}* {accuracy}{nothing} | {summary}")
    told.step(10, accuracy=0.5)
    told.end(ValueError("<!channel> & <b>"))
    first, last = (post[2]["text"] for post in server.posts)
    assert first == f"*step* 0.5 | a run is at step 10 (accuracy 0.5), {tmp_path}"
    assert "a run failed at step 10: ValueError: &lt;!channel&gt; &amp; &lt;b&gt; (accuracy 0.5)" in last


def test_a_real_run_tells_its_best_evaluation(model_dir, server):
    """N51: each evaluation that is better than all before; not the others."""
    actions = f"trainer.actions=[{{type: webhook, url: '{server.url}', events: [eval, best]}}]"
    metric = ("trainer.best_checkpoint_eval_metric=accuracy", "trainer.best_checkpoint_export_subdir=best")
    do(model_dir, actions.replace(SECRET, "hook"), *metric)
    told = server.events
    with open(f"{model_dir}/run.json") as file:
        best = json.load(file)["best"]["step"]
    assert ("best", 20) in told and ("best", best) == [each for each in told if each[0] == "best"][-1]
    assert [step for event, step in told if event == "eval"].count(40) == 1


def test_events_that_repeat_are_limited_in_their_rate(tmp_path, server):
    """N51: the first of them is sent; an end, a failure or a stall always."""
    clock = iter([100.0, 159.0, 160.0, 200.0])
    config = WebhookConfig(events=("step", "end"), url=server.url, min_interval_seconds=60)
    told = Events(Webhook(config, clock=lambda: next(clock)), tmp_path, "fail")
    for step in (10, 20, 30, 40):
        told.step(step)
    told.end()
    assert server.events == [("step", 10), ("step", 30), ("end", 40)]


def test_a_stall_is_told_from_the_thread_that_sees_it(tmp_path, server, caplog):
    """N51: also while the thread of other events hangs; an error changes nothing."""
    server.answers = ["slow"]
    told = Posts(tmp_path, ("step", "stall"), "warn", url=server.url, retries=0, timeout_seconds=60)
    told.step(10)
    assert server.came.wait(60)
    told.schedule.stall("no step for 600 s")
    assert server.events == [("step", 10), ("stall", 10)] and server.posts[1][2]["reason"] == "no step for 600 s"
    server.answers = [404]
    told.schedule.stall("again")
    assert "action 'webhook': event stall of step 10 was posted once without success" in caplog.text
    server.go_on.set()
    told.end()


def test_the_address_can_be_in_a_file(tmp_path, server, caplog):
    """N51: as schedulers mount a secret; it is read again each time, and nothing of it is said."""
    path = tmp_path / "hook"
    path.write_text(f"{server.url}\n")
    told = Posts(tmp_path, ("step",), "warn", url_file=str(path))
    told.step(10)
    told.end()
    assert server.events == [("step", 10)]
    path.write_text(f"ftp://{SECRET}")
    Posts(tmp_path, ("step",), "warn", url_file=str(path))
    assert f"url_file: {path} holds no address that begins with https:// or http://" in caplog.text
    Posts(tmp_path, ("step",), "warn", url_file=str(tmp_path / "gone"))
    assert f"url_file: {tmp_path}/gone cannot be read" in caplog.text and SECRET not in caplog.text


# Servers that fail.


def test_a_server_that_fails_is_asked_again_with_longer_pauses(tmp_path, server):
    """And later events wait for their turn."""
    server.answers = [500, 503, 429]
    told = Posts(tmp_path, ("step",), url=server.url)
    told.step(10)
    told.step(20)
    told.end()
    assert server.events == [("step", 10)] * 4 + [("step", 20)]
    assert told.pauses == [1, 2, 4]


def answers_in_vain(server, tmp_path, caplog, **options):
    """Returns what is said about an event that cannot be posted, and how often it was tried."""
    caplog.set_level(logging.DEBUG)
    told = Posts(tmp_path, ("end",), "warn", **{"url": server.url, "retries": 2, **options})
    told.end()
    assert SECRET not in caplog.text
    assert "127.0.0.1" not in caplog.text
    return caplog.text, len(server.posts), told.pauses


@pytest.mark.parametrize(
    ("answer", "times", "message"),
    [
        (
            500,
            3,
            "event end of step 0 was posted 3 times without success: the server answered 500 Internal Server Error",
        ),
        (404, 1, "event end of step 0 was posted once without success: the server answered 404 Not Found"),
        (302, 1, "was posted once without success: the server answered 302 Found"),
        (599, 3, "was posted 3 times without success: the server answered 599"),
        ("hang up", 3, "was posted 3 times without success: RemoteDisconnected"),
        ("nonsense", 3, "was posted 3 times without success: BadStatusLine"),
    ],
)
def test_what_the_server_does_is_said_without_the_address(answer, times, message, tmp_path, server, caplog):
    """What may pass is tried again, the rest is not; nothing is followed elsewhere; training goes on."""
    server.answers = [answer] * 3
    text, posts, pauses = answers_in_vain(server, tmp_path, caplog)
    assert message in text
    assert (posts, len(pauses)) == (times, times - 1)
    assert "GET" not in [post[2] for post in server.posts]


def test_a_server_that_refuses_the_connection(tmp_path, server, caplog):
    """It may be back in a second."""
    url = f"http://127.0.0.1:{free_port()}/{SECRET}"
    text, _, pauses = answers_in_vain(server, tmp_path, caplog, url=url)
    assert "was posted 3 times without success: Connection refused" in text
    assert pauses == [1, 2]


def test_a_server_that_is_slow_holds_up_nobody(tmp_path, server, caplog):
    """Each attempt has its time limit, in a thread beside training."""
    server.answers = ["slow", "slow"]
    told = Posts(tmp_path, ("step",), "warn", url=server.url, retries=1, timeout_seconds=0.2)
    told.step(10)
    told.step(20)
    assert server.came.wait(60)
    told.end()
    assert (
        "event step of step 10 was posted 2 times without success: no answer within timeout_seconds=0.2" in caplog.text
    )
    assert server.events == [("step", 10), ("step", 10), ("step", 20)]


def test_an_address_that_cannot_be_used_is_not_said(tmp_path, server, caplog):
    """Python's own message would name it."""
    text, _, pauses = answers_in_vain(server, tmp_path, caplog, url=f"http://127.0.0.1:80/{SECRET} with spaces")
    assert "was posted once without success: InvalidURL" in text
    assert pauses == []


def test_on_error_fail_ends_the_run_without_the_address(tmp_path, server):
    """And no chain of errors names it."""
    server.answers = [404]
    told = Posts(tmp_path, ("step",), url=server.url)
    with pytest.raises(ActionError, match="event step of step 10 was posted once without success") as caught:
        told.step(10)  # the answer may come before this call ends
        assert told.action.are_sent(60)
        told.step(20)
    error = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


# The address.


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "url_env: the environment variable CHAT_URL is not set; nothing is posted"),
        (SECRET, "the environment variable CHAT_URL holds no address that begins with https:// or http://"),
        (f"file:///{SECRET}", "the environment variable CHAT_URL holds no address"),
        (f"http://[{SECRET}", "the environment variable CHAT_URL holds no address"),
    ],
)
def test_a_variable_without_an_address_is_said_at_the_start(value, message, tmp_path, monkeypatch, caplog):
    """Once, and its value is not."""
    monkeypatch.delenv("CHAT_URL", raising=False)
    if value is not None:
        monkeypatch.setenv("CHAT_URL", value)
    told = Posts(tmp_path, ("step", "end"), "warn", url_env="CHAT_URL")
    told.step(10)
    told.end()
    assert caplog.text.count(message) == 1  # the message, and the last line of its traceback
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{type: webhook}", "url_env: url_file or url must be set"),
        ("{type: webhook, url: 'https://x/y', url_env: A}", "url_env: cannot be set together with url; keep one"),
        ("{type: webhook, url: x.example/y}", "url: must begin with https:// or http:// and name a host"),
        ("{type: webhook, url: 'https://h/T0/aB3dE5gH7jK9mN1pQ3sT5'}", "url: holds a token, which would be"),
        ("{type: webhook, url: 'https://me:word@h/x'}", "url: holds a user or a password, which would be written to"),
        ("{type: webhook, url: 'https://h/x?key=a'}", "with the config; put it into an environment variable"),
        ("{type: webhook, url_env: A, events: []}", "events: must name at least one event"),
        ("{type: webhook, url_env: A, when: after_eval}", "when: has no effect unless events has step, eval or best"),
    ],
)
def test_what_is_wrong_in_the_config_is_said(section, message):
    """At once, with its place."""
    with pytest.raises(ConfigError, match=message):
        configuration.resolve(ExperimentConfig(), experiment="x", sets=(f"trainer.actions=[{section}]",))
