"""Damaged checkpoints under a run from the command line: it goes on from the newest whole one, or stops."""

import json
import shutil
from pathlib import Path

import pytest

from official_trainer.tracking.jsonl import read_rows
from tests.support.cases import cases
from tests.support.checkpoint_damage import HARMS, PARTS
from tests.support.forked import train_digits
from tests.support.runs import bits, contents


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    done = train_digits(folder / "run", folder)
    assert done.code == 0, done.err
    return folder / "run"


@pytest.fixture
def run_dir(finished, model_dir):
    shutil.copytree(finished, model_dir)
    return Path(model_dir)


def started_at(model_dir):
    return json.loads((Path(model_dir) / "run.json").read_text())["steps"]["start"]


@pytest.mark.parametrize(
    ("part", "harm"),
    cases([("data", "flipped_middle"), ("index", "missing"), ("manifest", "cut_in_half")], ("index", "missing")),
)
def test_a_run_goes_on_from_the_newest_whole_checkpoint(run_dir, finished, tmp_path, part, harm):
    """N1, N3: and ends with the same bits, the same best checkpoint, and each row once."""
    HARMS[harm](run_dir / f"ckpt-20{PARTS[part]}")
    (run_dir / "checkpoint").unlink()
    done = train_digits(run_dir, tmp_path)
    assert done.code == 0, done.err
    assert "ckpt-20 is damaged: " in done.err
    assert started_at(run_dir) == 10
    assert bits(run_dir / "ckpt-20") == bits(finished / "ckpt-20")
    best = [{path.stem: bits(path.with_suffix("")) for path in d.glob("best/*.index")} for d in (run_dir, finished)]
    assert best[0] and best[0] == best[1]
    rows = [[(row["step"], row["split"]) for row in read_rows(f"{d}/metrics.jsonl")] for d in (run_dir, finished)]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("part", "harm"),
    cases([("data", "empty"), ("manifest", "missing"), ("manifest", "flipped_third")], ("data", "empty")),
)
def test_a_run_without_a_whole_checkpoint_stops(run_dir, tmp_path, part, harm):
    """N3, N6: exit code 2, a message, no step 0; the same again, and nothing of the checkpoints is touched."""
    for step in (10, 20):
        HARMS[harm](run_dir / f"ckpt-{step}{PARTS[part]}")
    before = {name: data for name, data in contents(run_dir).items() if "ckpt-" in name}
    for _ in range(2):
        done = train_digits(run_dir, tmp_path)
        assert done.code == 2
        assert done.err.removeprefix("running on 1 CPU\n").startswith("error: ")
        assert "ckpt-10" in done.err
        assert "Traceback" not in done.err
        assert {name: data for name, data in contents(run_dir).items() if "ckpt-" in name} == before
