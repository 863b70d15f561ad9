"""The words of `sweep`, and the table of its trials."""

import re

import pytest

from official_trainer import cli
from tests.support import golden
from tests.support.sweeps.written import RATE, trial, write_sweep

MLP = {"task.model.type": "mlp", RATE: 0.0625, "task.model.mlp.dropout": 0.125, "task.train_data.global_batch_size": 64}


def run(capsys, *words, code=0):
    assert cli.main(["sweep", *words]) == code
    out, err = capsys.readouterr()
    return err if code else out


@pytest.fixture
def sweep(tmp_path):
    trials = [
        trial(0.5, step=200),
        trial(0.3, state="PRUNED", reports={100: 0.3}, reason="by MedianPruner"),
        trial(state="FAIL", reason="a bug; see output.log"),
        trial(0.75, params=MLP, step=100),
        trial(state="RUNNING", params={}),
    ]
    return str(write_sweep(tmp_path / "sweep", trials))


def test_show_prints_the_table(sweep, capsys):
    """N21: within 80 columns; each state, short names of fields, why trials failed."""
    out = run(capsys, "show", sweep)
    lines = out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    states = re.findall(r"^ +(\d) +(\w+)", out, flags=re.MULTILINE)
    assert states == [("0", "complete"), ("1", "pruned"), ("2", "failed"), ("3", "best"), ("4", "running")]
    assert re.search(r"trial +state +accuracy +model +global_batch", out), out
    assert re.search(r"3 +best +0.75 +mlp +64 +0.0625 +0.125", out), out
    assert out.rstrip().endswith("trial 2 failed: a bug; see output.log")


def test_best_prints_a_config_file(sweep, tmp_path, capsys):
    """N21: with the values of the best trial."""
    out = run(capsys, "best", sweep, f"--write={tmp_path}/best.yaml")
    assert out == (tmp_path / "best.yaml").read_text()
    assert out.splitlines() == [
        f"# trial 3 of {sweep}, complete: accuracy 0.75 at step 100",
        "task.model.type: mlp",
        "task.train_data.global_batch_size: 64",
        f"{RATE}: 0.0625",
        "task.model.mlp.dropout: 0.125",
    ]


def test_what_the_words_do_not_take_is_refused(sweep, tmp_path, monkeypatch, capsys, request):
    """N21: with what to write instead."""
    write_sweep(tmp_path / "empty", [])
    monkeypatch.chdir(tmp_path)
    golden.check_refused("sweep", request, capsys, "sweep", hides=tmp_path)
