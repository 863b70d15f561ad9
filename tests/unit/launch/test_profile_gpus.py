"""GPUs that a profile asks for: checked before anything is submitted, and again by each process."""

import json
import re
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.distributed.cluster import GIVEN_GPUS
from tests.support.workspace import copy_workspace

ON_SLURM = {"node_local": [], "workers": 2, "nodes": 2, "tasks_per_node": 1, "resources": {"gpus": 4}}


def launch(capfd, target, profile, *words):
    Path("p.yaml").write_text(json.dumps(profile))
    code = cli.main(["launch", target, "--profile=p.yaml", "digits_mlp", "--model_dir=gs://a/b", *words])
    return code, *capfd.readouterr()


@pytest.fixture(autouse=True)
def _in_workspace(tmp_path, monkeypatch):
    copy_workspace(tmp_path, "experiments")
    monkeypatch.chdir(tmp_path)


def test_each_process_is_told_how_many(capfd):
    """N20: wherever it runs; one without GPUs is told nothing."""
    code, shown, _ = launch(capfd, "slurm", ON_SLURM, "task.validation_data.global_batch_size=64")
    assert code == 0 and f"export {GIVEN_GPUS}=4\n" in shown
    servers = {"image": "a", "ps": 1, "resources": {"gpus": 1}}
    code, shown, _ = launch(capfd, "kubernetes", servers)
    assert code == 0 and len(re.findall(rf"{GIVEN_GPUS}\n +value: '1'", shown)) == 2  # the chief and the worker
    code, shown, _ = launch(capfd, "kubernetes", {"image": "a"})
    assert code == 0 and GIVEN_GPUS not in shown


def test_fewer_are_used_where_that_is_said(capfd):
    """N20: batches divide over those."""
    words = ["runtime.num_gpus=1", "task.train_data.global_batch_size=6", "task.validation_data.global_batch_size=6"]
    assert launch(capfd, "slurm", ON_SLURM, *words)[0] == 0
