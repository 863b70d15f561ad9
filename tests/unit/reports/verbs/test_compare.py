"""What `compare` shows of runs, in whatever state they are."""

import csv
import io
import json
import re
import sys

import pytest

from official_trainer import cli
from official_trainer.reports import content, gathered
from tests.support import repository
from tests.support.reports import kinds

RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"


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
    """N22: the best first; metrics with their direction, the fields that differ, status, and why a run failed."""
    text = shown(capsys, "runs")
    head, first, *_, last = rows(text)
    assert head[:5] == ["run", "accuracy ↑", "accuracy last", "optimizer.type", "learning_rate"]
    assert first[:5] == ["r0.01-2", f"{kinds.accuracy(12, 40):.4g}", f"{kinds.accuracy(12, 40):.4g}", "adam", "0.01"]
    assert last[0] == "sgd"
    assert "failed" in last
    assert "sgd: exit code 1\nsgd: error: ValueError: no\n" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "train_steps" not in text
    assert "tensorflow" not in sys.modules


@pytest.mark.parametrize("columns", [40, 80, 120, 200])
def test_it_fits_the_terminal_and_names_what_it_left_out(seeds, capsys, monkeypatch, columns):
    """N22: columns of fields and facts are left out, never metrics or the status."""
    monkeypatch.setenv("COLUMNS", str(columns))
    text = shown(capsys, "runs")
    head = " ".join(rows(text)[0])
    said = " ".join(text.partition("\n\n")[2].split())
    assert max(map(len, text.splitlines())) <= max(columns, 50)
    for title in ("learning_rate", "seed", "took", "examples/s"):
        assert (title in head) != (title in said), title
    assert "status" in head
    assert ("no room for" in said) == (columns < 120)


def test_a_pipe_has_all_columns(seeds, capsys, monkeypatch):
    """N22: and one line for each run."""
    monkeypatch.delenv("COLUMNS")
    head, first, *_ = rows(shown(capsys, "runs"))
    assert head[-3:] == ["step", "took", "examples/s"]
    assert first[-3:] == ["40", "1 min 40 s", "32"]


@pytest.mark.parametrize(
    ("conditions", "left"),
    [
        (["optimizer.type=sgd"], ["sgd"]),
        (["trainer.optimizer_config.optimizer.type!=adam"], ["sgd"]),
        (["learning_rate>=0.01", "seed<12"], ["r0.01-1", "r0.01-0"]),
        (["learning_rate<=0.001", "seed > 1"], ["r0.001-2", "r0.001-1", "sgd"]),
        (["status=failed"], ["sgd"]),
        (["best>0.881"], ["r0.01-2", "r0.01-1", "r0.01-0"]),
        (["hidden=[8]", "run=r0.01-1"], ["r0.01-1"]),
        (["adam.epsilon=1e-7", "seed=2"], ["r0.001-1"]),
        (["adam.epsilon!=1e-7"], ["sgd"]),
        (["took>100"], []),
    ],
)
def test_conditions(seeds, capsys, conditions, left):
    """N22: by a path, its end, or what is known of a run; all of them hold."""
    words = ["compare", "runs", *(f"--where={each}" for each in conditions)]
    if left:
        assert cli.main(words) == 0
        assert names(capsys.readouterr().out) == left
    else:
        assert cli.main(words) == 2
        assert "none of 7 runs is left by --where=took>100" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("order", "first", "last"),
    [
        ("run", "r0.001-0", "sgd"),
        ("-run", "sgd", "r0.001-0"),
        ("accuracy", "r0.01-2", "sgd"),
        ("-accuracy", "sgd", "r0.01-2"),
        ("runtime.seed", "r0.001-0", "r0.01-2"),
        ("-seed", "r0.01-2", "r0.001-0"),
        ("step", "sgd", "r0.01-2"),
    ],
)
def test_orders(seeds, capsys, order, first, last):
    """N22: by any column, and the other way round."""
    found = names(shown(capsys, "runs", f"--sort={order}"))
    assert (found[0], found[-1]) == (first, last)


def test_metrics_at_their_best_at_the_end_and_at_a_step(seeds, capsys, monkeypatch):
    """N22: of evaluations and of training; the direction is the config's or the user's, and not guessed."""
    monkeypatch.setenv("COLUMNS", "120")
    metrics = "--metrics=accuracy,validation_loss:min,accuracy:10,train/training_loss"
    head, first = rows(shown(capsys, "runs", metrics, "--where=seed=1"))
    assert head[:5] == ["run", "accuracy ↑", "validation_loss ↓", "accuracy @10", "train/training_loss last"]
    best, early = (f"{kinds.accuracy(1, step):.4g}" for step in (40, 10))
    assert first[:5] == ["r0.001-0", best, "0.075", early, "0.05"]


