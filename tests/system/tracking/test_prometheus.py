"""The tracker `prometheus`: its address and its file; and a real run, killed once, that a real Prometheus scrapes."""

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("prometheus_client", reason="NOT TESTED: pip install 'official-trainer[prometheus]'")

from official_trainer import config as configuration
from official_trainer.actions import Action, Rollback
from official_trainer.runs import run
from official_trainer.tasks import registry
from official_trainer.tracking import Outcome, Trackers
from official_trainer.tracking.prometheus import PrometheusConfig
from official_trainer.tracking.run_metrics import HELP
from official_trainer.tracking.threads import ThreadedTracker, TrackerError
from tests import ROOT
from tests.support import prometheus, toy
from tests.support.forked import Command
from tests.support.prometheus import FILES, Prometheus, until

ELSEWHERE = {"gpu_memory_bytes", "slow_worker_ratio"}
"""Names of which a run on a machine without GPUs, has no sample."""

real = pytest.mark.skipif(bool(prometheus.why_not()), reason=prometheus.why_not())


def began(place, on_error="warn", **fields):
    """A tracker as a run has it, when training has begun."""
    tracker = PrometheusConfig(**fields).build(place)
    told = Trackers([ThreadedTracker(tracker, name="prometheus", on_error=on_error)])
    told.rewind(0)
    told.describe("digits", {})
    told.flush()
    return told


def target_in(path):
    ((entry),) = json.loads(Path(path).read_text())
    (target,) = entry["targets"]
    return target


def scraped(target):
    with urllib.request.urlopen(f"http://{target}/metrics", timeout=60) as answer:
        return answer.read().decode()


def test_a_free_port_is_named_while_the_run_runs(place, tmp_path, caplog):
    """N48: by the log and by a file that Prometheus reads, in the run directory or in a folder of all runs."""
    caplog.set_level("INFO", logger="official_trainer")
    folder = tmp_path / "targets"
    folder.mkdir()
    paths = [tmp_path / "prometheus.json", folder / "official_trainer-run.json"]
    trackers = [began(place, port=0), began(place, port=0, targets_dir=str(folder))]
    targets = list(map(target_in, paths))
    assert len(set(targets)) == 2
    for target, told in zip(targets, trackers, strict=True):
        assert f"Prometheus can scrape this run at http://{target}/metrics" in caplog.messages
        told.log("validation", 10, {"dev/accuracy": 0.5})
        told.flush()
        assert 'official_trainer_metric{name="dev/accuracy",run="run",split="validation"} 0.5' in scraped(target)
        told.end(Outcome())
        told.close()
        with pytest.raises(OSError, match="refused"):
            scraped(target)
    assert not any(path.exists() for path in paths)


def test_the_file_of_a_process_that_took_over_stays(place, tmp_path):
    """N48: the one before it ends later; a file that was removed is no error."""
    first = began(place, port=0)
    second = began(place, port=0)
    target = target_in(tmp_path / "prometheus.json")
    first.close()
    assert target_in(tmp_path / "prometheus.json") == target
    (tmp_path / "prometheus.json").unlink()
    second.close()


def test_an_address_of_all_interfaces_is_named_by_the_host(place, tmp_path):
    """N48."""
    told = began(place, port=0, address="0.0.0.0")
    host, _, port = target_in(tmp_path / "prometheus.json").rpartition(":")
    assert host == socket.gethostname()
    assert "official_trainer_run_info" in scraped(f"127.0.0.1:{port}")
    told.close()


def test_a_port_that_is_taken_costs_the_run_one_warning(place, tmp_path, caplog):
    """N48: the file for node_exporter is written all the same; and `on_error: fail` ends the run."""
    first = began(place, port=0)
    port = int(target_in(tmp_path / "prometheus.json").rpartition(":")[2])
    said = f"port {port} of 127.0.0.1 is taken, perhaps by another run of this machine; name another trainer.trackers "
    second = began(place, port=port, textfile_dir=str(tmp_path))
    second.log("train", 10, {"loss": 0.5})
    second.close()
    assert 'name="loss"' in (tmp_path / "official_trainer-run.prom").read_text()
    (failed, lost) = caplog.messages
    assert failed.startswith("tracker prometheus failed in describe; the run continues")
    assert f"{said}port, or 0 for a free one" in failed
    assert "1 of 5 calls were lost" in lost
    with pytest.raises(TrackerError, match=said):
        began(place, port=port, on_error="fail")
    assert "official_trainer_run_info" in scraped(f"127.0.0.1:{port}"), "the first goes on"
    first.close()


