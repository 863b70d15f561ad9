"""What each verb does, up to the call of the engine; `test_process.py` has whole processes."""

import inspect
import json
import shutil
import sys
import types
from pathlib import Path

import pytest

import official_trainer.runs
from official_trainer import cli
from official_trainer.cli import init
from official_trainer.errors import ExitCode, UserError
from official_trainer.garden import index
from official_trainer.runs.check import CheckStep
from official_trainer.runs.predictions.shards import PredictionSettings
from official_trainer.stopping import StopRequest


class Engine(types.ModuleType):
    """Stands for `official_trainer.runs.run`, and remembers how it was called."""

    def __init__(self):
        super().__init__("official_trainer.runs.run")
        self.calls = []

    def run(self, experiment, resolved, **kwargs):
        self.calls.append(("run", experiment, resolved, kwargs))
        return {"loss": 0.25, "accuracy": 0.987654321}

    def check(self, experiment, resolved, **kwargs):
        self.calls.append(("check", experiment, resolved, kwargs))
        yield CheckStep("build", "1,234 parameters", 0.51)
        yield CheckStep("save", "equal", 12.0)

    def export(self, experiment, resolved, **kwargs):
        self.calls.append(("export", experiment, resolved, kwargs))
        return f"{kwargs['model_dir']}/export/saved_model"


@pytest.fixture
def engine(monkeypatch):
    made = Engine()
    monkeypatch.setitem(sys.modules, "official_trainer.runs.run", made)
    monkeypatch.setattr(official_trainer.runs, "run", made, raising=False)
    return made


@pytest.fixture
def workspace(tmp_path, monkeypatch, capsys):
    """A new workspace, which is the current directory."""
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    capsys.readouterr()
    monkeypatch.chdir(tmp_path / "ws")
    return tmp_path / "ws"


@pytest.fixture
def run_dir(workspace, capsys):
    """What a run of `my_experiment` with 7 steps has left."""
    folder = workspace / "runs" / "seven"
    folder.mkdir(parents=True)
    assert cli.main(["show", "my_experiment", "trainer.train_steps=7"]) == 0
    (folder / "params.yaml").write_text(capsys.readouterr().out)
    (folder / "run.json").write_text(json.dumps({"experiment": "my_experiment", "run_id": "1"}))
    return folder


# train


def test_train_hands_over_to_the_engine(engine, workspace):
    """T20, N9: every flag arrives where it belongs."""
    argv = ["train", "--experiment=my_experiment", "--mode=train", "--model_dir=there", "--quiet", "runtime.seed=4"]
    argv.append("--allow_config_change")
    assert cli.main(argv) == 0
    [(what, experiment, resolved, kwargs)] = engine.calls
    assert (what, experiment, resolved.experiment) == ("run", "my_experiment", "my_experiment")
    assert resolved.config.runtime.seed == 4
    assert isinstance(kwargs.pop("stop"), StopRequest)
    assert kwargs == {
        "mode": "train",
        "model_dir": "there",
        "quiet": True,
        "argv": ["official-trainer", "train", *argv[1:]],
        "allow_config_change": True,
        "gin": None,
        "checkpoint": "latest",
        "prediction": PredictionSettings(),
    }


def test_predict_hands_over_to_the_engine(engine, run_dir):
    """N18: the experiment that ran there, configured as it ran."""
    argv = ["predict", f"--model_dir={run_dir}", "--checkpoint=best", "--output=out", "--format=npy", "runtime.seed=4"]
    assert cli.main(argv) == 0
    [(what, experiment, resolved, kwargs)] = engine.calls
    assert (what, experiment, kwargs["mode"], kwargs["checkpoint"]) == ("run", "my_experiment", "predict", "best")
    assert (resolved.config.trainer.train_steps, resolved.config.runtime.seed) == (7, 4)
    assert kwargs["model_dir"] == str(run_dir)
    assert kwargs["prediction"] == PredictionSettings(output_dir="out", format="npy")
    assert isinstance(kwargs["stop"], StopRequest)


