"""Which runs a report is about, what they are called, and which one is the best."""

import re

import pytest

from official_trainer.reports import content, gathered
from official_trainer.reports.opened import NoRunError
from tests.support.reports import kinds
from tests.support.sweeps import written


def gather(*paths):
    return gathered.gather([str(path) for path in paths], now_seconds=kinds.NOW)


def test_the_best_run_is_the_first_and_names_are_short(tmp_path):
    """N22: runs are ranked by the metric of their best checkpoints, in its direction."""
    for seed in (1, 3, 2):
        kinds.write_run(tmp_path / "group" / f"seed_{seed}", seed=seed)
    found = gather(tmp_path)
    assert [run.name for run in found.runs] == ["seed_3", "seed_2", "seed_1"]
    assert (found.metric, found.direction, found.best.name) == ("accuracy", "higher", "seed_3")
    assert (found.best.best, found.best.best_step) == (kinds.accuracy(3, 40), 40)
    assert found.best.differs["runtime.seed"] == "3"
    for params in tmp_path.glob("*/*/params.yaml"):
        params.write_text(params.read_text().replace("comp: higher", "comp: lower"))
    assert [run.name for run in gather(tmp_path).runs] == ["seed_1", "seed_2", "seed_3"]


def test_runs_are_named_one_by_one_and_count_once(tmp_path):
    """N22: several RUN arguments, also when a folder of them is named too."""
    for seed in (1, 2, 3):
        kinds.write_run(tmp_path / f"r{seed}", seed=seed)
    assert [run.name for run in gather(tmp_path / "r1", tmp_path / "r2").runs] == ["r2", "r1"]
    assert len(gather(tmp_path / "r1", tmp_path).runs) == 3
    assert [run.name for run in gather(tmp_path / "r1").runs] == ["r1"]


def test_runs_without_a_best_value_take_that_of_their_curve(tmp_path):
    """N22: a run of an older version, or of Model Garden's driver, is compared all the same."""
    kinds.write_run(tmp_path / "new")
    kinds.KINDS["of_a_much_earlier_version"](tmp_path / "old")
    assert [(run.name, run.best, run.best_step) for run in gather(tmp_path).runs] == [
        ("new", kinds.accuracy(1, 40), 40),
        ("old", kinds.accuracy(1, 40), 40),
    ]


def test_a_sweep_is_read_with_what_its_trials_drew(tmp_path):
    """N22: of a sweep the report has trials, those that were pruned, and all that `results.json` holds."""
    written.write_sweep(tmp_path, [written.ended(0, 0.5), written.ended(1, state="pruned", reason="x")])
    for number in (0, 1):
        kinds.write_run(tmp_path / "trials" / str(number) / "run", seed=number, code=(0, 143)[number])
    found = gather(tmp_path)
    assert {run.name: run.status for run in found.runs} == {"trial 0": "done", "trial 1": "pruned"}
    assert [trial["state"] for trial in found.sweep["trials"]] == ["complete", "pruned"]
    assert content.of(found, now_seconds=kinds.NOW)["title"] == f"Sweep of {found.runs[0].run.recorded.experiment}"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, r"no run in .*: it is empty; name run directories, a folder of them, or a sweep"),
        (lambda folder: (folder / "notes").write_text(""), r"no run in .*: it holds other files; name"),
        (lambda folder: (folder / "inside").mkdir(), r"no run in .*: it holds other files; name"),
    ],
)
def test_a_folder_without_a_run_is_refused(tmp_path, make, message):
    """N22: a report of nothing is an error that says what is there."""
    make(tmp_path)
    with pytest.raises(NoRunError, match=message):
        gather(tmp_path)
    with pytest.raises(NoRunError, match=re.escape("there is no folder")):
        gather(tmp_path / "nowhere")
    (tmp_path / "other").mkdir(exist_ok=True)
    with pytest.raises(NoRunError, match="they hold none"):
        gather(tmp_path, tmp_path / "other")


# Where the time went.


def account(folder, now_seconds=kinds.NOW):
    (found,) = gathered.gather([str(folder)], now_seconds=now_seconds).runs
    return gathered.account(found, now_seconds=now_seconds)


def test_time_without_a_process_counts_and_lowers_goodput(tmp_path):
    """N22: from the first start to the end; what no process recorded is a part of its own."""
    kinds.write_run(tmp_path / "run")
    found = account(tmp_path / "run")
    assert found["parts"] == {"start": 10.0, "steps": 80.0, "evaluation": 5.0, "save": 5.0, "between": 7100.0}
    assert sum(found["parts"].values()) == 2 * kinds.HOUR
    assert found["goodput"] == pytest.approx(80 / 7200, abs=1e-4)


def test_repeated_steps_count_once(tmp_path):
    """N22: goodput has no steps that were repeated after a kill."""
    kinds.write_run(tmp_path / "run")
    total = {**kinds.TIME, "steps": 80, "restarts": 3}
    kinds.change(tmp_path / "run", time={"attempts": [kinds.TIME], "total": total}, started=None)
    found = account(tmp_path / "run")
    assert (found["goodput"], found["restarts"]) == (0.4, 3)
    assert "between" not in found["parts"]


def test_a_run_that_goes_on_is_counted_up_to_now(tmp_path):
    """N22: a running run has no end yet."""
    kinds.KINDS["running"](tmp_path / "run")
    kinds.change(tmp_path / "run", time={"attempts": [], "total": kinds.TIME})
    assert sum(account(tmp_path / "run")["parts"].values()) == 3 * kinds.HOUR


@pytest.mark.parametrize("kind", ["changed_record", "half_a_record", "of_a_much_earlier_version", "garden", "empty"])
def test_without_a_record_of_the_time_there_is_none(tmp_path, kind):
    """N22: a damaged, an old or a foreign run has no account, and is no error."""
    kinds.write_run(tmp_path / "good")
    kinds.KINDS[kind](tmp_path / "run")
    found = gathered.gather([str(tmp_path)], now_seconds=kinds.NOW).runs
    other = next(each for each in found if each.name == "run")
    assert gathered.account(other, now_seconds=kinds.NOW) is None
    assert other.run.recorded.examples_per_second is None
