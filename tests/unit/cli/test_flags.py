"""T20: the flags of Model Garden's driver, in every spelling that absl accepts."""

import os

import pytest

from official_trainer import cli
from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError
from official_trainer.config import modes
from official_trainer.runs.predictions import PredictionSettings
from tests.support import golden
from tests.support.bounded import bounded


def parser(*, overrides=True):
    made = flags.Parser("train.py", usage="[flags]", description="Trains.")
    if overrides:
        flags.add_run_flags(made)
        flags.add_mode_flag(made)
    else:
        made.positional("directory", "DIR", "a folder")
        made.switch("devices", "skip devices", default=True)
    return made


def read(*argv, overrides=True):
    return parser(overrides=overrides).read(argv)


def test_one_value_in_every_spelling():
    """T20: with `=` or a space, one dash or two, anywhere; the last one counts."""
    for argv in (
        ["--experiment=digits"],
        ["--experiment", "digits"],
        ["-experiment=digits"],
        ["-experiment", "digits"],
        ["--experiment=other", "--experiment=digits"],
        ["trainer.train_steps=3", "--experiment=digits"],
        ["--experiment=digits", "--", "trainer.train_steps=3"],
    ):
        assert read(*argv).experiment == "digits", argv


def test_switches():
    for argv in ("--quiet", "-quiet", "--quiet=true", "--quiet=1", "--quiet=YES", "--noquiet --quiet"):
        assert read(*argv.split()).quiet is True, argv
    for argv in ("", "--quiet=false", "--quiet=0", "--noquiet", "--no-quiet", "--quiet --noquiet"):
        assert read(*argv.split()).quiet is False, argv
    for argv in ("", "--nodevices --devices"):  # one that is on by default
        assert read(*argv.split(), overrides=False).devices is True, argv
    for argv in ("--nodevices", "--devices=false"):
        assert read(*argv.split(), overrides=False).devices is False, argv


def test_repeated_flags_append():
    """T20: absl's own `--params_override` kept only the last."""
    arguments = read(
        "--params_override=trainer.train_steps=1",
        "--params_override",
        "runtime.seed=2",
        "--config_file=a",
        "--config_file=b",
    )
    assert arguments.params_override == ["trainer.train_steps=1", "runtime.seed=2"]
    assert arguments.config_file == ["a", "b"]


def test_flags_not_given_are_none():
    """T20: a flag that was not given changes nothing."""
    arguments = read("--experiment=digits")
    assert arguments.mode is arguments.model_dir is arguments.config_file is arguments.tpu is arguments.set is None
    assert not flags.changes_config(arguments)


def test_every_way_to_set_a_value_in_the_order_given():
    arguments = read(
        "--set=a.b=1",
        "--set",
        "a.c=2",
        "a.d=3",
        "--a.e=4",
        "--a.f",
        "5",
        "-a.g=6",
        "a.h+=[7]",
        "x=9",
    )
    assert arguments.set == [
        "a.b=1", "a.c=2", "a.d=3", "a.e=4", "a.f=5", "a.g=6", "a.h+=[7]", "x=9",
    ]  # fmt: skip


def test_values_are_taken_as_they_are():
    for value in ("a=b", "-1", "[1, 2]", "train[:90%]", "", "x=--quiet", "%d"):
        assert read(f"--set=a.b={value}").set == read(f"--a.b={value}").set == [f"a.b={value}"]


def test_what_is_a_value_a_flag_and_an_argument():
    """T20: a path with `=` is no override, nothing behind `--` is a flag, and a switch leaves the next word alone."""
    for argv, name, value in (
        (["--quiet", "digits"], "name", "digits"),
        (["runs/lr=0.1"], "name", "runs/lr=0.1"),
        (["--", "--quiet"], "name", "--quiet"),
        (["--", "--quiet"], "quiet", False),
        (["--", "--flagfile=x"], "name", "--flagfile=x"),
        (["--trainer.validation_steps", "-1"], "set", ["trainer.validation_steps=-1"]),
        (["--model-dir=runs/a"], "model_dir", "runs/a"),
        (["--config-file", "a.yaml"], "config_file", ["a.yaml"]),
    ):
        assert getattr(read(*argv), name) == value, argv
    assert read("a=b", overrides=False).directory == "a=b"  # where nothing can be set


