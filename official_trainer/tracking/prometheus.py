"""Prometheus: the state of a running job at an address that is scraped, or in a file for node_exporter.

Owns: when the address and the file are there, and where a scraper finds them. Does not own: what is told
(`run_metrics.py`), how questions are answered (`scraping.py`), prometheus_client, an optional extra.

The address opens when training begins and closes with the process. A file names it meanwhile, in the form of
Prometheus's `file_sd_configs`, so that runs which take free ports are found; its label `instance` is the run's, so that
the series of a run go on after a restart. After a kill that file is still there, and Prometheus says of its target that
it is down.
"""

from __future__ import annotations

import dataclasses
import errno
import ipaddress
import json
import logging
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from official_trainer import files
from official_trainer.config import Between, PositiveFloat, TrackerConfig
from official_trainer.errors import UserError
from official_trainer.threads import RepeatingThread
from official_trainer.tracking import Place
from official_trainer.tracking.run_metrics import MetricsTracker

if TYPE_CHECKING:
    from official_trainer.tracking.scraping import Server

_logger = logging.getLogger(__name__)

TARGET_FILE = "prometheus.json"
"""In the run directory: the address of the process that runs, if no other folder is named for it."""


class PortError(UserError, OSError):
    """The address cannot be opened."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrometheusConfig(TrackerConfig):
    """What a running job does, for Prometheus: an address that it scrapes, or a file for node_exporter.

    Attributes:
      port: of http://ADDRESS:PORT/metrics; 0 takes a free one, which the console names. Unset opens none.
      address: the IP address on which the port is opened: `127.0.0.1` answers this machine alone, `0.0.0.0` all that
        reach it, without a password.
      targets_dir: a folder that Prometheus reads (`file_sd_configs`), for the file that names the address while the run
        runs, `official_trainer-RUN.json`. Unset means `prometheus.json` in the run directory.
      textfile_dir: the folder of node_exporter's textfile collector, where the run replaces a file of its own,
        `official_trainer-RUN.prom`. Unset writes none.
      textfile_seconds: how often that file is replaced.
    """

    NEEDS: ClassVar[tuple[str, ...]] = ("prometheus_client",)
    INSTALL: ClassVar[str] = "official-trainer[prometheus]"

    port: Annotated[int, Between(0, 65535)] | None = None
    address: str = "127.0.0.1"
    targets_dir: str | None = None
    textfile_dir: str | None = None
    textfile_seconds: PositiveFloat = 15.0

    def problems(self) -> Iterator[tuple[str, str]]:
        if self.port is None and self.textfile_dir is None:
            yield "port", "is not set, and textfile_dir is not either; set port, 0 for a free one, or textfile_dir"
        for name, folder in (("targets_dir", self.targets_dir), ("textfile_dir", self.textfile_dir)):
            if folder is not None and files.is_url(folder):
                yield name, f"is the URL {folder!r}; Prometheus's programs read a local folder: name one"
        try:
            ipaddress.ip_address(self.address)
        except ValueError:
            yield "address", f"is {self.address!r}; it must be an IP address, such as 127.0.0.1 or 0.0.0.0"

    def build(self, place: Place) -> PrometheusTracker:
        return PrometheusTracker(self, place)


class PrometheusTracker(MetricsTracker):
    """Tells Prometheus of one process of a run, from `describe` to `close`.

    Args:
      config: the address and the folder.
      place: the run.
    """

    def __init__(self, config: PrometheusConfig, place: Place) -> None:
        super().__init__(place)
        self._config, self._place = config, place
        self._registry: Any = None
        self._server: Server | None = None
        self._target = ""  # what the file that names the address holds
        self._writing: RepeatingThread | None = None
        self._write_lock = threading.Lock()
        self._has_warned = False

    def describe(self, experiment: str, config: Mapping[str, Any]) -> None:
        """Opens the address and writes the file; not earlier, so that an evaluation by itself opens none.

        Raises:
          PortError: the port is taken.
          OSError: the file cannot be written.
        """
        if self._registry is not None:
            return
        from official_trainer.tracking import scraping

        self._metrics.begin()
        self._registry = scraping.registry_of(self._metrics.samples)
        try:
            if self._config.textfile_dir is not None:
                self._write()
                self._writing = RepeatingThread("prometheus-textfile", self._rewrite, self._config.textfile_seconds)
                self._writing.start()
        finally:
            if self._config.port is not None:
                self._serve(self._config.address, self._config.port)

    def close(self) -> None:
        """Closes the address, and writes the file for the last time: it says how the run ended."""
        if self._server is not None:
            self._server.stop()
            self._server = None
            path = self._target_path
            if files.exists(path) and files.read_text(path) == self._target:  # not that of a process that took over
                files.remove(path)
        if self._writing is not None:
            self._writing.stop()
            self._writing = None
            self._write()

    def _named(self, ending: str) -> str:
        """Returns the name of a file in a folder of several runs."""
        return re.sub(r"[^\w.-]", "_", f"official_trainer-{self._metrics.label}.{ending}")

    @property
    def _target_path(self) -> str:
        if (folder := self._config.targets_dir) is None:
            return files.join(self._place.directory, TARGET_FILE)
        return files.join(folder, self._named("json"))

    def _serve(self, address: str, port: int) -> None:
        from official_trainer.tracking import scraping

        try:
            self._server = scraping.Server(self._registry, address, port)
        except OSError as error:
            taken = error.errno == errno.EADDRINUSE
            why = "is taken, perhaps by another run of this machine" if taken else f"cannot be opened: {error.strerror}"
            fix = "name another trainer.trackers port, or 0 for a free one"
            raise PortError(f"port {port} of {address} {why}; {fix}") from error
        is_any = ipaddress.ip_address(address).is_unspecified
        host = socket.gethostname() if is_any else f"[{address}]" if ":" in address else address
        target = f"{host}:{self._server.port}"
        _logger.info("Prometheus can scrape this run at http://%s/metrics", target)
        # Without it, each restart at another free port would begin new series.
        labels = {"instance": self._metrics.label}
        self._target = json.dumps([{"targets": [target], "labels": labels}]) + "\n"
        files.write_text_atomically(self._target_path, self._target, durable=False)

    def _write(self) -> None:
        from official_trainer.tracking import scraping

        assert self._config.textfile_dir is not None
        path = files.join(self._config.textfile_dir, self._named("prom"))
        with self._write_lock:  # the last one says how the run ended
            files.write_bytes_atomically(path, scraping.text_of(self._registry), durable=False)

    def _rewrite(self) -> None:
        try:
            self._write()
        except Exception as error:
            if not self._has_warned:
                self._has_warned = True
                _logger.warning("the file for node_exporter is out of date: %s", error)