def test_groups_have_means_and_deviations_over_seeds(seeds, capsys):
    """N22: with n, and a word about what else differs inside of a group."""
    text = shown(capsys, "runs", "--group=learning_rate", "--metrics=accuracy:20")
    head, *found = rows(text)
    assert head[:4] == ["learning_rate", "accuracy @20", "n", "status"]
    mean = sum(kinds.accuracy(seed, 20) for seed in (10, 11, 12)) / 3
    assert found[0][:4] == ["0.01", f"{mean:.4f} ± 0.0010", "3", "3 done"]
    assert [row[2] for row in found] == ["3", "4"]
    assert "3 done, 1 failed" in text
    assert "inside of groups these fields differ too: optimizer.type" in text
    alone = rows(shown(capsys, "runs", "--group=optimizer.type,experiment", "--metrics=accuracy:20"))
    assert [row[:4] for row in alone if row[0] == "sgd"] == [["sgd", "digits", f"{kinds.accuracy(9, 20):.4g}", "1"]]


def test_chosen_fields(seeds, capsys):
    """N22: also fields that do not differ."""
    head, first, *_ = rows(shown(capsys, "runs", "--fields=train_steps,hidden", "--metrics=accuracy"))
    assert head[:4] == ["run", "accuracy ↑", "train_steps", "hidden"]
    assert first[2:4] == ["40", "[8]"]


def test_csv_has_all_digits_and_whole_paths(seeds, capsys):
    """N22: for a program; a mean has three columns."""
    found = list(csv.DictReader(io.StringIO(shown(capsys, "runs", "--format=csv"))))
    assert len(found) == 7
    assert float(found[0]["accuracy:max"]) == kinds.accuracy(12, 40)
    assert found[0][RATE] == "0.01"
    assert found[-1]["notes"] == "exit code 1; error: ValueError: no"
    grouped = list(csv.DictReader(io.StringIO(shown(capsys, "runs", f"--group={RATE}", "--format=csv"))))
    assert {row[RATE]: row["accuracy:max n"] for row in grouped} == {"0.01": "3", "0.001": "4"}
    assert all(float(row["accuracy:max std"]) > 0 for row in grouped)


def test_json_has_values_as_they_are(seeds, capsys):
    """N22: numbers of fields are numbers, and what is not there is null."""
    report = json.loads(shown(capsys, "runs", "--format=json"))
    assert report["columns"][1] == {"key": "accuracy:max", "title": "accuracy ↑", "direction": "max"}
    assert report["rows"][0][RATE] == 0.01
    assert report["rows"][0]["took_seconds"] == 100.0
    at_40 = json.loads(shown(capsys, "runs", "--metrics=accuracy:40", "--format=json"))["rows"]
    assert [row["accuracy:40"] is None for row in at_40] == [False] * 6 + [True], "what is missing is last, and not 0"
    grouped = json.loads(shown(capsys, "runs", "--group=status", "--format=json"))["rows"]
    assert grouped[1]["accuracy:max"] == {"mean": kinds.accuracy(9, 20), "std": None, "n": 1}


def test_names_that_a_page_or_a_terminal_would_obey(tmp_path, capsys, monkeypatch):
    """N34: they are text in each format."""
    monkeypatch.delenv("COLUMNS")
    for name, make in kinds.HOSTILE.items():
        make(tmp_path / "runs" / name)
    formats = ("table", "markdown", "latex", "csv", "json")
    table, markdown, latex, *others = (shown(capsys, "runs", f"--format={each}") for each in formats)
    assert not any("\x1b" in each for each in (table, markdown, latex, *others))
    assert "\\<script\\>alert('x')\\<" in markdown
    assert r"red \& \\textbf{x} \| \`\_\` 100 %" in markdown
    assert all(line.replace("\\|", "").count("|") == 9 for line in markdown.splitlines() if line.startswith("|"))
    assert r"red \& \textbackslash{}textbf\{x\} \textbar{} `\_` 100 \%" in latex
    lines = [line for line in latex.splitlines() if line.endswith("\\\\")]
    assert {len(re.findall(r"(?<!\\)&", line)) for line in lines} == {7}
    assert len(json.loads(shown(capsys, "runs", "--format=json"))["rows"]) == 2


