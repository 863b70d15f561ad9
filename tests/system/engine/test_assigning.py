"""New values that actions hand back: what is accepted, and on which replicas."""

import numpy as np
import pytest

from official_trainer import trees
from official_trainer.config.optimization import EMAConfig
from official_trainer.engine.checkpoint_state import AssignError
from tests.support import toy


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
