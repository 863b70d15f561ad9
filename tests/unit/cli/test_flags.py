"""T20: the flags of Model Garden's driver, in every spelling that absl accepts."""

import os
import re

import pytest

from official_trainer import cli
from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError
from official_trainer.config import modes
from official_trainer.runs.predictions import PredictionSettings
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


@pytest.mark.parametrize(
    "argv",
    [
        ["--experiment=digits"],
        ["--experiment", "digits"],
        ["-experiment=digits"],
        ["-experiment", "digits"],
        ["--experiment=other", "--experiment=digits"],
        ["trainer.train_steps=3", "--experiment=digits"],
        ["--experiment=digits", "--", "trainer.train_steps=3"],
    ],
)
def test_one_value_in_every_spelling(argv):
    """T20: with `=` or a space, one dash or two, anywhere; the last one counts."""
    assert read(*argv).experiment == "digits"


@pytest.mark.parametrize(
    ("argv", "quiet"),
    [
        ([], False),
        (["--quiet"], True),
        (["-quiet"], True),
        (["--quiet=true"], True),
        (["--quiet=1"], True),
        (["--quiet=YES"], True),
        (["--quiet=false"], False),
        (["--quiet=0"], False),
        (["--noquiet"], False),
        (["--no-quiet"], False),
        (["--quiet", "--noquiet"], False),
        (["--noquiet", "--quiet"], True),
    ],
)
def test_switches(argv, quiet):
    assert read(*argv).quiet is quiet


@pytest.mark.parametrize(
    ("argv", "devices"),
    [([], True), (["--nodevices"], False), (["--devices=false"], False), (["--nodevices", "--devices"], True)],
)
def test_a_switch_that_is_on_by_default(argv, devices):
    assert read(*argv, overrides=False).devices is devices


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


@pytest.mark.parametrize("value", ["a=b", "-1", "[1, 2]", "train[:90%]", "", "x=--quiet", "%d"])
def test_values_are_taken_as_they_are(value):
    assert read(f"--set=a.b={value}").set == [f"a.b={value}"]
    assert read(f"--a.b={value}").set == [f"a.b={value}"]


@pytest.mark.parametrize(
    ("argv", "name", "value"),
    [
        (["--quiet", "digits"], "name", "digits"),
        (["runs/lr=0.1"], "name", "runs/lr=0.1"),
        (["--", "--quiet"], "name", "--quiet"),
        (["--", "--quiet"], "quiet", False),
        (["--", "--flagfile=x"], "name", "--flagfile=x"),
        (["--trainer.validation_steps", "-1"], "set", ["trainer.validation_steps=-1"]),
        (["--model-dir=runs/a"], "model_dir", "runs/a"),
        (["--config-file", "a.yaml"], "config_file", ["a.yaml"]),
    ],
)
def test_what_is_a_value_a_flag_and_an_argument(argv, name, value):
    """T20: a path with `=` is no override, nothing behind `--` is a flag, and a switch leaves the next word alone."""
    assert getattr(read(*argv), name) == value


def test_where_nothing_can_be_set_an_equals_sign_means_nothing():
    assert read("a=b", overrides=False).directory == "a=b"


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


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("gone", "No such file or directory"),
        ("binary", ".*can't decode"),
        ("circle", "at most 100 flag files are read; put some into one, unless one includes itself"),
    ],
)
def test_flagfiles_that_cannot_be_read(tmp_path, path, said):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    (tmp_path / "circle").write_text(f"--flagfile={tmp_path / 'circle'}\n")
    with pytest.raises(UsageError, match=f"--flagfile={tmp_path / path}: {said}"):
        read(f"--flagfile={tmp_path / path}")


def _flagfile_refusal(path):
    try:
        read(f"--flagfile={path}")
    except UsageError as error:
        return str(error)
    return ""


