"""Google's APIs on loopback, as far as gcloud asks them: TPUs, storage, Vertex AI, logging. For gcloud itself."""

import base64
import contextlib
import datetime
import hashlib
import http.server
import json
import os
import re
import subprocess
import threading
import urllib.parse

_IDS = ("queuedResourceId", "nodeId")


class Google:
    """What a server knows, and was asked.

    Attributes:
      asked: method, path and body of each request that changes something.
      slices: queued resources and TPU VMs, by `queuedResources/NAME` or `nodes/NAME`.
      jobs: custom jobs by their number.
      objects: content by `BUCKET/NAME`.
      refusals: (code, status, message) for the next requests that make a slice.
      is_denied: whether nothing may be seen.
      now: what its clock says.
    """

    def __init__(self):
        self.asked, self.slices, self.jobs, self.objects, self.refusals = [], {}, {}, {}, []
        self.address, self.is_denied = "", False
        self.now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def set_state(self, path, name, **data):
        """Says how a slice is from now on."""
        is_queued = path.startswith("queuedResources")
        self.slices[path]["state"] = {"state": name, **data} if is_queued else name

    def made(self):
        """Returns method, and kind and name, of what was made and deleted, in order."""
        found = []
        for method, path, _ in self.asked:
            url = urllib.parse.urlsplit(path)
            named = [value for key, value in urllib.parse.parse_qsl(url.query) if key in _IDS]
            found.append((method, "/".join([*url.path.split("/")[6:], *named])))
        return found

    def answer(self, method, path, query, body):
        """Returns (HTTP status, what is answered)."""
        if self.is_denied and method == "GET":
            message = f"Permission denied on resource '{path}'"
            return 403, {"error": {"code": 403, "status": "PERMISSION_DENIED", "message": message}}
        if path.startswith("/v2/projects"):
            return self._tpu(method, path, query, body)
        if path.startswith("/v1/projects"):
            return self._vertex(method, path, body)
        if path.startswith("/compute/v1/projects"):  # where gcloud leaves its key for ssh
            done = {"kind": "compute#operation", "name": "1", "status": "DONE", "selfLink": f"{self.address}{path}"}
            items = [{"key": "ssh-keys", "value": ""}]
            project = {"name": "my-project", "commonInstanceMetadata": {"fingerprint": "MQ==", "items": items}}
            return 200, project if path.count("/") == 4 else done
        if path.startswith("/v2/entries"):
            return 200, {"entries": [{"timestamp": "2026-01-01T00:00:00Z", "textPayload": f"of {body['filter']}"}]}
        if match := re.fullmatch(r"/(?:upload/|download/)?storage/v1/b/([^/]+)/o(?:/(.*))?", path):
            return self._storage(method, match[1], match[2], query, body)
        return not_found(path)

    def _tpu(self, method, path, query, body):
        kind, _, name = path.partition("/locations/")[2].partition("/")[2].partition("/")
        if name.endswith(":getGuestAttributes"):
            return 200, {}
        if kind == "operations":
            return 200, {"name": path.removeprefix("/v2/"), "done": True, "response": {}}
        if method == "GET" and not name:
            return 200, {kind: [each for key, each in self.slices.items() if key.startswith(f"{kind}/")]}
        name = name or next((query[key] for key in _IDS if key in query), None)
        key, full = (
            f"{kind}/{name}",
            path.removeprefix("/v2/") if name in path else f"{path.removeprefix('/v2/')}/{name}",
        )
        if method == "POST":
            if self.refusals:
                code, status, message = self.refusals.pop(0)
                return code, {"error": {"code": code, "status": status, "message": message}}
            if key in self.slices:
                return 409, {"error": {"code": 409, "status": "ALREADY_EXISTS", "message": f"{full} is there"}}
            self.now += datetime.timedelta(hours=1)
            endpoint = {"ipAddress": "10.0.0.2", "port": 8470, "accessConfig": {"externalIp": "192.0.2.1"}}
            created = f"{self.now:%Y-%m-%dT%H:%M:%S}.123456789Z"
            self.slices[key] = {**body, "name": full, "createTime": created, "networkEndpoints": [endpoint]}
            self.set_state(key, "WAITING_FOR_RESOURCES" if kind == "queuedResources" else "READY")
        elif key not in self.slices:
            return not_found(full)
        elif method == "DELETE":
            del self.slices[key]
        else:
            return 200, self.slices[key]
        return 200, {
            "name": f"{path.partition('/locations/')[0].removeprefix('/v2/')}/locations/z/operations/1",
            "done": False,
        }

    def _vertex(self, method, path, body):
        number = path.rpartition("/")[2].partition(":")[0]
        if method == "GET" and number == "customJobs":
            return 200, {"customJobs": list(self.jobs.values())}
        if method == "POST" and number == "customJobs":
            number = str(len(self.jobs) + 1)
            name = f"{path.removeprefix('/v1/')}/{number}"
            self.jobs[number] = {**body, "name": name, "state": "JOB_STATE_PENDING"}
        if number not in self.jobs:
            return not_found(path)
        if path.endswith(":cancel"):
            self.jobs[number]["state"] = "JOB_STATE_CANCELLED"
            return 200, {}
        return 200, self.jobs[number]

    def _storage(self, method, bucket, name, query, body):
        if method == "GET" and not name:
            names = [
                key.partition("/")[2] for key in self.objects if key.startswith(f"{bucket}/{query.get('prefix', '')}")
            ]
            return 200, {"items": [{"name": each, "bucket": bucket, "size": "1", "generation": "1"} for each in names]}
        name = urllib.parse.unquote(name) if name else query.get("name")
        key = f"{bucket}/{name}"
        if method == "POST":
            self.objects[key] = body
        if key not in self.objects:
            return not_found(key)
        content = self.objects[key]
        if query.get("alt") == "media":
            return 200, content
        link = f"{self.address}/download/storage/v1/b/{bucket}/o/{urllib.parse.quote(name, safe='')}?alt=media"
        return 200, {
            "kind": "storage#object",
            "bucket": bucket,
            "name": name,
            "size": str(len(content)),
            "generation": "1",
            "metageneration": "1",
            "updated": "2026-01-01T00:00:00.000Z",
            "md5Hash": base64.b64encode(hashlib.md5(content).digest()).decode(),
            "mediaLink": link,
        }


