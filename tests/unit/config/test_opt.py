"""The section of an optimizer in one line is the one that Model Garden's words spell."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from official_trainer.config import ConfigError, ExperimentConfig, OptimizationConfig, TrainerConfig, opt, resolve
from official_trainer.config import optimization as spelled

KINDS = [field.name for field in dataclasses.fields(spelled.OptimizerConfig) if field.name != "type"]


def a_constant(rate):
    return spelled.LrConfig(type="constant", constant=spelled.ConstantLrConfig(learning_rate=rate))


def test_a_line_equals_six():
    """N37: that of experiments/digits.py."""
    assert opt.adam(2e-3, decay="cosine", decay_steps=1200, warmup_steps=50) == OptimizationConfig(
        optimizer=spelled.OptimizerConfig(type="adam"),
        learning_rate=spelled.LrConfig(
            type="cosine", cosine=spelled.CosineLrConfig(initial_learning_rate=2e-3, decay_steps=1200)
        ),
        warmup=spelled.WarmupConfig(type="linear", linear=spelled.LinearWarmupConfig(warmup_steps=50)),
    )


def test_a_rate_alone_is_constant():
    """N37"""
    assert opt.sgd(0.1, momentum=0.9) == OptimizationConfig(
        optimizer=spelled.OptimizerConfig(type="sgd", sgd=spelled.SGDConfig(momentum=0.9)),
        learning_rate=a_constant(0.1),
    )


def test_a_straight_line_ends_at_zero():
    """N37: where Model Garden's `polynomial` ends at 0.0001 unless it is told otherwise."""
    section = opt.adamw(3e-4, decay="linear", ema=0.999)
    assert section.learning_rate.get() == spelled.PolynomialLrConfig(initial_learning_rate=3e-4, end_learning_rate=0.0)
    assert section.ema == spelled.EMAConfig(average_decay=0.999)
    assert opt.adamw(3e-4).ema is None


def test_a_decay_without_steps_takes_those_of_training():
    """N37, N30"""
    for decay in ("cosine", "linear"):
        config = ExperimentConfig(trainer=TrainerConfig(train_steps=700, optimizer_config=opt.adam(0.01, decay=decay)))
        assert resolve(config).config.trainer.optimizer_config.learning_rate.get().decay_steps == 700


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_every_field_of_every_optimizer_is_an_option(data):
    """N37: each type has a function with its name; but for SGD's own decay, which is spelled out."""
    kind = data.draw(st.sampled_from(KINDS))
    default = spelled.OptimizerConfig(type=kind).get()
    names = [field.name for field in dataclasses.fields(default) if field.name != "decay"]
    chosen = data.draw(st.dictionaries(st.sampled_from(names), st.sampled_from([0.25, 0.5]), max_size=4))
    warmup_steps = data.draw(st.sampled_from([None, 7]))
    rate = data.draw(st.sampled_from([0.25, a_constant(0.25)]))
    expected = OptimizationConfig(
        optimizer=spelled.OptimizerConfig(type=kind, **{kind: default.replace(**chosen)}),
        learning_rate=a_constant(0.25),
    )
    if warmup_steps is not None:
        warmup = spelled.WarmupConfig(type="linear", linear=spelled.LinearWarmupConfig(warmup_steps=warmup_steps))
        expected = expected.replace(warmup=warmup)
    assert getattr(opt, kind)(rate, warmup_steps=warmup_steps, **chosen) == expected


def test_it_is_shown_like_any_other():
    """N37: with the origin of an override."""
    config = ExperimentConfig(trainer=TrainerConfig(train_steps=7, optimizer_config=opt.lamb(0.01, beta_1=0.8)))
    found = resolve(config, sets=["trainer.optimizer_config.optimizer.lamb.beta_2=0.9"])
    section = found.config.trainer.optimizer_config.optimizer.get()
    assert (section.beta_1, section.beta_2) == (0.8, 0.9)
    assert found.trail.origin("trainer.optimizer_config.optimizer.lamb.beta_2").by_user


MISTAKES = [
    (0.01, {"warmup_step": 3}, r"has no option 'warmup_step'; allowed: warmup_steps, .*did you mean 'warmup_steps'\?"),
    (0.01, {"momentum": 0.9}, r"opt.adam has no option 'momentum'; allowed: .*beta_1"),
    (0.01, {"decay": "cosin"}, r"decay='cosin' is no word for a decay; allowed: cosine, .*did you mean 'cosine'\?"),
    (0.01, {"decay": 1e-4}, r"decay=0.0001 is no word for a decay; allowed: cosine, linear"),
    (0.01, {"decay_steps": 10}, r"decay_steps=10 needs a decay; allowed: cosine, linear"),
    (a_constant(0.1), {"decay": "cosine"}, r"a whole LrConfig says how the rate decays"),
    (a_constant(0.1), {"decay_steps": 3}, r"a whole LrConfig says how the rate decays"),
]


def test_a_mistaken_option_is_named_with_its_line():
    """N37: with the nearest."""
    for rate, options, message in MISTAKES:
        with pytest.raises(ConfigError, match=r"(?s)test_opt.py:\d+: ") as caught:
            opt.adam(rate, **options)
        assert caught.match("(?s)" + message.replace(" ", r"\s+"))


def test_a_value_out_of_range_is_refused_as_elsewhere():
    """N37"""
    config = ExperimentConfig(trainer=TrainerConfig(train_steps=7, optimizer_config=opt.adam(-1.0)))
    with pytest.raises(ConfigError, match=r"learning_rate.constant.learning_rate: must be greater than 0, got -1"):
        resolve(config)
