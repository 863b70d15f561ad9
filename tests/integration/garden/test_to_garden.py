"""`run_experiment`: Model Garden's driver function, called as its users call it."""

import inspect
import json

import numpy as np
import orbit
import pytest
import tensorflow as tf
from official.core import base_trainer, train_lib, train_utils

from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config import ConfigError, DataConfig
from official_trainer.config.modes import ModeError
from official_trainer.engine.recovery import NonFiniteError
from official_trainer.engine.trainer import Trainer
from official_trainer.lazy import keras
from official_trainer.program import run_experiment as driver
from official_trainer.program.run_experiment import ArgumentError, run_experiment
from official_trainer.tracking.jsonl import read_rows
from tests.support import toy
from tests.support.cases import full
from tests.support.garden.driver import (
    _untouched_process,  # noqa: F401
    call,
    params_of,
    trainer_of,
    weights_of,
)
from tests.support.garden.toy import GardenTask

# What a caller sees.


def test_the_signature_is_model_gardens():
    """T1: names, order and defaults; positional calls work. One argument of ours follows, by its name alone."""

    def parameters(function):
        return [(p.name, p.kind, p.default) for p in inspect.signature(function).parameters.values()]

    *theirs, (own, kind, default) = parameters(run_experiment)
    assert theirs == parameters(train_lib.run_experiment)
    assert (own, kind, default) == ("allow_config_change", inspect.Parameter.KEYWORD_ONLY, False)


@pytest.mark.parametrize(
    ("mode", "run_post_eval", "has_results"),
    [
        ("train", True, True),
        full(("train_and_eval", False, False)),
        full(("train_and_post_eval", False, True)),
    ],
)
def test_returns_the_model_and_the_last_evaluation_if_asked(tmp_path, mode, run_post_eval, has_results):
    """T10: as theirs, but that an evaluation of the last step is not made twice."""
    model, logs = call(tmp_path, mode, run_post_eval=run_post_eval)
    assert isinstance(model, keras.Model)
    assert (logs.keys() >= {"accuracy", "validation_loss"}) == has_results
    assert has_results or logs == {}
    assert committed_steps(str(tmp_path)) == (10, 20)
    again, logs_again = call(tmp_path, mode, run_post_eval=run_post_eval)
    toy.assert_bitwise_equal(weights_of(again), weights_of(model))
    assert logs_again.keys() == logs.keys(), "a run that is done has the results of its row"


def test_results_are_nested_and_off_the_device(tmp_path):
    """T5: what reduce_aggregated_logs returns comes back as it is."""

    class Nested(GardenTask):
        def aggregate_logs(self, state=None, step_outputs=None):
            return (state or 0) + 1

        def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
            return {"dev": {"batches": aggregated_logs}}

    params = params_of(best_checkpoint_eval_metric="dev|batches", best_checkpoint_export_subdir="best_ckpt")
    _, logs = call(tmp_path, params=params, task=Nested(params.task), run_post_eval=True)
    assert logs["dev"] == {"batches": 3}
    assert isinstance(logs["accuracy"], np.generic)
    assert json.loads((tmp_path / "best_ckpt" / "info.json").read_text())["best_ckpt_global_step"] == 10


# Arguments.


def test_actions_are_called_with_what_the_trainer_returned(tmp_path):
    """G1: train_actions after each loop, eval_actions after each evaluation; the caller's lists stay."""
    seen = []
    train_actions = [lambda output: seen.append(("train", output))]
    eval_actions = [
        lambda output: seen.append(("eval", output)),
        orbit.actions.ConditionalAction(
            orbit.actions.NewBestMetric("accuracy"), lambda output: seen.append(("best", output))
        ),
    ]
    params = params_of(summary_interval=10)
    call(tmp_path, params=params, train_actions=train_actions, eval_actions=eval_actions)
    assert len(train_actions) == 1
    assert len(eval_actions) == 2
    assert [kind for kind, _ in seen if kind != "best"] == ["train", "train", "eval", "train", "train", "eval"]
    assert all("training_loss" in output for kind, output in seen if kind == "train")
    assert all(isinstance(output["validation_loss"], tf.Tensor) for kind, output in seen if kind == "eval")
    assert ("best" in dict(seen)) and params.trainer.summary_interval == 10


def test_train_actions_need_summaries_that_fit_their_loops(tmp_path):
    with pytest.raises(ConfigError, match=r"trainer.summary_interval: must be a multiple of steps_per_loop=5"):
        call(tmp_path, params=params_of(summary_interval=7), train_actions=[print])


def test_a_trainer_of_the_caller_is_used_and_left_as_it_was(tmp_path):
    """T1, T3: one derived from ours, with Model Garden's exporter."""

    class Mine(Trainer):
        began = 0

        def train_loop_begin(self):
            super().train_loop_begin()
            Mine.began += 1

    params = params_of(best_checkpoint_eval_metric="accuracy", best_checkpoint_export_subdir="best_ckpt")
    exporter = train_utils.maybe_create_best_ckpt_exporter(params, str(tmp_path))
    trainer = trainer_of(Mine, params, checkpoint_exporter=exporter)
    model, _ = call(tmp_path, params=params, trainer=trainer, eval_actions=[lambda output: None])
    assert model is trainer.model
    assert int(trainer.global_step.numpy()) == 20
    assert Mine.began == 4
    assert trainer.actions == []
    assert tf.train.latest_checkpoint(str(tmp_path / "best_ckpt")).endswith("best_ckpt-1")
    assert exporter.best_ckpt_logs["accuracy"] is not None


