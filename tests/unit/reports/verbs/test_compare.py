"""What `compare` shows of runs, in whatever state they are."""

import csv
import io
import json
import re
import sys

import pytest

from official_trainer import cli
from tests.support import golden
from tests.support.reports import kinds


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """80 columns, and the time stands still."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("official_trainer.reports.verbs.compare._now_seconds", lambda: kinds.NOW)


@pytest.fixture
def seeds(tmp_path):
    """Three seeds of each of two learning rates, and one run with another optimizer."""
    for rate in (0.001, 0.01):
        for seed in range(3):
            kinds.write_run(tmp_path / "runs" / f"r{rate}-{seed}", seed=seed + round(1000 * rate), rate=rate)
    kinds.write_run(tmp_path / "runs" / "sgd", seed=9, optimizer="sgd", code=1, step=20, error="ValueError: no\nmore")


def shown(capsys, *words):
    assert cli.main(["compare", *words]) == 0
    return capsys.readouterr().out


def rows(text):
    """Returns the cells of each line of a table, up to the empty line."""
    return [re.split(r"  +", line.strip()) for line in text.partition("\n\n")[0].splitlines()]


def names(text):
    return [row[0] for row in rows(text)[1:]]


def test_a_table_of_what_differs_and_what_came_of_it(seeds, capsys):
    """N22: the best first; the metric with its direction, status, the fields that differ, and why a run failed."""
    text = shown(capsys, "runs")
    head, first, *_, last = rows(text)
    assert head[:6] == ["run", "status", "accuracy ↑", "optimizer.type", "learning_rate", "seed"]
    assert first[:6] == ["r0.01-2", "done", f"{kinds.accuracy(12, 40):.4g}", "adam", "0.01", "12"]
    assert last[:2] == ["sgd", "failed"]
    assert "sgd: exit code 1; error: ValueError: no\n" in text
    assert "train_steps" not in text
    assert "tensorflow" not in sys.modules


def test_it_fits_the_terminal_and_names_what_it_left_out(seeds, capsys, monkeypatch):
    """N22: there are as many columns as there is room for, and a line has the names of the others."""
    for columns in (80, 120):
        monkeypatch.setenv("COLUMNS", str(columns))
        text = shown(capsys, "runs")
        head, below = " ".join(rows(text)[0]), " ".join(text.partition("\n\n")[2].split())
        assert max(map(len, text.splitlines())) <= columns
        for title in ("learning_rate", "seed", "took", "examples_per_second"):
            assert (title in head) != (title in below), title
        assert ("no room for took, examples_per_second: a wider terminal" in below) == (columns < 120)


CONDITIONS = {
    "optimizer.type == 'sgd'": ["sgd"],
    "trainer.optimizer_config.optimizer.type != 'adam'": ["sgd"],
    "learning_rate >= 0.01 and seed < 12": ["r0.01-1", "r0.01-0"],
    "status == 'failed' or accuracy > 0.884": ["r0.01-2", "sgd"],
    "hidden == '[8]' and run in ['r0.01-1']": ["r0.01-1"],
    "`adam.epsilon` == 1e-7 and seed == 2": ["r0.001-1"],
    "run.str.startswith('s')": ["sgd"],
}


def test_conditions(seeds, capsys):
    """N22: those of pandas, on columns and on any field by its path or the end of it."""
    for condition, left in CONDITIONS.items():
        assert names(shown(capsys, "runs", f"--where={condition}")) == left, condition


def test_orders(seeds, capsys):
    """N22: by any column or field, and the other way round; the failed run, with a lower accuracy, is the last."""
    for order, ends in {
        "run": ("r0.001-0", "sgd"),
        "-accuracy": ("sgd", "r0.01-2"),
        "runtime.seed": ("r0.001-0", "r0.01-2"),
        "-sgd.epsilon": ("sgd", "r0.01-2"),
    }.items():
        order_of_names = names(shown(capsys, "runs", f"--sort={order}", "--fields=seed"))
        assert (order_of_names[0], order_of_names[-1]) == ends, order


def test_metrics_at_their_best_at_the_end_and_at_a_step(seeds, capsys, monkeypatch):
    """N22: of evaluations and of training; the direction is the config's or the user's, and not guessed."""
    monkeypatch.setenv("COLUMNS", "120")
    metrics = "--metrics=accuracy,validation_loss:min,accuracy:10,train/training_loss"
    head, first = rows(shown(capsys, "runs", metrics, "--where=seed == 1"))
    assert head[2:6] == ["accuracy ↑", "validation_loss ↓", "accuracy:10", "train/training_loss:last"]
    best, early = (f"{kinds.accuracy(1, step):.4g}" for step in (40, 10))
    assert first[2:6] == [best, "0.075", early, "0.05"]


def test_groups_have_means_and_deviations_over_seeds(seeds, capsys):
    """N22: with the number of runs, and of those that have the number where some lack it."""
    text = shown(capsys, "runs", "--group=learning_rate", "--metrics=accuracy:20,accuracy:40")
    head, *groups = rows(text)
    assert head == ["learning_rate", "accuracy:20", "accuracy:40", "runs", "status"]
    mean = sum(kinds.accuracy(seed, 20) for seed in (10, 11, 12)) / 3
    assert groups[0][0::3] == ["0.01", "3"] and groups[0][1] == f"{mean:.4g} ± 0.001"
    assert groups[1][2].endswith("± 0.001 (n=3)") and groups[1][3:5] == ["4", "3 done, 1 failed"]
    alone = rows(
        shown(capsys, "runs", "--group=optimizer.type,experiment", "--metrics=accuracy:20", "--sort=accuracy:20")
    )
    assert [row[:4] for row in alone if row[0] == "sgd"] == [["sgd", "digits", f"{kinds.accuracy(9, 20):.4g}", "1"]]


def test_runs_without_the_field_of_a_group_are_a_group(seeds, capsys):
    """N22: no run is missing from the table."""
    text = shown(capsys, "runs", "--group=adam.epsilon", "--metrics=accuracy:20", "--format=csv")
    groups = {row["epsilon"]: row["runs"] for row in csv.DictReader(io.StringIO(text))}
    assert groups == {"1e-07": "6", "": "1"}


def test_files_have_all_digits(seeds, capsys):
    """N22: CSV and JSON for a program, where a mean has three columns."""
    rows_of_file = list(csv.DictReader(io.StringIO(shown(capsys, "runs", "--format=csv"))))
    assert len(rows_of_file) == 7
    assert float(rows_of_file[0]["accuracy"]) == kinds.accuracy(12, 40)
    assert rows_of_file[-1]["notes"] == "exit code 1; error: ValueError: no"
    grouped = list(csv.DictReader(io.StringIO(shown(capsys, "runs", "--group=learning_rate", "--format=csv"))))
    assert {row["learning_rate"]: row["accuracy count"] for row in grouped} == {"0.01": "3", "0.001": "4"}
    assert all(float(row["accuracy std"]) > 0 for row in grouped)
    first, *_, last = json.loads(shown(capsys, "runs", "--metrics=accuracy:40", "--format=json"))
    assert (first["learning_rate"], first["took"], first["step"]) == (0.01, 100.0, 40)
    assert (last["run"], last["accuracy:40"]) == ("sgd", None), "what is missing is last, and not 0"


def test_names_that_a_page_or_a_terminal_would_obey(tmp_path, capsys, monkeypatch):
    """N34: they are text in each format, also as the name of a field."""
    monkeypatch.delenv("COLUMNS")
    for seed, (name, make) in enumerate(kinds.HOSTILE.items()):
        make(tmp_path / "runs" / name)
        with open(tmp_path / "runs" / name / "params.yaml", "a") as file:
            file.write(f'  "\\x1b[2Jname": {seed}\n')
    for words in (["--format=csv"], ["--format=json"], [], ["--group=status"], ["--where=step > 0"]):
        assert "\x1b" not in shown(capsys, "runs", *words)
    assert "\\x1b[2Jname" in shown(capsys, *(str(path) for path in (tmp_path / "runs").iterdir()))


def test_every_kind_of_directory_has_a_row_and_a_word_about_what_is_not_known(tmp_path, capsys, monkeypatch):
    """N22: running, failed, damaged, foreign, empty directories, and one that may not be read."""
    monkeypatch.delenv("COLUMNS")
    kinds.make_all(tmp_path / "runs")
    (tmp_path / "runs" / "shut").mkdir()
    kinds.refuse_to_list(monkeypatch, "shut")
    text = shown(capsys, "runs", "--metrics=accuracy").replace("\\", "")
    for name in {*kinds.KINDS, "shut"} - {"sweep", "nested"} | {"sweep/trials/3", "nested/group/two"}:
        assert name in text, name
    for word in ("running", "done", "stopped", "failed", "lost"):
        assert word in text, word
    for note in (
        "cannot be listed: Permission denied",
        "run.json is damaged",
        "run.json was changed: steps, best",
        "params.yaml is damaged",
        "no params.yaml: its config is not known",
        "its record says running, but no process holds it",
        "error: the loss is NaN at step 25",
        "of Model Garden's driver, which records no status",
        "ended early: pruned by its sweep",
        "holds no run",
    ):
        assert note in text, note


def test_a_sweep_says_what_its_trials_are_compared_by(tmp_path, capsys, monkeypatch):
    """N22: its metric decides, beside the metrics of the configs; a note says which was pruned."""
    kinds.sweep(tmp_path / "sweep")
    kinds.stand_in_for_sweeps(monkeypatch, "sweep", metric="validation_loss", direction="min")
    head, first, *others = rows(shown(capsys, "sweep"))
    assert head[2] == "validation_loss ↓" and first[2] == "0.075"
    assert [row[1] for row in others] == ["done", "done", "failed"]


# Two runs.


@pytest.fixture
def two(tmp_path):
    kinds.write_run(tmp_path / "a", seed=1)
    kinds.write_run(tmp_path / "b", seed=2, rate=0.01, optimizer="sgd", code=143, step=30)
    layout = {"replicas": 2, "pipelines": 1}
    kinds.change(tmp_path / "b", versions={"python": "3.12.0"}, input=layout, git_revision="2" * 40 + "-dirty")


def test_two_runs_in_all_that_differs(two, capsys):
    """N22: state, versions, data layout, config with what set each, metrics at equal steps, where they part."""
    text = shown(capsys, "a", "b")
    assert text.startswith("--- a\n+++ b\n\nRun\n\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "status done stopped",
        "step 40/40 30/40",
        "data layout: replicas 1 2",
        "- 0.001 configs/rate.yaml:3",
        "+ 0.01 configs/rate.yaml:3",
        f"validation/accuracy 30 {kinds.accuracy(1, 30):.6g} {kinds.accuracy(2, 30):.6g} +0.001",
        "train/training_loss 30 0.0666667 0.0666667 0",
        f"at step 10 (equal up to step 5): validation/accuracy {kinds.accuracy(1, 10)!r} and {kinds.accuracy(2, 10)!r}",
    ):
        assert line in lines, line
    assert any(line.startswith("version of python") for line in lines)
    assert any(line.startswith("git revision") for line in lines)
    assert "epsilon" not in text, "a branch that only one of them chose has no difference of its own"
    assert max(map(len, text.splitlines())) <= 80
    assert [row["run"] for row in json.loads(shown(capsys, "a", "b", "--format=json"))] == ["a", "b"]


def test_two_equal_runs_and_two_with_nothing_in_common(tmp_path, capsys):
    """N22: equal runs are so to the bit, also in NaN; a config that is not known is equal to none."""
    kinds.not_finite(tmp_path / "a")
    kinds.not_finite(tmp_path / "b")
    kinds.KINDS["without_metrics"](tmp_path / "c")
    kinds.KINDS["without_config"](tmp_path / "d")
    text = shown(capsys, "a", "b")
    assert "no field differs" in text and "\nRun\n" not in text
    assert "nowhere: all numbers of the 5 steps that both recorded are equal, every bit" in text
    assert "not known: they recorded nothing at the same step" in shown(capsys, "a", "c")
    assert "c: there is no metrics.jsonl" in shown(capsys, "a", "c")
    assert "\nConfig\n\n  not known\n" in shown(capsys, "a", "d")


def test_errors(seeds, tmp_path, capsys, request):
    """N7: the place, what is allowed and the nearest name."""
    (tmp_path / "none").mkdir()
    golden.check_refused("compare", request, capsys, "compare")
