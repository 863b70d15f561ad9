"""T20: the flags of Model Garden's driver, in every spelling that absl accepts."""

import os
import re

import pytest

from official_trainer import cli
from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError
from official_trainer.config import modes
from official_trainer.runs.predictions.shards import PredictionSettings
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


def test_dashes_stand_for_underscores():
    arguments = read("--model-dir=runs/a", "--config-file", "a.yaml")
    assert arguments.model_dir == "runs/a"
    assert arguments.config_file == ["a.yaml"]


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


def test_a_switch_leaves_the_next_word_alone():
    assert read("--quiet", "digits").name == "digits"


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
        "--a.i:=8",
        "~a.j",
        "x=9",
    )
    assert arguments.set == [
        "a.b=1", "a.c=2", "a.d=3", "a.e=4", "a.f=5", "a.g=6", "a.h+=[7]", "a.i:=8", "~a.j", "x=9",
    ]  # fmt: skip


@pytest.mark.parametrize("value", ["a=b", "-1", "[1, 2]", "train[:90%]", "", "x=--quiet", "%d"])
def test_values_are_taken_as_they_are(value):
    assert read(f"--set=a.b={value}").set == [f"a.b={value}"]
    assert read(f"--a.b={value}").set == [f"a.b={value}"]


def test_a_negative_number_is_a_value():
    assert read("--trainer.validation_steps", "-1").set == ["trainer.validation_steps=-1"]


def test_a_path_with_an_equals_sign_is_no_override():
    assert read("runs/lr=0.1").name == "runs/lr=0.1"


def test_after_two_dashes_nothing_is_a_flag():
    assert read("--", "--quiet").name == "--quiet"
    assert read("--", "--quiet").quiet is False


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


def test_a_flagfile_after_two_dashes_is_a_word():
    assert read("--", "--flagfile=x").name == "--flagfile=x"


def test_flagfile_that_is_missing(tmp_path):
    with pytest.raises(UsageError, match=r"--flagfile=.*gone: No such file or directory"):
        read(f"--flagfile={tmp_path / 'gone'}")


def test_flagfile_that_is_not_text(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(UsageError, match=r"--flagfile=.*binary: .*can't decode"):
        read(f"--flagfile={tmp_path / 'binary'}")


def test_flagfile_without_a_path():
    with pytest.raises(UsageError, match="--flagfile needs a value: --flagfile=PATH"):
        read("--flagfile")


def test_flagfile_that_includes_itself(tmp_path):
    path = tmp_path / "flags"
    path.write_text(f"--flagfile={path}\n")
    with pytest.raises(UsageError, match="the file includes itself"):
        read(f"--flagfile={path}")


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
    said = "at most 100 flag files are read; put some of them into one"
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
    ],
)
def test_a_flag_with_the_name_of_a_field(flag, override):
    """N7: says how the field is set."""
    with pytest.raises(UsageError, match=re.escape(f"; the field of this name is set with {override}\n")):
        read("--experiment=digits", flag)


def test_a_verb_without_overrides_names_no_field():
    with pytest.raises(UsageError, match=r"^unknown flag --train_steps\n"):
        read("--train_steps=500", overrides=False)


def test_no_abbreviations():
    with pytest.raises(UsageError, match="unknown flag --exp"):
        read("--exp=digits")


def test_undefok():
    """T20: flags named there may be unknown, wherever it stands; others may not."""
    assert read("--xyz=1", "--nofoo", "--undefok=xyz,foo", "--experiment=digits").experiment == "digits"
    with pytest.raises(UsageError, match="unknown flag --other"):
        read("--undefok", "xyz", "--other")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--alsologtostderr"], "--alsologtostderr has no effect: messages always go to standard error"),
        (["--nologtostderr"], "--nologtostderr has no effect: messages always go to standard error"),
        (["--logtostderr=true"], "--logtostderr has no effect: messages always go to standard error"),
        (["--v=1"], "--v has no effect: there are no levels of messages"),
        (["-v", "1"], "--v has no effect: there are no levels of messages"),
        (["--verbosity", "-1"], "--verbosity has no effect: there are no levels of messages"),
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


def test_a_flag_that_does_nothing_needs_its_value_too():
    """T26."""
    with pytest.raises(UsageError, match="--tfhub_handle needs a value: --tfhub_handle=VALUE"):
        read("--tfhub_handle", "--experiment=digits")


def test_a_launch_script_of_model_garden_is_told_what_does_nothing(engine, workspace, capsys):
    """T26: on standard error, before the run."""
    assert cli.main(["train", "my_experiment", "--alsologtostderr", "--tpu=", "--v=1"]) == 0
    assert capsys.readouterr().err == (
        "warning: --alsologtostderr has no effect: messages always go to standard error\n"
        "warning: --v has no effect: there are no levels of messages\n"
    )


