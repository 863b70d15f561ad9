"""What a run says of its evaluations, of what it saves, and at its end: in a file, and on a terminal."""

import re
import sys

import pytest

from official_trainer.lazy import keras
from tests.support import jobs
from tests.support.cases import cases
from tests.support.shuffled_runs import resolve
from tests.support.terminal import Terminal

STEPS = ("trainer.train_steps=40", "trainer.steps_per_loop=20")


def said(capsys, model_dir, *sets):
    keras.backend.clear_session()
    jobs.run("toy_run", resolve(*STEPS, *sets), mode="train_and_eval", model_dir=model_dir)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("is_asynchronous", cases(["true", "false"], "true"))
def test_what_an_evaluation_saved_is_one_line(tmp_path, capsys, is_asynchronous):
    """The checkpoint and the best one in one line; two where training waits for the first, before it evaluates."""
    sets = (f"trainer.async_checkpoint={is_asynchronous}", "trainer.validation_interval=40")
    lines = [line for line in said(capsys, str(tmp_path / "run"), *sets) if line.startswith("saved ckpt")]
    both = ["saved ckpt-40 and best/ckpt-40"] if is_asynchronous == "true" else ["saved ckpt-40"]
    assert lines == ["saved ckpt-20", *both]


def test_a_best_checkpoint_of_a_step_that_is_not_saved_has_a_line_of_its_own(tmp_path, capsys):
    sets = ("trainer.checkpoint_interval=40", "trainer.validation_interval=20")
    lines = [line for line in said(capsys, str(tmp_path / "run"), *sets) if line.startswith("saved ")]
    assert lines[0] == "saved best/ckpt-20"
    assert re.fullmatch(r"saved ckpt-40( and best/ckpt-40)?", lines[1])


def test_the_first_and_the_last_lines_in_a_file_say_what_runs_on_what_and_what_is_saved_where(tmp_path, capsys):
    model_dir = str(tmp_path / "run")
    lines = said(capsys, model_dir)
    assert not any("official-trainer" in line for line in lines)
    assert re.fullmatch(rf"toy_run: [\d,]+ parameters on 1 CPU, starting in {re.escape(model_dir)}", lines[0])
    finished, saved, time, *_ = lines[next(i for i, line in enumerate(lines) if line.startswith("finished")) :]
    best = re.fullmatch(
        rf"finished at step 40, best accuracy [\d.]+ at step (\d+), exported latest: {re.escape(model_dir)}", finished
    )
    assert saved == f"saved there: ckpt-40, best/ckpt-{best[1]}, export/40, metrics.jsonl"
    assert time.startswith("time: ")


def test_a_terminal_shows_what_to_do_next(tmp_path, capsys, monkeypatch):
    model_dir = str(tmp_path / "a run")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdout", screen := Terminal())
    said(capsys, model_dir, "trainer.train_steps=60")
    shown = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue()).replace("\r", "\n")
    assert "\nvalidation at step 60\n" in shown
    assert re.search(r"\n  accuracy +[\d.]+  (best so far|[+-])", shown)
    assert shown.endswith(
        f"next:\n  official-trainer eval --model_dir='{model_dir}' --checkpoint=best\n"
        f"  tensorboard --logdir='{model_dir}'\n"
    )
    assert "the first steps are traced" in shown
    assert "evaluating" in shown
    assert "exporting" in shown
