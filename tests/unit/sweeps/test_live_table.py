"""The table of a running sweep: what it shows, and that it fits the terminal."""

import io
import json
import os

import pytest

from official_trainer.sweeps.live_table import LiveTable, Progress, layout
from official_trainer.sweeps.observer import PlainLines, names_of
from official_trainer.sweeps.settings import Objective
from official_trainer.sweeps.trial import Trial

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
NAMES = names_of(
    dict.fromkeys(
        (
            "task.model.type",
            RATE,
            "task.model.mlp.dropout",
            "task.train_data.global_batch_size",
            "trainer.optimizer_config.optimizer.type",
        )
    )
)


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


def trial(number, **fields):
    drawn = ("mlp" if number % 2 else "cnn", 10.0 ** -(1 + number % 4) / 3, 0.1 * (number % 5), 32, "adam")
    return Trial(number=number, values=dict(zip(NAMES, drawn, strict=True)), **fields)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def progress(tmp_path, clock):
    """A sweep with trials 3 and 4 running, after five that took 10 s each, two at a time."""
    progress = Progress(str(tmp_path), asked=8, parallel=2, objective=Objective("accuracy", "max", "best"), clock=clock)
    ends = {
        0: {"state": "complete", "value": 0.9, "step": 300},
        1: {"state": "pruned", "step": 50, "reports": ((50, 0.25),)},
        2: {"state": "complete", "value": 0.95, "step": 250},
        5: {"state": "failed", "reason": "x"},
    }
    for number, fields in ends.items():
        progress.start(trial(number), continues=False)
        clock.seconds += 10
        progress.end(trial(number, **fields), "")
    for number in (3, 4):
        progress.start(trial(number), continues=False)
    run = tmp_path / "trials" / "3" / "run"
    run.mkdir(parents=True)
    (run / "status.json").write_text(json.dumps({"phase": "train", "step": 120}))
    (run / "run.json").write_text(json.dumps({"steps": {"end": 300}}))
    progress.report(trial(3), 100, (0.5,))
    progress.look()
    return progress


def texts(progress, width, height=24):
    return [line.text for line in layout(progress, NAMES, width, height)]


def test_in_80_columns_the_table_has_all_trials_that_matter(progress, clock):
    """N21: running ones with their step and last value, the best, the newest; the time that is left."""
    clock.seconds += 5
    assert texts(progress, 78) == [
        "3/8 done  2 running  1 pruned  1 failed  best 0.95 (trial 2)  0:45  eta 0:28",
        "#  state      step  accuracy  model  init…rate  dropout  glob…size  optimizer",
        "3  train   120/300  0.5       mlp    3.333e-05  0.3      32         adam",
        "4  start                      cnn    0.03333    0.4      32         adam",
        "2  best        250  0.95      cnn    0.0003333  0.2      32         adam",
        "0  2nd         300  0.9       cnn    0.03333    0        32         adam",
        "5  failed                     mlp    0.003333   0        32         adam",
        "1  pruned       50  0.25      mlp    0.003333   0.1      32         adam",
    ]


def test_of_several_metrics_each_has_a_column_and_the_front_is_shown(tmp_path, clock):
    """N21: in the place of one best trial."""
    objective = Objective("accuracy", "max", "best", {"validation_loss_of_the_set": "min"})
    progress = Progress(str(tmp_path), asked=8, parallel=2, objective=objective, clock=clock)
    for number, (accuracy, loss) in enumerate(((0.9, 0.5), (0.8, 0.6), (0.8, 0.2))):
        progress.start(trial(number), continues=False)
        others = {"validation_loss_of_the_set": loss}
        progress.end(trial(number, state="complete", value=accuracy, others=others, step=10), "")
    progress.start(trial(3), continues=False)
    progress.report(trial(3), 5, (0.25, 0.75))
    assert texts(progress, 78) == [
        "3/8 done  1 running  front of 2  0:00  eta 0:00",
        "#  state  step  accuracy  valida…e_set  model  initial_learning_rate  dropout",
        "3  start        0.25      0.75          mlp    3.333e-05              0.3",
        "0  front    10  0.9       0.5           cnn    0.03333                0",
        "2  front    10  0.8       0.2           cnn    0.0003333              0.2",
        "1  done     10  0.8       0.6           mlp    0.003333               0.1",
    ]