@pytest.mark.parametrize("argv", [["--experiment"], ["--experiment", "--quiet"], ["--experiment", "--", "digits"]])
def test_a_flag_without_its_value(argv):
    with pytest.raises(UsageError, match="--experiment needs a value: --experiment=VALUE"):
        read(*argv)


def test_a_switch_with_a_wrong_value():
    with pytest.raises(UsageError, match="--quiet=maybe: expected true or false"):
        read("--quiet=maybe")


def test_an_argument_too_many():
    with pytest.raises(UsageError, match="unexpected argument 'mnist'"):
        read("digits", "mnist")


def test_an_argument_that_lacks_its_dashes():
    with pytest.raises(UsageError, match=r"unexpected argument 'device=no'; did you mean --devices\?"):
        read("somewhere", "device=no", overrides=False)


@pytest.mark.parametrize("flag", ["-h", "--help", "--helpfull", "--helpshort", "-help"])
def test_help_wins_over_mistakes(flag):
    assert read(flag, "--experimnt=x").help


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


def test_unknown_mode():
    """T10: refused with the nearest name and the list."""
    with pytest.raises(
        modes.ModeError, match=r"--mode=train_and_evl: no such mode; did you mean train_and_eval"
    ) as error:
        flags.read_mode(read("--mode=train_and_evl"))
    assert all(mode in str(error.value) for mode in modes.MODES)


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["train", "x", "--mode=evaluate"], "official-trainer train x --mode=eval"),
        (["train", "x", "-mode=evaluate"], "official-trainer train x --mode=eval"),
        (["train", "--mode", "trian", "x"], "official-trainer train --mode train x"),
        (["train", "x", "--flagfile=mode.txt"], "--mode=eval"),
    ],
)
def test_an_unknown_mode_names_the_command_that_is_meant(words, command, tmp_path, monkeypatch, capsys):
    """T10, N7: with the nearest mode in the place of the wrong one; the flag alone if a file has it."""
    (tmp_path / "mode.txt").write_text("--mode=evaluate\n")
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert capsys.readouterr().err.splitlines()[1:] == [f"modes: {', '.join(modes.MODES)}", f"try: {command}"]


def test_a_mode_like_no_other_names_all(capsys):
    assert cli.main(["train", "x", "--mode=zzz"]) == 2
    said = f"error: --mode=zzz: no such mode\nmodes: {', '.join(modes.MODES)}\n"
    assert capsys.readouterr().err == said


def test_gin_flags_keep_their_lines_and_their_order():
    """T17, T20: both may be repeated, and one value may have several lines; a launcher passes them on as they are."""
    given = ["--gin_file=a.gin", "--gin_params=f.x=1\nf.y=2", "--gin_file", "b.gin", "--gin_params", "g.x = 'a=b'"]
    arguments = read(*given)
    assert arguments.gin_file == ["a.gin", "b.gin"]
    assert arguments.gin_params == ["f.x=1\nf.y=2", "g.x = 'a=b'"]
    again = parser().read(parser().words(arguments))
    assert (again.gin_file, again.gin_params) == (arguments.gin_file, arguments.gin_params)


@pytest.mark.parametrize("flag", ["gin_file", "gin_params"])
def test_gin_flags_are_refused_where_they_would_do_nothing(flag):
    """T17, T20: a flag that cannot be honoured is not ignored; empty, it says nothing."""

    def idle(*argv):
        made = flags.Parser("show", usage="", description="")
        flags.add_idle_gin_flags(made)
        flags.refuse_idle_gin(made.read(argv))

    with pytest.raises(
        UsageError, match=f"--{flag} would have no effect here: gin binds arguments of .*; leave it out"
    ):
        idle(f"--{flag}=x")
    idle(f"--{flag}=")
    idle()


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
        ("--format=json", r"--format=json: expected one of tfrecord, jsonl, npy; did you mean .*jsonl"),
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


@pytest.mark.parametrize("which", ["latest", "best", "100", "0"])
def test_checkpoint(which):
    made = flags.Parser("eval", usage="", description="")
    flags.add_checkpoint_flag(made)
    assert flags.read_checkpoint(made.read([f"--checkpoint={which}"])) == which
    assert flags.read_checkpoint(made.read([])) == "latest"


@pytest.mark.parametrize("which", ["lates", "-1", "1.5", ""])
def test_unknown_checkpoint(which):
    made = flags.Parser("eval", usage="", description="")
    flags.add_checkpoint_flag(made)
    with pytest.raises(UsageError, match=f"--checkpoint={which}: expected `latest`, `best` or the number of a step"):
        flags.read_checkpoint(made.read([f"--checkpoint={which}"]))
