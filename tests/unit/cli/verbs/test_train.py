"""What `train` hands over to the engine, and what it refuses."""

import inspect
import re

import pytest

from official_trainer import cli
from official_trainer.runs.predictions import PredictionSettings


def test_train_hands_over_to_the_engine(engine, workspace):
    """T20, N9: every flag arrives where it belongs."""
    argv = ["train", "--experiment=my_experiment", "--mode=train", "--model_dir=there", "--quiet", "runtime.seed=4"]
    argv += ["--allow_config_change", "--import=math", "--until_step=7"]
    assert cli.main(argv) == 0
    [(what, experiment, resolved, kwargs)] = engine.calls
    assert (what, experiment, resolved.experiment) == ("run", "my_experiment", "my_experiment")
    assert resolved.config.runtime.seed == 4
    assert kwargs == {
        "mode": "train",
        "model_dir": "there",
        "quiet": True,
        "argv": ["official-trainer", "train", *argv[1:]],
        "imports": ["math"],
        "allow_config_change": True,
        "until_step": 7,
        "gin": None,
        "checkpoint": "latest",
        "prediction": PredictionSettings(),
    }


def test_defaults_of_train(engine, workspace, monkeypatch):
    monkeypatch.chdir(workspace / "configs")
    assert cli.main(["train", "my_experiment"]) == 0
    kwargs = engine.calls[0][3]
    assert (kwargs["mode"], kwargs["quiet"]) == ("train_and_eval", False)
    assert kwargs["allow_config_change"] is False
    assert kwargs["model_dir"] == str(workspace / "runs" / "my_experiment")
    monkeypatch.setenv("HOME", "/home/someone")
    assert cli.main(["train", "my_experiment", "--model_dir=~/runs"]) == 0
    assert engine.calls[1][3]["model_dir"] == "/home/someone/runs"


