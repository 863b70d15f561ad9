"""A real Prometheus with the files of `launch/observability`, and what it answers."""

import contextlib
import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request

import yaml

from official_trainer.processes.local import free_ports
from tests import ROOT
from tests.support.waiting import until

FILES = ROOT / "launch/observability"
INSTALL = "apt-get install -y --no-install-recommends prometheus"


def why_not():
    """Returns why no Prometheus can be started here; empty if one can."""
    missing = [name for name in ("prometheus", "promtool") if shutil.which(name) is None]
    return f"PROMETHEUS IS NOT TESTED: no {', '.join(missing)}: {INSTALL}" if missing else ""


def queries():
    """Yields each query of the dashboard and of the rules, with the place; variables of the dashboard are filled in."""
    board = json.loads((FILES / "grafana.json").read_text())
    for panel in [*board["panels"], {"title": "annotations", "targets": board["annotations"]["list"]}]:
        for target in panel["targets"]:
            filled = target["expr"].replace("$run", ".*").replace("$__rate_interval", "1m")
            yield f"grafana.json: {panel['title']}", filled
    for rule in yaml.safe_load((FILES / "alerts.yml").read_text())["groups"][0]["rules"]:
        yield f"alerts.yml: {rule['alert']}", rule["expr"]


class Prometheus:
    """A server that scrapes a port of this machine each second, until the end of the block."""

    def __init__(self, folder, port):
        self.folder, self.port = folder, port
        self.address = f"127.0.0.1:{free_ports(1)[0]}"

    def __enter__(self):
        config = yaml.safe_load((FILES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(FILES / "alerts.yml")]
        (job,) = config["scrape_configs"]
        job["static_configs"] = [{"targets": [f"127.0.0.1:{self.port}"]}]
        (self.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        options = {
            "config.file": self.folder / "prometheus.yml",
            "storage.tsdb.path": self.folder / "data",
            "web.listen-address": self.address,
            "query.lookback-delta": "30s",
        }
        with open(self.folder / "prometheus.log", "w") as log:
            command = ["prometheus", *(f"--{name}={value}" for name, value in options.items())]
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder)
        with contextlib.ExitStack() as stack:
            stack.callback(self._end)
            until(self._is_ready, (self.folder / "prometheus.log").read_text)
            stack.pop_all()
        return self

    def __exit__(self, *_):
        self._end()

    def _end(self):
        self._process.kill()
        self._process.wait()

    def _is_ready(self):
        assert self._process.poll() is None, (self.folder / "prometheus.log").read_text()
        with contextlib.suppress(OSError):
            return urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10).status == 200

    def query(self, expression):
        """Returns what an expression is now: labels and number of each series."""
        address = f"http://{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            answer = json.load(urllib.request.urlopen(address, timeout=30))
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        return [(each["metric"], float(each["value"][1])) for each in answer["data"]["result"]]

    def number(self, expression):
        """Returns the number of an expression with one series; None without any."""
        found = self.query(expression)
        assert len(found) <= 1, found
        return found[0][1] if found else None
