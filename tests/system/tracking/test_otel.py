"""The tracker `otel`: what a collector gets over HTTP, and what a run loses by one that is down, hangs or refuses."""

import contextlib
import http.server
import itertools
import json
import os
import random
import signal
import threading
import uuid

import pytest

pytest.importorskip("opentelemetry.sdk.trace", reason="NOT TESTED: pip install 'official-trainer[otel]'")

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from official_trainer.tracking import Outcome, Trackers, otel
from official_trainer.tracking.otel import OtelConfig
from official_trainer.tracking.run_metrics import HELP
from official_trainer.tracking.threads import ThreadedTracker
from tests import ROOT
from tests.support.forked import Command
from tests.support.prometheus import until

SECRET = "dXNlcjpodW50ZXIy=="
RUN_ID = uuid.uuid4().hex
ELSEWHERE = {"gpu_memory_bytes", "mfu_ratio", "slow_worker_ratio"}
"""Names of which a run by one process of a CPU, whose peak is not known, has no sample."""


class Collector:
    """Takes OTLP over HTTP until it is closed; answers with `status`, and not before `go_on` is set."""

    def __init__(self):
        self.bodies, self.headers, self.status = [], [], 200
        self.came, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector.headers.append({name.lower(): value for name, value in self.headers.items()})
                collector.bodies.append((self.path, body))
                collector.came.set()
                collector.go_on.wait(240)
                with contextlib.suppress(OSError):
                    self.send_response(collector.status, f"because of {SECRET}")
                    self.end_headers()

            def log_message(self, *args):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def parsed(self, path, kind):
        return [kind.FromString(body) for each, body in list(self.bodies) if each == path]

    def exports(self):
        """The metrics of each request: by name."""
        found = []
        for request in self.parsed("/v1/metrics", ExportMetricsServiceRequest):
            (resource,) = request.resource_metrics
            found.append({metric.name: metric for metric in resource.scope_metrics[0].metrics})
        return found

    def spans(self):
        requests = self.parsed("/v1/traces", ExportTraceServiceRequest)
        return [span for request in requests for span in request.resource_spans[0].scope_spans[0].spans]

    def resource(self):
        request = self.parsed("/v1/metrics", ExportMetricsServiceRequest)[-1]
        return {each.key: each.value.string_value for each in request.resource_metrics[0].resource.attributes}


@pytest.fixture
def collector(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    collector = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    yield collector
    collector.close()


@pytest.fixture
def recorded(place, tmp_path):
    """The place of a run that has a record."""
    steps = {"start": 0, "current": 20, "end": 40}
    run = {"run_id": RUN_ID, "mode": "train", "started": "2026-01-01T00:00:00+00:00", "restarts": 2, "steps": steps}
    (tmp_path / "run.json").write_text(json.dumps(run))
    return place


def began(place, on_error="warn", **fields):
    """A tracker as a run has it, when training has begun."""
    told = Trackers([ThreadedTracker(OtelConfig(**fields).build(place), name="otel", on_error=on_error)])
    told.rewind(0)
    told.describe("digits", {})
    told.flush()
    return told


def numbers(metric):
    data = metric.sum if metric.HasField("sum") else metric.gauge
    return {tuple(sorted((a.key, a.value.string_value) for a in p.attributes)): p.as_double for p in data.data_points}


def facts(span):
    return {each.key: each.value.string_value or each.value.int_value for each in span.attributes}


def test_a_collector_gets_metrics_and_a_trace(recorded, collector, monkeypatch):
    """N48: the table's names and words, counters as sums, phases below their process, and what the environment says."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=Basic%20{SECRET},x-scope-orgid=one")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=vision,host.name=node7")
    told = began(recorded)
    told.enter("restore", None, 100.0)
    told.enter("train", 0, 102.5)
    told.log("train", 10, {"loss": 0.5})
    told.log("time", 10, {"wall_seconds": 4.0, "steps_seconds": 3.0})
    told.end(Outcome(status="failed", step=20))
    told.close()
    (metrics,) = collector.exports()
    assert {name.removeprefix("official_trainer_") for name in metrics} <= HELP.keys()
    assert metrics["official_trainer_step"].description == HELP["step"]
    run = ("run", f"run-{RUN_ID[:8]}")
    assert numbers(metrics["official_trainer_metric"]) == {(("name", "loss"), run, ("split", "train")): 0.5}
    assert numbers(metrics["official_trainer_step"]) == {(run,): 20.0}
    assert numbers(metrics["official_trainer_phase"]) == {(("phase", "failed"), run): 1.0}
    restarts = metrics["official_trainer_restarts_total"].sum
    assert (restarts.is_monotonic, restarts.data_points[0].as_double) == (True, 2.0)
    seconds = metrics["official_trainer_time_seconds_total"].sum.data_points[0]
    assert (seconds.start_time_unix_nano, seconds.as_double) == (100 * 10**9, 3.0)

    restore, train, process = collector.spans()
    assert [restore.name, train.name, process.name] == ["restore", "train", "process"]
    assert {span.trace_id.hex() for span in (restore, train, process)} == {RUN_ID}
    assert restore.parent_span_id == train.parent_span_id == process.span_id != b""
    assert (process.parent_span_id, process.start_time_unix_nano) == (b"", 100 * 10**9)
    assert (restore.end_time_unix_nano, train.start_time_unix_nano) == (102_500_000_000, 102_500_000_000)
    assert facts(train) == {
        "official_trainer.status": "failed", "official_trainer.start_step": 0, "official_trainer.end_step": 20
    }  # fmt: skip
    assert (train.status.code, process.status.code, restore.status.code) == (2, 2, 0)

    sent = collector.headers[0]
    assert (sent["authorization"], sent["x-scope-orgid"]) == (f"Basic {SECRET}", "one")
    about = collector.resource()
    assert (about["service.name"], about["host.name"], about["team"]) == ("official-trainer", "node7", "vision")
    assert (about["official_trainer.run_id"], about["service.instance.id"]) == (RUN_ID, f"run-{RUN_ID[:8]}")


def test_variables_of_a_signal_come_first(recorded, collector, monkeypatch):
    """N48: an address as it is, and its headers; and the name of the service."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/elsewhere")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=all")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "key=traces")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    told = began(recorded)
    told.end(Outcome())
    told.close()
    assert [path for path, _ in collector.bodies] == ["/v1/metrics", "/elsewhere"]
    assert [headers["key"] for headers in collector.headers] == ["all", "traces"]
    assert collector.resource()["service.name"] == "mine"


