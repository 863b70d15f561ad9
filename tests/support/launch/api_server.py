"""What kubectl needs of an API server, on loopback: JobSets, TrainJobs, their pods, logs. It runs nothing.

It shows that the commands are kubectl's and what they ask for; not that a cluster would do it.
"""

import http.server
import json
import threading
import urllib.parse

KINDS = {
    "jobsets": ("jobset.x-k8s.io", "v1alpha2", "JobSet"),
    "pods": ("", "v1", "Pod"),
    "events": ("", "v1", "Event"),
}
GROUPS = [*dict.fromkeys(kind[:2] for kind in KINDS.values() if kind[0])]


class ApiServer:
    """Use it in a `with` block.

    Attributes:
      objects: what was created, by plural and name.
      requests: method, path and body of all that was asked for, without what kubectl asks to find its way.
      forbidden: the kinds, in plural, that its user may not see.
    """

    def __init__(self):
        self.objects, self.requests, self.forbidden = {}, [], set()

    def __enter__(self):
        handler = type("Handler", (_Handler,), {"api": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def write_config(self, path):
        """Writes kubectl's configuration, with a context `lab`."""
        cluster = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "nobody", "user": {"token": "none"}}],
            "contexts": [{"name": "lab", "context": {"cluster": "here", "user": "nobody", "namespace": "default"}}],
        }
        path.write_text(json.dumps(config))

    def add_pod(self, name, instance):
        metadata = {"name": name, "namespace": "team", "labels": {"app.kubernetes.io/instance": instance}}
        spec = {"nodeName": "n1", "containers": [{"name": "trainer", "image": "x"}]}
        self.objects["pods", name] = {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}}

    def add_event(self, name, reason, message, *, kind="Pod", is_warning=True):
        """Adds the event of an object; each is a second later than the one before."""
        number = sum(plural == "events" for plural, _ in self.objects)
        self.objects["events", f"event-{number}"] = {
            "metadata": {"name": f"event-{number}", "namespace": "team", "labels": {}},
            "involvedObject": {"kind": kind, "name": name},
            "type": "Warning" if is_warning else "Normal",
            "reason": reason,
            "message": message,
            "lastTimestamp": f"2026-01-01T00:{number // 60:02}:{number % 60:02}Z",
        }

    def answer(self, method, path, query, body):
        """Returns a status and what is sent: plain values, or bytes."""
        if (found := _discovered(path)) is not None:
            return 200, found
        self.requests.append((method, path, body))
        *_, plural, name = ["", "", *path.split("/")]
        if name in KINDS:
            plural, name = name, None
        if plural == "namespaces":  # which kubectl looks for when an object in it is not there
            return 200, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        if plural in self.forbidden and method == "GET":
            what = f'{_qualified(plural)} "{name}" is forbidden: User "me" cannot get resource "{plural}"'
            return 403, _failure("Forbidden", what, 403)
        if name == "log":
            return 200, b"step 1\nstep 2\n"
        if method == "POST":
            return self._create(plural, body)
        if name is None:
            return 200, self._listed(plural, query)
        found = self.objects.get((plural, name))
        if found is None:
            return 404, _failure("NotFound", f'{_qualified(plural)} "{name}" not found', 404)
        if method == "DELETE":
            del self.objects[plural, name]
        return 200, _typed(plural, found)

    def _create(self, plural, body):
        name = body["metadata"]["name"]
        if (plural, name) in self.objects:
            return 409, _failure("AlreadyExists", f'{plural} "{name}" already exists', 409)
        self.objects[plural, name] = body
        return 201, body

    def _listed(self, plural, query):
        key, _, value = query.get("labelSelector", ["="])[0].partition("=")
        found = [each for (kind, _), each in self.objects.items() if kind == plural]
        found = [_typed(plural, each) for each in found if not key or each["metadata"]["labels"].get(key) == value]
        group, version, kind = KINDS[plural]
        return {"apiVersion": f"{group}/{version}".lstrip("/"), "kind": f"{kind}List", "metadata": {}, "items": found}


class _Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *words):
        pass

    def _answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        url = urllib.parse.urlsplit(self.path)
        query = urllib.parse.parse_qs(url.query)
        code, said = self.api.answer(self.command, url.path, query, json.loads(body) if body else None)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(code)
        self.send_header("content-type", "text/plain" if isinstance(said, bytes) else "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_DELETE = _answer


def _typed(plural, value):
    group, version, kind = KINDS[plural]
    return {"apiVersion": f"{group}/{version}".lstrip("/"), "kind": kind, **value}


def _qualified(plural):
    return ".".join(filter(None, (plural, KINDS[plural][0])))


def _failure(reason, message, code):
    return {
        "apiVersion": "v1",
        "kind": "Status",
        "status": "Failure",
        "reason": reason,
        "message": message,
        "code": code,
    }


def _discovered(path):
    """Returns what there is at a path by which kubectl finds out what a server has."""
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if path == "/apis":
        groups = []
        for group, version in GROUPS:
            here = {"groupVersion": f"{group}/{version}", "version": version}
            groups.append({"name": group, "versions": [here], "preferredVersion": here})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    for group, version, _ in KINDS.values():
        place = f"apis/{group}/{version}" if group else f"api/{version}"
        if path == f"/{place}":
            verbs = ["create", "delete", "get", "list"]
            here = [
                {"name": name, "singularName": each.lower(), "namespaced": True, "kind": each, "verbs": verbs}
                for name, (other, _, each) in KINDS.items()
                if other == group
            ]
            named = f"{group}/{version}".lstrip("/")
            return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": named, "resources": here}
        if path == f"/openapi/v3/{place}":  # kubectl asks whether the server refuses fields that it does not know
            paths = {}
            for plural, (*same, kind) in KINDS.items():
                if same == [group, version]:
                    patch = {
                        "parameters": [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}],
                        "responses": {"200": {"description": "OK"}},
                        "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": kind},
                    }
                    paths[f"/{place}/namespaces/{{namespace}}/{plural}/{{name}}"] = {"patch": patch}
            return {"openapi": "3.0.0", "info": {"title": "x", "version": "1"}, "paths": paths}
    if path == "/openapi/v3":
        places = [f"apis/{group}/{version}" if group else f"api/{version}" for group, version, _ in KINDS.values()]
        return {"paths": {place: {"serverRelativeURL": f"/openapi/v3/{place}?hash=1"} for place in places}}
    return {"major": "1", "minor": "34", "gitVersion": "v1.34.0"} if path == "/version" else None