def test_hostile_flagfiles(tmp_path):
    """N34: chains, diamonds, pipes, devices and names that no file has."""
    for number in range(400):
        (tmp_path / f"{number}").write_text(f"--flagfile={tmp_path / str(number + 1)}\n" * 2)
    os.mkfifo(tmp_path / "400")
    said = "at most 100 flag files are read; put some into one, unless one includes itself"
    assert bounded(_flagfile_refusal, tmp_path / "0") == f"--flagfile={tmp_path}/100: {said}"
    for path in (tmp_path / "400", "/dev/zero"):
        said = "it is a pipe or a device; write its content into a file"
        assert bounded(_flagfile_refusal, path) == f"--flagfile={path}: {said}"
    assert bounded(_flagfile_refusal, "a\0b") == "--flagfile=a\0b: no file can have this name"


def test_unknown_flags_name_the_nearest_and_all_are_reported():
    with pytest.raises(UsageError) as error:
        read("--experimnt=digits", "--modl_dir=x", "--zzzzzz")
    assert str(error.value).splitlines() == [
        "unknown flag --experimnt; did you mean --experiment?",
        "unknown flag --modl_dir; did you mean --model_dir?",
        "unknown flag --zzzzzz",
        "`train.py --help` lists the flags",
    ]


@pytest.mark.parametrize(
    ("flag", "override"),
    [
        ("--train_steps=500", "trainer.train_steps=500"),
        ("--num-gpus=2", "runtime.num_gpus=2"),
        ("--global_batch_size", "task.train_data.global_batch_size=VALUE"),
        ("--epochs=3", "trainer.train_epochs=3"),
        ("--lr=0.1", "trainer.optimizer_config.learning_rate.constant.learning_rate=0.1"),
    ],
)
def test_a_flag_with_the_name_of_a_field(flag, override):
    """N7: says how the field is set."""
    with pytest.raises(UsageError, match=re.escape(f"; the field for it is set with {override}\n")):
        read("--experiment=digits", flag)


def test_undefok():
    """T20: flags named there may be unknown, wherever it stands; others may not."""
    assert read("--xyz=1", "--nofoo", "--undefok=xyz,foo", "--experiment=digits").experiment == "digits"
    with pytest.raises(UsageError, match="unknown flag --other"):
        read("--undefok", "xyz", "--other")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--alsologtostderr"], "--alsologtostderr has no effect: messages always go to standard error"),
        (["-v", "1"], "--v has no effect: there are no levels of messages"),
        (["--log_dir=/tmp/logs"], "--log_dir has no effect: messages go to standard error alone; `2> FILE` keeps them"),
        (["--tpu_platform=x"], "--tpu_platform has no effect: nothing reads it in Model Garden's open source version"),
    ],
)
def test_flags_of_launch_scripts_that_do_nothing_are_accepted_and_said(words, said):
    """T26: in any spelling of absl; what stands behind them is read as ever."""
    arguments = read(*words, "--experiment=digits")
    assert arguments.experiment == "digits"
    (line,) = arguments.idle
    assert line.startswith(said)