def test_a_run_sends_while_it_runs_and_draws_no_number(recorded, collector):
    """N48: Python's own `random` belongs to training."""
    random.seed(3)
    before = random.getstate()
    told = began(recorded, export_seconds=0.01)
    told.enter("train", 0, 1.0)
    told.enter("save", 5, 2.0)
    until(lambda: len(collector.exports()) > 1 and collector.spans(), "two exports and a span")
    told.close()
    assert random.getstate() == before
    assert [span.name for span in collector.spans()] == ["train"], "each span once"


def test_spans_wait_for_a_collector_that_fails(recorded, collector, monkeypatch):
    """N48: as many as are kept; one that refuses them for good gets none of them again."""
    monkeypatch.setattr(otel, "MAX_SPANS", 3)
    collector.status = 503
    told = began(recorded, export_seconds=0.01)
    told.enter("train", 0, 1.0)
    told.enter("save", 5, 2.0)
    until(lambda: len(collector.spans()) > 2, "the same span again and again")
    for step in range(10):
        told.enter("train", step, 3.0 + step)
    told.flush()
    collector.status = 400
    told.enter("evaluate", 10, 20.0)

    def last():
        return [span for span in collector.spans() if facts(span).get("official_trainer.start_step") == 9]

    until(last, "the newest of those that are kept")
    told.close()
    assert len(last()) == 1
    requests = collector.parsed("/v1/traces", ExportTraceServiceRequest)
    assert max(len(each.resource_spans[0].scope_spans[0].spans) for each in requests) <= 3


def down(collector, monkeypatch):
    collector.close()
    return "ConnectionError"


def hangs(collector, monkeypatch):
    collector.go_on.clear()
    monkeypatch.setattr(otel, "END_SECONDS", 0.1)
    return "no answer within 0.1 s at the end"


def refuses(collector, monkeypatch):
    collector.status = 401
    return "it answers 401"


def fails(collector, monkeypatch):
    collector.status = 503
    return "it answers 503"


