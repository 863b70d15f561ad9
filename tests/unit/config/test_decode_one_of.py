"""N7: sections in which `type` names the one that counts."""

import dataclasses

from official_trainer.config import resolve
from official_trainer.config.optimization import AdamConfig
from tests.support.config.sample import Shape, WideBlock, base, model, resolved

OPTIMIZER = "trainer.optimizer_config.optimizer"


def test_a_word_selects(write):
    for layers in (
        {"sets": [f"{OPTIMIZER}=adam"]},
        {"params_overrides": [f"{OPTIMIZER}=adam"]},
        {"config_files": [write("trainer: {optimizer_config: {optimizer: adam}}\n")]},
    ):
        sets = layers.pop("sets", ())
        assert resolved(*sets, **layers).config.trainer.optimizer_config.optimizer.get() == AdamConfig()


def test_a_word_selects_where_the_section_is_unset():
    """N7: the shorthand creates the section, and may then be unset again."""
    assert model("task.model.maybe_shape=round").maybe_shape == Shape(type="round")
    assert model("task.model.maybe_shape=round", "task.model.maybe_shape=null").maybe_shape is None


def test_choices_without_a_literal_are_the_fields():
    assert model("task.model.shape=square", "task.model.shape.square.width=2").shape.get() == WideBlock(width=2)


def test_null_is_for_the_type():
    assert resolved(f"{OPTIMIZER}.type=null").config.trainer.optimizer_config.optimizer.type is None


def test_a_later_choice_is_a_warning(write):
    """N7, N23: another branch than that of a base file, or of an earlier flag, may be chosen; not in one text."""
    write("trainer: {optimizer_config: {optimizer: {type: adam, adam: {beta_1: 0.5}}}}\n", "base.yaml")
    file = write("base: base.yaml\ntrainer: {optimizer_config: {optimizer: sgd}}\n")
    for layers in ({"config_files": [file]}, {"sets": [f"{OPTIMIZER}.adam.beta_1=0.5", f"{OPTIMIZER}=sgd"]}):
        result = resolve(base(), **layers)
        assert result.config.trainer.optimizer_config.optimizer.type == "sgd"
        (warning,) = result.warnings
        assert f"{OPTIMIZER}.adam.beta_1: has no effect: {OPTIMIZER}.type is 'sgd'" in str(warning)


def test_what_the_factory_put_into_other_branches_stays_silently():
    start = base()
    optimizer = dataclasses.replace(start.trainer.optimizer_config.optimizer, type="adam", adam=AdamConfig(beta_1=0.5))
    start = start.replace(
        trainer=start.trainer.replace(optimizer_config=start.trainer.optimizer_config.replace(optimizer=optimizer))
    )
    config = resolve(start, sets=[f"{OPTIMIZER}=sgd"]).config
    assert config.trainer.optimizer_config.optimizer.adam.beta_1 == 0.5
    back = resolve(start, sets=[f"{OPTIMIZER}=sgd", f"{OPTIMIZER}=adam"]).config
    assert back == resolve(start).config
