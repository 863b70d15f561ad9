"""OpenTelemetry: what a running job does, and a trace of its phases, sent to a collector by OTLP over HTTP.

Owns: when something is sent and where to, the spans, and that a collector which is down, hangs or refuses costs the run
one warning. Does not own: the metrics (`run_metrics.py`), when phases begin (`runs/observer.py`), the model of the data
and its format (opentelemetry, an optional extra).

The exporters of OpenTelemetry are not used. Each of their requests draws from Python's own `random`, in a thread beside
training, so that a run would not repeat its bits; and they log each failure, and the text of headers that are wrong.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import secrets
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from official_trainer.config import PositiveFloat, TrackerConfig
from official_trainer.threads import RepeatingThread, run_bounded
from official_trainer.tracking import Outcome, Place
from official_trainer.tracking.run_metrics import HELP, PREFIX, MetricsTracker

_logger = logging.getLogger(__name__)

MAX_SPANS = 1000
"""Spans that wait for a collector which is down; older ones are lost."""
REQUEST_SECONDS, END_SECONDS = 10.0, 5.0
"""How long an answer is waited for, and how long the end of a run waits for the collector."""

_Span = tuple[str, int, int, int, dict[str, Any]]  # name, id, beginning and end in Unix nanoseconds, facts


@dataclasses.dataclass(frozen=True, kw_only=True)
class OtelConfig(TrackerConfig):
    """What a running job does, for OpenTelemetry: metrics and a trace, sent to a collector by OTLP over HTTP.

    Its address and secrets are in OpenTelemetry's environment variables: `OTEL_EXPORTER_OTLP_ENDPOINT` and `_HEADERS`.

    Attributes:
      export_seconds: how often something is sent.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.common")
    INSTALL: ClassVar[str] = "official-trainer[otel]"

    export_seconds: PositiveFloat = 15.0

    def build(self, place: Place) -> OtelTracker:
        return OtelTracker(place, self.export_seconds)


