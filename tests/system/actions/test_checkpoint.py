"""The checkpoint action in runs that are killed anywhere: they keep the same."""

import pytest

from official_trainer import files
from official_trainer.actions.checkpoint import CheckpointConfig
from official_trainer.checkpoints import manifest
from official_trainer.checkpoints.manifest import committed_steps
from official_trainer.config.optimization import EMAConfig
from tests.support import runs, scripted_runs
from tests.support.cases import full

SCORES = (0.5, 0.7, 0.6, 0.65, 0.7, 0.8, 0.9, 0.1)
TOP = CheckpointConfig(monitor="score", max_to_keep=3, template="{step:04d}-{score:.2f}")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run with averages to its end, which tests only read."""
    model_dir = str(tmp_path_factory.mktemp("unbroken") / "run")
    scripted_runs.do(model_dir, TOP, scores=SCORES, ema=EMAConfig(average_decay=0.5), checkpoint_interval=20)
    return model_dir


@pytest.mark.parametrize(
    ("where", "step"),
    [
        full(("training", 70)),
        ("before the save", 20),  # of the action's own: the run's checkpoint of this step is there
        full(("after the save", 70)),
        full(("before the row", 20)),
        ("before the row", 70),
        full(("after the row", 60)),
        full(("evaluation begins", 60)),
    ],
)
def test_a_killed_run_keeps_the_same(unbroken, tmp_path, monkeypatch, where, step):
    """C1, N2: the same names, steps and weights as an unbroken run."""
    options = {"scores": SCORES, "ema": EMAConfig(average_decay=0.5), "checkpoint_interval": 20}
    scripted_runs.do_killed(monkeypatch, where, step, tmp_path / "run", TOP, **options)
    assert scripted_runs.kept(tmp_path / "run") == scripted_runs.kept(unbroken)
    assert runs.differences(f"{tmp_path}/run", unbroken) == []


@pytest.mark.parametrize("where", ["before the row", "after the row"])
def test_the_checkpoint_comes_first_and_the_record_second(model_dir, monkeypatch, where):
    """B4: of the run's own best by a named set too: the record is the manifest, written last."""
    options = {"best_checkpoint_eval_metric": "dev|score", "train_steps": 20}
    with scripted_runs.killed(monkeypatch, where, 10):
        scripted_runs.do(model_dir, scores=(0.4, 0.5), **options)
    assert committed_steps(f"{model_dir}/best") == (10,)
    scripted_runs.do(model_dir, scores=(0.4, 0.5), **options)
    assert committed_steps(f"{model_dir}/best") == (10,)
    assert manifest.read(f"{model_dir}/best", 10).extra["logs"]["dev"]["score"] == -0.4


def test_a_saved_model_lies_beside(model_dir):
    """C1: of the same weights; it goes with its checkpoint, and is made again if it was cut off."""
    config = CheckpointConfig(monitor="score", template="{score:.1f}", export=True)
    scripted_runs.do(model_dir, config, scores=(0.5, 0.4), ema=EMAConfig(average_decay=0.5), train_steps=20)
    folder = f"{model_dir}/checkpoints/0.5"
    kernels = [
        {bits for name, bits in runs.bits(prefix).items() if "kernel" in name}
        for prefix in (f"{folder}/ckpt-10", f"{folder}/saved_model/variables/variables")
    ]
    assert kernels[0]
    assert kernels[0] == kernels[1]
    scripted_runs.do(model_dir, config, scores=(0.5, 0.4, 0.9), ema=EMAConfig(average_decay=0.5), train_steps=30)
    assert files.list_dir(f"{model_dir}/checkpoints") == ["0.9"]
    assert files.exists(f"{model_dir}/checkpoints/0.9/saved_model/saved_model.pb")
