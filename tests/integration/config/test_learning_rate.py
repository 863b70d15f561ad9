"""N31: what is said of a learning rate by its fields, against the rates of Model Garden's schedules."""

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from official.modeling import optimization as garden

from official_trainer.config import ExperimentConfig, TrainerConfig, resolve
from official_trainer.config.learning_rate import finding
from official_trainer.garden import index
from tests.support.cases import cases
from tests.support.config import rates


@settings(max_examples=50, deadline=None, derandomize=True)
@given(rates.configs())
def test_what_is_said_is_true(drawn):
    """N31: for schedules and warm-ups of all kinds, by Model Garden's rate of every step."""
    config, steps = drawn
    built = garden.OptimizerFactory(config.replace(optimizer=config.optimizer.replace(type="sgd")))
    schedule = built.build_learning_rate()
    values = [float(schedule(step) if callable(schedule) else schedule) for step in range(steps)]
    found = finding(resolve(ExperimentConfig(trainer=TrainerConfig(train_steps=steps, optimizer_config=config))))
    text = found.problem.what if found else ""
    start = int(match[1]) if (match := re.search(r"from step (\d+) on", text)) else steps
    if "not a number" in text or not all(map(math.isfinite, values)):
        assert [step for step, value in enumerate(values) if not math.isfinite(value)] == list(range(start, steps))
    elif "stays at" in text:
        assert np.allclose(values[start:], float(re.search(r"stays at (\S+)", text)[1]), atol=1e-6)
    assert ("at all" in text) == (found is not None and found.is_fatal and start == steps)
    if "at all" in text:
        assert not any(values)
    elif config.learning_rate.type in ("polynomial", "cosine", "power_linear") and config.warmup.type and steps > 1:
        assert any(values) or getattr(config.learning_rate.get(), "cycle", False)


DESCRIBED = [
    "resnet_imagenet",
    "mobilenet_imagenet",
    "vit_imagenet_pretrain",
    "mnv2_deeplabv3_pascal",
    "maskrcnn_resnetfpn_coco",
    "coco_yolov7",
    "yt8m_experiment",
    "bert/pretraining",
    "dlrm_criteo",
]


@pytest.mark.parametrize("name", cases([*DESCRIBED, ""], "resnet_imagenet"))
def test_nothing_is_said_of_model_gardens_experiments(name):
    """N31: their schedules are meant as they are; in full, of each that can be loaded."""
    for each in [name] if name else index.entries():
        try:
            result = resolve(index.experiment(each), experiment=each)
        except ValueError:  # what this release cannot load, or what has to be set
            assert each not in DESCRIBED
            continue
        assert finding(result) is None, each


def test_something_is_said_of_model_gardens_experiments():
    """N31: with another number of steps, over a `decay_steps` that the experiment sets."""
    result = resolve(index.experiment("vit_imagenet_pretrain"), experiment="v", sets=["trainer.train_steps=100000"])
    found = finding(result)
    path = "trainer.optimizer_config.learning_rate.cosine.decay_steps"
    assert found.problem.message == (
        f"{path}: the learning rate stays at 0 from step 93600 on, and training ends at step 100000; "
        f"add --set={path}=100000"
    )