def test_the_file_for_node_exporter_says_how_the_run_ended(place, tmp_path):
    """N48: it is replaced while the run runs, others may read it, and its name is the run's own."""
    told = began(place, textfile_dir=str(tmp_path), textfile_seconds=0.01)
    path = tmp_path / "official_trainer-run.prom"
    assert path.stat().st_mode & 0o044 == 0o044 & ~current_umask()
    told.log("train", 10, {"loss": 0.5})
    until(lambda: 'name="loss"' in path.read_text(), path.read_text)
    told.end(Outcome(status="preempted"))
    told.close()
    assert 'official_trainer_phase{phase="preempted",run="run"} 1.0' in path.read_text()
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def current_umask():
    umask = os.umask(0)
    os.umask(umask)
    return umask


def test_a_folder_that_is_gone_is_said_once(place, tmp_path, caplog):
    """N48: at the start as any error of a tracker, later as a warning; the address stays."""
    folder = tmp_path / "text"
    missing = began(place, textfile_dir=str(folder), port=0)
    assert "failed in describe; the run continues" in caplog.text and str(folder) in caplog.text
    assert "official_trainer_run_info" in scraped(target_in(tmp_path / "prometheus.json"))
    missing.close()
    folder.mkdir()
    told = began(place, textfile_dir=str(folder), textfile_seconds=0.01)
    caplog.clear()
    (folder / "official_trainer-run.prom").unlink()
    folder.chmod(0o500)
    folder.rename(tmp_path / "moved")
    until(lambda: caplog.messages, "a warning")
    told.flush()
    (said,) = caplog.messages
    assert said.startswith("the file for node_exporter is out of date: ") and str(folder) in said
    (tmp_path / "moved").rename(folder)
    told.close()


def test_an_evaluation_by_itself_opens_nothing(place, tmp_path):
    """N48: it describes no run; the run that trains has the port."""
    told = Trackers([PrometheusConfig(port=0, textfile_dir=str(tmp_path)).build(place)])
    told.log("validation", 10, {"accuracy": 0.5})
    told.end(Outcome())
    told.close()
    assert not list(tmp_path.iterdir())


