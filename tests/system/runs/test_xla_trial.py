"""`runtime.enable_xla: auto`: tried before step 1, recorded, and never tried again."""

import json
from types import SimpleNamespace

import pytest

from official_trainer import config as configuration
from official_trainer.checkpoints import manifest
from official_trainer.config import schema
from official_trainer.distributed.cluster import Cluster
from official_trainer.lazy import keras, tf
from official_trainer.runs import run, xla_choice, xla_trial
from official_trainer.tasks import registry
from tests.support import runs, toy
from tests.support.cases import full
from tests.support.scripted_runs import killed


class TriedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(TriedConfig)
class TriedTask(toy.ToyTask):
    """With dropout; `is_refused` is whether XLA cannot compile its step."""

    is_refused = False

    def build_losses(self, labels, model_outputs, aux_losses=None):
        losses = super().build_losses(labels, model_outputs, aux_losses)
        if self.is_refused:
            losses = tf.py_function(lambda x: x, [losses], tf.float32) + 0 * losses
        return losses


def train(model_dir, enable_xla, *, allow_config_change=False, **runtime):
    keras.backend.clear_session()
    base = toy.experiment(summary_interval=10, checkpoint_interval=10, validation_interval=20, async_checkpoint=False)
    data = schema.DataConfig(global_batch_size=10)
    config = base.replace(
        task=TriedConfig(train_data=data, validation_data=data),
        trainer=base.trainer.replace(train_steps=30, steps_per_loop=10, export=schema.ExportConfig(at_end=False)),
        runtime=schema.RuntimeConfig(enable_xla=enable_xla, **runtime),
    )
    resolved = configuration.resolve(config, experiment="tried")
    options = {"mode": "train_and_eval", "model_dir": str(model_dir), "allow_config_change": allow_config_change}
    return run.run("tried", resolved, **options)


@pytest.fixture
def trials(monkeypatch):
    """How often steps were timed; `faster` is whether they are faster with XLA, `runs` whether they run."""
    found = SimpleNamespace(count=0, faster=True, runs=False)
    measure = xla_trial.seconds_per_step
    monkeypatch.setattr(xla_trial, "_WINDOW_SECONDS", 0.0)
    monkeypatch.setattr(xla_trial, "_TIMED_SECONDS", 0.0)

    def timed(job, *, enable_xla):
        found.count += 1
        assert not found.runs or measure(job, enable_xla=enable_xla) > 0
        return 0.001 if enable_xla == found.faster else 0.002

    monkeypatch.setattr(xla_trial, "seconds_per_step", timed)
    return found


def record(model_dir):
    return json.loads((model_dir / "run.json").read_text())["xla"]


@pytest.mark.parametrize("faster", [True, full(False)])
def test_a_killed_run_goes_on_as_it_began(faster, trials, monkeypatch, tmp_path, capsys):
    """N1: to the bit the run whose config says so, though the trial would decide otherwise after the kill."""
    train(tmp_path / "said", faster)
    assert record(tmp_path / "said") is None
    trials.faster, trials.runs = faster, True
    with killed(monkeypatch, "after the save", 10):
        train(tmp_path / "auto", "auto")
    assert trials.count == 2
    times = "1 ms with XLA and 2 ms" if faster else "2 ms with XLA and 1 ms"
    line = (
        f"runtime.enable_xla: auto is {str(faster).lower()} for this run: "
        f"a step takes {times} without, tried before step 1"
    )
    assert line in capsys.readouterr().out
    trials.faster = not faster
    train(tmp_path / "auto", "auto")
    assert trials.count == 2
    assert line in capsys.readouterr().out
    assert runs.differences(tmp_path / "auto", tmp_path / "said") == []
    assert record(tmp_path / "auto")["enables"] is faster
    assert manifest.read(str(tmp_path / "auto"), 30).metadata["xla"] == record(tmp_path / "auto")


def test_the_choice_is_recorded_before_the_first_step(trials, monkeypatch, tmp_path):
    """N15: a run that was killed before it had saved anything goes on with it, too."""
    with killed(monkeypatch, "before the save", 10):
        train(tmp_path, "auto")
    assert record(tmp_path)["enables"] is True
    trials.faster = False
    train(tmp_path, "auto")
    assert (trials.count, record(tmp_path)["enables"]) == (2, True)


def test_auto_after_another_value_is_a_change_and_tried(trials, tmp_path):
    """N9: checkpoints that were saved without a choice have none, whatever an earlier start has recorded."""
    trials.faster = True
    train(tmp_path, True)
    with pytest.raises(configuration.ConfigError, match=r"runtime.enable_xla: true -> auto"):
        train(tmp_path, "auto")
    train(tmp_path, "auto", allow_config_change=True)
    assert trials.count == 2


@pytest.mark.parametrize("runtime", [{}, full({"distribution_strategy": "mirrored", "num_logical_cpus": 2})])
def test_steps_that_xla_cannot_compile(runtime, trials, monkeypatch, tmp_path):
    """N15: run without it, and the reason is recorded."""
    trials.runs = True
    monkeypatch.setattr(TriedTask, "is_refused", not runtime)
    train(tmp_path, "auto", **runtime)
    assert record(tmp_path)["enables"] is False
    assert record(tmp_path)["found"].startswith("XLA cannot compile ")


def test_several_processes_and_tpus_try_nothing():
    """N1: each process concludes the same by itself."""

    def job(cluster=None, **runtime):
        resolved = configuration.resolve(schema.ExperimentConfig(runtime=schema.RuntimeConfig(**runtime)))
        return run.Job(experiment="tried", resolved=resolved, model_dir="runs/x", mode="train", cluster=cluster)

    workers = Cluster(role="worker", index=1, addresses={"worker": ("a:1", "b:1")}, source="TF_CONFIG")
    choice = xla_trial.choose(job(workers, enable_xla="auto"))
    assert choice == xla_choice.XlaChoice(enables=False, found="several processes train, and it is tried in one alone")
    assert "TPU" in xla_trial.choose(job(enable_xla="auto", tpu="local")).found
    assert xla_trial.choose(job(enable_xla=True)) is None