def test_a_launch_script_of_model_garden_is_told_what_does_nothing(engine, workspace, capsys):
    """T26: on standard error, before the run."""
    assert cli.main(["train", "my_experiment", "--alsologtostderr", "--tpu=", "--v=1"]) == 0
    assert capsys.readouterr().err == (
        "warning: --alsologtostderr has no effect: messages always go to standard error\n"
        "warning: --v has no effect: there are no levels of messages\n"
    )


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--experiment"], "--experiment needs a value: --experiment=VALUE"),
        (["--experiment", "--quiet"], "--experiment needs a value: --experiment=VALUE"),
        (["--experiment", "--", "digits"], "--experiment needs a value: --experiment=VALUE"),
        (["--tfhub_handle", "--experiment=digits"], "--tfhub_handle needs a value: --tfhub_handle=VALUE"),
        (["--flagfile"], "--flagfile needs a value: --flagfile=PATH"),
        (["--quiet=maybe"], "--quiet=maybe: expected true or false"),
        (["digits", "mnist"], "unexpected argument 'mnist'"),
        (["--exp=digits"], "unknown flag --exp"),
        (["digits", "a.b", "=", "1"], "unexpected argument '='; write PATH=VALUE without spaces around ="),
        (["digits", "a.b", "=1"], "unexpected argument '=1'; write PATH=VALUE without spaces around ="),
        (["digits", "a.b=", "1"], "unexpected argument '1'; write PATH=VALUE without spaces around ="),
    ],
)
def test_words_that_cannot_be_read(argv, said):
    """T20, T26: each says what it needs; a flag is not abbreviated."""
    with pytest.raises(UsageError, match=said):
        read(*argv)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["somewhere", "device=no"], "unexpected argument 'device=no'; did you mean --devices?\n"),
        (["--train_steps=500"], "unknown flag --train_steps\n"),
    ],
)
def test_words_that_a_verb_without_overrides_cannot_read(argv, said):
    """N7: a flag without its dashes is named; no field is, as none can be set."""
    with pytest.raises(UsageError, match=f"^{re.escape(said)}"):
        read(*argv, overrides=False)


def test_help_shows_flags_and_defaults():
    text = " ".join(parser().format_help().split())
    assert "usage: train.py [flags]" in text
    assert "--params_override=VALUES" in text
    assert "(default: train_and_eval)" in text
    assert "--gin_file=FILE" in text
    assert "--gin_params=BINDINGS" in text
    assert "--nodevices" in parser(overrides=False).format_help()


@pytest.mark.parametrize("mode", modes.MODES)
def test_modes(mode):
    """T10: the six modes, by Model Garden's names, and ours."""
    assert flags.read_mode(read(f"--mode={mode}")) == mode


def test_default_mode():
    assert flags.read_mode(read()) == "train_and_eval"


def test_unknown_mode(capsys):
    """T10: refused with the nearest name and the list."""
    assert cli.main(["train", "x", "--mode=train_and_evl"]) == 2
    said = "error: --mode=train_and_evl: no such mode; did you mean train_and_eval or train_and_post_eval?\n"
    assert capsys.readouterr().err == f"{said}modes: {', '.join(modes.MODES)}\n"


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


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--format=json", r"--format=json: expected one of tfrecord, jsonl, npy, csv, parquet; did you mean .*jsonl"),
        ("--data=test_data", r"--data=test_data: expected one of validation_data, train_data"),
        ("--shard_size=0", r"--shard_size=0: expected a number from 1"),
        ("--shard_size=many", r"--shard_size=many: expected a number"),
        ("--output=", r"--output is empty: is a variable not set\? Name a directory"),
    ],
)
def test_wrong_flags_of_predictions(flag, message):
    """N18: refused with what is allowed."""
    with pytest.raises(UsageError, match=message):
        flags.read_prediction(prediction(flag))


@pytest.mark.parametrize("flag", ["checkpoint=10", "output=out", "format=npy", "data=train_data", "shard_size=7"])
def test_flags_of_predictions_are_refused_where_they_would_do_nothing(flag):
    """N18, T20: a flag that cannot be honoured is not ignored."""
    name = flag.partition("=")[0]
    with pytest.raises(UsageError, match=rf"--{name} would have no effect with --mode=train; leave it out"):
        flags.refuse_idle_prediction(prediction(f"--{flag}"), "train")
    flags.refuse_idle_prediction(prediction(), "train")


@pytest.mark.parametrize(
    ("argv", "which"), [(["--checkpoint=100"], "100"), (["--checkpoint=best"], "best"), ([], "latest")]
)
def test_checkpoint(argv, which):
    assert flags.read_checkpoint(prediction(*argv)) == which


@pytest.mark.parametrize("which", ["lates", "-1", "1.5", ""])
def test_unknown_checkpoint(which):
    with pytest.raises(UsageError, match=f"--checkpoint={which}: expected `latest`, `best` or the number of a step"):
        flags.read_checkpoint(prediction(f"--checkpoint={which}"))
