"""Models of Keras 3 on several devices and in two processes: the same weights, whatever is done to gradients."""

import numpy as np
import pytest

from official_trainer.tracking.jsonl import read_rows
from tests import ROOT
from tests.support.cases import cases
from tests.support.distributed.clusters import LocalCluster
from tests.support.forked import run_command
from tests.support.runs import values

WORKSPACE = ROOT / "tests" / "support" / "keras3" / "workspace"
ALONE = ("runtime.distribution_strategy=off",)
DEVICES = ("runtime.distribution_strategy=mirrored", "runtime.num_logical_cpus=2")
PROCESSES = (
    "runtime.distribution_strategy=multi_worker_mirrored",
    "runtime.collective_timeout_seconds=60",
    "runtime.rendezvous_timeout_seconds=60",
)


PLAIN = ("task.parts=[hidden]", "task.train_data.shuffle=false")
"""A model that draws nothing."""


def train(workers, model_dir, *sets):
    """Trains in one process, with one device or two, or in two processes."""
    words = [f"--set={word}" for word in (*workers, *sets)]
    argv = ["train", "--experiment=keras3_chaos", "--mode=train", f"--model_dir={model_dir}", *words]
    folder = model_dir.with_suffix(".output")
    folder.mkdir()
    if workers != PROCESSES:
        done = run_command(argv, cwd=WORKSPACE, folder=folder)
        assert done.code == 0, done.err
        return
    with LocalCluster({"worker": 2}, argv=argv, cwd=WORKSPACE, folder=folder) as started:
        assert set(started.start_all().wait_all().values()) == {0}, started.outputs()


def weights(model_dir):
    return {name: value for name, value in values(model_dir, 50).items() if name.startswith("model/")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The weights that one device ends with, by the optimizer."""
    folder, names = tmp_path_factory.mktemp("alone"), ("sgd", "clipnorm", "global_clipnorm")
    for name in names:
        train(ALONE, folder / name, f"task.optimizer={name}", *PLAIN)
    return {name: weights(folder / name) for name in names}


UPDATES = {
    "global norm, 2 processes": (PROCESSES, (), "global_clipnorm"),
    "norm, a loss object": (DEVICES, ("task.as_object=true",), "clipnorm"),
    "global norm, micro-batches": (DEVICES, ("trainer.gradient_accumulation_steps=2",), "global_clipnorm"),
}
"""What is done to gradients: where, settings, and the optimizer, also of one device."""


@pytest.mark.parametrize("update", cases(list(UPDATES), "norm, a loss object", "global norm, micro-batches"))
def test_weights_are_those_of_one_device(update, alone, tmp_path):
    """N37: gradients are added up over replicas and micro-batches before they are clipped."""
    workers, sets, optimizer = UPDATES[update]
    train(workers, tmp_path / "run", f"task.optimizer={optimizer}", *PLAIN, *sets)
    trained = weights(tmp_path / "run")
    assert trained.keys() == alone[optimizer].keys()
    for name, value in alone[optimizer].items():
        np.testing.assert_allclose(trained[name], value, rtol=0, atol=1e-6, err_msg=name)


def test_an_optimizer_that_accumulates_by_itself_is_refused_on_several_replicas(tmp_path):
    """N37: Keras cannot, and the message says what can."""
    with pytest.raises(AssertionError, match=r"set\s+trainer\.gradient_accumulation_steps="):
        train(DEVICES, tmp_path / "run", "task.optimizer=accumulating")


def test_each_optimizer_changes_what_it_says(alone):
    """N37: without that, the comparison above would compare plain SGD with itself."""
    for optimizer in ("clipnorm", "global_clipnorm"):
        assert max(np.abs(value - alone[optimizer][name]).max() for name, value in alone["sgd"].items()) > 1e-3


def test_gradients_that_overflow_on_one_replica_are_skipped_by_all(tmp_path):
    """N37: weights stay as they were, and the loss scale is halved on each replica."""
    at = 5  # `LARGE_AT` of the experiment
    sets = (
        *("task.has_large_example=true", "task.parts=[]", "task.train_data.shuffle=false"),
        *("task.optimizer=scaling_sgd", "runtime.mixed_precision_dtype=float16"),
        *("trainer.checkpoint_interval=1", "trainer.summary_interval=1", "trainer.max_to_keep=4"),
        f"trainer.train_steps={at + 2}",
        "trainer.actions=[{type: replica_integrity}]",
    )
    model_dir = tmp_path / "run"
    train(DEVICES, model_dir, *sets)
    before, after, later = (values(model_dir, step) for step in (at - 1, at, at + 1))
    weights = [key for key in before if key.startswith("model/") and before[key].dtype.kind == "f"]
    assert len(weights) == 2
    for key in weights:
        assert np.isfinite(later[key]).all()
        assert (before[key] == after[key]).all()
        assert (after[key] != later[key]).any()
    (scale,) = [key for key in before if "dynamic_scale" in key]
    assert (before[scale], after[scale], later[scale]) == (1024, 512, 512)
    rows = [row for row in read_rows(f"{model_dir}/metrics.jsonl") if row["split"] == "train"]
    # A mean over replicas: also right if each of them had another scale, but not with another one than these.
    assert [row["loss_scale"] for row in rows] == [1024] * (at - 1) + [512] * 3


def test_masks_of_dropout_differ_by_replica_and_step(tmp_path):
    """N37: each replica of each step drops others, and half of them."""
    train(DEVICES, tmp_path / "run", "trainer.train_steps=12")
    lines = [line.split() for line in (tmp_path / "run.masks").read_text().splitlines()]
    assert sorted((int(step), int(replica)) for step, replica, _ in lines) == [
        (step, replica) for step in range(12) for replica in range(2)
    ]
    masks = [mask for _, _, mask in lines]
    assert len(set(masks)) == len(masks)
    ones = "".join(masks).count("1") / len("".join(masks))
    assert 0.4 < ones < 0.6