def test_a_field_with_a_hostile_name(tmp_path, capsys):
    """N34: a `params.yaml` may come from others."""
    for seed in (1, 2):
        with open(kinds.write_run(tmp_path / "runs" / str(seed), seed=seed) / "params.yaml", "a") as file:
            file.write(f"  \x1b[2Jname: {seed}\n")
    for words in (["runs"], ["runs", "--group=status"], ["runs", "--format=csv"], ["runs/1", "runs/2"]):
        text = shown(capsys, *words)
        assert "\x1b" not in text
        assert "\\x1b[2Jname" in text


def test_the_best_is_bold_in_a_paper(seeds, capsys):
    """N22: in Markdown and LaTeX, means too."""
    best = f"{kinds.accuracy(12, 40):.4g}"
    assert f"| **{best}** | **{best}** |" in shown(capsys, "runs", "--format=markdown")
    latex = shown(capsys, "runs", "--group=learning_rate", "--format=latex")
    assert latex.count(r"\textbf{") == 2
    assert f"\\textbf{{{kinds.accuracy(11, 40):.4f} $\\pm$ 0.0010}}" in latex


def test_runs_that_never_began_are_left_out_of_a_folder(seeds, tmp_path, capsys):
    """N22: a wrong path or a bad file leaves one each time; one that is named or asked for is there."""
    for name in ("bad-1", "bad-2"):
        kinds.write_run(tmp_path / "runs" / name, optimizer="lamb", code=3, step=0, error="DataError: no file")
    assert cli.main(["compare", "runs"]) == 0
    text, said = capsys.readouterr()
    assert len(names(text)) == 7 and "bad" not in text and "lamb" not in text
    assert said == (
        "note: 2 runs that failed before the first step are left out; --where=status=failed shows what failed\n"
    )
    assert set(names(shown(capsys, "runs", "--where=status=failed"))) == {"sgd", "bad-1", "bad-2"}
    assert {"bad-1"} == {name for name in names(shown(capsys, "runs", "runs/bad-1")) if name.startswith("bad")}
    assert "bad-1" in names(shown(capsys, "runs/bad-1", "runs/sgd", "--metrics=accuracy"))


@pytest.mark.parametrize("written", ["table", "csv", "json", "markdown", "latex"])
def test_every_kind_of_directory_has_a_row_and_a_word_about_what_is_not_known(tmp_path, capsys, monkeypatch, written):
    """N22: running, failed, damaged, old, foreign, empty directories, and one that may not be read."""
    monkeypatch.delenv("COLUMNS")
    kinds.make_all(tmp_path / "runs")
    (tmp_path / "runs" / "shut").mkdir()
    kinds.refuse_to_list(monkeypatch, "shut")
    text = shown(capsys, "runs", f"--format={written}", "--metrics=accuracy")
    escaped = text.replace("\\", "")
    for name in {*kinds.KINDS, "shut"} - {"sweep", "nested"}:
        assert name in escaped, name
    for name in ("sweep/trials/3", "nested/group/two"):
        assert name in escaped
    for word in ("running", "died", "preempted", "stalled", "failed", "Model Garden", "unknown", "empty", "no run"):
        assert word in text, word
    for note in (
        "cannot be listed: Permission denied",
        "run.json is damaged",
        "run.json was changed: steps, best",
        "params.yaml is damaged",
        "no params.yaml: its config is not known",
        "its record says running, but no process holds it",
        "error: the loss is NaN at step 25",
        "no run.json and no params.yaml: only its checkpoints are known",
    ):
        assert note in escaped, note


# Two runs.


@pytest.fixture
def two(tmp_path):
    kinds.write_run(tmp_path / "a", seed=1)
    kinds.write_run(tmp_path / "b", seed=2, rate=0.01, optimizer="sgd", code=143, step=30)
    layout = {"replicas": 2, "pipelines": 1, "order": "global"}
    kinds.change(tmp_path / "b", versions={"python": "3.12.0"}, input=layout, git_revision="2" * 40 + "-dirty")