def test_a_list_is_one_column_and_where_there_is_no_room_the_others_have_longer_names(tmp_path, clock):
    """N21: not one for each item; a dash is for what a trial does not have."""
    path = "task.model.mlp.hidden"
    names = names_of({**dict.fromkeys(NAMES), path: "list(1, 3, int(2, 8))"})
    progress = Progress(str(tmp_path), asked=8, parallel=2, objective=Objective("accuracy", "max", "best"), clock=clock)
    items = {f"{path}[length]": 2, f"{path}[0]": 4, f"{path}[1]": 8}
    progress.start(Trial(number=0, values={**trial(0).values, **items}), continues=False)
    progress.start(trial(1), continues=False)
    assert [line.text for line in layout(progress, names, 60, 24)][1:] == [
        "#  state  step  accuracy  model  initi…rate  dropout  hidden",
        "0  start                  cnn    0.03333     0        [4, 8]",
        "1  start                  mlp    0.003333    0.1      -",
    ]
    assert layout(progress, names, 48, 24)[2].text == "0  start                  cnn    …  [4, 8]"
    assert "hidden=[4, 8]" in PlainLines(names, print).drawn(progress.running[0].trial)


def test_of_a_population_each_trial_has_its_parent_and_of_many_the_rest_is_counted(tmp_path, clock):
    """N21, N35: below those that run, without dashes of its own."""
    objective = Objective("accuracy", "max", "best")
    progress = Progress(str(tmp_path), asked=60, parallel=20, objective=objective, size=20, clock=clock)
    progress.know({number: trial(number, state="complete", value=0.5, step=10) for number in range(20)})
    for number in range(20, 40):
        progress.start(trial(number, parent=number - 20), continues=False)
    assert texts(progress, 48, height=12) == [
        "generation 2/3  20/60 done  best 0.5 (trial 0)",
        " #  state  step  from  accuracy  model  …",
        "20  start        0               cnn    …",
        "21  start        1               mlp    …",
        "22  start        2               cnn    …",
        "and 17 more are running",
    ]


def test_what_other_processes_have_done_is_known(progress):
    """N21: their trials count, and may be the best; one that is run again does not count any more."""
    found = {number: each.trial for number, each in progress.running.items()} | dict(progress.ended)
    found |= {6: trial(6, state="complete", value=0.99, step=300), 7: trial(7)}
    progress.know(found)
    assert texts(progress, 100)[0] == (
        "4/8 done  2 running  1 open  1 pruned  1 failed  best 0.99 (trial 6)  0:40  eta 0:18"
    )
    progress.know(found | {2: trial(2), 6: trial(6)})
    assert texts(progress, 100)[0].startswith("2/8 done  2 running  3 open  1 pruned  1 failed  best 0.9 (trial 0)")


@pytest.mark.parametrize("width", [20, 38, 58, 78, 118, 200])
@pytest.mark.parametrize("height", [5, 12, 24])
def test_the_table_fits_every_terminal(progress, width, height):
    """N21: and the names of its columns stay different."""
    lines = texts(progress, width, height)
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= max(3, height // 2 + 1)
    titles = [name for name in lines[1].split() if name != "…"]
    assert len(set(titles)) == len(titles)


def test_a_branch_is_called_as_what_it_is_chosen_for():
    """N21: `optimizer`, not `type`; two that would have one name keep longer ones."""
    assert list(NAMES.values()) == ["model", "initial_learning_rate", "dropout", "global_batch_size", "optimizer"]
    assert list(names_of({"a.x.type": "", "b.x.type": ""}).values()) == ["a.x", "b.x"]
    assert list(names_of({"a.x.type": "", "a.x": ""}).values()) == ["x.type", "x"]


def test_ended_trials_scroll_by_above_the_table_also_after_the_terminal_became_narrower(progress, monkeypatch):
    """N21: what the terminal made of the wider lines is cleared, and the lines above are written again."""
    wide = [100]
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(os, "get_terminal_size", lambda *_: os.terminal_size((wide[0], 24)))
    stream = io.StringIO()
    table = LiveTable(progress, NAMES, stream)
    table.know({})
    table.start(trial(6), continues=False)
    table.end(trial(6, state="complete", value=0.5, step=1), "complete: accuracy 0.5 at step 1")
    assert stream.getvalue().count("trial 6 complete: accuracy 0.5 at step 1\n") == 1
    wide[0] = 40
    before = len(stream.getvalue())
    table.start(trial(7), continues=False)
    assert "\x1b[2J\x1b[Htrial 6 complete: accuracy 0.5 at step 1\n" in stream.getvalue()[before:]
    table.close()
    assert stream.getvalue().endswith("\x1b[2K"), repr(stream.getvalue()[-80:])