def has_a_broken_header(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization=a%0A{SECRET}")
    return "InvalidHeader"


def has_no_scheme(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"me:{SECRET}@[collector")
    return "InvalidSchema"


@pytest.mark.parametrize("how", [down, hangs, refuses, fails, has_a_broken_header, has_no_scheme])
def test_a_collector_that_takes_nothing_is_said_once(how, recorded, collector, monkeypatch, caplog):
    """N48: with the reason, and nothing of what is secret; the end does not wait for it."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"authorization={SECRET}")
    said = how(collector, monkeypatch)
    told = began(recorded, on_error="fail", export_seconds=0.01)
    for step in range(3):
        told.enter("train", step, float(step))
        told.log("train", step, {"loss": 0.5})
    told.end(Outcome())
    told.close()
    at = "" if how is has_no_scheme else f" at {collector.url}"
    text = f"OpenTelemetry's collector{at} does not take the metrics of this run: {said}"
    assert caplog.messages == [f"{text}; the run goes on, and no more is said"]
    assert SECRET.strip("=") not in caplog.text


def test_of_the_address_of_a_collector_only_the_host_is_said(recorded, monkeypatch, caplog):
    """N48: its user, path and query may be secret."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://me:{SECRET}@127.0.0.1:9/{SECRET}?key={SECRET}")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    told = began(recorded)
    told.end(Outcome())
    told.close()
    (said,) = caplog.messages
    assert "collector at http://127.0.0.1:9 does not take" in said and SECRET.strip("=") not in said


def test_what_is_turned_off_or_only_evaluates_sends_nothing(recorded, collector, monkeypatch):
    """N48: an evaluation by itself describes no run."""
    alone = Trackers([OtelConfig().build(recorded)])
    alone.log("validation", 10, {"accuracy": 0.5})
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    for told in (alone, began(recorded)):
        told.enter("train", 0, 1.0)
        told.end(Outcome())
        told.close()
    assert collector.bodies == []


def test_a_process_beside_training_has_a_trace_of_its_own(place, collector):
    """N48: it has no record; a restart finds the same."""
    for _ in range(2):
        told = began(place)
        told.end(Outcome())
        told.close()
    first, second = collector.spans()
    assert first.trace_id == second.trace_id
    assert first.span_id != second.span_id


def test_a_run_that_is_stopped_and_goes_on_is_one_trace(collector, tmp_path):
    """N48: all metrics and phases; a collector that hangs stops neither steps nor the end; no header is written."""
    run_dir, folders = tmp_path / "run", [tmp_path / "first", tmp_path / "second"]
    steps = ["trainer.train_steps=10000000", "trainer.summary_interval=1000", "trainer.checkpoint_interval=5000"]
    tracker = "trainer.trackers=[{type: otel, export_seconds: 0.2}]"
    words = ["--experiment=digits_mlp", f"--model_dir={run_dir}", *steps, "trainer.validation_interval=5000", tracker]

    def start(folder):
        folder.mkdir()
        env = {"OTEL_EXPORTER_OTLP_HEADERS": f"authorization={SECRET}", "no_proxy": "127.0.0.1"}
        env["OTEL_EXPORTER_OTLP_ENDPOINT"] = collector.url
        return Command(["train", *words, "trainer.export.at_end=false"], cwd=ROOT, folder=folder, env=env)

    def names():
        return [span.name for span in collector.spans()]

    job = start(folders[0])
    until(lambda: {"save", "evaluate"} <= set(names()), lambda: f"{names()}\n{job.out}\n{job.err}")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait().code == 143
    assert "OpenTelemetry" not in job.err
    *phases, process = collector.spans()
    assert [span.name for span in phases[:6]] == ["start", "build", "restore", "train", "trace", "train"]
    assert (process.name, facts(process)["official_trainer.status"]) == ("process", "preempted")
    assert {span.parent_span_id for span in phases} == {process.span_id}
    for one, following in itertools.pairwise(phases):
        assert one.end_time_unix_nano == following.start_time_unix_nano, (one.name, following.name)
    assert process.start_time_unix_nano == phases[0].start_time_unix_nano
    told = {name.removeprefix("official_trainer_") for metrics in collector.exports() for name in metrics}
    assert told == HELP.keys() - ELSEWHERE

    job = start(folders[1])
    until(lambda: "trace" in names()[len(phases) + 1 :], lambda: f"{names()}\n{job.out}\n{job.err}")
    written = json.loads((run_dir / "run.json").read_text())
    assert {span.trace_id.hex() for span in collector.spans()} == {written["run_id"]}
    assert collector.spans()[-1].parent_span_id != process.span_id
    collector.go_on.clear()
    collector.came.clear()
    assert collector.came.wait(240), f"{job.out}\n{job.err}"

    def step():
        return json.loads((run_dir / "status.json").read_text())["step"] or 0

    before = step()
    until(lambda: step() > before + 2000, "steps go on")
    os.kill(job.process.pid, signal.SIGTERM)
    assert job.wait().code == 143
    assert job.err.count(f"OpenTelemetry's collector at {collector.url} does not take the metrics of this run") == 1
    paths = [path for folder in (run_dir, *folders) for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in paths if SECRET.strip("=").encode() in path.read_bytes()]
