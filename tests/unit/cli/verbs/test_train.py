"""What the verbs that need the engine hand over to it, and what they refuse before."""

import json
import re

import pytest

from official_trainer import cli
from official_trainer.inputs import data_service
from official_trainer.runs.predictions import PredictionSettings
from tests.support import golden


def handed_over(engine, *words, script=None):
    """Returns what a command calls of the engine: the function, the job, and the other arguments."""
    assert cli.main([*words], script=script) == 0
    what, job, others = engine.calls.pop()
    assert job.experiment == job.resolved.experiment == "my_experiment" and not engine.calls
    return what, job, others


def test_train_hands_over_to_the_engine(engine, workspace, monkeypatch):
    """T20, N9: every flag arrives where it belongs; the step at which a process stops is no setting (N15)."""
    argv = ["train", "--experiment=my_experiment", "--mode=train", "--model_dir=there", "--quiet", "runtime.seed=4"]
    argv += ["--allow_config_change", "--import=math", "--until_step=7"]
    what, job, others = handed_over(engine, *argv)
    assert (what, job.config.runtime.seed, job.config.trainer.train_steps) == ("run", 4, 200)
    assert others == {"checkpoint": "latest", "prediction": PredictionSettings()}
    assert (job.mode, job.model_dir, job.quiet, job.gin) == ("train", "there", True, None)
    assert job.argv == ["official-trainer", "train", *argv[1:]]
    assert job.allow_config_change and job.until_step == 7
    monkeypatch.setenv("HOME", "/home/someone")
    assert handed_over(engine, "train", "my_experiment", "--model_dir=~/runs")[1].model_dir == "/home/someone/runs"
    monkeypatch.chdir(workspace / "configs")
    _, job, _ = handed_over(engine, "train", "my_experiment")
    assert (job.mode, job.quiet, job.allow_config_change) == ("train_and_eval", False, False)
    assert (job.model_dir, job.until_step) == (str(workspace / "runs" / "my_experiment"), None)


def test_flags_change_the_config_only_when_given(engine, workspace):
    """T20: factory < files < --params_override < --set, in any order; Garden's `--tpu` erased what was not given."""
    (workspace / "a.yaml").write_text("trainer: {train_steps: 1, max_to_keep: 1, summary_interval: 1}\n")
    (workspace / "b.yaml").write_text("trainer: {train_steps: 2, max_to_keep: 2}\n")
    override = "--params_override=trainer.train_steps=3"
    words = ["--set=trainer.steps_per_loop=4", override, "--config_file=a.yaml", "--config_file=b.yaml"]
    trainer = handed_over(engine, "train", "my_experiment", *words)[1].config.trainer
    assert (trainer.summary_interval, trainer.max_to_keep, trainer.train_steps, trainer.steps_per_loop) == (1, 2, 3, 4)
    for flags, tpu, address in ((["--tpu="], None, None), (["--tpu=local", "--tf_data_service=a:1"], "local", "a:1")):
        config = handed_over(engine, "train", "my_experiment", *flags)[1].config
        data = config.task.train_data
        assert (config.runtime.tpu, data.tf_data_service_address) == (tpu, address)
        assert data.enable_tf_data_service == bool(address) and not config.task.validation_data.enable_tf_data_service


def test_the_other_verbs_hand_over_what_they_are_given(engine, run_dir, capsys):
    """T10, T17, T19, N18, N46: the run as it was configured, under the flags; results for scripts on stdout."""
    flags = [f"--model_dir={run_dir}", "--checkpoint=best", "runtime.seed=4", "--gin_params=f.x = 1"]
    for verb, words in {
        "eval": ["--json"],
        "predict": ["--output=out", "--format=npy"],
        "export": ["--output_dir=out", "--format=tflite, onnx"],
        "check": ["--metric=loss"],
    }.items():
        what, job, others = handed_over(engine, verb, *(flags[:1] + flags[2:] if verb == "check" else flags), *words)
        assert what == (verb if verb in ("check", "export") else "run")
        assert (job.config.trainer.train_steps, job.config.runtime.seed) == (7, 4)
        assert (job.model_dir, job.gin.params) == (str(run_dir), ("f.x = 1",))
        assert others.get("checkpoint", "best") == "best"
        printed = capsys.readouterr().out
        if verb == "eval":
            assert (job.mode, job.quiet) == ("eval", True)
            assert json.loads(printed) == {"loss": 0.25, "accuracy": 0.987654321}
        elif verb == "predict":
            assert others["prediction"] == PredictionSettings(output_dir="out", format="npy") and printed == ""
        elif verb == "export":
            assert (others["output_dir"], job.config.trainer.export.formats) == ("out", ("tflite", "onnx"))
            assert printed == f"{run_dir}/export/20\n"
        else:
            assert others["metrics"] == ["loss"]
            lines = [line.split() for line in printed.splitlines()]
            assert lines == [["ok", "build", "0.5", "s", "1,234", "parameters"], ["ok", "save", "12.0", "s", "equal"]]