def test_async_checkpointing_is_as_the_argument_says(tmp_path, monkeypatch):
    """The engine's default is in the background; theirs is not."""
    asked = []
    monkeypatch.setattr(
        driver.train, "train", lambda job, stop, is_whole_command: asked.append(job.config.trainer) or {}
    )
    for is_async in (False, True):
        call(tmp_path, enable_async_checkpointing=is_async)
    assert [trainer.async_checkpoint for trainer in asked] == [False, True]


def test_the_model_is_built_under_a_strategy_of_the_caller(tmp_path, capsys):
    """T1, T18: and steps run on its replicas; without summaries there are rows, and no files for TensorBoard."""
    strategy = toy.strategy_of("mirrored2")
    call(tmp_path, "train", params=params_of(train_steps=5), strategy=strategy, save_summary=False)
    assert "on 2 CPUs, mirrored, starting" in capsys.readouterr().out
    assert not list(tmp_path.rglob("events.out*"))
    assert [row["step"] for row in read_rows(str(tmp_path / "metrics.jsonl")) if row["split"] == "train"] == [5]


def test_our_config_and_task_under_their_signature(tmp_path):
    """T1: both halves of the contract are duck-typed."""
    config = toy.experiment(steps_per_loop=5, summary_interval=5, checkpoint_interval=10, validation_interval=10)
    config = config.replace(trainer=config.trainer.replace(train_steps=20))
    config = config.replace(task=config.task.replace(validation_data=DataConfig(global_batch_size=50)))
    _, logs = call(
        tmp_path, params=config, task=toy.ToyTask(config.task), run_post_eval=True, enable_async_checkpointing=True
    )
    assert "accuracy" in logs
    assert list((tmp_path / "export").iterdir()), "our config says so"


class Controller(orbit.Controller):
    """A controller of the caller's."""


MEANINGLESS = [
    ({"controller_cls": Controller}, r"controller_cls=Controller: there is no orbit.Controller here"),
    ({"mode": "train_and_evaluate"}, r"no such mode; did you mean train_and_eval or train_and_post_eval\?"),
    ({"mode": "predict"}, r"mode predict has no arguments here; .* train --mode=predict"),
    ({"model_dir": ""}, r"model_dir is ''; name the directory of the run"),
    ({"params": {"trainer": {}}}, r"params is a dict; it must be an ExperimentConfig"),
]


def test_what_cannot_mean_anything_is_refused(tmp_path):
    """N7: at once, with what to do instead."""
    for options, message in MEANINGLESS:
        arguments = {"task": GardenTask(params_of().task), "mode": "train", "params": params_of(), **options}
        with pytest.raises((ArgumentError, ModeError), match=message):
            run_experiment(**{"distribution_strategy": None, "model_dir": str(tmp_path / "run"), **arguments})
    assert not (tmp_path / "run").exists()


def test_a_trainer_that_this_loop_cannot_run_is_refused(tmp_path):
    trainer = trainer_of(base_trainer.Trainer, params_of())
    with pytest.raises(ArgumentError, match=r"trainer is a official.core.base_trainer.Trainer; this loop runs"):
        call(tmp_path, trainer=trainer)


def test_a_strategy_of_several_processes_is_refused(tmp_path, monkeypatch):
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    spec = tf.train.ClusterSpec({"worker": ["localhost:1", "localhost:2"]})
    resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(spec)
    monkeypatch.setattr(type(strategy), "cluster_resolver", property(lambda self: resolver))
    with pytest.raises(
        ArgumentError, match=r"distribution_strategy: .* over 2 processes, of which only one may lead a run"
    ):
        call(tmp_path, strategy=strategy)


WRONG = [
    ({"train_steps": 0}, r"trainer.train_steps: is 0, so there is nothing to train"),
    ({"checkpoint_interval": 0}, r"trainer.checkpoint_interval: must be at least 1, got 0"),
    ({"validation_interval": -1}, r"trainer.validation_interval: must be at least 1, got -1"),
    ({"validation_steps": 0}, r"trainer.validation_steps: must be -1 \(all data\) or at least 1"),
]


def test_wrong_values_are_refused_before_anything_is_built(tmp_path):
    """N7: values that theirs takes and then does nothing with, or loops for ever."""
    for trainer, message in WRONG:
        with pytest.raises(ConfigError, match=message):
            call(tmp_path / "run", params=params_of(**trainer))
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_is_the_error_that_theirs_raises():
    """G8: their programs catch RuntimeError."""
    assert issubclass(NonFiniteError, RuntimeError)


# The other way round: ours in their driver.


def test_our_task_and_trainer_in_their_driver(tmp_path):
    """T1: OrbitExperimentRunner runs them, and our best checkpoint keeps what it evaluates."""
    from official_trainer.checkpoints.best import BestCheckpoint

    keras.backend.clear_session()
    params = params_of(best_checkpoint_eval_metric="accuracy", best_checkpoint_export_subdir="best_ckpt")
    task = toy.ToyTask(params.task)
    optimizer = GardenTask(params.task).create_optimizer(params.trainer.optimizer_config, params.runtime)
    best = BestCheckpoint(str(tmp_path / "best_ckpt"), metric="accuracy", comp="higher")
    trainer = Trainer(params, task, task.build_model(), optimizer, checkpoint_exporter=best)
    strategy = tf.distribute.get_strategy()
    train_lib.run_experiment(strategy, task, "train_and_eval", params, str(tmp_path), trainer=trainer)
    assert int(trainer.global_step.numpy()) == 20
    assert best.step in (10, 20)
    assert committed_steps(str(tmp_path / "best_ckpt")) == (best.step,)
