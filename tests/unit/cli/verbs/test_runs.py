"""What `runs` shows of run directories, whatever state they are in."""

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from official_trainer import cli
from official_trainer.lock import DirectoryLock
from official_trainer.tracking.record import RunRecord
from tests.support import golden
from tests.support.reports import kinds

HOUR = 3600
NOW = 1_790_000_000
THEIRS = """runtime:
  loss_scale: null
task:
  model:
    filters:
    - 4
    - 8
trainer:
  best_checkpoint_eval_metric: accuracy
  best_checkpoint_export_subdir: best_ckpt
  train_steps: 40
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The folder of runs is `runs/` of the current directory, 80 columns wide, and the time stands still."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("official_trainer.cli.verbs.runs._now_seconds", lambda: NOW)
    (tmp_path / "runs").mkdir()


@pytest.fixture
def record(tmp_path):
    """Writes a run directory with the functions that a run writes it with, up to its end unless `code` is None."""

    def write(name, *, params="", code=0, hours_ago=3, step=20, best=None, experiment="digits"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        times = iter([NOW - hours_ago * HOUR] + [NOW - HOUR] * 50)
        launch = {"mode": "train_and_eval", "argv": [], "config_digest": "0"}
        written = RunRecord(str(folder), {"experiment": experiment, **launch}, clock=lambda: next(times))
        written.start()
        written.set_span(0, 40)
        written.phase("train", step)
        if best is not None:
            written.set_best("accuracy", best, step)
        if code is not None:
            written.finish(code)
        text = f"# experiment: {experiment}\ntask:\n  seed: 0\ntrainer:\n  train_steps: 40\n{params}"
        (folder / "params.yaml").write_text(text)
        return folder

    return write


def shown(capsys, *words):
    """Returns the lines that `runs` prints."""
    assert cli.main(["runs", *words]) == 0
    return capsys.readouterr().out.splitlines()


def row(lines, name):
    """Returns the line of a run without its name, and the lines below it that are indented."""
    start = next(i for i, line in enumerate(lines) if line.split()[:1] == [name])
    below = lines[start + 1 :]
    end = next((i for i, line in enumerate(below) if not line.startswith(" ")), len(below))
    return " ".join(" ".join([lines[start].removeprefix(name), *below[:end]]).split())


def test_a_row_has_what_the_record_says(record, capsys):
    """N29: experiment, status, step of how many, best metric, age and duration of each run are in its row."""
    record("good", best=0.97)
    assert shown(capsys)[0].split() == ["run", "experiment", "status", "step", "best", "age", "took"]
    assert row(shown(capsys), "good") == "digits done 20/40 accuracy 0.97 3 h 2 h"


def test_only_fields_that_differ_are_shown_under_short_names(record, capsys):
    """N29: fields that are equal in all runs of an experiment are left out, like comments and other experiments."""
    record("one", params="  rate: 1e-05  # --set\n  kept: [1, 2]\nruntime:\n  rate: 1\n")
    record("two", params="  rate: 0.00001\n  kept: [1,  2]\nruntime:\n  rate: 2\n")
    record("three", params="  rate: 0.1  # experiment\n  kept: [1, 2]\nruntime:\n  rate: 1\n")
    record("another", params="  other: 1\n", experiment="words")
    lines = shown(capsys)
    assert row(lines, "one").endswith("2 h trainer.rate=1.0e-05 runtime.rate=1")
    assert row(lines, "two").endswith("2 h trainer.rate=1.0e-05 runtime.rate=2")
    assert row(lines, "three").endswith("2 h trainer.rate=0.1 runtime.rate=1")
    assert row(lines, "another").endswith("2 h")


def test_fields_of_another_choice_are_no_difference(record, capsys):
    """N29: of two optimizers, the type is shown, and not each field that only one of them has."""
    record("one", params="  optimizer:\n    type: adam\n    adam:\n      epsilon: 1\n      beta: 1\n")
    record("two", params="  optimizer:\n    type: sgd\n    sgd:\n      momentum: 0.5\n")
    record("three", params="  optimizer:\n    type: adam\n    adam:\n      epsilon: 2\n      beta: 1\n  new: 1\n")
    lines = shown(capsys)
    assert row(lines, "one").endswith("2 h optimizer.type=adam epsilon=1 new=–")
    assert row(lines, "two").endswith("2 h optimizer.type=sgd new=–")
    assert row(lines, "three").endswith("2 h optimizer.type=adam epsilon=2 new=1")


def test_fields_inside_lists_and_long_values_are_compared_too(record, capsys):
    """N29: items of lists have paths of their own; a value over several lines is one value."""
    record("one", params="  actions:\n    - type: csv\n      every: 5\n  many:\n  - 1\n  - 2\n")
    record("two", params="  actions:\n    - type: csv\n      every: 6\n  many:\n  - 1\n  - 3\n")
    assert row(shown(capsys), "two").endswith("2 h every=6 many=[1, 3]")


@pytest.mark.parametrize(
    ("code", "status"),
    [(0, "done"), (143, "stopped"), (5, "failed"), (1, "failed")],
)
def test_how_a_run_ended(record, capsys, code, status):
    """N29: the status tells apart runs that are done, were stopped and failed, these with their exit code."""
    record("mine", code=code)
    assert f"digits {status} 20/40" in row(shown(capsys), "mine")
    assert (f"(exit code {code})" in row(shown(capsys), "mine")) == (status == "failed")


def test_a_run_that_goes_on(record, capsys):
    """N29: a run whose process holds its directory is running."""
    folder = record("mine", code=None)
    with DirectoryLock(folder):
        assert "digits running 20/40" in row(shown(capsys), "mine")


def test_a_run_on_another_machine_runs_while_its_lock_is_renewed(record, capsys):
    """N29: of a process on another machine, the time of its lock decides."""
    folder = record("mine", code=None)
    status = json.loads((folder / "status.json").read_text())
    (folder / "status.json").write_text(json.dumps({**status, "host": "elsewhere"}))
    (folder / ".lock.json").write_text("{}")
    os.utime(folder / ".lock.json", (NOW - 5, NOW - 5))
    assert "digits running 20/40" in row(shown(capsys), "mine")
    os.utime(folder / ".lock.json", (NOW - 60, NOW - 60))
    assert "digits lost 20/40" in row(shown(capsys), "mine")


def test_a_run_whose_process_was_killed(record, capsys):
    """N29: a record that says running is not believed when its process is gone."""
    folder = record("mine", code=None)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    values = {"phase": "train", "step": 21, "pid": gone.pid, "host": socket.gethostname()}
    (folder / "status.json").write_text(json.dumps(values))
    (folder / ".lock.json").write_text("{}")
    found = row(shown(capsys), "mine")
    assert "digits lost 21/40" in found
    assert "(its record says running, but no process holds it)" in found


def test_damaged_and_half_written_files(record, capsys):
    """N29: a run of which a file is damaged has a row with what the others say, and a word about that file."""
    cut = record("cut")
    (cut / "run.json").write_text((cut / "run.json").read_text()[:50])
    (cut / "metrics.jsonl").write_text('{"step": 10, "split": "tr')
    (cut / "ckpt-30.manifest.json").write_text("{}")
    changed = record("changed")
    (changed / "run.json").write_text(
        '{"steps": 3, "best": [1], "time": {"total": "x"}, "started": 4, "status": "done"}'
    )
    vast = record("vast")
    content = json.loads((vast / "run.json").read_text())
    (vast / "run.json").write_text(json.dumps({**content, "best": {"metric": "accuracy", "value": 10**400}}))
    gone = record("gone")
    for name in ("run.json", "status.json"):
        (gone / name).unlink()
    dark = record("dark")
    (dark / "params.yaml").unlink()
    (dark / "params.yaml").mkdir()
    lines = shown(capsys)
    assert row(lines, "cut").startswith("digits done 30/40")
    assert "(run.json is damaged)" in row(lines, "cut")
    assert row(lines, "changed").startswith("digits done 20/40")
    assert row(lines, "vast").startswith("digits done 20/40")
    assert row(lines, "gone").startswith("digits lost")
    assert "(params.yaml cannot be read: " in row(lines, "dark")


def test_what_model_garden_left(tmp_path, capsys):
    """N29: a run of Model Garden's driver is shown as one, with steps, best metric and what differs."""
    for name, steps in (("one", 40), ("two", 80), ("full", 20)):
        folder = tmp_path / "runs" / name
        (folder / "best_ckpt").mkdir(parents=True)
        (folder / "params.yaml").write_text(THEIRS.replace("train_steps: 40", f"train_steps: {steps}"))
        (folder / "ckpt-20.index").touch()
        (folder / "best_ckpt" / "info.json").write_text('{"accuracy": 0.5, "best_ckpt_global_step": 20.0}')
        os.utime(folder / "params.yaml", (NOW - 2 * HOUR, NOW - 2 * HOUR))
    note = "(of Model Garden's driver, which records no status)"
    assert row(shown(capsys), "two") == f"stopped 20/80 accuracy 0.5 2 h train_steps=80 {note}"
    assert row(shown(capsys), "full").startswith("done 20/20")


