"""Runs of a small model whose evaluations give the numbers that a test wants, and that die where it wants."""

import contextlib

from official_trainer import config as configuration
from official_trainer import files, inputs
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import schema
from official_trainer.lazy import keras
from official_trainer.tasks import registry
from official_trainer.tracking.jsonl import JsonlTracker
from tests.support import jobs, runs, toy


class ScriptedConfig(schema.TaskConfig):
    """Config class of its own, so that it can have a Task of its own."""


@registry.register_task_cls(ScriptedConfig)
class ScriptedTask(toy.ToyTask):
    """Its `score` and `dev|score` at a step are looked up; at any other they are 0."""

    scores = {}  # noqa: RUF012
    metric_directions = {"score": "max"}  # noqa: RUF012

    def build_model(self):
        features = keras.Input((6,), name="features")
        return keras.Model(features, keras.layers.Dense(3, name="logits")(features))

    def build_inputs(self, params, input_context=None):
        return inputs.from_arrays((toy.FEATURES, toy.LABELS), params, input_context)

    def build_metrics(self, training=True):
        return []

    def aggregate_logs(self, state, step_logs):
        return True

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        score = self.scores.get(int(global_step.numpy()), 0.0)
        return {"score": score, "perplexity": -score, "dev": {"score": -score}}


def do(model_dir, *actions, scores=None, mode="train_and_eval", **settings):
    """Trains 80 steps, evaluated every tenth and saved every thirtieth, with `actions`."""
    keras.backend.clear_session()
    ScriptedTask.scores = dict(zip(range(10, 90, 10), scores or (), strict=False))
    resolved = resolve(*actions, **settings)
    return jobs.run("scripted", resolved, mode=mode, model_dir=str(model_dir), quiet=True)


def resolve(*actions, ema=None, init_checkpoint="", **trainer):
    """Returns the configuration of such a run."""
    settings = {
        "train_steps": 80, "steps_per_loop": 10, "summary_interval": 40, "checkpoint_interval": 30,
        "validation_interval": 10, "async_checkpoint": False, "export": schema.ExportConfig(at_end=False), **trainer,
    }  # fmt: skip
    base = toy.experiment(ema=ema)
    data = schema.DataConfig(global_batch_size=10)
    config = base.replace(
        task=ScriptedConfig(
            train_data=data,
            validation_data=schema.DataConfig(global_batch_size=101),
            init_checkpoint=init_checkpoint,
        ),
        trainer=base.trainer.replace(actions=tuple(actions), **settings),
    )
    return configuration.resolve(config, experiment="scripted")


class Killed(BaseException):
    """Stands for SIGKILL: nothing of ours catches it."""


KILLS = {
    "after the row": (JsonlTracker, "log", lambda tracker, split, step, *_: step if split == "validation" else None),
    "after the save": (CheckpointStore, "save", lambda store, step, *_: step),
}
"""After which method: its class, its name, and what tells the step from its arguments."""


def kept(model_dir, directory="checkpoints"):
    """Returns what a checkpoint action keeps: {folder: (step, bits of every value)}."""
    found = {}
    for name in files.list_dir(f"{model_dir}/{directory}"):
        (step,) = committed_steps(f"{model_dir}/{directory}/{name}")
        found[name] = step, runs.bits(f"{model_dir}/{directory}/{name}/ckpt-{step}")
    return found


@contextlib.contextmanager
def killed(monkeypatch, where, step):
    """For a run that is killed: `where` is one of `KILLS`."""
    owner, method, step_of = KILLS[where]
    call = getattr(owner, method)

    def dying(*args, **kwargs):
        answer = call(*args, **kwargs)
        if step_of(*args) == step:
            raise Killed
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(owner, method, dying)
        try:
            yield
        except Killed:
            return
        raise AssertionError(f"{where} {step}: never came there")
