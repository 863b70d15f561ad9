"""A report that is served and refreshed while its runs go on, to browsers on this machine alone.

Owns: the server of `report --watch`. Does not own: the page (`page.py`) and its content (`content.py`).

It listens on 127.0.0.1, and answers only requests that name it so: a page of the web whose name was made to point here
(DNS rebinding) names itself. It answers GET, for two paths, and reads no file that a request names.
"""

from __future__ import annotations

import hashlib
import http.server
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.reports import page

HOST = "127.0.0.1"
_REUSED_SECONDS = 2.0  # several open pages cost one look at the runs


class PortInUseError(UserError, OSError):
    """A port that the report cannot be served on."""

    exit_code = ExitCode.CONFIG


class Server(http.server.ThreadingHTTPServer):
    """Serves a report; `serve_forever` answers until the process ends.

    Args:
      make: returns the content of the report as it is now.
      port: to listen on; 0 takes one that is free.

    Raises:
      PortInUseError: another process listens there, or the port is not allowed.
    """

    daemon_threads = True

    def __init__(self, make: Callable[[], Mapping[str, Any]], *, port: int = 0) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: tuple[float, Mapping[str, Any]] | None = None
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise PortInUseError(
                f"--port={port}: {(error.strerror or str(error)).lower()}; name another port, or leave the flag out "
                "for one that is free"
            ) from error

    @property
    def address(self) -> str:
        """What a browser opens."""
        return f"http://{HOST}:{self.server_port}/"

    def allows(self, host: str | None) -> bool:
        """Whether a request for this host is meant for this server."""
        return host in (f"{HOST}:{self.server_port}", f"localhost:{self.server_port}")

    def content(self) -> Mapping[str, Any]:
        """Returns the content of the report, at most two seconds old."""
        with self._lock:
            if self._made is None or time.monotonic() - self._made[0] > _REUSED_SECONDS:
                self._made = time.monotonic(), self._make()
            return self._made[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no error."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Answers with the page, or with its data."""
        if not self.server.allows(self.headers.get("Host")):
            self._answer(403, "text/plain", b"this report is served to this machine alone\n")
            return
        path = self.path.partition("?")[0]
        if path not in ("/", "/data.json"):
            self._answer(404, "text/plain", b"there is / and /data.json\n")
            return
        try:
            content = self.server.content()
        except UserError as error:  # the folder is gone
            self._answer(503, "text/plain", f"{error}\n".encode())
            return
        if path == "/":
            self._answer(200, "text/html", page.render(content).encode())
            return
        body = page.embedded(content).encode()
        same = {name: value for name, value in content.items() if name != "made"}
        version = f'"{hashlib.sha256(page.embedded(same).encode()).hexdigest()[:32]}"'
        if self.headers.get("If-None-Match") == version:
            self._answer(304, "application/json", b"", version)
        else:
            self._answer(200, "application/json", body, version)

    def _answer(self, status: int, kind: str, body: bytes, version: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        if version:
            self.send_header("ETag", version)
        self.end_headers()
        if status != 304:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing: a request every few seconds is no news."""