def test_checkpoints_alone(tmp_path, capsys):
    """N29: a folder with nothing but checkpoints is shown with their last step."""
    (tmp_path / "runs" / "bare").mkdir()
    (tmp_path / "runs" / "bare" / "ckpt-7.index").touch()
    start = "lost 7 (no params.yaml: its config is not known) (without a whole run.json its status is not known)"
    assert row(shown(capsys), "bare") == start


def test_folders_without_a_run(record, tmp_path, capsys, monkeypatch):
    """N29: empty folders, others and those without permission are named; hidden ones are not."""
    record("good")
    for name in ("void", "shut", ".hidden"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "papers").mkdir()
    (tmp_path / "runs" / "papers" / "text.md").touch()
    kinds.refuse_to_list(monkeypatch, "shut")
    lines = shown(capsys)
    assert row(lines, "void") == "(is empty)"
    assert row(lines, "papers") == "(holds no run)"
    assert row(lines, "shut") == "(cannot be listed: Permission denied)"
    assert not any(".hidden" in line for line in lines)


def test_nested_folders_and_links_in_a_circle(record, tmp_path, capsys):
    """N29: runs further down are found, each once; links that lead round are no trouble."""
    record("sweep/lr/one")
    (tmp_path / "runs" / "sweep" / "up").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "round").symlink_to("round")
    (tmp_path / "runs" / "twice").symlink_to(tmp_path / "runs" / "sweep" / "lr" / "one")
    names = [line.split()[0] for line in shown(capsys)[1:]]
    assert names == ["sweep/lr/one"]


