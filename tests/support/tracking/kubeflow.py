"""The address of Kubeflow Trainer for the progress of a job, on loopback with TLS, which may refuse, hang or be down.

It takes what `pkg/statusserver/server.go` of Kubeflow Trainer 2.3 takes; its token changes when a test says so.
"""

import http.server
import json
import ssl
import threading
from pathlib import Path

import trustme

PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status"


class Platform:
    """Use it in a `with` block.

    Attributes:
      posted: the status of each request that was taken.
      answers: the code for each request to come, with headers; 200 after the last.
      requests: how many there were.
      token: that it takes.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.posted, self.answers, self.requests, self.token = [], [], 0, "first"
        self.hangs = threading.Event()  # while it is set, nothing is answered
        self.goes_on = threading.Event()
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(str(self.folder / "ca.crt"))
        self.write_token(self.token)

    def write_token(self, token):
        (self.folder / "token").write_text(f"{token}\n")

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"platform": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self.goes_on.set()
        self._server.shutdown()
        self._server.server_close()

    @property
    def environ(self):
        """What the controller puts into a pod."""
        prefix = "KUBEFLOW_TRAINER_SERVER"
        return {
            f"{prefix}_URL": f"https://127.0.0.1:{self.port}{PATH}",
            f"{prefix}_CA_CERT": str(self.folder / "ca.crt"),
            f"{prefix}_TOKEN": str(self.folder / "token"),
        }

    @property
    def percents(self):
        return [status["progressPercentage"] for status in self.posted]


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def do_POST(self):
        platform = self.platform
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        platform.requests += 1
        if platform.hangs.is_set():
            platform.goes_on.wait()
        code, headers = platform.answers.pop(0) if platform.answers else (200, {})
        if self.headers["Authorization"] != f"Bearer {platform.token}":
            code = 401
        if self.path != PATH:
            code = 404
        if code == 200:
            platform.posted.append(body["trainerStatus"])
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        said = json.dumps(body).encode()
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