def test_defaults_of_train(engine, workspace, monkeypatch):
    monkeypatch.chdir(workspace / "configs")
    assert cli.main(["train", "my_experiment"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["mode"], kwargs["quiet"]) == ("train_and_eval", False)
    assert kwargs["allow_config_change"] is False
    assert kwargs["model_dir"] == str(workspace / "runs" / "my_experiment")


def test_layers_in_their_order(engine, workspace):
    """T20: factory < files < --params_override < --set, whatever the order on the command line."""
    (workspace / "a.yaml").write_text("trainer: {train_steps: 1, max_to_keep: 1, summary_interval: 1}\n")
    (workspace / "b.yaml").write_text("trainer: {train_steps: 2, max_to_keep: 2}\n")
    override = "--params_override=trainer.train_steps=3"
    argv = ["--set=trainer.steps_per_loop=4", override, "--config_file=a.yaml", "--config_file=b.yaml"]
    assert cli.main(["train", "my_experiment", *argv]) == 0
    trainer = engine.calls[0][2].config.trainer
    assert (trainer.summary_interval, trainer.max_to_keep, trainer.train_steps, trainer.steps_per_loop) == (1, 2, 3, 4)


def test_a_home_in_the_path_is_expanded(engine, workspace, monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    assert cli.main(["train", "my_experiment", "--model_dir=~/runs"]) == 0
    assert engine.calls[0][3]["model_dir"] == "/home/someone/runs"


def test_tf_data_service_sets_its_fields_only_when_given(engine, workspace):
    """T20: training data goes through the service at that address; the evaluation's does not."""
    for flag, wanted in [("--tf_data_service=", (False, None)), ("--tf_data_service=grpc://a:1", (True, "grpc://a:1"))]:
        assert cli.main(["train", "my_experiment", flag]) == 0
        task = engine.calls[-1][2].config.task
        assert (task.train_data.enable_tf_data_service, task.train_data.tf_data_service_address) == wanted
        assert not task.validation_data.enable_tf_data_service


def test_tpu_sets_its_field_only_when_given(engine, workspace):
    """T20: Model Garden's `--tpu` erased `runtime.tpu` when it was not given."""
    assert cli.main(["train", "my_experiment", "--tpu="]) == 0
    assert engine.calls[0][2].config.runtime.tpu is None
    assert cli.main(["train", "my_experiment", "--tpu=local"]) == 0
    assert engine.calls[1][2].config.runtime.tpu == "local"


def test_train_falls_back_to_the_workspace_of_its_script(engine, workspace, tmp_path, monkeypatch):
    """T20: `python /elsewhere/train.py` works from any directory; the current workspace comes first."""
    from official_trainer.cli import train

    monkeypatch.chdir(tmp_path)
    script = str(workspace / "train.py")
    assert train.main(["--experiment=my_experiment"], script=script) == 0
    assert engine.calls[0][3]["model_dir"] == str(workspace / "runs" / "my_experiment")
    cli.main(["init", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "other")
    assert train.main(["--experiment=my_experiment"], script=script) == 0
    assert engine.calls[1][3]["model_dir"] == str(tmp_path / "other" / "runs" / "my_experiment")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "error: name the experiment: --experiment=NAME\nexperiments: my_experiment\n"),
        (["a", "--experiment=b"], "error: two experiments: a and --experiment=b; keep one\n"),
        (["my_experimnt"], "did you mean 'my_experiment'?"),
        (["my_experiment", "--model_dir="], "error: --model_dir is empty: is a variable not set?"),
        (
            ["my_experiment", "--mode=trian"],
            "error: --mode=trian: no such mode; did you mean train?\nmodes: train, ",
        ),
        (["my_experiment", "trainer.train_step=1"], "did you mean 'train_steps'?"),
        (["my_experiment", "--config_file=gone.yaml"], "gone.yaml"),
        (["my_experiment", "--gin_file=a.gin"], "error: --gin_file: there is no file 'a.gin'"),
        (["my_experiment", "--gin_params=f.x = true"], "error: --gin_params: true is not a value"),
        (["my_experiment", "trainer.train_step=1", "--gin_params=f.x"], "did you mean 'train_steps'?"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "check"])
def test_what_cannot_be_run(verb, argv, said, engine, workspace, capsys):
    """N7: exit code 2, and the engine is never called."""
    assert cli.main([verb, *argv]) == 2
    assert said in capsys.readouterr().err
    assert engine.calls == []


def test_no_experiments_at_all(engine, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train"]) == 2
    assert "experiments: none here; `official-trainer init DIR` writes a new workspace" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["train", "check", "eval", "export"])
def test_gin_flags_reach_the_engine(verb, engine, workspace):
    """T17: of every verb that builds the model; without them nothing does."""
    assert cli.main([verb, "my_experiment", "--gin_params=f.x = 1", "--gin_params=f.y = 2"]) == 0
    (source,) = engine.calls[0][3]["gin"].sources
    assert [statement.arg_name for statement, _ in source] == ["x", "y"]
    assert cli.main([verb, "my_experiment", "--gin_params="]) == 0
    assert engine.calls[1][3]["gin"] is None


def test_show_takes_no_gin_flags(workspace, capsys):
    """T17: they change nothing that it shows."""
    assert cli.main(["show", "my_experiment", "--gin_params=f.x = 1"]) == 2
    assert "error: --gin_params would have no effect here" in capsys.readouterr().err


# eval


def test_eval(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--checkpoint=best", "--quiet"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["mode"], kwargs["checkpoint"], kwargs["quiet"]) == ("eval", "best", True)
    assert kwargs["argv"][:2] == ["official-trainer", "eval"]
    assert capsys.readouterr().out == ""  # the engine prints


def test_eval_as_json(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--json"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["checkpoint"], kwargs["quiet"]) == ("latest", True)
    assert json.loads(capsys.readouterr().out) == {"loss": 0.25, "accuracy": 0.987654321}


def test_a_wrong_checkpoint_is_refused_first(engine, workspace, capsys):
    assert cli.main(["eval", "my_experiment", "--checkpoint=lates"]) == 2
    assert "--checkpoint=lates: expected `latest`, `best` or the number of a step" in capsys.readouterr().err
    assert engine.calls == []


@pytest.mark.parametrize("verb", ["eval", "export"])
def test_a_run_is_taken_as_it_was_configured(verb, engine, run_dir):
    """N8: without an experiment, name and values are those the run recorded, under what the flags change."""
    assert cli.main([verb, f"--model_dir={run_dir}", "runtime.seed=5"]) == 0
    _, experiment, resolved, kwargs = engine.calls[0]
    assert experiment == "my_experiment"
    assert (resolved.config.trainer.train_steps, resolved.config.runtime.seed) == (7, 5)
    assert kwargs["model_dir"] == str(run_dir)


def test_a_named_experiment_is_taken_as_it_is(engine, run_dir):
    assert cli.main(["eval", "my_experiment", f"--model_dir={run_dir}"]) == 0
    assert engine.calls[0][2].config.trainer.train_steps == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "run holds no run (there is no run.json), so name the experiment with --experiment"),
        ("{", "run/run.json cannot be read"),
        ("{}", "run/run.json was not written by this program"),
        ("[]", "run/run.json was not written by this program"),
    ],
)
def test_a_run_that_does_not_say_what_it_is(content, reason, engine, workspace, capsys):
    (workspace / "run").mkdir()
    if content is not None:
        (workspace / "run" / "run.json").write_text(content)
    assert cli.main(["export", "--model_dir=run"]) == 2
    assert f"error: {reason}" in capsys.readouterr().err


