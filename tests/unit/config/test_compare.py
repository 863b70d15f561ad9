"""N8: two configurations side by side: the fields that differ, both values and what set each."""

from official_trainer.config import compare
from tests.support.config.sample import Model, resolved


def shown(before, after):
    return compare.text(differences(before, after))


def differences(*both):
    return compare.differences(*map(compare.sides, both))


def test_values_and_what_set_them(write):
    """N8: in the order of the configuration, aligned; what is equal is left out."""
    file = write("trainer: {summary_interval: 50, checkpoint_interval: 1000}\ntask: {model: {filters: [8]}}\n")
    after = resolved("runtime.seed=3", "trainer.validation_interval=${trainer.summary_interval}", config_files=[file])
    assert shown(resolved(), after) == [
        "task.model.filters",
        "  - [32, 64]  class default",
        "  + [8]       a.yaml:2",
        "",
        "trainer.summary_interval",
        "  - 1000      class default",
        "  + 50        a.yaml:1",
        "",
        "trainer.validation_interval",
        "  - 1000      class default",
        "  + 50        = ${trainer.summary_interval} of --set",
        "",
        "runtime.seed",
        "  - 0         class default",
        "  + 3         --set",
    ]


def test_the_same_value_from_elsewhere_is_no_difference():
    assert shown(resolved(), resolved("trainer.train_steps=100")) == []
    assert shown(resolved("task.model.number=nan"), resolved("task.model.number=nan")) == []


def test_a_one_of():
    """N8: its type, and of the branches what is not implied by it."""
    after = resolved("task.model.shape=square", "task.model.shape.square.width=9")
    assert shown(resolved("task.model.shape=round", "task.model.shape.round.x=3"), after) == [
        "task.model.shape.type",
        "  - round      --set",
        "  + square     --set",
        "",
        "task.model.shape.square.width",
        "  - not there",
        "  + 9          --set",
        "",
        "task.model.shape.round.x",
        "  - 3          --set",
        "  + not there",
    ]


def test_true_is_not_1():
    after = resolved("task.model.anything=1")
    (found,) = differences(resolved("task.model.anything=true"), after)
    assert (found.before, found.after) == (True, 1)
    assert differences(after, after) == []


def test_values_of_python_code():
    """N8: they are those of the experiment."""
    after = resolved(model=Model(integer=4))
    assert shown(resolved(), after) == [
        "task.model.integer",
        "  - 3  class default",
        "  + 4  experiment sample",
    ]
