"""What a run pays for Prometheus: the time that the process computes because of scrapers, in percent of one core.

Owns: the clients: none, one that asks each second, eight that ask without end, four that connect and send nothing. Does
not own: the tables (`report.py`).

A process with the tracker and the record of a run does nothing else meanwhile, so all its processor time is the
tracker's. That is the most that a step can lose, where the step keeps the core busy on which Python runs.

Run as a process of its own (`python -m benchmarks.scraping FILE --rounds=N`), because others compute in this one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import processes
from benchmarks.report import Comparison, Target
from benchmarks.rounds import interleave

SECONDS = 10.0
LIMIT_PERCENT = 0.5
CLIENTS = {
    "nothing asks": (0, "pass"),
    "one client asks each second": (1, "ask(); time.sleep(1)"),
    "eight clients ask without end": (8, "ask()"),
    "four clients send nothing": (4, "connect().recv(1)"),
}
"""How many threads do what, again and again."""

_CLIENT = """
import contextlib, socket, sys, threading, time
def connect():
    return socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
def ask():
    with connect() as connection:
        connection.sendall(b"GET /metrics HTTP/1.0\\r\\n\\r\\n")
        while connection.recv(65536):
            pass
def again():
    while True:
        with contextlib.suppress(OSError):
            {what}
for _ in range({count}):
    threading.Thread(target=again, daemon=True).start()
print("begins", flush=True)
time.sleep(3600)
"""


@contextlib.contextmanager
def _clients(count: int, what: str, port: str) -> Iterator[None]:
    code = _CLIENT.format(count=count, what=what)
    with subprocess.Popen([sys.executable, "-c", code, port], stdout=subprocess.PIPE) as clients:
        assert clients.stdout is not None and clients.stdout.readline()
        yield
        clients.kill()


@contextlib.contextmanager
def _told(folder: str) -> Iterator[str]:
    """A run that tells Prometheus as many numbers as most; yields the port."""
    from official_trainer.tracking import Place
    from official_trainer.tracking.prometheus import TARGET_FILE, PrometheusConfig
    from official_trainer.tracking.record import RunRecord

    launch = {"experiment": "digits_mlp", "mode": "train", "argv": [], "imports": [], "config_digest": ""}
    record = RunRecord(folder, launch)
    record.start()
    record.checkpoint(100)
    tracker = PrometheusConfig(port=0).build(Place(directory=folder, experiment="digits_mlp", name="run"))
    tracker.rewind(0)
    tracker.describe("digits_mlp", {})
    tracker.log("train", 100, {f"metric_{number}": 0.5 for number in range(30)})
    tracker.log("time", 100, {"wall_seconds": 10.0, "steps_seconds": 8.0, "input_seconds": 2.0})
    ((target,),) = (each["targets"] for each in json.loads(Path(folder, TARGET_FILE).read_text()))
    yield target.rpartition(":")[2]
    tracker.close()


def measure_all(num_rounds: int) -> dict[str, list[float]]:
    """Returns percents of a core by what the clients do, round by round."""
    with tempfile.TemporaryDirectory() as folder, _told(folder) as port:

        def percent(name: str) -> dict[str, float]:
            with _clients(*CLIENTS[name], port):
                start, cpu_start = time.monotonic(), time.process_time()
                time.sleep(SECONDS)
                taken = (time.process_time() - cpu_start) / (time.monotonic() - start)
            return {"percent": 100 * taken}

        measured = interleave({name: functools.partial(percent, name) for name in CLIENTS}, num_rounds)
        return {name: list(values) for name, values in measured["percent"].items()}


def compare(num_rounds: int) -> list[Comparison]:
    """Measures in a child process, so that nothing else computes in it."""
    return [
        Comparison(
            title="what Prometheus takes of a core",
            unit="%",
            digits=3,
            values=processes.results_of("benchmarks.scraping", num_rounds),
            targets=[Target(name=name, at_most=LIMIT_PERCENT) for name in CLIENTS],
        )
    ]


if __name__ == "__main__":
    processes.write_results(measure_all)