def test_two_runs_in_all_that_differs(two, capsys):
    """N22: state, versions, data layout, config with what set each, code, metrics at equal steps, where they part."""
    text = shown(capsys, "a", "b")
    assert text.startswith("--- a\n+++ b\n\nRun\n\n")
    lines = [" ".join(line.split()) for line in text.splitlines()]
    for line in (
        "status done → preempted",
        "step 40/40 → 30/40",
        "data layout: replicas 1 → 2",
        "trainer.optimizer_config.optimizer.type",
        "- adam --set",
        "+ sgd --set",
        "- 0.001 configs/rate.yaml:3",
        "+ 0.01 configs/rate.yaml:3",
        "b was started with changes that were not committed, and which are not known",
        f"validation/accuracy 30 {kinds.accuracy(1, 30):.6g} {kinds.accuracy(2, 30):.6g} +0.001",
        "train/training_loss 30 0.0666667 0.0666667 0",
        f"at step 10 (equal up to step 5): validation/accuracy {kinds.accuracy(1, 10)!r} and {kinds.accuracy(2, 10)!r}",
    ):
        assert line in lines, line
    assert any(line.startswith("version of python") for line in lines)
    assert "epsilon" not in text, "a branch that only one of them chose has no difference of its own"
    assert max(map(len, text.splitlines())) <= 80


def test_what_was_set_in_a_branch_that_one_of_two_runs_chose(two, tmp_path, capsys):
    """N22: it differs, though the other run has no such field; a default of the branch does not."""
    params = tmp_path / "b" / "params.yaml"
    default = "        epsilon: 1.0e-07\n"
    params.write_text(params.read_text().replace(default, f"        momentum: 0.5  # --set\n{default}"))
    lines = [" ".join(line.split()) for line in shown(capsys, "a", "b").splitlines()]
    at = lines.index("trainer.optimizer_config.optimizer.sgd.momentum")
    assert lines[at + 1 : at + 3] == ["- not there", "+ 0.5 --set"]
    assert not any("epsilon" in line for line in lines)


def test_two_equal_runs(tmp_path, capsys):
    """N22: it says so, to the bit."""
    for name in ("a", "b"):
        kinds.write_run(tmp_path / name)
    text = shown(capsys, "a", "b")
    assert "no field differs" in text
    assert "nowhere: all numbers of the 8 steps that both recorded are equal, every bit" in text
    assert "\nRun\n" not in text


def test_a_config_that_is_not_known_is_not_compared(tmp_path, capsys):
    """N22: not with one that is known, and two that are not known are not equal."""
    for name in ("a", "b", "c"):
        kinds.write_run(tmp_path / name)
        if name != "a":
            (tmp_path / name / "params.yaml").unlink()
    for first in ("a", "b"):
        text = shown(capsys, first, "c")
        assert "\nConfig\n\n  not known\n" in text and "no params.yaml: its config is not known" in text
    assert json.loads(shown(capsys, "a", "c", "--format=json"))["differences"] is None


def test_two_runs_show_what_differs_in_their_code(tmp_path, monkeypatch, capsys):
    """N22: the difference of their commits, and what was changed and not committed; of a long one the beginning."""
    workspace = repository.make(tmp_path / "workspace")
    (workspace / "experiments").mkdir()
    monkeypatch.chdir(workspace)
    commits = [repository.commit(workspace, text) for text in ("one\n", "\x1b[31mtwo\n" * 100)]
    for name, commit in zip(("a", "b", "c"), (*commits, commits[1]), strict=True):
        kinds.write_run(workspace / "runs" / name)
        kinds.change(workspace / "runs" / name, git_revision=commit if name == "a" else f"{commit}-dirty")
    for name in ("b", "c"):
        (workspace / "runs" / name / "git.diff").write_text("--- a/x\n+++ b/x\n+https://me:secret@host\n")
    for name, revision in (("d", "--output=stolen"), ("e", "f" * 40)):
        kinds.write_run(workspace / "runs" / name)
        kinds.change(workspace / "runs" / name, git_revision=revision)
    text = shown(capsys, "runs/a", "runs/b")
    assert " x | 101 +" in text
    assert "Code" not in shown(capsys, "runs/a", "runs/d") and not (workspace / "stolen").exists()
    assert f"the repository here lacks one of them; git diff {commits[0][:10]}" in shown(capsys, "runs/a", "runs/e")
    assert f"  {commits[0][:10]} → {commits[1][:10]}:\n\n    diff --git a/x b/x\n" in text
    assert "    -one\n    +\\x1b[31mtwo\n" in text
    assert f"    … 46 more lines: git diff {commits[0][:10]} {commits[1][:10]}\n" in text
    assert "  not committed, b:\n\n    --- a/x\n    +++ b/x\n    +https://me:***@host\n" in text
    both = shown(capsys, "runs/b", "runs/c")
    assert both.count("+++ b/x") == 1
    assert "not committed, the same in both:" in both
    assert cli.main(["compare", "runs/a", "runs/b", "--format=json"]) == 0
    between, own = json.loads(capsys.readouterr().out)["changes"]
    assert between["text"].count("two\n") == 100
    assert own["title"] == "not committed, b"
    (workspace / "runs" / "b" / "git.diff").unlink()
    (workspace / "runs" / "b" / "git.diff").mkdir()
    said = shown(capsys, "runs/a", "runs/b")
    assert "b was started with changes that were not committed, and which cannot be read: " in said


