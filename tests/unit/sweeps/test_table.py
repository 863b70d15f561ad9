"""The words `show`, `best`, `retry` and `stop` of `sweep`, as they are printed in 80 columns."""

import dataclasses
import json
from pathlib import Path

import pytest

from official_trainer import cli
from official_trainer.sweeps.trial import Trial
from tests.support.sweeps.written import OBJECTIVE, RATE, ended, write_run, write_sweep

SMOKE = "--config_file=configs/smoke/digits_mlp.yaml"
WORDS = ("digits_mlp", SMOKE, "--model_dir=new")
SEVERAL = {**OBJECTIVE, "others": {"validation_loss": "min"}}


@pytest.fixture
def sweep(tmp_path, capsys):
    """Runs `sweep` on a directory; returns the exit code and the lines of each stream."""

    def run(word, *words):
        code = cli.main(["sweep", word, str(tmp_path), *words])
        out, err = (text.replace(str(tmp_path), "DIR").splitlines() for text in capsys.readouterr())
        return code, out, err

    return run


def one_metric(tmp_path):
    reason = "experiments/broken.py:87 in build_model: ValueError: a bug of mine that takes more than one line to say"
    records = [ended(0, 0.5), ended(1, 0.9), ended(2, 0.4, state="pruned", step=100, reason="by MedianPruner")]
    records += [ended(3, state="failed", reason=reason), Trial(number=4, values={RATE: 0.1})]
    write_sweep(tmp_path, records)
    write_run(tmp_path, 2, step=100)
    write_run(tmp_path, 4, status="running", step=120, rows=[(100, 0.6)])


def test_show_has_a_row_for_each_trial_and_what_is_known_of_the_whole(tmp_path, sweep):
    """N21: in 80 columns; `--sort=best` has the best first; it writes `results.json`."""
    one_metric(tmp_path)
    code, out, _ = sweep("show")
    assert code == 0 and out == [
        "#  state   step  accuracy  model  initial_learning_rate",
        "0  done     200  0.5       cnn    0.001",
        "1  best     200  0.9       cnn    0.002",
        "2  pruned   100  0.4       cnn    0.003",
        "3  failed                  cnn    0.004",
        "4  open     100  0.6       -      0.1",
        "",
        "trial 3 failed: experiments/broken.py:87 in build_model: ValueError: a bug of",
        "  mine that takes more than one line to say",
        "pruning saved 100 of 720 steps",
    ]
    assert json.loads((tmp_path / "results.json").read_text())["best"] == [1]
    _, out, _ = sweep("show", "--sort=best")
    assert [line[0] for line in out[1:6]] == ["1", "0", "2", "3", "4"]
    code, _, err = sweep("show", "--sort=bst")
    assert code == 2 and "--sort=bst: expected one of trial, best; did you mean best?" in err[0]


def test_show_has_the_importance_once_there_are_enough_trials(tmp_path, sweep):
    """N21: the field that decides first; in a folder that cannot be written too."""
    write_sweep(tmp_path, [ended(number, number / 30) for number in range(20)])
    (tmp_path / "results.json").mkdir()
    code, out, _ = sweep("show")
    assert code == 0 and out[-1] == "importance: initial_learning_rate 100%, model 0%"


def test_a_sweep_without_a_complete_trial_has_no_best_one(tmp_path, sweep):
    """N21: `show` has what there is."""
    write_sweep(tmp_path, [])
    assert sweep("show")[:2] == (0, ["no trial has started yet"])
    code, _, err = sweep("best")
    assert code == 2 and "DIR has no complete trial yet; `official-trainer sweep show DIR` has all" in err[0]


def test_best_writes_the_values_of_the_best_or_of_one_trial(tmp_path, sweep):
    """N21: as an overlay, with every bit of the numbers."""
    one_metric(tmp_path)
    file = tmp_path / "best.yaml"
    code, out, _ = sweep("best", f"--write={file}")
    assert code == 0 and out == [
        "# trial 1 of DIR, complete: accuracy 0.9 at step 200",
        "task.model.type: cnn",
        f"{RATE}: 0.002",
    ]
    assert file.read_text().splitlines()[1:] == out[1:]
    assert sweep("best", "--trial=2")[1][0] == "# trial 2 of DIR, pruned after step 100: by MedianPruner"
    for word, message in (("9", "DIR has no trial 9; it has trials 0 to 4"), ("x", "--trial=x: expected the number")):
        code, _, err = sweep("best", f"--trial={word}")
        assert code == 2 and message in err[0]


