"""Commands that predict: killed or stopped anywhere, the same command again ends with the same bytes."""

import functools
import json
import signal

import pytest

from official_trainer.runs.predictions.manifest import MANIFEST
from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos import inside
from tests.support.forked import Command, run_command, trained_digits
from tests.support.predictions import contents


def predict(model_dir, output, *words, folder, first=None):
    argv = ["predict", f"--model_dir={model_dir}", f"--output={output}", *words]
    return Command(argv, cwd=ROOT, folder=folder, first=first)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    return trained_digits(tmp_path_factory.mktemp("digits"))


SETS = {
    "off": ["task.validation_data.global_batch_size=33"],
    "mirrored": ["task.validation_data.global_batch_size=34", "runtime.num_logical_cpus=2",
                 "runtime.distribution_strategy=mirrored"],
}  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(digits):
    """Predictions that nobody disturbed, and how many write operations they took; by strategy and format."""

    @functools.cache
    def of(strategy, format):
        folder = digits.parent / f"{strategy}-{format}"
        folder.mkdir()
        first = functools.partial(inside.kill_at_write, None, f"{folder}/out", f"{folder}/writes")
        words = [f"--format={format}", "--shard_size=50", *SETS[strategy]]
        done = predict(digits, f"{folder}/out", *words, folder=folder, first=first).wait()
        assert done.code == 0, done.err
        assert "360 predictions of ckpt-20 in 8 files: " in done.err
        return contents(folder / "out"), int((folder / "writes").read_text())

    return of


KILLS = [
    (strategy, format, signal.SIGKILL)
    for strategy in ("off", "mirrored")
    for format in ("tfrecord", "jsonl", "npy")
]  # fmt: skip
KILLS += [("off", "jsonl", signal.SIGTERM), ("mirrored", "npy", signal.SIGTERM)]


@pytest.mark.parametrize(("strategy", "format", "by"), cases(KILLS, KILLS[1], KILLS[3], KILLS[-2]))
def test_a_killed_command_ends_with_the_bytes_of_an_unbroken_one(strategy, format, by, digits, unbroken, tmp_path):
    """N18, N5: killed or stopped at several writes, the same command again each time goes on."""
    expected, writes = unbroken(strategy, format)
    words = [f"--format={format}", "--shard_size=50", *SETS[strategy]]
    codes, shards = [], []
    for number in (2, writes // 3, writes // 3):
        first = functools.partial(inside.kill_at_write, number, f"{tmp_path}/out", by=by)
        completed = predict(digits, f"{tmp_path}/out", *words, folder=tmp_path, first=first).wait()
        codes.append(completed.code)
        manifest = tmp_path / "out" / MANIFEST
        shards.append(len(json.loads(manifest.read_text())["shards"]) if manifest.exists() else 0)
    assert codes == [-9 if by == signal.SIGKILL else 143] * 3
    assert 0 < shards[1] < shards[2] < 8
    completed = predict(digits, f"{tmp_path}/out", *words, folder=tmp_path).wait()
    assert completed.code == 0, completed.err
    assert f"continuing after {50 * shards[2]} rows in {shards[2]} shards" in completed.err
    assert contents(tmp_path / "out") == expected
    completed = predict(digits, f"{tmp_path}/out", *words, folder=tmp_path).wait()
    assert (completed.code, "all predictions are there already" in completed.err) == (0, True)
    assert contents(tmp_path / "out") == expected


def test_mode_predict_of_train_is_the_same(digits, unbroken, tmp_path):
    """N18, T20: with the same flags; in other modes they are refused."""
    words = ["--experiment=digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", f"--model_dir={digits}"]
    words += ["trainer.export.at_end=false", *SETS["off"]]
    flags = ["--format=jsonl", "--shard_size=50", f"--output={tmp_path}/out"]
    done = run_command(["train", "--mode=predict", *words, *flags], cwd=ROOT, folder=tmp_path)
    assert done.code == 0, done.err
    assert contents(tmp_path / "out") == unbroken("off", "jsonl")[0]
    refused = run_command(["train", *words, *flags], cwd=ROOT, folder=tmp_path)
    assert refused.code == 2
    assert "--output and --format and --shard_size would have no effect with --mode=train_and_eval" in refused.err
