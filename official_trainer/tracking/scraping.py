"""Samples as Prometheus reads them: as text, and over HTTP for a scraper that may hang or flood.

Owns: how many connections there are, how long each may last, and how fast they are taken. Does not own: the samples
(`run_metrics.py`), when there is a server (`prometheus.py`), the formats (prometheus_client, an optional extra).

A scraper asks every few seconds. A connection is taken twice a second at most, others wait in the kernel; one that
lasts longer than five seconds is cut, and of more than four at once the others are closed. So a client that sends
nothing, reads nothing or asks without end takes a known share of a processor, and training never waits for it.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from official_trainer.tracking.run_metrics import HELP, PREFIX, Sample

_logger = logging.getLogger(__name__)

MAX_CONNECTIONS = 4
CONNECTION_SECONDS = 5.0
PAUSE_SECONDS = 0.5
"""After each connection, before the next is taken: answering takes about two milliseconds of a processor."""


class Collector:
    """Samples as prometheus_client collects them."""

    def __init__(self, samples: Callable[[], Iterable[Sample]]) -> None:
        """Takes what returns the samples."""
        self._samples = samples

    def collect(self) -> list[Any]:
        """Returns a family for each name."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, labels, value in self._samples():
            if name not in families:
                kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = kind(f"{PREFIX}{name}", HELP[name], labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        return list(families.values())


def registry_of(samples: Callable[[], Iterable[Sample]]) -> Any:
    """Returns a registry of prometheus_client that has these samples alone."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(Collector(samples))
    return registry


def text_of(registry: Any) -> bytes:
    """Returns all samples in Prometheus's text format."""
    from prometheus_client import generate_latest

    return generate_latest(registry)


class Server(socketserver.ThreadingTCPServer):
    """Answers every GET with the samples of a registry, from a thread, until `stop`."""

    allow_reuse_address = True  # a restart gets the port of a process that was killed
    daemon_threads = True

    def __init__(self, registry: Any, address: str, port: int) -> None:
        """Starts.

        Args:
          registry: see `registry_of`.
          address: an IP address of this machine.
          port: 0 takes a free one.

        Raises:
          OSError: the port is taken, or this process may not have it.
        """
        from prometheus_client import MetricsHandler

        self._ends: dict[Any, float] = {}  # of each connection that lasts
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        super().__init__((address, port), MetricsHandler.factory(registry))
        self.port: int = self.server_address[1]
        threading.Thread(target=self.serve_forever, name="prometheus", daemon=True).start()

    def stop(self) -> None:
        """Takes no further connection."""
        self.shutdown()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        if len(self._ends) < MAX_CONNECTIONS:
            self._ends[request] = time.monotonic() + CONNECTION_SECONDS
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)
        time.sleep(PAUSE_SECONDS)

    def shutdown_request(self, request: Any) -> None:
        self._ends.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Cuts connections that last too long; called between connections, and while there are none."""
        for request, end in list(self._ends.items()):
            if time.monotonic() > end:
                with contextlib.suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that is gone is no one's error here."""
        _logger.debug("a scrape by %s was not answered", client_address, exc_info=True)
