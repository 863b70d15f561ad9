"""The report as one file of HTML: it loads nothing, and no text of a run can become markup or a script.

Owns: the file, its Content-Security-Policy, how its data are embedded; the server of `report --watch`, to browsers on
this machine alone. Does not own: the data (`content.py`), the scripts and styles (`static/`, where uPlot lies as it was
published, with its licence).

The policy allows this page's own style and script, by their checksums, and pictures that are inside of the file. Where
the page is served and refreshed, it may also ask its own server.

The server listens on 127.0.0.1, and answers only requests that name it so: a page of the web whose name was made to
point here (DNS rebinding) names itself. It answers GET, for two paths, and reads no file that a request names.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import http.server
import importlib.resources
import json
import string
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.errors import ExitCode, UserError
from official_trainer.shown import printable

MARK = '<meta name="generator" content="official-trainer report">'
"""By which a file is known to be a report."""

_SCRIPTS = ("dom.js", "curves.js", "figures.js", "report.js")
HOST = "127.0.0.1"
_REUSED_SECONDS = 2.0  # several open pages cost one look at the runs
_LIBRARY, _LIBRARY_STYLE = "uPlot.iife.min.js", "uPlot.min.css"


def render(content: Mapping[str, Any]) -> str:
    """Returns the page.

    Args:
      content: as `content.of` returns it.
    """
    style = f"{_static(_LIBRARY_STYLE)}\n{_static('report.css')}"
    own = "\n".join(map(_static, _SCRIPTS))
    script = f"{_static(_LIBRARY)}\n(() => {{\n{own}\n}})();\n"
    policy = [
        "default-src 'none'",
        f"script-src {_checksum(script)}",
        f"style-src {_checksum(style)}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        *(["connect-src 'self'"] if content["live"] else []),
    ]
    return string.Template(_static("report.html")).substitute(
        policy="; ".join(policy),
        title=html.escape(printable(content["title"])),
        style=style,
        words="\n".join(f"<p>{html.escape(printable(text))}</p>" for _, text in content["summary"]),
        data=embedded(content),
        script=script,
    )


def embedded(content: Mapping[str, Any]) -> str:
    r"""Returns JSON that a `<script>` may hold: no text in it can end that, or begin a comment.

    Example:
      >>> from official_trainer.reports.page import embedded
      >>> embedded({"name": "</script>"})
      '{"name":"\\u003c/script>"}'
    """
    return json.dumps(content, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


@functools.cache
def _static(name: str) -> str:
    return importlib.resources.files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def _checksum(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


# The server.


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
            self._answer(200, "text/html", render(content).encode())
            return
        body = embedded(content).encode()
        same = {name: value for name, value in content.items() if name != "made"}
        version = f'"{hashlib.sha256(embedded(same).encode()).hexdigest()[:32]}"'
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
