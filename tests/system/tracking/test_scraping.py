"""The server that answers scrapers: how much a client that hangs or floods can take."""

import contextlib
import socket
import threading
import types
import urllib.error
import urllib.request

import pytest

pytest.importorskip("prometheus_client", reason="NOT TESTED: pip install 'official-trainer[prometheus]'")

from official_trainer.tracking import scraping
from tests.support.prometheus import until

SAMPLES = [
    ("step", {"run": "a"}, 10.0),
    ("saves_total", {"run": "a"}, 2.0),
    ("metric", {"run": "a", "split": "train", "name": 'odd "name"\n'}, float("nan")),
    ("metric", {"run": "a", "split": "train", "name": "loss"}, 0.5),
]


@pytest.fixture
def serving(monkeypatch):
    """Starts servers, which are stopped; without a pause between connections."""
    monkeypatch.setattr(scraping, "PAUSE_SECONDS", 0.0)
    with contextlib.ExitStack() as stack:

        def serve(samples=lambda: SAMPLES, address="127.0.0.1"):
            server = scraping.Server(scraping.registry_of(samples), address, 0)
            stack.callback(server.stop)
            return server

        yield serve


def get(server, host="127.0.0.1"):
    with urllib.request.urlopen(f"http://{host}:{server.port}/metrics", timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return answer.read().decode()


def connected(server):
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


def is_cut(connection):
    """Whether the server ends a connection."""
    with contextlib.suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def test_samples_are_text_as_prometheus_reads_it(serving):
    """N48: with types and help, a family at a time; quotes and lines in labels, and what is not finite."""
    text = get(serving())
    assert [line for line in text.splitlines() if not line.startswith("# HELP")] == [
        "# TYPE official_trainer_step gauge",
        'official_trainer_step{run="a"} 10.0',
        "# TYPE official_trainer_saves_total counter",
        'official_trainer_saves_total{run="a"} 2.0',
        "# TYPE official_trainer_metric gauge",
        r'official_trainer_metric{name="odd \"name\"\n",run="a",split="train"} NaN',
        'official_trainer_metric{name="loss",run="a",split="train"} 0.5',
    ]
    assert text.encode() == scraping.text_of(scraping.registry_of(lambda: SAMPLES))


def test_ipv6(serving):
    """N48."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6")
    try:
        server = serving(address="::1")
    except OSError as error:
        pytest.skip(f"no IPv6: {error}")
    assert "official_trainer_step" in get(server, "[::1]")


def test_clients_that_send_nothing_are_cut_and_others_answered(serving, monkeypatch, capfd):
    """N48: four may last at once, more are closed at once; after a while there is room again. Nothing is printed."""
    monkeypatch.setattr(scraping, "CONNECTION_SECONDS", 3600.0)
    server = serving()
    hanging = [connected(server) for _ in range(scraping.MAX_CONNECTIONS)]
    hanging[0].sendall(b"GET /metrics HTT")
    until(lambda: len(server._ends) == scraping.MAX_CONNECTIONS, "four connections")
    for _ in range(3):
        assert is_cut(connected(server))
    assert len(server._ends) == scraping.MAX_CONNECTIONS
    server._ends = dict.fromkeys(server._ends, 0.0)  # their time is over
    assert all(map(is_cut, hanging))
    until(lambda: not server._ends, "the threads of cut connections")
    assert "official_trainer_step" in get(server)
    assert capfd.readouterr() == ("", "")


def test_a_client_that_does_not_read_is_cut(serving, capfd):
    """N48: an answer that does not fit into the kernel's buffers."""
    server = serving(lambda: [("metric", {"split": str(n), "name": "x" * 10_000}, 0.0) for n in range(2000)])
    with connected(server) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        until(lambda: server._ends, "the connection")
        server._ends = dict.fromkeys(server._ends, 0.0)
        until(lambda: not server._ends, "the end of the connection")
    assert capfd.readouterr() == ("", "")


def test_a_flood_is_answered_at_the_pace_of_the_server(serving, monkeypatch):
    """N48: each connection waits for the pause after the one before, whatever comes."""
    pauses, goes_on = [], threading.Semaphore(0)
    clock = types.SimpleNamespace(sleep=lambda s: (pauses.append(s), goes_on.acquire()), monotonic=lambda: 0.0)
    monkeypatch.setattr(scraping, "time", clock)
    monkeypatch.setattr(scraping, "PAUSE_SECONDS", 0.5)
    asked = []
    server = serving(lambda: asked.append(1) or SAMPLES)
    clients = [connected(server) for _ in range(3)]
    for client in clients:
        client.sendall(b"GET / HTTP/1.0\r\n\r\n")
    assert clients[0].recv(4) == b"HTTP"
    assert len(asked) == 1, "the others wait in the kernel"
    goes_on.release()
    assert clients[1].recv(4) == b"HTTP"
    assert len(asked) == 2
    goes_on.release(10)
    assert clients[2].recv(4) == b"HTTP"
    assert set(pauses) == {0.5}


def test_an_error_in_the_samples_costs_one_answer(serving, capfd):
    """N48: and prints nothing into the run's output."""
    answers = [ValueError("broken"), SAMPLES]

    def samples():
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    server = serving(samples)
    with pytest.raises((urllib.error.URLError, ConnectionError, OSError)):
        get(server)
    assert "official_trainer_step" in get(server)
    assert capfd.readouterr() == ("", "")


def test_a_port_is_free_again_when_the_server_stops(serving):
    """N48: for the next process of the run; while it is there, it is taken."""
    server = serving()
    registry = scraping.registry_of(lambda: SAMPLES)
    with pytest.raises(OSError, match="in use"):
        scraping.Server(registry, "127.0.0.1", server.port)
    get(server)
    server.stop()
    other = scraping.Server(registry, "127.0.0.1", server.port)
    assert get(other) == get(other)
    other.stop()
