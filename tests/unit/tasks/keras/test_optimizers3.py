"""What Keras 3 cannot do of `trainer.optimizer_config` is said before Keras is imported: here, importing it fails."""

import dataclasses
from types import SimpleNamespace

import pytest

from official_trainer.config import ConfigError, opt
from official_trainer.config import optimization as spelled
from official_trainer.errors import ExitCode
from official_trainer.tasks.keras import optimizers3

ROOT = "trainer.optimizer_config"


def refused(section):
    with pytest.raises(ConfigError) as caught:
        optimizers3.build_optimizer(section)
    assert caught.value.exit_code == ExitCode.CONFIG
    return str(caught.value)


def test_an_optimizer_that_keras_3_lacks():
    """N37: with those it has, and the nearest."""
    assert refused(opt.lars(0.1)) == (
        f"{ROOT}.optimizer.type: not there in Keras 3, got 'lars'; allowed: sgd, adam, adamw, rmsprop, adagrad; or "
        "return an optimizer of your own from the task's create_optimizer"
    )


@pytest.mark.parametrize(
    ("kind", "field", "value", "message"),
    [
        ("adamw", "clipnorm", 0.5, f"clips in one way only, .* got 0.5; set {ROOT}.optimizer.adamw.gradient_clip_norm"),
        ("adamw", "clipvalue", 0.5, "clips in one way only, .* got 0.5; .* or leave clipvalue out"),
    ],
)
def test_a_field_that_keras_3_cannot_do(kind, field, value, message):
    """N37: with its path, its value, and what to do."""
    with pytest.raises(ConfigError, match=rf"^{ROOT}.optimizer.{kind}.{field}: .*{message}"):
        optimizers3.build_optimizer(getattr(opt, kind)(0.1, **{field: value}))


def test_a_decay_of_sgd():
    """N37: Keras 2's field, which Keras 3 warns about and ignores."""
    chosen = spelled.OptimizerConfig(type="sgd", sgd=spelled.SGDConfig(decay=0.01))
    message = refused(opt.sgd(0.1).replace(optimizer=chosen))
    assert f"{ROOT}.optimizer.sgd.decay: Keras 3's SGD has no decay, got 0.01; set {ROOT}.learning_rate" in message


@dataclasses.dataclass
class Other:
    """A one-of of a user's own, with a type more."""

    type: str
    cosine: object = None
    linear: object = None

    def get(self):
        return self


def test_a_type_of_a_users_own():
    """N37: a schedule and a warm-up that Model Garden's factory may know."""
    section = SimpleNamespace(optimizer=opt.adam(0.1).optimizer, learning_rate=Other("cosin"), warmup=Other("guarded"))
    message = refused(section)
    assert f"{ROOT}.learning_rate.type: not there in Keras 3, got 'cosin'; allowed: constant, " in message
    assert "did you mean 'cosine'?" in message
    assert f"{ROOT}.warmup.type: not there in Keras 3, got 'guarded'; allowed: linear" in message


@pytest.mark.parametrize(
    "options",
    [
        {"clipnorm": 0.5, "gradient_clip_norm": 0.0},
        {"global_clipnorm": 0.5},
        {"weight_decay_rate": 0.1, "include_in_weight_decay": ("x",), "exclude_from_weight_decay": ("norm|bias$",)},
    ],
)
def test_nothing_is_said_of_what_keras_3_can_do(options):
    """N37"""
    assert not list(optimizers3.problems(opt.adamw(0.1, **options)))


def test_the_sections_choose_what_they_always_did():
    """N37: the types are those of the section, but for those that scale each layer's update."""
    types = {field.name for field in dataclasses.fields(spelled.OptimizerConfig)} - {"type"}
    named = {kind for kind in types if list(optimizers3.problems(getattr(opt, kind)(0.1)))}
    assert named == {"lamb", "lars"}
