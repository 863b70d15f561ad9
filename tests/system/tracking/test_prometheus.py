"""The tracker `prometheus`: its address; and a real run, killed once, that a real Prometheus scrapes."""

import json
import os
import re
import signal
import subprocess
import urllib.request

import pytest

pytest.importorskip("prometheus_client", reason="NOT TESTED: pip install 'official-trainer[prometheus]'")

from official_trainer.processes.local import free_ports
from official_trainer.tracking import Outcome, Trackers
from official_trainer.tracking.prometheus import PrometheusConfig
from official_trainer.tracking.run_metrics import HELP
from official_trainer.tracking.threads import ThreadedTracker, TrackerError
from tests import ROOT
from tests.support import prometheus
from tests.support.forked import Command
from tests.support.prometheus import FILES, Prometheus
from tests.support.waiting import until

real = pytest.mark.skipif(bool(prometheus.why_not()), reason=prometheus.why_not())


def began(place, on_error="warn", **fields):
    """A tracker as a run has it, when training has begun."""
    tracker = PrometheusConfig(**fields).build(place)
    told = Trackers([ThreadedTracker(tracker, name="prometheus", on_error=on_error)])
    told.rewind(0)
    told.describe("digits", {})
    told.flush()
    return told


def named_in(caplog):
    """The address that the log names."""
    (address,) = [found[1] for said in caplog.messages if (found := re.search(r"can scrape this run at (\S+)", said))]
    caplog.clear()
    return address


def scraped(address):
    with urllib.request.urlopen(address, timeout=60) as answer:
        return answer.read().decode()


@pytest.mark.parametrize(("address", "host"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "0.0.0.0"), ("::1", "[::1]")])
def test_a_free_port_is_named_and_answers_while_the_run_runs(place, caplog, address, host):
    """N48: of one interface or of all."""
    caplog.set_level("INFO", logger="official_trainer")
    told = began(place, port=0, address=address)
    url = named_in(caplog)
    assert url.startswith(f"http://{host}:")
    told.log("validation", 10, {"dev/accuracy": 0.5, "loss": float("nan")})
    told.log("time", 10, {"wall_seconds": 2.0, "steps_seconds": 1.0, "input_fraction": 0.5})
    told.flush()
    text = scraped(url)
    assert 'official_trainer_metric{name="dev/accuracy",run="run",split="validation"} 0.5' in text
    if not prometheus.why_not():  # names, types, units and help as Prometheus wants them
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    told.end(Outcome())
    told.close()
    with pytest.raises(OSError, match="refused"):
        scraped(url)


def test_a_port_that_is_taken_costs_the_run_one_warning(place, caplog):
    """N48: and with `on_error: fail` it ends the run."""
    port = free_ports(1)[0]
    first = began(place, port=port)
    said = f"port {port} of 127.0.0.1 is taken, perhaps by another run of this machine; name another trainer.trackers "
    second = began(place, port=port)
    second.log("train", 10, {"loss": 0.5})
    second.close()
    (failed, lost) = caplog.messages
    assert failed.startswith("tracker prometheus failed in describe; the run continues")
    assert f"{said}port, or 0 for a free one" in failed
    assert "1 of 5 calls were lost" in lost
    with pytest.raises(TrackerError, match=said):
        began(place, port=port, on_error="fail")
    with pytest.raises(TrackerError, match=r"port 0 of 192.0.2.1 is not to be had: Cannot assign requested address"):
        began(place, port=0, address="192.0.2.1", on_error="fail")
    assert "official_trainer_run_info" in scraped(f"http://127.0.0.1:{port}/metrics"), "the first goes on"
    first.close()


def test_an_evaluation_by_itself_opens_nothing(place, caplog):
    """N48: it describes no run; the run that trains has the port."""
    caplog.set_level("INFO", logger="official_trainer")
    told = Trackers([PrometheusConfig(port=0).build(place)])
    told.rewind(0)
    told.log("validation", 10, {"accuracy": 0.5})
    told.end(Outcome())
    told.close()
    assert caplog.messages == []


def test_dashboard_and_rules_use_names_that_are_told():
    """N48: and each name is in one of them, or it would be told for nothing."""
    used = {name for _, query in prometheus.queries() for name in re.findall(r"\bofficial_trainer_(\w+)", query)}
    assert used == HELP.keys()
    tested = set(re.findall(r"official_trainer_(\w+)\{", (FILES / "alerts_test.yml").read_text()))
    assert tested <= HELP.keys()


@real
@pytest.mark.parametrize(
    "words",
    [["check", "config", "prometheus.yml"], ["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"]],
    ids=" ".join,
)
def test_promtool_takes_the_files(words):
    """N48: each rule fires when it should, and not when it should not."""
    done = subprocess.run(["promtool", *words], cwd=FILES, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


@real
def test_a_run_that_is_killed_once_as_prometheus_sees_it(tmp_path):
    """N48: its numbers; every query of the dashboard and the rules; gone; back, as the same line; and ended."""
    run_dir, port = tmp_path / "run", free_ports(1)[0]
    steps = ["trainer.train_steps=10000000", "trainer.summary_interval=1000", "trainer.checkpoint_interval=5000"]
    more = ["trainer.validation_interval=5000", "trainer.export.at_end=false"]
    sets = [*steps, *more, f"trainer.trackers=[{{type: prometheus, port: {port}}}]"]

    def start(*more):
        words = ["--experiment=digits_mlp", f"--model_dir={run_dir}", *sets, *more]
        return Command(["train", *words], cwd=ROOT, folder=tmp_path)

    with Prometheus(tmp_path, port) as server:
        job = start()

        def has(expression):
            return until(lambda: server.query(expression), lambda: f"{expression}\n{job.out}\n{job.err}")

        has("official_trainer_last_checkpoint_step >= 10000")
        for name in HELP:
            has(f"official_trainer_{name}")
        for place, query in prometheus.queries():
            server.query(query)  # which Prometheus must understand
            if place.startswith("grafana") and place != "grafana.json: annotations":
                has(query)
        written = json.loads((run_dir / "run.json").read_text())
        ((labels, _),) = server.query("official_trainer_run_info")
        assert (labels["run_id"], labels["model_dir"]) == (written["run_id"], str(run_dir))
        assert server.number("official_trainer_end_step") == 10_000_000
        loss = 'official_trainer_metric{split="train", name="training_loss"}'
        assert 0 <= server.number(loss) < 10
        assert 0 <= server.number("time() - official_trainer_last_checkpoint_timestamp_seconds") < 3600
        assert 0 < server.number("official_trainer_goodput_ratio") <= 1
        assert server.number("process_resident_memory_bytes") > 1e8

        os.kill(job.process.pid, signal.SIGKILL)
        job.process.join()
        has('up{job="official-trainer"} == 0')
        assert not server.query("official_trainer_step")
        saved_step = json.loads((run_dir / "run.json").read_text())["last_checkpoint_step"]

        job = start("trainer.train_steps=100000000", "--allow_config_change")
        has("official_trainer_restarts_total == 1")
        assert server.number("official_trainer_step") >= saved_step
        assert server.number("count(count_over_time(official_trainer_step[1h]))") == 1
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.wait().code == 143
        has('up{job="official-trainer"} == 0')


def test_the_guide_has_each_name():
    """N48: with its words."""
    page = (ROOT / "docs/guides/operate.md").read_text()
    missing = [name for name, text in HELP.items() if f"| `official_trainer_{name}` | {text} |" not in page]
    assert not missing, "\n".join(f"| `official_trainer_{name}` | {HELP[name]} |" for name in missing)
