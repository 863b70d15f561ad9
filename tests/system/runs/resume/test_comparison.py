"""What differs from the checkpoint after a restart, in processes of their own, on a real experiment."""

import functools
import shutil
import signal

import pytest

from official_trainer.runs.resume import comparison
from tests import ROOT
from tests.support.chaos import inside
from tests.support.forked import Command

WORDS = ["--experiment=digits_mlp", "--config_file=configs/smoke/digits_mlp.yaml", "--quiet"]
WORDS += ["trainer.export.at_end=false", "trainer.checkpoint_interval=4", "trainer.steps_per_loop=2"]
RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"


def train(folder, name, *words, first=None):
    argv = ["train", *WORDS, f"--model_dir={folder / name}", *words]
    return Command(argv, cwd=ROOT, folder=folder, first=first).wait().code


@pytest.mark.full
def test_what_a_restart_forgets_is_named(tmp_path):
    """N51: after a SIGKILL nothing differs; a rate, a seed, slots or a position that is not as it was does."""
    kill = functools.partial(inside.strike_at_step, 10, signal.SIGKILL)
    assert train(tmp_path, "run", first=kill) == -signal.SIGKILL
    resumes = {}
    for name, words, first in [
        ("unchanged", [], None),
        ("rate", [f"{RATE}=0.01", "--allow_config_change"], None),
        ("seed", ["runtime.seed=3", "--allow_config_change"], None),
        ("slots", [], inside.forget_slots),
        ("position", [], inside.forget_position),
    ]:
        shutil.copytree(tmp_path / "run", tmp_path / name)
        assert train(tmp_path, name, "--until_step=12", *words, first=first) == 0
        (resumes[name],) = comparison.read(str(tmp_path / name))
        print(*comparison.in_lines([resumes[name]]))
    differs = {name: {found["what"] for found in resume["differing"]} for name, resume in resumes.items()}
    assert differs["unchanged"] == set()
    assert differs["rate"] == {"learning_rate"}
    assert differs["seed"] == {"random.seed", "batch.examples"}
    assert differs["slots"] and all("/.OPTIMIZER_SLOT/" in what for what in differs["slots"])
    assert differs["position"] == {"batch.number", "batch.examples"}
