"""The summary of a report in words."""

import pytest

from official_trainer.reports import gathered, words
from tests.support.reports import kinds


def summary(*paths):
    found = gathered.gather([str(path) for path in paths], now_seconds=kinds.NOW)
    accounts = [gathered.account(each, now_seconds=kinds.NOW) for each in found.runs]
    return words.summary(found, accounts), words.facts(found, accounts)


def texts(*paths):
    return [text for _, text in summary(*paths)[0]]


def test_two_runs_what_changed_and_what_it_did(tmp_path):
    """N22: of two runs the summary says which is better, by how much, and what changed."""
    kinds.write_run(tmp_path / "before", seed=1)
    kinds.write_run(tmp_path / "after", seed=1, optimizer="sgd", rate=0.01)
    kinds.change(tmp_path / "after", best={"metric": "accuracy", "value": 0.99, "step": 30})
    said = texts(tmp_path)
    assert said[0] == "2 runs of digits: both done."
    assert said[1] == (
        "after is the best: accuracy 0.99 at step 30; higher is better. before reached 0.8732 at step 40."
    )
    assert said[2] == (
        "From before to after, 2 fields changed: optimizer.type (adam → sgd) and learning_rate (0.001 → 0.01)."
    )


def test_one_run(tmp_path):
    """N22: one run has its state, its best evaluation and its last one."""
    kinds.write_run(tmp_path / "run", code=143, step=20)
    said = texts(tmp_path / "run")
    assert said[0] == "run, a run of digits, is stopped, and can be continued: step 20 of 40."
    assert said[1] == "The best accuracy 0.7956 at step 20."


def test_a_slow_worker(tmp_path):
    """N49: with its evidence; a record that was changed says nothing."""
    kinds.write_run(tmp_path / "run")
    slow = {"worker": 1, "phase": "input", "cost": 0.2, "evidence": "in a step it waits for its data 17 ms"}
    kinds.change(tmp_path / "run", slow_worker=slow)
    said = "Worker 1 of run was slow in input: in a step it waits for its data 17 ms."
    assert said in texts(tmp_path / "run")
    for changed in ([1], {"worker": 1}, None):
        kinds.change(tmp_path / "run", slow_worker=changed)
        assert not any("slow in" in text for text in texts(tmp_path / "run"))


def test_failures_of_one_reason_are_one_sentence(tmp_path):
    """N22: the summary says what failed and why, once for each reason."""
    kinds.write_run(tmp_path / "good")
    for number in range(5):
        kinds.write_run(tmp_path / f"full_{number}", code=75, step=20, error="the disk is full\nfree some space")
    kinds.KINDS["not_finite"](tmp_path / "nan")
    kinds.KINDS["failed"](tmp_path / "label")
    failed = [text for kind, text in summary(tmp_path)[0] if kind == "failed"]
    assert failed == [
        "full_0, full_1, full_2 and 2 more failed: the disk is full.",
        "label failed at step 20: ValueError: the label 11 is no class.",
        "nan failed: the loss is NaN at step 25.",
    ]


@pytest.mark.parametrize(
    ("kind", "words_of_it"),
    [
        ("running", "is still running"),
        ("preempted", "is stopped, and can be continued"),
        ("died", "died at step 20: its record says running, and no process does"),
        ("stalled", "stalled at step 20: no step for 600 s"),
        ("garden", "is of Model Garden's driver, which records no status"),
        ("without_record", "is without a record that can be read"),
        ("empty", "is an empty folder"),
        ("no_run", "is a folder without a run"),
    ],
)
def test_each_state_has_a_word(tmp_path, kind, words_of_it):
    """N22: a run that neither ended nor can be compared appears with a word."""
    kinds.write_run(tmp_path / "good")
    kinds.KINDS[kind](tmp_path / "other")
    assert any(text.startswith("other ") and words_of_it in text for text in texts(tmp_path))


def test_facts_count_runs_time_and_restarts(tmp_path):
    """N22: a few numbers stand below the summary, with what part of the time was of use."""
    kinds.write_run(tmp_path / "a")
    kinds.KINDS["failed"](tmp_path / "b")
    total = {**kinds.TIME, "restarts": 2, "steps": 80}
    kinds.change(tmp_path / "a", time={"attempts": [kinds.TIME], "total": total}, finished=None)
    facts = {name: (value, about) for name, value, about in summary(tmp_path)[1]}
    assert facts["Runs"] == ("2", "1 done, 1 failed")
    assert facts["Restarts"] == ("2", "in 1 run")
    assert facts["Steps"] == ("60", "of all runs")
    assert facts["Best accuracy"][0] == "0.8732"


def test_configs_of_different_experiments_are_not_called_equal(tmp_path):
    """N22: only those of one experiment are compared, also beside others."""
    kinds.write_run(tmp_path / "a")
    kinds.write_run(tmp_path / "b", experiment="words")
    several = "They are runs of different experiments; only the configs of one experiment are compared."
    said = texts(tmp_path)
    assert several in said and not any("equal," in text for text in said)
    kinds.write_run(tmp_path / "c", seed=2, experiment="words")
    said = texts(tmp_path)
    assert said[said.index(several) + 1] == "Runs of the same experiment differ in 1 field: seed. c has seed 2."


def test_other_code_is_a_warning(tmp_path):
    """N22: runs of different revisions or versions differ in more than their configs."""
    for name in "ab":
        kinds.write_run(tmp_path / name)
    kinds.change(tmp_path / "a", git_revision="2" * 40, versions={"tensorflow": "2.19.0", "keras": "3.14.0"})
    kinds.change(tmp_path / "b", versions={"tensorflow": "2.20.0", "keras": "3.15.1"})
    said = texts(tmp_path)
    assert "They ran with different revisions of the workspace, so more than their configs may differ." in said
    assert "They ran with different versions of tensorflow: 2.19.0 and 2.20.0." in said
    assert "They ran with different versions of keras: 3.14.0 and 3.15.1." in said
    assert "Their configs are equal, as far as they are known." in said
    kinds.change(tmp_path / "a", git_revision="2" * 40 + "-dirty")
    assert "a ran with changes of the code that were not committed." in texts(tmp_path)
    (tmp_path / "a" / "git.diff").write_text("+x\n")
    where = "git.diff in the run directory has them"
    assert f"a ran with changes of the code that were not committed: {where}." in texts(tmp_path)
