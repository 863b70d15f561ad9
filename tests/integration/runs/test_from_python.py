"""Runs by name from Python: what a call returns, several in one process, the workspace it is for, errors."""

import sys

import pytest

import official_trainer
from official_trainer.checkpoints.manifest import CheckpointError
from official_trainer.config import ConfigError
from official_trainer.user_code import notes_on
from tests.support import shuffled_runs, workspaces

SHORT = ["trainer.train_steps=20", "trainer.validation_interval=20", "trainer.export.at_end=false"]


def do(mode="train_and_eval", **arguments):
    return official_trainer.run("toy_run", mode, quiet=True, **arguments)


def test_a_call_returns_what_the_command_prints(tmp_path):
    """N29, T10: metrics, step, status and checkpoint; what is stopped goes on; other modes read the run."""
    stopped = do(model_dir=tmp_path / "run", overrides=SHORT, until_step=10)
    assert (stopped.step, stopped.status) == (10, "done")
    trained = do(model_dir=tmp_path / "run", overrides=SHORT)
    assert (trained.step, trained.model_dir) == (20, str(tmp_path / "run"))
    assert trained.checkpoint == str(tmp_path / "run" / "ckpt-20")
    two = ["runtime.distribution_strategy=mirrored"]
    evaluated = do("eval", model_dir=tmp_path / "run", overrides=[*SHORT, *two], checkpoint=20)
    for name in ("accuracy", "validation_loss"):
        assert evaluated.metrics[name] == pytest.approx(trained.metrics[name], rel=1e-4)
    assert do("predict", model_dir=tmp_path / "run", overrides=SHORT, checkpoint="best").step == 20
    assert list((tmp_path / "run" / "predictions").glob("*"))


def test_an_error_is_that_of_the_command_and_the_next_call_is_good(tmp_path, monkeypatch):
    """N28: those that are meant for users as they are; the user's own with a note that has the line."""
    with pytest.raises(ConfigError, match="did you mean 'train_steps'"):
        do(model_dir=tmp_path / "run", overrides=["trainer.train_step=20"])
    with pytest.raises(ConfigError, match="until_step: would have no effect with mode eval, got 3; leave one"):
        do("eval", model_dir=tmp_path / "run", until_step=3)
    with pytest.raises(ConfigError, match="checkpoint: would have no effect with mode train, got best; leave one"):
        do("train", model_dir=tmp_path / "run", checkpoint="best")
    with monkeypatch.context() as patch:
        patch.setattr(shuffled_runs.ShuffledTask, "build_losses", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            do("train", model_dir=tmp_path / "run", overrides=SHORT)
    assert "test_from_python.py" in raised.value.__notes__[-1]
    assert notes_on(raised.value)
    assert do("train", model_dir=tmp_path / "run", overrides=SHORT).step == 20
    with pytest.raises(CheckpointError, match="no checkpoint of step newest; saved steps: 20"):
        do("eval", model_dir=tmp_path / "run", checkpoint="newest")


def test_the_experiment_is_that_of_the_workspace_in_which_the_caller_lies(tmp_path, monkeypatch):
    """N29: whatever the current folder is; paths of the config begin at the workspace, those of a call there."""
    workspace = tmp_path / "ws"
    (workspace / "experiments").mkdir(parents=True)
    (workspace / "data.txt").write_text("3")
    (workspace / "experiments" / "own.py").write_text(
        "from official_trainer import register_config_factory\n"
        "from official_trainer.tasks import registry\n"
        "@register_config_factory('own')\n"
        "def own():\n"
        "    steps = int(open('data.txt').read())\n"
        "    base = registry.get_config('toy_run')\n"
        "    return base.replace(trainer=base.trainer.replace(train_steps=steps))\n"
    )
    (workspace / "tests").mkdir()
    (workspace / "tests" / "caller.py").write_text(
        "import official_trainer\n"
        "result = official_trainer.run('own', 'train', model_dir='here', quiet=True)\n"
        "official_trainer.check('own', 'train')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(workspace / "tests")
    import caller

    del sys.modules["caller"]
    assert (caller.result.step, caller.result.model_dir) == (3, str(tmp_path / "here"))
    workspaces.forget()
