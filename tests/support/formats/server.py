"""A process of `serve`, and its clients."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time

from tests import ROOT
from tests.support.forked import TIMEOUT_SECONDS, Command


class Server:
    """A process that serves, and its clients."""

    def __init__(self, command):
        self.command = command
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not (found := re.match(r"http://127\.0\.0\.1:(\d+)(/\S+) is ", command.out)):
            assert command.process.exitcode is None and time.monotonic() < deadline, command.err
            time.sleep(0.05)
        self.port, self.place = int(found[1]), found[2]

    def ask(self, method, path="", body=None, **headers):
        """Returns the status and the JSON of an answer."""
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        with contextlib.closing(client):
            client.request(method, self.place + path, body, headers)
            answer = client.getresponse()
            return answer.status, json.loads(answer.read())

    def predict(self, said):
        return self.ask("POST", ":predict", said if isinstance(said, bytes) else json.dumps(said).encode())

    def begin(self, said, part=0.5):
        """Sends a part of a request, and returns the socket and the rest."""
        body = json.dumps(said).encode()
        head = f"POST {self.place}:predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        place = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_SECONDS)
        size = int(len(body) * part)
        place.sendall(head + body[:size])
        return place, body[size:]

    def stop(self):
        os.kill(self.command.process.pid, signal.SIGTERM)


@contextlib.contextmanager
def serving_at(path, folder, *words, first=None):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = Command(["serve", str(path), f"--port={port}", *words], cwd=ROOT, folder=folder, first=first)
    try:
        server = Server(command)
        yield server
    finally:
        if command.process.exitcode is None:
            os.kill(command.process.pid, signal.SIGTERM)
        ended = command.wait()
    said = [line for line in ended.err.splitlines() if not line.startswith("INFO: ")]  # LiteRT's
    assert (ended.code, said) == (0, [])


def save_documented(path):
    """Writes the models of TensorFlow Serving's page of its REST API: `half_plus_three`, and one of three inputs."""
    from official_trainer.lazy import tf

    def half_plus_three(x):
        return {"y": x * 0.5 + 3}

    def of_three(tag, signal, sensor):
        return {"tag_bytes": tag, "text": tag, "sum": tf.reduce_sum(signal, 1) + tf.reduce_sum(sensor, [1, 2])}

    def spec(shape, dtype, name):
        return tf.TensorSpec([None, *shape], dtype, name=name)

    three = [spec([], tf.string, "tag"), spec([5], tf.float32, "signal"), spec([2, 2], tf.float32, "sensor")]
    signatures = {
        "serving_default": tf.function(half_plus_three, input_signature=[spec([], tf.float32, "x")]),
        "three": tf.function(of_three, input_signature=three),
    }
    tf.saved_model.save(tf.Module(), path, signatures=signatures)
