"""New values that actions hand back: what is accepted, on which replicas, and what is left of them after a kill."""

import numpy as np
import pytest

from official_trainer import trees
from official_trainer.actions.action import Action, Assign, Result
from official_trainer.actions.schedule import Schedule
from official_trainer.checkpoints.store import CheckpointStore
from official_trainer.config import When
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.checkpoint_state import AssignError
from official_trainer.engine.events import DueSteps
from official_trainer.engine.loop import Loop
from official_trainer.tracking.jsonl import JsonlTracker
from tests.support import toy
from tests.support.cases import cases
from tests.support.runs import assert_same_checkpoint, rows


@pytest.fixture(scope="module")
def trainer():
    """On two replicas, with averages, after some steps."""
    found = toy.build(toy.experiment(ema=EMAConfig(average_decay=0.9)), strategy="mirrored2")
    found.run_steps(3)
    return found


def named_of(trainer):
    return trainer.checkpoint_state.named_variables()


def test_variables_have_paths(trainer):
    """B12: the model's, the optimizer's and the averages'; the learning rate is the config's."""
    paths = list(named_of(trainer))
    assert paths[:4] == ["model/dense/kernel", "model/dense/bias", "model/logits/kernel", "model/logits/bias"]
    assert "optimizer/iter" in paths and "optimizer/dense/kernel/v" in paths
    assert [path for path in paths if path.startswith("average/")] == [
        path.replace("model/", "average/") for path in paths[:4]
    ]
    assert not [path for path in paths if "learning_rate" in path]


def test_new_values_are_assigned_on_all_replicas(trainer):
    """B12: by path, nested or not; weights, slots, counters and averages; arrays and tensors."""
    named = named_of(trainer)
    kernel, bias = named["model/dense/kernel"], named["model/dense/bias"]
    trainer.checkpoint_state.assign({
        "model": {"dense/kernel": 0.5 * kernel.numpy(), "dense": {"bias": bias + 1.0}},
        "optimizer/iter": np.int64(77),
        "average/dense/bias": np.arange(8, dtype=np.float32),
    })  # fmt: skip
    half, more = kernel.numpy(), bias.numpy()
    trainer.checkpoint_state.assign({"model/dense/kernel": 2.0 * half, "model/dense/bias": more - 1.0})
    for path, expected in {
        "model/dense/kernel": 2.0 * half,
        "model/dense/bias": more - 1.0,
        "optimizer/iter": np.int64(77),
        "average/dense/bias": np.arange(8, dtype=np.float32),
    }.items():
        copies = getattr(named[path], "values", [named[path]])
        assert all(part.numpy().tobytes() == expected.tobytes() for part in copies), path
    trees.assert_replica_integrity(trainer.checkpoint_state.mirrored_variables())


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"model/dense/kernal": 1.0}, r"'model/dense/kernal' is no variable.*; did you mean 'model/dense/kernel'\?"),
        ({"x": 1.0}, r"'x' is no variable that an action may change; there are model/dense/kernel, .* and \d+ more"),
        ({"optimizer/learning_rate": np.float32(1)}, r"'optimizer/learning_rate' is no variable that an action may"),
        ({"model/logits/bias": np.zeros(3)}, r"'model/logits/bias' is float64 \[3\]; expected float32 \[3\]"),
        ({"model/logits/bias": np.zeros([1, 3], "f4")}, r"is float32 \[1, 3\]; expected float32 \[3\]"),
        (
            {"model/logits/bias": np.array([0, np.nan, np.inf], "f4")},
            "'model/logits/bias' has 2 values that are not finite, of 3; expected finite ones",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_before_any_is_assigned(trainer, values, said):
    """B12: the error names the variable and what is expected."""
    before = {path: variable.numpy() for path, variable in named_of(trainer).items()}
    fits = {"model/dense/bias": np.full(8, 9, np.float32)}
    with pytest.raises(AssignError, match=f"^new values are refused, and nothing is changed: .*{said}"):
        trainer.checkpoint_state.assign({**fits, **values})
    assert all(variable.numpy().tobytes() == before[path].tobytes() for path, variable in named_of(trainer).items())


class Prune(Action):
    """Sets the smaller half of each kernel to zero."""

    when = When(every=7)

    def on_step(self, run):
        paths = ["model/dense/kernel", "model/logits/kernel"]
        kernels = {path: run.variables[path].numpy() for path in paths}
        values = {path: np.where(abs(v) < np.median(abs(v)), np.float32(0), v) for path, v in kernels.items()}
        zeros = sum(int((v == 0).sum()) for v in values.values())
        return [Assign(values=values), Result(value={"zeros": zeros})]


class Shrink(Action):
    """Scales one weight after an evaluation, by what `Prune` has found."""

    when = When(after_eval=True)

    def on_eval(self, run, logs):
        share = 1 / (1 + run.state.results["Prune"]["zeros"])
        bias = run.variables["model/dense/bias"].numpy()
        return Assign(values={"model/dense/bias": bias * np.float32(share)})


class Killed(BaseException):
    """Stands for SIGKILL: nothing is saved after it."""


class Kill(Action):
    """Kills at a step, after all other actions."""

    priority = 9

    def __init__(self, step):
        self.when = When(at_steps=(step,))

    def on_step(self, run):
        raise Killed


def train(model_dir, strategy, *actions):
    """Runs the loop to its end; returns the trainer and the loop."""
    config = toy.experiment(summary_interval=4, checkpoint_interval=10, validation_interval=12, steps_per_loop=5)
    config = config.replace(trainer=config.trainer.replace(train_steps=30, validation_steps=-1))
    trainer = toy.build(config, strategy=strategy)
    journal = JsonlTracker(f"{model_dir}/metrics.jsonl")
    loop = Loop(
        trainer=trainer,
        store=CheckpointStore(str(model_dir), trainer.checkpoint, max_to_keep=None),
        metric_writer=journal,
        due=DueSteps(config.trainer, "interval"),
        actions=Schedule([Prune(), Shrink(), *actions]),
        model_dir=str(model_dir),
    )
    loop.observer.find_row = journal.row
    loop.run()
    return trainer, loop


@pytest.mark.parametrize("strategy", cases(["off", "mirrored2"], "off"))
def test_a_run_killed_after_an_action_continues_bit_by_bit(tmp_path, strategy):
    """B12, N1: between `on_step` at 7 and the first checkpoint, after `on_eval` at 12, after both at 28."""
    for name in ("whole", "killed"):
        (tmp_path / name).mkdir()
    whole, loop = train(tmp_path / "whole", strategy)
    assert (abs(toy.weights(whole)[0]) < 0.02).sum() > 20  # the actions matter: half was zero two steps before
    for step in (7, 13, 28):
        with pytest.raises(Killed):
            train(tmp_path / "killed", strategy, Kill(step))
    killed, again = train(tmp_path / "killed", strategy)
    toy.assert_bitwise_equal(toy.weights(killed), toy.weights(whole))
    assert_same_checkpoint(tmp_path / "killed", tmp_path / "whole", 30)
    assert rows(tmp_path / "killed") == rows(tmp_path / "whole")
    assert again.state.results == loop.state.results