class OtelTracker(MetricsTracker):
    """Tells a collector of one process of a run, from `describe` to `close`; all its processes are one trace."""

    def __init__(self, place: Place, export_seconds: float) -> None:
        """Takes the run, and how often something is sent."""
        super().__init__(place)
        self._place = place
        self._sending = RepeatingThread("otel", self._send, export_seconds)
        self._about: dict[str, Any] = {}  # the resource and the scope of all that is sent; empty before that
        self._trace_id, self._process_id, self._began = 0, secrets.randbits(64), time.time_ns()
        self._phase: tuple[str, int | None, int] | None = None
        self._spans: deque[_Span] = deque(maxlen=MAX_SPANS)
        self._send_lock, self._has_warned = threading.Lock(), False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Begins to send; not earlier, so that an evaluation by itself sends nothing."""
        if self._about or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
            return
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._metrics.begin()
        run_id = self._metrics.run_id or self._place.read_identity("otel.json")["run"]  # a process beside training
        own = {"official_trainer.run_id": run_id, "official_trainer.experiment": experiment, "process.pid": os.getpid()}
        own |= {"service.name": "official-trainer", "service.instance.id": self._metrics.label}
        resource = Resource.create({**own, "host.name": socket.gethostname()}).merge(OTELResourceDetector().detect())
        self._about = {"resource": resource, "instrumentation_scope": InstrumentationScope("official-trainer")}
        self._trace_id = uuid.UUID(run_id).int
        self._sending.start()

    def enter(self, phase: str, step: int | None, unix_seconds: float) -> None:
        now = round(unix_seconds * 1e9)
        self._end_phase(step, now)
        self._began = min(self._began, now)
        self._phase = phase, step, now

    def end(self, outcome: Outcome) -> None:
        super().end(outcome)
        self._end_phase(outcome.step, now := time.time_ns(), outcome.status)
        self._spans.append(("process", self._process_id, self._began, now, {"status": outcome.status}))

    def close(self) -> None:
        """Sends how the run ended, and waits a few seconds for the collector to take it."""
        if self._about and not self._sending.is_stopped:
            self._sending.stop()
            if not run_bounded(self._send, END_SECONDS, "otel-end").is_done:
                self._warn("metrics", f"no answer within {END_SECONDS:g} s at the end")

    def _end_phase(self, step: int | None, now: int, status: str | None = None) -> None:
        if self._phase is not None:
            (name, start_step, began), self._phase = self._phase, None
            facts = {"start_step": start_step, "end_step": step, "status": status}
            self._spans.append((name, secrets.randbits(64), began, max(began, now), facts))

    def _send(self) -> None:
        with self._send_lock:  # the last one says how the run ended
            self._post("metrics", self._metrics_message)
            spans = list(self._spans)
            if spans and self._post("traces", lambda: self._trace_message(spans)):
                sent = {span_id for _, span_id, *_ in spans}
                while self._spans and self._spans[0][1] in sent:  # newer ones may have taken the place of some
                    self._spans.popleft()

    def _post(self, signal: str, message: Any) -> bool:
        """Sends what `message` returns; returns whether there is no reason to send it again."""
        try:
            import requests  # as OpenTelemetry does

            body = message().SerializeToString()
            to = {**_destination(signal), "timeout": REQUEST_SECONDS, "allow_redirects": False, "stream": True}
            with requests.post(data=body, **to) as answer:
                code = answer.status_code
        except Exception as error:  # its text may hold an address or a header
            self._warn(signal, type(error).__name__)
            return False
        if code >= 300:
            self._warn(signal, f"it answers {code}")
        return code < 500 and code not in (408, 429)

    def _warn(self, signal: str, problem: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            what = f"OpenTelemetry's collector{_place(signal)} does not take the {signal} of this run: {problem}"
            _logger.warning("%s; the run goes on, and no more is said", what)

    def _metrics_message(self) -> Any:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
        from opentelemetry.sdk.metrics import export

        points: dict[str, list[Any]] = {}
        for name, labels, value in self._metrics.samples():
            point = export.NumberDataPoint(dict(labels), self._began, time.time_ns(), value)
            points.setdefault(name, []).append(point)
        metrics, kind = [], export.AggregationTemporality.CUMULATIVE
        for name, found in points.items():
            data = export.Sum(found, kind, is_monotonic=True) if name.endswith("_total") else export.Gauge(found)
            metrics.append(export.Metric(f"{PREFIX}{name}", HELP[name], "", data))
        scoped = export.ScopeMetrics(self._about["instrumentation_scope"], metrics, "")
        return encode_metrics(export.MetricsData([export.ResourceMetrics(self._about["resource"], [scoped], "")]))

    def _trace_message(self, spans: list[_Span]) -> Any:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
        from opentelemetry.sdk.trace import ReadableSpan

        def context(span_id: int) -> Any:
            return trace.SpanContext(self._trace_id, span_id, is_remote=False, trace_flags=trace.TraceFlags(1))

        made = []
        for name, span_id, began, ended, facts in spans:
            parent = None if span_id == self._process_id else context(self._process_id)
            known = {f"official_trainer.{key}": value for key, value in facts.items() if value is not None}
            status = trace.Status(trace.StatusCode.ERROR if facts["status"] == "failed" else trace.StatusCode.UNSET)
            more: dict[str, Any] = {"status": status, "start_time": began, "end_time": ended}
            made.append(ReadableSpan(name, context(span_id), parent, attributes=known, **self._about, **more))
        return encode_spans(made)


def _place(signal: str) -> str:
    """Returns ` at SCHEME://HOST:PORT` of the collector; the rest of its address may be secret. Empty without."""
    try:
        address = urlsplit(_destination(signal)["url"])
        port = "" if address.port is None else f":{address.port}"
        return f" at {address.scheme}://{address.hostname}{port}" if address.hostname else ""
    except ValueError:  # it is no URL
        return ""


def _destination(signal: str) -> dict[str, Any]:
    """Returns where a signal is sent, by OpenTelemetry's environment variables, as arguments of `requests.post`."""

    def setting(name: str) -> str:
        own = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_{name}")
        return own or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}", "")

    base = os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or "http://localhost:4318"
    address = os.environ.get(f"OTEL_EXPORTER_OTLP_{signal.upper()}_ENDPOINT") or f"{base.rstrip('/')}/v1/{signal}"
    pairs = (part.partition("=") for part in setting("HEADERS").split(",") if part.strip())
    headers = {name.strip(): unquote(value).strip() for name, _, value in pairs}
    headers["Content-Type"] = "application/x-protobuf"
    return {"url": address, "headers": headers, "verify": setting("CERTIFICATE") or True}