def test_best_of_several_metrics_is_the_front_of_which_one_is_chosen(tmp_path, sweep):
    """N21: a file needs --trial."""
    pairs = [(0.5, 0.1), (0.9, 0.5), (0.4, 0.2)]
    records = [ended(number, value, others={"validation_loss": loss}) for number, (value, loss) in enumerate(pairs)]
    write_sweep(tmp_path, records, objective=SEVERAL)
    code, out, _ = sweep("best")
    assert code == 0 and out == [
        "#  state  step  accuracy  valida…_loss  model  initial_learning_rate",
        "1  front   200  0.9       0.5           cnn    0.002",
        "0  front   200  0.5       0.1           cnn    0.001",
        "",
        "each of these is the best in its way; --trial=N prints the values of one",
    ]
    assert [line[:8] for line in sweep("show")[1][1:]] == ["0  front", "1  front", "2  done "]
    code, _, err = sweep("best", f"--write={tmp_path / 'x'}")
    assert code == 2 and "trials 1, 0 are the best; choose one with --trial=N" in err[0]
    assert (
        sweep("best", "--trial=0")[1][0] == "# trial 0 of DIR, complete: accuracy 0.5, validation_loss 0.1 at step 200"
    )


def test_of_a_population_each_trial_has_its_generation_and_its_parent(tmp_path, sweep):
    """N21, N35: in the table, and in `results.json`."""
    records = [ended(0, 0.5), ended(1, 0.6), dataclasses.replace(ended(2, 0.7), parent=1)]
    write_sweep(tmp_path, records, population={"size": 2, "interval": 10})
    assert sweep("show")[1][:4] == [
        "#  state  step  gen  from  accuracy  model  initial_learning_rate",
        "0  done    200  1          0.5       cnn    0.001",
        "1  done    200  1          0.6       cnn    0.002",
        "2  best    200  2    1     0.7       cnn    0.003",
    ]
    assert json.loads((tmp_path / "results.json").read_text())["trials"][2]["parent"] == 1


def test_retry_and_stop_say_what_they_have_done(tmp_path, sweep):
    """N21: and that a sweep does not run."""
    one_metric(tmp_path)
    assert sweep("retry", "1", "3")[1] == ["the command of the sweep runs again: 1, 3; with the values that they had"]
    assert sweep("retry")[1] == ["no trial in DIR has failed; name the numbers of those that are to run again"]
    code, _, err = sweep("retry", "one")
    assert code == 2 and "one: expected the number of a trial, such as 3" in err[0]
    assert sweep("stop")[:2] == (0, ["no process runs the sweep in DIR; the command that began it continues it"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "DIR", "--write=x.yaml"], "--write is for `official-trainer sweep best DIR`; leave it out"),
        (["stop", "DIR", "--trial=1"], "--trial is for `official-trainer sweep best DIR`; leave it out"),
        (["best", "DIR", "--sort=best"], "--sort is for `official-trainer sweep show DIR`; leave it out"),
        (["stop", "DIR", "3"], "N is for `official-trainer sweep retry DIR`; leave it out"),
        (["retry"], "name the directory of a sweep: official-trainer sweep retry DIR"),
        (["digits_mlp", "--write=x.yaml"], "--write is for `official-trainer sweep best DIR`; leave it out"),
        (["show", "nowhere"], "nowhere holds no sweep"),
        (["digits_mlp", "extra"], "unexpected argument 'extra': name one experiment"),
        (["digits_mlp", SMOKE], "name a directory for the sweep: --model_dir=DIR"),
        ([*WORDS, "--space=task.model.mlp.droput=float(0, 1)"], "did you mean 'dropout'?"),
        ([*WORDS, "--space=none.yaml"], "there is no configuration file 'none.yaml'"),
        ([*WORDS, "--trials=0"], "--trials: trials: must be at least 1, got 0"),
        ([*WORDS[:2], "--model_dir=experiments", f"--space={RATE}=log(1e-3, 1)"], "but no sweep; name a new directory"),
    ],
)
def test_mistakes_are_found_before_anything_starts(words, message, capsys):
    """N21: exit code 2, what to write instead, and no directory."""
    assert cli.main(["sweep", *words]) == 2
    assert message in capsys.readouterr().err and not Path("new").exists()
