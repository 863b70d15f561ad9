"""Prometheus: the state of a running job at an address that is scraped.

Owns: when the address is there, and the form in which prometheus_client, an optional extra, takes the samples.
Does not own: what is told (`run_metrics.py`), the server, the formats and how questions are answered (that library).

The address opens when training begins, so that an evaluation by itself opens none, and closes with the process.
"""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import logging
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from official_trainer.config import Between, TrackerConfig
from official_trainer.errors import UserError
from official_trainer.tracking import Place, Tracker
from official_trainer.tracking.run_metrics import HELP, PREFIX, RunMetrics

_logger = logging.getLogger(__name__)


class PortError(UserError, OSError):
    """The address cannot be opened."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrometheusConfig(TrackerConfig):
    """What a running job does, for Prometheus: an address that it scrapes.

    Attributes:
      port: of http://ADDRESS:PORT/metrics; 0 takes a free one, which the console names.
      address: the IP address on which the port is opened: `127.0.0.1` answers this machine alone, `0.0.0.0` all that
        reach it, without a password.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("prometheus_client",)
    INSTALL: ClassVar[str] = "official-trainer[prometheus]"

    port: Annotated[int, Between(0, 65535)] = 9400
    address: str = "127.0.0.1"

    def problems(self) -> Iterator[tuple[str, str]]:
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            yield "address", f"is {self.address!r}; it must be an IP address, such as 127.0.0.1 or 0.0.0.0"

    def build(self, place: Place) -> PrometheusTracker:
        return PrometheusTracker(place, address=self.address, port=self.port)


class PrometheusTracker(Tracker):
    """Tells Prometheus of one process of a run, from `describe` to `close`.

    Args:
      run: its directory and names.
      address: an IP address of this machine.
      port: 0 takes a free one.
    """

    def __init__(self, run: Place, *, address: str, port: int) -> None:
        self._metrics = RunMetrics(run)
        self._address, self._port = address, port
        self._server: Any = None

    def rewind(self, step: int) -> None:
        self._metrics.rewind(step)

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Opens the address.

        Raises:
          PortError: the port is taken, or this process may not have it.
        """
        import prometheus_client

        self._metrics.begin()
        registry = prometheus_client.CollectorRegistry()
        registry.register(_Collector(self._metrics))
        prometheus_client.ProcessCollector(registry=registry)
        try:
            self._server, _ = prometheus_client.start_http_server(self._port, self._address, registry)
        except OSError as error:
            is_in_use = error.errno == errno.EADDRINUSE
            reason = (
                "taken, perhaps by another run of this machine" if is_in_use else f"not to be had: {error.strerror}"
            )
            what = f"port {self._port} of {self._address} is {reason}; name another trainer.trackers port"
            raise PortError(f"{what}, or 0 for a free one") from error
        host = f"[{self._address}]" if ":" in self._address else self._address
        _logger.info("Prometheus can scrape this run at http://%s:%d/metrics", host, self._server.server_port)

    def log(self, split: str, step: int, values: Mapping[str, Any]) -> None:
        self._metrics.log(split, step, values)

    def close(self) -> None:
        """Closes the address."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None


class _Collector:
    """The samples as prometheus_client collects them: a family for each name."""

    def __init__(self, metrics: RunMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> list[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        families: dict[str, Any] = {}
        for name, labels, value in self._metrics.samples():
            if name not in families:
                family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                families[name] = family(f"{PREFIX}{name}", HELP[name], labels=list(labels))
            families[name].add_metric(list(labels.values()), value)
        return list(families.values())