def test_flagfile(tmp_path):
    """T20: comments, one flag a line, spaces in values, files in files; later flags win."""
    inner = tmp_path / "inner.txt"
    inner.write_text("--quiet\n")
    outer = tmp_path / "outer.txt"
    outer.write_text(
        "# run\n// also a comment\n\n--experiment=digits\n--mode eval\n--model_dir=my runs\n"
        f"--flagfile={inner}\ntrainer.x=1\n"
    )
    arguments = read("--flagfile", str(outer), "--mode=train")
    assert (arguments.experiment, arguments.mode, arguments.model_dir) == ("digits", "train", "my runs")
    assert arguments.quiet
    assert arguments.set == ["trainer.x=1"]
    assert read(f"--flagfile={outer}").mode == "eval"


def refusal(*argv, overrides=True):
    with pytest.raises(UsageError) as refused:
        read(*argv, overrides=overrides)
    return str(refused.value)


def _flagfile_refusal(path):
    return refusal(f"--flagfile={path}").partition("\n")[0]


def test_flagfiles_that_cannot_be_read(tmp_path):
    """N34: chains, diamonds, pipes, devices and names that no file has."""
    for number in range(400):
        (tmp_path / f"{number}").write_text(f"--flagfile={tmp_path / str(number + 1)}\n" * 2)
    os.mkfifo(tmp_path / "400")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    said = "at most 100 flag files are read; put some into one, unless one includes itself"
    assert bounded(_flagfile_refusal, tmp_path / "0") == f"--flagfile={tmp_path}/100: {said}"
    for path in (tmp_path / "400", "/dev/zero"):
        said = "it is a pipe or a device; write its content into a file"
        assert bounded(_flagfile_refusal, path) == f"--flagfile={path}: {said}"
    assert bounded(_flagfile_refusal, "a\0b") == "--flagfile=a\0b: no file can have this name"
    assert _flagfile_refusal(tmp_path / "gone") == f"--flagfile={tmp_path}/gone: No such file or directory"
    assert "can't decode" in _flagfile_refusal(tmp_path / "binary")


def test_undefok():
    """T20: flags named there may be unknown, wherever it stands; others may not."""
    assert read("--xyz=1", "--nofoo", "--undefok=xyz,foo", "--experiment=digits").experiment == "digits"
    with pytest.raises(UsageError, match="unknown flag --other"):
        read("--undefok", "xyz", "--other")


def test_a_launch_script_of_model_garden_is_told_what_does_nothing(engine, workspace, capsys):
    """T26: on standard error, before the run."""
    assert cli.main(["train", "my_experiment", "--alsologtostderr", "--tpu=", "-v", "1", "--log_dir=/tmp/logs"]) == 0
    assert capsys.readouterr().err == (
        "warning: --alsologtostderr has no effect: messages always go to standard error\n"
        "warning: --v has no effect: there are no levels of messages\n"
        "warning: --log_dir has no effect: messages go to standard error alone; `2> FILE` keeps them\n"
    )


def test_words_that_cannot_be_read(workspace, capsys, request):
    """N7, T20, T26: all at once, with what each needs, the nearest flag, or how a field is set; none is abbreviated."""
    golden.check_refused("flags", request, capsys)


def test_modes():
    """T10: those of Model Garden, and ours."""
    assert [flags.read_mode(read(f"--mode={mode}")) for mode in modes.MODES] == list(modes.MODES)
    assert flags.read_mode(read()) == "train_and_eval"


def test_gin_flags_keep_their_lines_and_their_order():
    """T17, T20: both may be repeated, and one value may have several lines; a launcher passes them on as they are."""
    given = ["--gin_file=a.gin", "--gin_params=f.x=1\nf.y=2", "--gin_file", "b.gin", "--gin_params", "g.x = 'a=b'"]
    arguments = read(*given)
    assert arguments.gin_file == ["a.gin", "b.gin"]
    assert arguments.gin_params == ["f.x=1\nf.y=2", "g.x = 'a=b'"]
    again = parser().read(parser().words(arguments))
    assert (again.gin_file, again.gin_params) == (arguments.gin_file, arguments.gin_params)


def prediction(*argv):
    made = flags.Parser("predict", usage="", description="")
    flags.add_checkpoint_flag(made)
    flags.add_prediction_flags(made)
    return made.read(argv)


def test_flags_of_predictions(monkeypatch):
    """N18: a home is expanded; what is not given has its default."""
    monkeypatch.setenv("HOME", "/home/someone")
    given = ["--output=~/out", "--format=npy", "--data=train_data", "--shard_size=7"]
    wanted = PredictionSettings(output_dir="/home/someone/out", format="npy", data="train_data", shard_size=7)
    assert flags.read_prediction(prediction(*given)) == wanted
    assert flags.read_prediction(prediction()) == PredictionSettings()


def test_checkpoint():
    for argv, which in ((["--checkpoint=100"], "100"), (["--checkpoint=best"], "best"), ([], "latest")):
        assert flags.read_checkpoint(prediction(*argv)) == which
