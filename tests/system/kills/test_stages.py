"""N54: training in stages, by the experiments of the guides: killed in each stage, and where it changes."""

import contextlib
import functools
import signal

import pytest

from tests import ROOT
from tests.support.cases import cases
from tests.support.chaos import compare, inside
from tests.support.docs.pages import blocks
from tests.support.forked import Command

COMMON = (
    "trainer.checkpoint_interval=3", "trainer.validation_interval=3", "trainer.summary_interval=2",
    "trainer.steps_per_loop=1", "trainer.export.at_end=false", "trainer.async_checkpoint=false",
)  # fmt: skip
MIRRORED = "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"
AVERAGED = "trainer.optimizer_config.ema={average_decay: 0.9}"
RATE = "trainer.optimizer_config.learning_rate.constant.learning_rate=0.001"
HEAD = "task.init_checkpoint_allow_missing=[head/*]"
FIRST, SECOND = "trainer.train_steps=6", "trainer.train_steps=12"
SHAPES, MOODS = ("shapes", "keras"), ("moods", "keras")
SHAPES_2 = ("shapes", "tf_keras")


def kill_at(step):
    return functools.partial(inside.strike_at_step, step, signal.SIGKILL)


KILL_AT_END = functools.partial(inside.stop_in_phase, "export", 0, signal.SIGKILL)
"""After the last checkpoint of a stage; a process may have ended before."""


@pytest.fixture
def stage(tmp_path):
    """Runs a stage of an experiment in a folder to its end, after it was killed in some places."""

    def run(of, folder, words, kills=()):
        experiment, keras = of
        workspace = tmp_path / "-".join(of)
        if not workspace.exists():
            (workspace / "experiments").mkdir(parents=True)
            page = ROOT / "docs" / "guides" / ("stages.md" if experiment == "shapes" else "text_lora.md")
            for block in blocks(page.relative_to(ROOT)):
                if block.path and block.path.startswith("experiments/"):
                    imported = "from official_trainer.lazy import keras" if keras == "tf_keras" else "import keras"
                    (workspace / block.path).write_text(block.text.replace("\nimport keras\n", f"\n{imported}\n"))
                elif block.path == "write_shapes.py" or ".save_to_preset(" in block.text:
                    with contextlib.chdir(workspace):
                        exec(block.text, {})
        argv = ["train", f"--experiment={experiment}", f"--model_dir={tmp_path}/{folder}", "--allow_config_change"]
        argv += [f"--set={word}" for word in (*COMMON, *words)]
        for first in (*kills, None):
            done = Command(argv, cwd=workspace, folder=tmp_path, first=first).wait()
            assert done.code == (0 if first is None else -9) or (first is KILL_AT_END and done.code == 0), done.err
        return done

    return run


ONE_RUN = {
    "keras": (SHAPES, (), ("task.model.freeze=false", RATE)),
    "tf_keras, two replicas, averages": (SHAPES_2, (MIRRORED, AVERAGED), ("task.model.freeze=false", RATE)),
    "keras, two replicas, averages": (SHAPES, (MIRRORED, AVERAGED), ("task.model.freeze=false",)),
    "KerasHub": (MOODS, ("task.model.rank=0",), ("task.model.rank=4", "trainer.restore_allow_mismatch=['*/lora_*']")),
}


@pytest.mark.parametrize("way", cases(list(ONE_RUN), "tf_keras, two replicas, averages", "KerasHub"))
def test_one_run_in_two_stages(way, stage, tmp_path):
    """N54: it ends with the bits of an unbroken one: killed in each, between them, before the second has saved."""
    if way == "KerasHub":
        pytest.importorskip("keras_hub")
    of, first, second = ONE_RUN[way]
    stage(of, "unbroken", (*first, FIRST))
    stage(of, "unbroken", (*first, SECOND, *second))
    stage(of, "broken", (*first, FIRST), [kill_at(4), KILL_AT_END])
    stage(of, "broken", (*first, SECOND, *second), [kill_at(7), kill_at(11), KILL_AT_END])
    assert compare.differences(tmp_path / "broken", tmp_path / "unbroken") == {}


@pytest.mark.parametrize("of", [SHAPES, pytest.param(SHAPES_2, marks=pytest.mark.full)], ids=["keras", "tf_keras"])
def test_two_runs_with_another_head(of, stage, tmp_path):
    """N54: the second takes the best weights of the first, and ends with the bits of an unbroken one."""
    stage(of, "first", (FIRST,), [kill_at(4)])
    words = (
        FIRST,
        "task.model.freeze=false",
        "task.model.classes=4",
        f"task.init_checkpoint={tmp_path}/first/best",
        HEAD,
    )
    stage(of, "unbroken", words)
    stage(of, "broken", words, [kill_at(2), kill_at(5)])
    assert compare.differences(tmp_path / "broken", tmp_path / "unbroken") == {}