def not_found(what):
    return 404, {"error": {"code": 404, "status": "NOT_FOUND", "message": f"Resource '{what}' was not found"}}


@contextlib.contextmanager
def serving(google):
    """Serves it; yields the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _do(self):
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(raw) if raw and "json" in self.headers.get("Content-Type", "") else raw
            if "multipart" in self.headers.get("Content-Type", ""):
                # The bytes of the file stay as they are: an archive may contain or end with any line end.
                boundary = b"--" + self.headers["Content-Type"].partition("boundary=")[2].strip("\"'").encode()
                end = b"\r\n" if boundary + b"\r\n" in raw else b"\n"
                parts = (end + raw).split(end + boundary)[1:3]
                meta, body = (part.partition(2 * end)[2] for part in parts)
                query = {**query, "name": json.loads(meta)["name"]}
            if self.command in ("POST", "DELETE") and "/storage/" not in url.path:
                google.asked.append((self.command, self.path, body))
            status, answer = google.answer(self.command, url.path, query, body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            kind = "application/octet-stream" if isinstance(answer, bytes) else "application/json"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = do_PUT = _do

        def log_message(self, *words):
            if os.environ.get("FAKE_GOOGLE_LOG"):
                print(self.command, self.path, words[1:], flush=True)

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    google.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def environ(folder, address):
    """Returns the environment in which gcloud asks that server, and keeps its own files in a folder."""
    token = folder / "token"
    token.write_text("none")
    ours = {
        "CONFIG": str(folder / "gcloud"),
        "AUTH_ACCESS_TOKEN_FILE": str(token),
        "CORE_DISABLE_PROMPTS": "1",
        "CORE_DISABLE_USAGE_REPORTING": "1",
        "CORE_DISABLE_FILE_LOGGING": "1",
        "COMPONENT_MANAGER_DISABLE_UPDATE_CHECK": "1",
        "API_ENDPOINT_OVERRIDES_TPU": f"{address}/",
        "API_ENDPOINT_OVERRIDES_COMPUTE": f"{address}/compute/v1/",
        "API_ENDPOINT_OVERRIDES_AIPLATFORM": f"{address}/",
        "API_ENDPOINT_OVERRIDES_LOGGING": f"{address}/",
        "API_ENDPOINT_OVERRIDES_STORAGE": f"{address}/storage/v1/",
    }
    return {**os.environ, **{f"CLOUDSDK_{name}": value for name, value in ours.items()}}


def gcloud(argv, environ, folder):
    """Runs one command in a folder."""
    done = subprocess.run(argv, cwd=folder, env=environ, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr
