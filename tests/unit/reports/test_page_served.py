"""A report that is served to this machine alone."""

import http.client
import json
import re
import threading

import pytest

from official_trainer.reports import content, gathered, page
from official_trainer.reports.opened import NoRunError
from tests.support.reports import kinds


@pytest.fixture
def serve(tmp_path):
    """Serves the report of a folder; returns a function that asks for a path and the server."""
    kinds.write_run(tmp_path / "runs" / "a")
    servers = []

    def make():
        found = gathered.gather([str(tmp_path / "runs")], now_seconds=kinds.NOW)
        return content.of(found, now_seconds=kinds.NOW, refresh_seconds=5)

    def start(make=make):
        server = page.Server(make)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def ask(path="/", method="GET", **headers):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
            try:
                connection.request(method, path, headers=headers)
                answer = connection.getresponse()
                return answer.status, answer.read().decode(), answer.headers
            finally:
                connection.close()

        return ask, server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_page_and_its_data_are_served_on_the_loopback_address(serve):
    """N22: `--watch` listens on 127.0.0.1 alone."""
    ask, server = serve()
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"
    status, text, headers = ask()
    assert status == 200 and text.startswith("<!DOCTYPE html>")
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert (headers["X-Content-Type-Options"], headers["X-Frame-Options"]) == ("nosniff", "DENY")
    assert json.loads(ask("/data.json")[1])["live"] == 5


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example", ""])
def test_a_request_for_another_host_is_refused(serve, host):
    """N22: a page of the web that resolves its own name to this machine gets nothing (DNS rebinding)."""
    ask, server = serve()
    status, text, _ = ask("/data.json", Host=host)
    assert status == 403
    assert "runs" not in text
    assert ask("/data.json", Host=f"localhost:{server.server_port}")[0] == 200


def test_no_file_can_be_asked_for(serve):
    """N22: there are two paths; nothing else is answered, and nothing is changed by a request."""
    ask, _ = serve()
    for path in ("/etc/passwd", "/../../etc/passwd", "/runs/a/run.json"):
        assert ask(path)[0] == 404
    assert ask("/", method="POST")[0] == 501
    assert ask("/", method="PUT")[0] == 501


def test_what_has_not_changed_is_not_sent_again(serve, tmp_path):
    """N22: a page that asks every few seconds gets data when there are new ones."""
    now = iter(range(0, 1000, 10))
    ask, server = serve()
    _, _, headers = ask("/data.json")
    status, text, _ = ask("/data.json", **{"If-None-Match": headers["ETag"]})
    assert (status, text) == (304, "")
    kinds.write_rows(tmp_path / "runs" / "a", 60, since=40)
    server._made = (next(now) - 1e9, server._made[1])  # as if some seconds had passed
    status, text, _ = ask("/data.json", **{"If-None-Match": headers["ETag"]})
    assert status == 200
    assert 60 in json.loads(text)["charts"][0]["curves"][0]["x"]


def test_a_folder_that_is_gone_is_said(serve):
    """N22: when the runs cannot be read any more, the server says why and goes on."""

    def gone():
        raise NoRunError("there is no folder runs")

    ask, _ = serve(gone)
    status, text, _ = ask()
    assert (status, text) == (503, "there is no folder runs\n")


def test_a_port_in_use_is_refused(serve):
    """N22: --port=PORT that another process has is an error with a fix."""
    _, server = serve()
    message = re.escape(f"--port={server.server_port}: address already in use; name another port, or leave the flag")
    with pytest.raises(page.PortInUseError, match=message):
        page.Server(dict, port=server.server_port)
