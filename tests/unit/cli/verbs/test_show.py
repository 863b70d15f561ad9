"""What `show` shows, of experiments and of runs."""

import json
import re

from official_trainer import cli
from official_trainer.runs.health.time_account import PARTS
from tests.support import golden


def test_what_cannot_be_shown(workspace, capsys, request):
    """T17, N7: no flag is ignored; a name may be that of a run or an experiment; an empty gin flag says nothing."""
    golden.check_refused("show", request, capsys, "show")
    assert cli.main(["show", "my_experiment", "--gin_file="]) == 0
    assert cli.main(["show", "bert/sqad"]) == 2  # after a line that Model Garden's names are read, the first time
    assert capsys.readouterr().err.endswith("; did you mean 'bert/squad'?\n")


def test_show(workspace, capsys):
    """N8: the resolved YAML says who set what the user changed; one field with its meaning."""
    argv = ["show", "my_experiment", "--config_file=configs/my_experiment.yaml", "runtime.seed=5"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "  train_steps: 400  # configs/my_experiment.yaml:6\n" in out and "  seed: 5  # --set\n" in out
    assert cli.main(["show", "my_experiment", "--explain=trainer.train_steps", "trainer.train_steps=9"]) == 0
    assert "set by   --set, column 21" in capsys.readouterr().out


def test_show_a_run_as_it_was_written(run_dir, capsys):
    """N8: also when its experiment is no more."""
    text = (run_dir / "params.yaml").read_text()
    (run_dir.parents[1] / "experiments" / "my_experiment.py").unlink()
    assert cli.main(["show", "runs/seven"]) == 0
    assert capsys.readouterr().out == text


def test_show_a_run_as_it_would_be(run_dir, capsys):
    """N8: each value with what set it then, as in the comment of the record, and with the place of that."""
    for path in ("trainer.train_steps", "trainer.summary_interval", "trainer.max_to_keep"):
        assert cli.main(["show", "runs/seven", f"--explain={path}"]) == 0
    shown, place = capsys.readouterr().out, re.escape("runs/seven/params.yaml")
    assert re.search(rf"set by   --set \({place}:\d+:\d+\)\n", shown)
    assert re.search(rf"set by   experiment \({place}:\d+:\d+\)\n", shown)
    assert re.search(rf"set by   class default \({place}:\d+:\d+\)\n", shown)
    assert cli.main(["show", "runs/seven", "runtime.seed=5"]) == 0
    shown = capsys.readouterr().out
    assert re.search(rf"train_steps: 7  # {place}:\d+\n", shown) and "  seed: 5  # --set\n" in shown


ESC = "\x1b]0;owned\x07\r"


def test_control_characters_of_values_and_names_are_shown_as_escapes(workspace, capsys):
    """N34: what a file or a flag holds never moves the cursor or changes the terminal."""
    (workspace / f"{ESC}.yaml").write_text("runtime:\n  seed: 4\n")
    asked = ["show", "my_experiment", f"--config_file={ESC}.yaml", f"runtime.tpu={ESC}"]
    assert cli.main(asked) == 0
    assert cli.main([*asked, "--explain=runtime.seed"]) == 0
    assert cli.main([*asked, "--explain=runtime.tpu"]) == 0
    assert cli.main([*asked, f"trainer.{ESC}=1", f"runtime.seed={ESC}", f"{ESC}"]) == 2
    said = capsys.readouterr()
    assert not {"\x1b", "\x07", "\r"} & set(said.out + said.err)
    assert "\\x1b]0;owned\\x07" in said.out
    assert "\\x1b]0;owned\\x07" in said.err


def test_control_characters_of_a_runs_params_are_shown_as_escapes(run_dir, capsys):
    """N34: the file of a run that another user has made."""
    (run_dir / "params.yaml").write_text(f"# {ESC}\n")
    assert cli.main(["show", "runs/seven"]) == 0
    assert capsys.readouterr().out == "# \\x1b]0;owned\\x07\\x0d\n"


def test_the_time_of_a_run_is_shown(workspace, capsys, monkeypatch):
    """N26: what its start, steps and saves took; of anything else it is refused."""
    monkeypatch.setenv("COLUMNS", "80")
    run = workspace / "runs" / "timed"
    run.mkdir(parents=True)
    (run / "params.yaml").write_text("")
    parts = {**dict.fromkeys(PARTS, 0.0), "start": 3.0, "steps": 1.0, "input": None}
    start = {"tensorflow": 1.5, "build": 0.25, "restore": 0.0, "data": 1.0}
    total = {"restarts": 1, "wall_seconds": 4.0, "steps": 20, "seconds": parts | {"between": 16.0}}
    total["peak_memory_bytes"] = {"process": 2**30}
    time = {"total": total, "attempts": [{"seconds": parts, "start": start}]}
    assert cli.main(["show", str(run), "--time"]) == 2
    assert "has no time yet: a run records it with each checkpoint, and at its end" in capsys.readouterr().err
    (run / "run.json").write_text(json.dumps({"time": time}))
    assert cli.main(["show", str(run), "--time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "4 s in 2 processes, over 20 s, 20 steps",
        "between            16 s   80 %",
        "start               3 s   15 %",
        "steps               1 s    5 %",
    ]
    assert "input      unknown" in lines
    assert lines[-3:] == [
        "the start of the newest process: importing TensorFlow 1.5 s, building the model",
        "  0.2 s, building the data 1 s, Python and other imports 0.2 s",
        "memory at most: process 1.00 GiB",
    ]
    assert cli.main(["show", str(run), "--time", "runtime.seed=1"]) == 2
    assert "--time cannot be combined with changes of the config; leave them out" in capsys.readouterr().err