# check and export


def test_check_prints_a_line_for_each_step(engine, workspace, capsys):
    """N10: as the steps end."""
    assert cli.main(["check", "my_experiment", "--mode=eval", "runtime.seed=4"]) == 0
    what, experiment, resolved, kwargs = engine.calls[0]
    assert (what, experiment, resolved.config.runtime.seed) == ("check", "my_experiment", 4)
    assert kwargs == {"mode": "eval", "model_dir": str(workspace / "runs" / "my_experiment"), "gin": None}
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["ok", "build", "0.5", "s", "1,234", "parameters"],
        ["ok", "save", "12.0", "s", "equal"],
    ]


def test_check_may_be_quiet(engine, workspace, capsys):
    assert cli.main(["check", "my_experiment", "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_check_ends_with_the_exit_code_of_what_failed(engine, workspace, capsys, monkeypatch):
    """N6, N10: what has worked is shown, then the reason."""

    class NoData(UserError):
        exit_code = ExitCode.DATA

    def check(experiment, resolved, *, mode, model_dir, gin):
        yield CheckStep("build", "", 0.5)
        yield CheckStep("train", "", 1.5, NoData("no file matches data/*.tfrecord"))

    monkeypatch.setattr(engine, "check", check)
    assert cli.main(["check", "my_experiment"]) == 3
    out, err = capsys.readouterr()
    assert out.split() == ["ok", "build", "0.5", "s", "failed", "train", "1.5", "s"]
    assert err == "error: no file matches data/*.tfrecord\n"


def test_export_prints_where_to(engine, workspace, capsys):
    """T19: the path on stdout, for scripts."""
    assert cli.main(["export", "my_experiment", "--model_dir=run", "--checkpoint=120", "--output_dir=out"]) == 0
    assert engine.calls[0][3] == {"model_dir": "run", "checkpoint": "120", "output_dir": "out", "gin": None}
    assert capsys.readouterr().out == "run/export/saved_model\n"


def test_export_defaults(engine, workspace):
    assert cli.main(["export", "my_experiment"]) == 0
    assert engine.calls[0][3]["checkpoint"] == "latest"
    assert engine.calls[0][3]["output_dir"] is None


# list


def test_list(workspace, capsys):
    assert cli.main(["list"]) == 0
    assert own_part(capsys.readouterr().out) == (
        "my_experiment  Three grape varieties told apart by 13 measurements.  experiments/my_experiment.py\n"
    )


def own_part(out):
    """Returns what `list` prints of the workspace, before Model Garden's experiments."""
    own, _, theirs = out.partition("\nModel Garden 2.20.0\n")
    assert "resnet_imagenet  " in theirs
    return own


def test_list_as_json(workspace, capsys):
    assert cli.main(["list", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    [experiment] = report["experiments"]
    assert experiment["name"] == "my_experiment"
    assert experiment["path"] == str(workspace / "experiments" / "my_experiment.py")
    assert report["unlisted"] == []
    source = (workspace / "experiments" / "my_experiment.py").read_text().splitlines()
    assert source[experiment["line"] - 1] == "def my_experiment() -> ExperimentConfig:"


def test_list_shows_what_it_cannot_read(workspace, capsys):
    (workspace / "experiments" / "broken.py").write_text("@register_config_factory('x'\ndef")
    assert cli.main(["list"]) == 0
    out = capsys.readouterr().out
    assert "my_experiment " in out
    assert "unlisted  " in out
    assert "broken.py:1: its experiments are not listed" in out


def test_list_shows_modules_whose_import_would_fail(workspace, capsys):
    (workspace / "experiments" / "needy.py").write_text(
        'import no_such_module\n\n@register_config_factory("needy")\ndef needy():\n    """Needs more."""\n'
    )
    assert cli.main(["list"]) == 0
    assert "needy          Needs more." in capsys.readouterr().out


def test_an_empty_workspace(tmp_path, monkeypatch, capsys):
    (tmp_path / "experiments").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(["list"]) == 0
    assert own_part(capsys.readouterr().out) == f"no experiments in {tmp_path / 'experiments'}\n"


def test_list_outside_of_any_workspace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = (
        f"no workspace: no folder upwards of {tmp_path} holds experiments/; "
        "`official-trainer init DIR` writes a new workspace\n"
    )
    assert cli.main(["list"]) == 0
    assert own_part(capsys.readouterr().out) == said
    monkeypatch.setattr(index, "entries", dict)  # nor is there Model Garden
    assert cli.main(["list"]) == 2
    assert capsys.readouterr().err == f"error: {said}"


# show


def test_show(workspace, capsys):
    """N8: the resolved YAML says who set what the user changed."""
    argv = ["show", "my_experiment", "--config_file=configs/my_experiment.yaml", "runtime.seed=5"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "  train_steps: 400  # configs/my_experiment.yaml:7\n" in out
    assert "  seed: 5  # --set\n" in out


def test_show_takes_the_flag_too(workspace, capsys):
    assert cli.main(["show", "--experiment=my_experiment"]) == 0
    assert "train_steps: 200  # experiment\n" in capsys.readouterr().out


def test_show_explains_a_field(workspace, capsys):
    """N8: type, meaning, default, and everyone who set it."""
    argv = ["show", "my_experiment", "--explain=trainer.train_steps", "trainer.train_steps=9"]
    assert cli.main(argv) == 0
    out = capsys.readouterr().out
    assert "trainer.train_steps" in out
    assert "experiment my_experiment" in out
    assert "--set" in out


def test_show_as_json(workspace, capsys):
    """N8: values, and the origin of each that is not its class's default."""
    assert cli.main(["show", "my_experiment", "--json", "runtime.seed=5"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["experiment"] == "my_experiment"
    assert report["config"]["runtime"]["seed"] == 5
    assert report["origins"]["runtime.seed"].startswith("--set")
    assert report["origins"]["trainer.train_steps"] == "experiment my_experiment"
    assert "runtime.num_gpus" not in report["origins"]


def test_show_explains_in_words_only(workspace, capsys):
    assert cli.main(["show", "my_experiment", "--json", "--explain=runtime"]) == 2
    assert capsys.readouterr().err == "error: --explain and --json cannot be combined; keep one\n"


def test_show_a_run_as_it_was_written(run_dir, capsys):
    """N8: also when its experiment is no more."""
    text = (run_dir / "params.yaml").read_text()
    (run_dir.parents[1] / "experiments" / "my_experiment.py").unlink()
    assert cli.main(["show", "runs/seven"]) == 0
    assert capsys.readouterr().out == text


def test_show_a_run_as_it_would_be(run_dir, capsys):
    assert cli.main(["show", str(run_dir), "--explain=trainer.train_steps"]) == 0
    assert "params.yaml:" in capsys.readouterr().out
    assert cli.main(["show", str(run_dir), "runtime.seed=5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["config"]["trainer"]["train_steps"], report["config"]["runtime"]["seed"]) == (7, 5)


@pytest.mark.parametrize("name", ["runs/none", ".", "./my_experiment"])
def test_show_a_directory_without_a_run(name, workspace, capsys):
    assert cli.main(["show", name]) == 2
    assert capsys.readouterr().err == (f"error: {name} is not the directory of a run: there is no {name}/params.yaml\n")


# init


def test_init_writes_a_workspace(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["init", "my work"]) == 0
    out = capsys.readouterr().out
    written = sorted(str(path.relative_to(tmp_path / "my work")) for path in (tmp_path / "my work").rglob("*.*"))
    assert written == [
        ".gitignore", "README.md", "configs/my_experiment.yaml", "experiments/my_experiment.py",
        "launch/README.md", "launch/gke.yaml", "launch/kubernetes.yaml", "launch/local.yaml", "launch/skypilot.yaml",
        "launch/slurm.yaml", "launch/sweep.yaml", "launch/tpu.yaml", "launch/vertex.yaml", "train.py",
    ]  # fmt: skip
    assert all(f"  {name}\n" in out for name in [*written, "launch/Dockerfile"])
    assert "  cd 'my work'\n" in out
    assert "  python train.py --experiment=my_experiment" in out


def test_init_here(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["init", "."]) == 0
    assert "  cd " not in capsys.readouterr().out
    assert (tmp_path / "experiments" / "my_experiment.py").is_file()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_init_never_overwrites(tmp_path, capsys):
    (tmp_path / "train.py").write_text("mine")
    assert cli.main(["init", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"error: {tmp_path} already has train.py; nothing was written. Name another folder.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


def test_init_leaves_out_compiled_files(tmp_path, monkeypatch):
    """pip compiles the template's Python files where it installs them."""
    shutil.copytree(Path(init.__file__).parent / "template", tmp_path / "installed" / "template")
    for folder in ("template", "template/experiments"):
        (tmp_path / "installed" / folder / "__pycache__").mkdir(exist_ok=True)
        (tmp_path / "installed" / folder / "__pycache__" / "x.pyc").write_bytes(b"\xff\x00")
    monkeypatch.setattr(init, "__file__", str(tmp_path / "installed" / "init.py"))
    assert cli.main(["init", str(tmp_path / "ws")]) == 0
    assert not list((tmp_path / "ws").rglob("__pycache__"))
    assert (tmp_path / "ws" / "train.py").is_file()


def test_init_without_a_folder(capsys):
    assert cli.main(["init"]) == 2
    assert capsys.readouterr().err == "error: name the folder of the new workspace: official-trainer init DIR\n"


def test_init_where_nothing_can_be_written(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert cli.main(["init", str(tmp_path / "file" / "ws")]) == 2
    assert "Not a directory; name a folder that can be written" in capsys.readouterr().err


def test_the_engine_is_called_as_it_is():
    """The calls above fit the real `official_trainer.runs.run`."""
    from official_trainer.runs import run

    inspect.signature(run.run).bind(
        "e", None, mode="train", model_dir="d", quiet=True, argv=[], allow_config_change=True
    )
    inspect.signature(run.run).bind("e", None, mode="eval", model_dir="d", quiet=True, checkpoint="best", argv=[])
    inspect.signature(run.check).bind("e", None, mode="train", model_dir="d")
    inspect.signature(run.export).bind("e", None, model_dir="d", checkpoint="best", output_dir=None)
