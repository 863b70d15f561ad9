"""A text classifier of KerasHub as the guide shows it: what LoRA trains, and what happens to a preprocessor."""

from pathlib import Path

import numpy as np
import pytest

from official_trainer.errors import ExitCode
from tests.support.docs.pages import blocks
from tests.support.forked import run_command
from tests.support.runs import values

PAGE = Path("docs/guides/text_lora.md")
EXPERIMENT = "experiments/moods.py"
LEFT_OUT = ", preprocessor=None"
WORDS = ["train", "--experiment=moods", "--model_dir=run", "trainer.train_steps=2"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """The folder in which the page has made its preset."""
    pytest.importorskip("keras_hub")
    (text,) = (block.text for block in blocks(PAGE) if ".save_to_preset(" in block.text and not block.path)
    folder = tmp_path_factory.mktemp("preset")
    exec(text.replace("presets/bert", str(folder)), {})
    return folder


@pytest.fixture
def workspace(preset, tmp_path):
    """A folder with the preset and the experiment of the page, whose model keeps its preprocessor."""
    (text,) = (block.text for block in blocks(PAGE) if block.path == EXPERIMENT)
    assert text.count(LEFT_OUT) == 1
    (tmp_path / "experiments").mkdir()
    (tmp_path / EXPERIMENT).write_text(text.replace(LEFT_OUT, ""))
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "bert").symlink_to(preset)
    return tmp_path


def test_lora_trains_its_matrices_and_the_head_and_a_preprocessor_is_not_called(workspace, preset):
    """N39: after two steps all else is what the preset holds; a warning says what becomes of the preprocessor."""
    import keras_hub

    from official_trainer.tasks.keras import keras3

    done = run_command(WORDS, cwd=workspace, folder=workspace)
    assert done.code == ExitCode.DONE, done.err
    said = "BertTextClassifierPreprocessor of BertTextClassifier is called by Keras's own fit and predict alone"
    assert done.err.count(said) == 1 and "preprocessor=None" in done.err
    start = keras_hub.models.TextClassifier.from_preset(str(preset), preprocessor=None)
    before = {f"model/{name}": value.numpy() for name, value in keras3.KERAS.named(start)}
    found = {
        key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE"): each for key, each in values(workspace / "run", 2).items()
    }
    after = {name: value for name, value in found.items() if name.startswith("model/")}
    matrices = {name for name in after if "/lora_kernel_" in name}
    assert len(matrices) == 8 and all(after[name].any() for name in matrices)  # the second ones begin as zeros
    assert after.keys() - before.keys() == matrices
    changed = {name for name in before if not np.array_equal(before[name], after[name])}
    assert {"model/logits/kernel", "model/logits/bias"} <= changed
    biases = {name.replace("lora_kernel_a", "bias") for name in matrices if name.endswith("_a")}
    assert changed - {"model/logits/kernel", "model/logits/bias"} <= biases