def test_dashboard_and_rules_use_names_that_are_told():
    """N48: and each name is in one of them, or it would be told for nothing."""
    used = {name for _, query in prometheus.queries() for name in re.findall(r"\bofficial_trainer_(\w+)", query)}
    assert used <= HELP.keys()
    assert HELP.keys() - used == set()
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
def test_promtool_finds_no_fault_with_what_is_told(place, tmp_path):
    """N48: names, types, units and help as Prometheus wants them."""
    told = began(place, textfile_dir=str(tmp_path))
    told.log("time", 10, {"wall_seconds": 2.0, "steps_seconds": 1.0, "step_seconds_p50": 0.1, "input_fraction": 0.5})
    told.log("train", 10, {"loss": float("nan")})
    told.close()
    text = (tmp_path / "official_trainer-run.prom").read_text()
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@real
def test_a_run_that_is_killed_once_as_prometheus_sees_it(tmp_path):
    """N48: found by its file; its numbers; every query of the dashboard and the rules; gone; back, and done."""
    targets, run_dir = tmp_path / "targets", tmp_path / "run"
    targets.mkdir()
    tracker = f"trainer.trackers=[{{type: prometheus, port: 0, targets_dir: {targets}}}]"
    steps = ["trainer.train_steps=10000000", "trainer.summary_interval=1000", "trainer.checkpoint_interval=5000"]
    more = ["trainer.validation_interval=5000", "trainer.export.at_end=false", "runtime.peak_flops_per_device=1e11"]
    sets = [*steps, *more, tracker]

    def start(*more):
        words = ["--experiment=digits_mlp", f"--model_dir={run_dir}", *sets, *more]
        return Command(["train", *words], cwd=ROOT, folder=tmp_path)

    with Prometheus(tmp_path, targets) as server:
        job = start()

        def has(expression):
            return until(lambda: server.query(expression), lambda: f"{expression}\n{job.out}\n{job.err}")

        has("official_trainer_saves_total > 1")
        for name in HELP.keys() - ELSEWHERE:
            has(f"official_trainer_{name}")
        for place, query in prometheus.queries():
            server.query(query)  # which Prometheus must understand
            is_empty = place == "grafana.json: annotations" or any(name in query for name in ELSEWHERE)
            if place.startswith("grafana") and not is_empty:
                has(query)
        written = json.loads((run_dir / "run.json").read_text())
        ((labels, _),) = server.query("official_trainer_run_info")
        assert (labels["run_id"], labels["model_dir"]) == (written["run_id"], str(run_dir))
        assert server.number("official_trainer_end_step") == 10_000_000
        loss = 'official_trainer_metric{split="train", name="training_loss"}'
        assert 0 <= server.number(loss) < 10
        assert 0 <= server.number("time() - official_trainer_last_checkpoint_timestamp_seconds") < 3600
        assert 0 < server.number('official_trainer_goodput_ratio{window="run"}') <= 1
        assert server.number("official_trainer_memory_bytes") > 1e8

        os.kill(job.process.pid, signal.SIGKILL)
        job.process.join()
        has('up{job="official-trainer"} == 0')
        assert not server.query("official_trainer_step")
        saved_step = json.loads((run_dir / "run.json").read_text())["last_checkpoint_step"]

        job = start("trainer.train_steps=100000000", "--allow_config_change")
        has("official_trainer_restarts_total == 1")
        assert server.number("official_trainer_step") >= saved_step
        assert server.number("count(count_over_time(official_trainer_step[1h]))") == 1  # one line, also at a new port
        until(lambda: server.query('up{job="official-trainer"}')[-1][1] == 1, "only the new address")
        os.kill(job.process.pid, signal.SIGTERM)
        assert job.wait().code == 143
        assert not list(targets.iterdir())
        until(lambda: not server.query('up{job="official-trainer"}'), "the end of the target")


class RolledBackConfig(configuration.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


class GoBack(Action):
    """Goes back once, at step 25."""

    def __init__(self):
        self._has_gone = False

    def on_step(self, run):
        if run.state.step == 25 and not self._has_gone:
            self._has_gone = True
            return Rollback(reason="it diverges")
        return None


@registry.register_task_cls(RolledBackConfig)
class RolledBackTask(toy.ToyTask):
    """The toy task."""

    def build_actions(self, trainer):
        return [GoBack()]


def test_a_checkpoint_that_a_run_goes_back_to_is_no_save(tmp_path):
    """N48: what the record counts, and when the last save was."""
    data = configuration.DataConfig(global_batch_size=10)
    base = toy.experiment(
        steps_per_loop=5, summary_interval=10, checkpoint_interval=10, validation_interval=40, recovery_max_trials=1,
        export=configuration.ExportConfig(at_end=False),
        trackers=(PrometheusConfig(textfile_dir=str(tmp_path)),),
    )  # fmt: skip
    config = base.replace(
        task=RolledBackConfig(train_data=data, validation_data=data), trainer=base.trainer.replace(train_steps=40)
    )
    run_dir = tmp_path / "run"
    run.run("rolled_back", configuration.resolve(config), mode="train", model_dir=str(run_dir), quiet=True)
    written = json.loads((run_dir / "run.json").read_text())
    status = json.loads((run_dir / "status.json").read_text())
    assert (status["saves"], status["last_checkpoint_step"]) == (4, 40)
    (path,) = tmp_path.glob("*.prom")
    text = path.read_text()
    label = f'run="run-{written["run_id"][:8]}"'
    for name, value in {"saves_total": 4, "step": 40, "end_step": 40, "last_checkpoint_step": 40}.items():
        assert f"official_trainer_{name}{{{label}}} {value}.0\n" in text
    assert f'official_trainer_phase{{phase="done",{label}}} 1.0\n' in text


def test_the_guide_has_each_name():
    """N48: with its words."""
    page = (ROOT / "docs/guides/operate.md").read_text()
    missing = [name for name, text in HELP.items() if f"| `official_trainer_{name}` | {text} |" not in page]
    assert not missing, "\n".join(f"| `official_trainer_{name}` | {HELP[name]} |" for name in missing)
