"""N31: the learning rate that is computed without TensorFlow is that of Model Garden's schedules."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from official.modeling import optimization as garden

from official_trainer.config import ExperimentConfig, TrainerConfig, resolve
from official_trainer.config.learning_rate import Rate, findings
from official_trainer.garden import index
from tests.support.cases import cases
from tests.support.config import rates


def close(ours, theirs):
    if not math.isfinite(ours):
        return not math.isfinite(theirs)
    return np.isclose(ours, theirs, rtol=1e-4, atol=1e-6)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(rates.configs())
def test_rates_are_those_of_model_garden(drawn):
    """N31: of each schedule with each warm-up, at every step of training."""
    config, steps = drawn
    built = garden.OptimizerFactory(config.replace(optimizer=config.optimizer.replace(type="sgd")))
    schedule = built.build_learning_rate()
    rate = Rate(config.learning_rate.type, config.learning_rate.get(), config.warmup.type, config.warmup.get())
    theirs = [float(schedule(step) if callable(schedule) else schedule) for step in range(steps)]
    for step, value in enumerate(theirs):
        assert close(rate.at(step), value), (step, rate.at(step), value)
    trainer = TrainerConfig(train_steps=steps, optimizer_config=config)
    said = " ".join(found.problem.what for found in findings(resolve(ExperimentConfig(trainer=trainer))))
    if all(value == 0 for value in theirs) and not config.warmup.type and math.isfinite(sum(theirs)):
        assert "at all" in said or getattr(rate.schedule, "cycle", False)


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


@pytest.mark.parametrize("name", cases([*DESCRIBED, ""], "resnet_imagenet", "dlrm_criteo", "maskrcnn_resnetfpn_coco"))
def test_nothing_is_said_of_model_gardens_experiments(name):
    """N31: their schedules are meant as they are; in full, of each that can be loaded."""
    for each in [name] if name else index.entries():
        try:
            result = resolve(index.experiment(each), experiment=each)
        except ValueError:  # what this release cannot load, or what has to be set
            assert each not in DESCRIBED
            continue
        assert list(findings(result)) == [], each


def test_something_is_said_of_model_gardens_experiments():
    """N31: with another number of steps, over a `decay_steps` that the experiment sets."""
    result = resolve(index.experiment("vit_imagenet_pretrain"), experiment="v", sets=["trainer.train_steps=100000"])
    (found,) = findings(result)
    path = "trainer.optimizer_config.learning_rate.cosine.decay_steps"
    assert found.problem.message == (
        f"{path}: the learning rate stays at 0 from step 93600 on, and training ends at step 100000; "
        f"add --set={path}=100000"
    )