def test_layers_in_their_order(engine, workspace):
    """T20: factory < files < --params_override < --set, whatever the order on the command line."""
    (workspace / "a.yaml").write_text("trainer: {train_steps: 1, max_to_keep: 1, summary_interval: 1}\n")
    (workspace / "b.yaml").write_text("trainer: {train_steps: 2, max_to_keep: 2}\n")
    override = "--params_override=trainer.train_steps=3"
    argv = ["--set=trainer.steps_per_loop=4", override, "--config_file=a.yaml", "--config_file=b.yaml"]
    assert cli.main(["train", "my_experiment", *argv]) == 0
    trainer = engine.calls[0][2].config.trainer
    assert (trainer.summary_interval, trainer.max_to_keep, trainer.train_steps, trainer.steps_per_loop) == (1, 2, 3, 4)


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
    monkeypatch.chdir(tmp_path)
    script = str(workspace / "train.py")
    assert cli.main(["--experiment=my_experiment"], script=script) == 0
    assert engine.calls[0][3]["model_dir"] == str(workspace / "runs" / "my_experiment")
    cli.main(["init", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "other")
    assert cli.main(["--experiment=my_experiment"], script=script) == 0
    assert engine.calls[1][3]["model_dir"] == str(tmp_path / "other" / "runs" / "my_experiment")


def test_train_finds_what_only_the_workspace_of_its_script_has(engine, workspace, tmp_path, monkeypatch):
    """T20: also where the current directory is in another workspace, whose own come first; paths are of there."""
    factory = (workspace / "experiments" / "my_experiment.py").read_text()
    (workspace / "experiments" / "theirs.py").write_text(factory.replace('"my_experiment"', '"theirs"'))
    cli.main(["init", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other" / "four.yaml").write_text("trainer: {train_steps: 4}\n")
    script = str(workspace / "train.py")
    assert cli.main(["--experiment=theirs", "--config_file=four.yaml"], script=script) == 0
    assert engine.calls[0][3]["model_dir"] == str(workspace / "runs" / "theirs")
    assert engine.calls[0][2].config.trainer.train_steps == 4
    assert cli.main(["theirs", "--model_dir=runs/x"], script=script) == 0
    assert engine.calls[1][3]["model_dir"] == str(tmp_path / "other" / "runs" / "x")


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "--experiment=NAME\nexperiments: my_experiment\ntry: official-trainer "),
        (["--mode=train"], " --mode=train --experiment=my_experiment\n"),
        (["a", "--experiment=b"], "error: two experiments: a and --experiment=b; keep one\n"),
        (["my_experimnt"], "did you mean 'my_experiment'?"),
        (["my_experiment", "--model_dir="], "error: --model_dir is empty: is a variable not set?"),
        (
            ["my_experiment", "--mode=trian"],
            "error: --mode=trian: no such mode; did you mean train?\nmodes: train, ",
        ),
        (["my_experiment", "trainer.train_step=1"], "did you mean 'train_steps'?"),
        (["my_experiment", "--config_file=gone.yaml"], "gone.yaml"),
        (["my_experiment", "trainer.train_step=1", "--gin_params=f.x"], "did you mean 'train_steps'?"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "check"])
def test_what_cannot_be_run(verb, argv, said, engine, workspace, capsys):
    """N7: exit code 2, and the engine is never called."""
    assert cli.main([verb, *argv]) == 2
    assert said in capsys.readouterr().err
    assert engine.calls == []


@pytest.mark.parametrize("verb", ["train", "check", "eval", "export"])
def test_gin_flags_reach_the_engine(verb, engine, workspace):
    """T17: of every verb that builds the model; without them nothing does."""
    assert cli.main([verb, "my_experiment", "--gin_params=f.x = 1", "--gin_params=f.y = 2"]) == 0
    assert engine.calls[0][3]["gin"].params == ("f.x = 1", "f.y = 2")
    assert cli.main([verb, "my_experiment", "--gin_params="]) == 0
    assert engine.calls[1][3]["gin"] is None


def test_the_engine_is_called_as_it_is():
    """The calls above fit the real `official_trainer.runs.run`."""
    from official_trainer.runs import run

    inspect.signature(run.run).bind(
        "e", None, mode="train", model_dir="d", quiet=True, argv=[], allow_config_change=True
    )
    inspect.signature(run.run).bind("e", None, mode="eval", model_dir="d", quiet=True, checkpoint="best", argv=[])
    inspect.signature(run.check).bind("e", None, mode="train", model_dir="d")
    inspect.signature(run.export).bind("e", None, model_dir="d", checkpoint="best", output_dir=None)


def test_train_py_without_an_experiment(engine, workspace, capsys):
    """T20, N7: the command to type next is that of the script."""
    assert cli.main(["--mode=train"], script=str(workspace / "train.py")) == 2
    assert "\ntry: python train.py --mode=train --experiment=my_experiment\n" in capsys.readouterr().err
    assert engine.calls == []


@pytest.mark.parametrize("verb", ["train", "train --mode=continuous_eval", "eval", "predict", "export"])
def test_a_run_directory_that_tensorflow_cannot_find_is_refused_before_its_import(verb, workspace, capsys):
    """N6: exit code 2 at once, by every verb that reads or writes checkpoints there."""
    flags = ["--experiment=my_experiment", "--model_dir=runs/a[1]", "trainer.train_steps=1"]
    assert cli.main([*verb.split(), *flags]) == 2
    assert re.search(r"--model_dir=\S*runs/a\[1\] holds '\[', .*such as \S*runs/a_1_\.", capsys.readouterr().err)
    assert not (workspace / "runs").exists()


def test_the_step_at_which_a_process_stops_is_no_setting(engine, workspace):
    """N15: the config is that of the run to its end, so what follows `trainer.train_steps` stays as it is."""
    assert cli.main(["train", "my_experiment", "--until_step=3", "trainer.train_steps=9"]) == 0
    assert cli.main(["train", "my_experiment", "trainer.train_steps=9"]) == 0
    (_, _, resolved, options), (_, _, to_its_end, others) = engine.calls
    assert resolved.config == to_its_end.config
    assert (options["until_step"], others["until_step"]) == (3, None)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--until_step=0"], "--until_step=0: expected a number from 1"),
        (["--until_step=5", "--mode=eval"], "--until_step would have no effect with --mode=eval; leave one of them"),
        (["--overfit_batches=0"], "--overfit_batches=0: expected a number from 1"),
        (["--overfit_batches=1", "--mode=eval"], "--overfit_batches would have no effect with --mode=eval"),
        (["--overfit_batches=1", "--format=npy"], "--format would have no effect with --mode=train_and_eval"),
    ],
)
def test_numbers_of_steps_and_batches_are_refused_where_they_mean_nothing(engine, workspace, capsys, flags, message):
    assert cli.main(["train", "my_experiment", *flags]) == 2
    assert message in capsys.readouterr().err
    assert not engine.calls