def test_many_and_long_differences_are_cut_in_the_table_alone(record, capsys):
    """N29: ten fields and the ends of long values are shown; JSON has all of it."""
    for value in (1, 2):
        params = "".join(f"  field_{i}: {value}\n" for i in range(11)) + f"  path: {'long/' * 20}{value}\n"
        record(f"run-{value}", params=f"  where: {'deep/' * 20}{value}\n{params}")
    found = row(shown(capsys), "run-2")
    assert re.search(r" where=deep/deep/deep/deep/…eep/deep/2 field_0=2 .* field_8=2 and 3 more$", found)
    assert cli.main(["runs", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["runs"][0]["differs"]) == 13


def test_tasks_of_model_garden_of_two_kinds_are_not_compared(tmp_path, capsys):
    """N29: its driver records no experiment, so the fields of the task tell which runs belong together."""
    for name, text in (("one", THEIRS), ("two", THEIRS.replace("task:\n", "task:\n  annotation_file: null\n"))):
        (tmp_path / "runs" / name).mkdir()
        (tmp_path / "runs" / name / "params.yaml").write_text(text)
    assert "annotation_file" not in "".join(shown(capsys))


@pytest.mark.parametrize("columns", [80, 120, 400])
def test_lines_fit_the_terminal_and_break_between_words(record, capsys, monkeypatch, columns):
    """N29: no line is wider than the terminal; what differs stands below the row, what is left out at the end."""
    monkeypatch.setenv("COLUMNS", str(columns))
    fields = [f"a_field_with_a_long_name_{i}" for i in range(8)]
    for value in (1, 2):
        params = "".join(f"  {field}: {value}\n" for field in fields)
        run = record(f"classifier-of-noisy-images-{value}", params=params, experiment="a_long_experiment", best=0.5)
        text = (run / "run.json").read_text().replace('"accuracy"', '"the_top_1_accuracy_of_validation"')
        (run / "run.json").write_text(text)
    lines = shown(capsys)
    assert max(map(len, lines)) <= columns
    words = " ".join(lines).split()
    assert all(f"{field}=2" in words for field in fields)
    assert "differs" not in lines[0]
    is_narrow = columns == 80
    assert ("left out, as the terminal is narrow: age, experiment, took; --json has all" in lines[-1:]) == is_narrow
    assert any("the_top" in line and "…" in line for line in lines) == is_narrow


def test_a_pipe_gets_one_line_for_each_run(record, capsys, monkeypatch):
    """N29: what `grep` gets is one line for each run, however long."""
    monkeypatch.delenv("COLUMNS")
    for value in (1, 2):
        record(f"run-{value}", params="".join(f"  a_long_name_of_a_field_{i}: {value}\n" for i in range(30)))
    lines = shown(capsys)
    assert len(lines) == 3
    assert lines[0].split()[-1] == "differs"


def test_orders(record, capsys):
    """N29: the newest run is first, or the one that `--sort` asks for; what is not known comes last."""
    record("a", hours_ago=3, best=0.5, step=5)
    record("b", hours_ago=2, best=0.9, step=1)
    record("c", hours_ago=9, step=30)

    def names(*words):
        return [line.split()[0] for line in shown(capsys, *words) if re.match("[abc] ", line)]

    assert names() == ["b", "a", "c"]
    assert names("--sort=best") == ["b", "a", "c"]
    assert names("--sort=step") == ["c", "a", "b"]
    assert names("--sort=took") == ["c", "a", "b"]
    assert names("--sort=run") == ["a", "b", "c"]


def test_the_best_is_the_lowest_where_the_config_says_so(record, capsys):
    """N29: `--sort=best` knows the direction of the metric."""
    for name, loss in (("a", 0.5), ("b", 0.1)):
        record(name, best=loss, params="  best_checkpoint_metric_comp: lower\n")
    lines = shown(capsys, "--sort=best")
    assert [line.split()[0] for line in lines[1:]] == ["b", "a"]


def test_json(record, capsys):
    """N29: a program gets all of it, with times in seconds, and numbers that are not finite as strings."""
    record("one", best=float("nan"), params="  rate: 1\n")
    record("two", best={"a": 1.5}, params="  rate: 2\n", code=None)
    assert cli.main(["runs", "runs", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    two, one = sorted(report["runs"], key=lambda each: each["directory"], reverse=True)
    assert one == {
        "directory": "runs/one",
        "status": "done",
        "experiment": "digits",
        "step": 20,
        "end_step": 40,
        "metric": "accuracy",
        "best": "NaN",
        "started_seconds": NOW - 3 * HOUR,
        "duration_seconds": 2 * HOUR,
        "notes": [],
        "differs": {"trainer.rate": "1"},
    }
    assert two["best"] == {"a": 1.5}
    assert two["duration_seconds"] is None


def test_names_that_a_terminal_would_obey(record, tmp_path, capsys):
    """N34: control characters in a record or a name are shown, not obeyed."""
    record("good", experiment="\x1b[31mred")
    (tmp_path / "runs" / "\x1b[2Jbad").mkdir()
    out = "\n".join(shown(capsys))
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out
    assert "\\x1b[2Jbad" in out


def test_one_run_itself_and_no_runs(record, tmp_path, capsys):
    """N29: a run directory is a table of one; a folder without any says how to make one."""
    record("one")
    assert row(shown(capsys, "runs/one"), "one").startswith("digits done")
    (tmp_path / "none").mkdir()
    assert shown(capsys, "none") == ["no runs in none; `official-trainer train EXPERIMENT` makes one"]


def test_errors(capsys, request):
    golden.check_refused("runs", request, capsys, "runs")


def test_the_folder_of_the_workspace_is_the_default(workspace, capsys):
    """N29: without a folder it is `runs/` of the workspace, from anywhere in it."""
    (workspace / "runs" / "one").mkdir(parents=True)
    assert row(shown(capsys), "one") == "(is empty)"