def test_two_runs_for_programs(two, capsys):
    """N22: the same as JSON."""
    report = json.loads(shown(capsys, "a", "b", "--format=json"))
    assert {"name": "status", "before": "done", "after": "preempted"} in report["facts"]
    assert {
        "path": "runtime.seed",
        "before": {"value": 1, "origin": "--set"},
        "after": {"value": 2, "origin": "--set"},
    } in report["differences"]
    assert report["parting"]["step"] == 10
    assert report["parting"]["equal_until"] == 5


def test_two_runs_of_two_experiments_and_with_nothing_in_common(tmp_path, capsys):
    """N22: what both have is compared; a default of the one that the other does not have is no difference."""
    kinds.write_run(tmp_path / "a")
    kinds.of_an_earlier_version(tmp_path / "b")
    kinds.without_metrics(tmp_path / "c")
    text = shown(capsys, "a", "b")
    assert "experiment" in text
    assert "steps_per_loop" in text, "which that experiment sets"
    assert "tfds_name" not in text
    assert "not known: they recorded nothing at the same step" in shown(capsys, "a", "c")
    assert "c: no metrics: there is no metrics.jsonl" in shown(capsys, "a", "c")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "name runs, or a folder of runs, such as `official-trainer compare runs`"),
        ([""], "the name of the run directory is empty: is a variable not set?"),
        (["gs://b/runs"], "gs://b/runs: only local run directories are read; mount the bucket, or copy the run"),
        (["rums"], "there is no folder rums; did you mean runs?"),
        (["runs/sgd/run.json"], "runs/sgd/run.json cannot be listed: Not a directory; name a run directory"),
        (["runs/sgd"], "there is one run, runs/sgd, and comparing takes two; `official-trainer show runs/sgd`"),
        (["none"], "no runs in none; `official-trainer train EXPERIMENT` makes one"),
        (["runs", "--format=tabel"], "--format=tabel: expected one of table, csv, .*; did you mean table?"),
        (["runs", "--where=optimiser.type=adam"], "--where=optimiser.type: no run has such a field; did you mean"),
        (["runs", "--where=zzzzz=1"], "no run has such a field; beside fields of configs there are run, experiment"),
        (["runs", "--where=type=adam"], "--where=type: several fields end so: task.model.type, .*; write more"),
        (["runs", "--where=seed"], "--where=seed: write FIELD, one of = != < <= > >=, and a value"),
        (["runs", "--where=optimizer.type<adam"], "<adam: only numbers are larger or smaller; use = or !="),
        (["runs", "--group=learning_rat"], "--group=learning_rat: no run has such a field; did you mean learning_rate"),
        (["runs", "--metrics=acuracy"], "--metrics=acuracy: no run has recorded it; did you mean accuracy?"),
        (["runs", "--metrics=zzzzzz"], "--metrics=zzzzzz: no run has recorded it; they have "),
        (["runs", "--metrics=accuracy:33"], "--metrics=accuracy:33: no run has recorded accuracy at step 33"),
        (["runs", "--metrics=accuracy:maz"], "--metrics=accuracy:maz: allowed: NAME, .*; did you mean accuracy:max?"),
        (["runs", "--sort=acuracy"], "--sort=acuracy: there is no such column; did you mean accuracy?"),
        (["runs", "--sort=zzzzzz"], "--sort=zzzzzz: there is no such column; columns: run, accuracy"),
        (["runs", "--group=seed", "--fields=seed"], "--group and --fields cannot be combined"),
    ],
)
def test_errors(seeds, tmp_path, capsys, words, message):
    """N7: the place, what is allowed and the nearest name."""
    (tmp_path / "none").mkdir()
    assert cli.main(["compare", *words]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert re.search(message.replace("?", r"\?"), said), said


def test_a_seed_that_diverged_is_not_hidden_in_a_mean(tmp_path, capsys):
    """N22: the mean of NaN and a number is NaN."""
    for seed in (1, 2):
        kinds.write_run(tmp_path / "runs" / str(seed), seed=seed)
    kinds.append(tmp_path / "runs" / "1", '{"step": 45, "split": "validation", "loss": "NaN"}', "")
    kinds.append(tmp_path / "runs" / "2", '{"step": 45, "split": "validation", "loss": 1.0}', "")
    text = shown(capsys, "runs", "--group=experiment", "--metrics=loss:last")
    assert rows(text)[1][:3] == ["digits", "NaN", "2"]


def test_a_rule_of_several_numbers_is_no_column(tmp_path, capsys):
    """N22: what such a rule compares is in the metrics, by name."""
    for name in ("a", "b"):
        kinds.by_a_rule(tmp_path / "runs" / name)
    assert rows(shown(capsys, "runs"))[0] == ["run", "status", "step", "took", "examples/s"]


def test_trials_of_a_sweep_are_compared_by_its_metric(tmp_path, capsys):
    """N22: with its direction; values that were drawn are short in a table, and whole for programs."""
    kinds.sweep(tmp_path / "sweep")
    objective = {"metric": "validation_loss", "direction": "min", "others": {}}
    identity = {"experiment": "digits", "sweep": {"objective": objective}}
    (tmp_path / "sweep" / "sweep.json").write_text(json.dumps(identity))
    drawn = 0.0123456789012
    kinds.write_run(tmp_path / "sweep" / "trials" / "10" / "run", seed=10, rate=drawn)
    text = shown(capsys, "sweep", "--fields=learning_rate")
    assert rows(text)[0][:4] == ["run", "validation_loss ↓", "validation_loss last", "accuracy ↑"]
    assert names(text)[:3] == ["trial 0", "trial 1", "trial 10"]
    assert "0.012346" in shown(capsys, "sweep", "--fields=learning_rate", "--metrics=accuracy")
    assert f"{drawn}" in shown(capsys, "sweep", "--format=csv")
    (tmp_path / "sweep" / "sweep.json").write_text("{")
    assert rows(shown(capsys, "sweep"))[0][1] == "accuracy ↑"


def test_the_table_of_model_gardens_runs(tmp_path, capsys):
    """N22: the best of `info.json`, and the rest of TensorBoard's files, which is said."""
    kinds.garden(tmp_path / "runs" / "one")
    kinds.garden(tmp_path / "runs" / "two")
    text = shown(capsys, "runs", "--metrics=accuracy:max,accuracy:20,train/loss")
    assert rows(text)[1][:4] == ["one", "0.75", f"{kinds.accuracy(1, 20):.4g}", "0.05"]
    assert "one: no metrics.jsonl: the metrics are those of TensorBoard's files" in text


@pytest.mark.parametrize("kind", ["sweep", "nested", "done"])
def test_a_table_and_a_report_say_the_same(tmp_path, capsys, kind):
    """N22: names, speed, duration and numbers that are not finite are the same in both."""
    kinds.KINDS[kind](tmp_path / "runs" / "first")
    place = "runs/first"
    if kind != "sweep":
        kinds.write_run(tmp_path / "runs" / "other")
        kinds.change(tmp_path / "runs" / "other", best={"metric": "accuracy", "value": "NaN", "step": 40})
        place = "runs"
    table = json.loads(shown(capsys, place, "--format=json"))["rows"]
    page = content.of(gathered.gather([place], now_seconds=kinds.NOW), now_seconds=kinds.NOW)["runs"]
    of_table = {row["run"]: (row["examples_per_second"], row["took_seconds"], row["accuracy:max"]) for row in table}
    assert of_table == {each["name"]: (each["speed"], each["seconds"], each["best"]) for each in page}
    assert {speed for speed, *_ in of_table.values()} == {kinds.TIME["examples"] / kinds.TIME["seconds"]["steps"]}


@pytest.mark.parametrize("kind", [kind for kind in kinds.KINDS if kind not in ("no_run", "empty")])
def test_a_run_of_any_kind_is_compared_with_another(tmp_path, capsys, kind):
    """N22: in words and for programs, whose JSON is strict; also where configs hold what JSON lacks."""
    kinds.KINDS[kind](tmp_path / "one")
    kinds.write_run(tmp_path / "two", rate="[.inf, {a: .nan}]")
    assert shown(capsys, "one", "two")

    def refuse(word):
        raise AssertionError(word)

    json.loads(shown(capsys, "one", "two", "--format=json"), parse_constant=refuse)
    json.loads(shown(capsys, "one", "two", "--format=json", "--sort=took"), parse_constant=refuse)