def test_data_service_expands_a_home(monkeypatch):
    """T20: which a shell leaves to the program behind a `=`."""
    served = []
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setattr(data_service, "serve", lambda role, **options: served.append((role, options["work_dir"])))
    assert cli.main(["data-service", "--role=dispatcher", "--port=5050", "--work_dir=~/journal"]) == 0
    assert served == [("dispatcher", "/home/someone/journal")]


def test_train_py_falls_back_to_the_workspace_of_its_script(engine, workspace, tmp_path, monkeypatch, capsys):
    """T20: `python /elsewhere/train.py` works from any directory; the current workspace comes first."""
    monkeypatch.chdir(tmp_path)
    script, runs = str(workspace / "train.py"), "runs/my_experiment"
    _, job, _ = handed_over(engine, "--experiment=my_experiment", script=script)
    assert job.model_dir == str(workspace / runs)
    assert cli.main(["--mode=train"], script=script) == 2
    assert "\ntry: python train.py --mode=train --experiment=my_experiment\n" in capsys.readouterr().err
    cli.main(["init", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "other")
    _, job, _ = handed_over(engine, "--experiment=my_experiment", script=script)
    assert job.model_dir == str(tmp_path / "other" / runs)


def test_train_finds_what_only_the_workspace_of_its_script_has(engine, workspace, tmp_path, monkeypatch):
    """T20: also where the current directory is in another workspace, whose own come first; paths are of there."""
    factory = (workspace / "experiments" / "my_experiment.py").read_text()
    (workspace / "experiments" / "theirs.py").write_text(factory.replace('"my_experiment"', '"theirs"'))
    cli.main(["init", str(tmp_path / "other")])
    monkeypatch.chdir(tmp_path / "other")
    (tmp_path / "other" / "four.yaml").write_text("trainer: {train_steps: 4}\n")
    script = str(workspace / "train.py")
    assert cli.main(["--experiment=theirs", "--config_file=four.yaml"], script=script) == 0
    assert engine.calls[0][1].model_dir == str(workspace / "runs" / "theirs")
    assert engine.calls[0][1].config.trainer.train_steps == 4
    assert cli.main(["theirs", "--model_dir=runs/x"], script=script) == 0
    assert engine.calls[1][1].model_dir == str(tmp_path / "other" / "runs" / "x")


@pytest.mark.parametrize("verb", ["train", "train --mode=continuous_eval", "eval", "predict", "export"])
def test_a_run_directory_that_tensorflow_cannot_find_is_refused_before_its_import(verb, workspace, capsys):
    """N6: exit code 2 at once, by every verb that reads or writes checkpoints there."""
    flags = ["--experiment=my_experiment", "--model_dir=runs/a[1]", "trainer.train_steps=1"]
    assert cli.main([*verb.split(), *flags]) == 2
    assert re.search(r"--model_dir=\S*runs/a\[1\] holds '\[', .*such as \S*runs/a_1_\.", capsys.readouterr().err)
    assert not (workspace / "runs").exists()


def test_what_cannot_be_run(engine, workspace, capsys, request):
    """N7, N18, N46, T10, T20: exit code 2, and the engine is never called; a flag without effect is not ignored."""
    golden.check_refused("verbs of a run", request, capsys)
    assert engine.calls == []
