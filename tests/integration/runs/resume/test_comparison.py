"""What a run goes on with after a restore, beside its checkpoint: what is equal, and what differs, by its name."""

import json

import pytest

from official_trainer import cli
from official_trainer.actions.action import Action
from official_trainer.runs.resume import comparison
from tests.support.slow_runs import SleepyTask, do

RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate"


def test_each_resume_is_compared_before_its_first_update(model_dir, monkeypatch, capsys):
    """N51: an unbroken one differs in nothing; a changed rate, batch or tensor is named, and no later resume has it."""
    do(model_dir, mode="train", until_step=20)
    assert comparison.read(model_dir) == []
    assert cli.main(["show", model_dir, "--resumes"]) == 2
    assert "has no resume: a run records one when it has restored a checkpoint" in capsys.readouterr().err
    do(model_dir, mode="train", until_step=40)

    class Damaging(Action):
        def on_start(self, run):
            changed = run.trainer.optimizer.variables()[-1]
            changed.assign(changed + 1.0)

    monkeypatch.setattr(SleepyTask, "build_actions", lambda self, trainer: [Damaging()])
    do(model_dir, mode="train", until_step=60)
    monkeypatch.undo()
    changed = f"{RATE}=0.005", "task.train_data.global_batch_size=20"
    do(model_dir, *changed, mode="train", allow_config_change=True)
    unbroken, damaged, changed = comparison.read(model_dir)
    assert unbroken["differing"] == []
    assert set(unbroken["equal"]) >= {"batch.number", "batch.size", "learning_rate", "random.seed", "random.step"}
    assert unbroken["tensors"]["differing"] == unbroken["tensors"]["lacking"] == 0
    (found,) = damaged["differing"]
    assert found["what"].endswith("/.OPTIMIZER_SLOT/optimizer/v") and damaged["tensors"]["differing"] == 1
    assert damaged["tensors"]["equal"]["optimizer"] == unbroken["tensors"]["equal"]["optimizer"] - 1
    rate = next(found for found in changed["differing"] if found["what"] == "learning_rate")
    assert (rate["saved"], rate["now"]) == pytest.approx((0.01, 0.005))
    assert "batch.size" in [found["what"] for found in changed["differing"]]
    capsys.readouterr()
    assert cli.main(["show", model_dir, "--resumes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == [f"step {n} from ckpt-{n}" for n in (20, 40, 60)]
    assert "equal: number of the next batch, learning rate, random numbers, " in lines[0] and lines[0].endswith(
        "; nothing differs"
    )
    assert lines[1].endswith("/.OPTIMIZER_SLOT/optimizer/v (other values)")
    assert lines[2].endswith("; these differ:") and "learning rate" not in lines[2]
    assert [line.split()[0] for line in lines[3:]] == [found["what"] for found in changed["differing"]]
    assert "  batch.size 10 -> 20" in lines and any(line.startswith("  learning_rate 0.0099") for line in lines)
    assert cli.main(["show", model_dir, "--resumes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == [unbroken, damaged, changed]


def test_many_differences_are_shown_up_to_twenty():
    """N51: a line each; the rest is in the JSON."""
    differing = [{"what": f"tensor {n}", "saved": "other values"} for n in range(23)]
    resume = {"step": 20, "checkpoint": "ckpt-20", "equal": [], "tensors": None, "differing": differing}
    lines = list(comparison.in_lines([resume]))
    assert lines[0] == "step 20 from ckpt-20: equal: nothing; these differ:"
    assert lines[1:] == [*(f"  tensor {n} (other values)" for n in range(20)), "  and 3 more, in --json"]


def test_a_comparison_that_fails_costs_no_run(model_dir, monkeypatch, caplog):
    """N51: it is a record for people."""
    do(model_dir, mode="train", until_step=20)
    monkeypatch.setattr(comparison, "FILE", "no/folder/resumes.json")
    do(model_dir, mode="train", until_step=40)
    assert "ckpt-20 was not compared with what goes on: " in caplog.text


def test_the_newest_resumes_are_kept(tmp_path):
    """N51: and what is not a list of them is none."""
    for step in range(comparison._KEPT_RESUMES + 2):
        comparison.add(str(tmp_path), {"step": step, "checkpoint": "", "equal": [], "tensors": None, "differing": []})
    kept = comparison.read(str(tmp_path))
    assert (len(kept), kept[0]["step"], kept[-1]["step"]) == (comparison._KEPT_RESUMES, 2, comparison._KEPT_RESUMES + 1)
    for text in ('{"resumes": 1}', "{", '{"resumes": [3, {"step": 1}]}'):
        (tmp_path / comparison.FILE).write_text(text)
        assert comparison.read(str(tmp_path)) == []
