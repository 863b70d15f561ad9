"""N31: what is said of a learning rate before training."""

from official_trainer.config import ExperimentConfig, OptimizationConfig, TrainerConfig, resolve
from official_trainer.config import optimization as opt
from official_trainer.config.learning_rate import finding
from tests.support import golden

ROOT = "trainer.optimizer_config"


def said(*sets, steps=1000):
    """What is said: whether it is fatal, and the message; nothing if all is well."""
    resolved = resolve(
        ExperimentConfig(trainer=TrainerConfig(train_steps=steps)),
        experiment="digits",
        sets=[f"{ROOT}.{each}" for each in sets],
    )
    found = finding(resolved)
    return found and (found.is_fatal, found.problem.message)


COSINE = ("learning_rate=cosine", "learning_rate.cosine.initial_learning_rate=0.1")


def linear(steps):
    return "warmup=linear", f"warmup.linear.warmup_steps={steps}"


def of(kind, *values):
    return f"learning_rate={kind}", *(f"learning_rate.{kind}.{value}" for value in values)


MEANT = [
    COSINE,
    (*COSINE, *linear(100)),
    (*COSINE, *linear(1)),
    (*COSINE, *linear(999), "learning_rate.cosine.alpha=0.1"),
    ("learning_rate=constant", *linear(1000)),
    (*COSINE, "learning_rate.cosine.decay_steps=5000"),
    (*COSINE, "learning_rate.cosine.decay_steps=900", "learning_rate.cosine.offset=100"),
    (*COSINE, "learning_rate.cosine.decay_steps=10", "learning_rate.cosine.alpha=1"),
    of("polynomial", "initial_learning_rate=0.1", "power=0.5", "end_learning_rate=0"),
    of("polynomial", "initial_learning_rate=0.1", "decay_steps=10", "cycle=true", "end_learning_rate=0"),
    of("polynomial", "initial_learning_rate=0.1", "decay_steps=10", "end_learning_rate=0.1"),
    of("stepwise", "boundaries=[10,20]", "values=[1,0.1,0.01]"),
    of("exponential", "initial_learning_rate=0.1", "decay_steps=10", "decay_rate=0.9", "staircase=true"),
    of("power", "initial_learning_rate=0.1"),
    of("power_linear", "initial_learning_rate=0.1"),
    of("power_linear", "initial_learning_rate=0.1", "total_decay_steps=10", "linear_decay_fraction=0"),
    of("power_with_offset", "initial_learning_rate=0.1", "offset=50"),
    of("step_cosine_with_offset", "boundaries=[0,500,1000]", "values=[1,0.5,0.1]"),
    (*COSINE, "learning_rate.cosine.decay_steps=10000"),
    (*COSINE, "learning_rate.cosine.decay_steps=300000", "learning_rate.cosine.alpha=1"),
    of("exponential", "initial_learning_rate=0.1", "decay_steps=20000", "decay_rate=1"),
    of("stepwise", "boundaries=[5000]", "values=[1,0.1]"),
]


def test_nothing_is_said_of_what_is_meant():
    """N31: schedules that end with training, restart, or never end."""
    assert [sets for sets in MEANT if said(*sets) is not None] == []


def test_messages(request):
    """N31, N7: one line with the step, and an override that can be pasted."""

    def say(sets):
        is_fatal, message = said(*sets)
        return ("fatal: " if is_fatal else "") + message

    golden.check({"learning rates": say}, request)


def test_the_fix_is_one():
    """N31: what is said, added to the command, is the end of it."""
    for sets in (
        (*COSINE, "learning_rate.cosine.decay_steps=600"),
        (*COSINE, *linear(5000)),
        (*COSINE, "learning_rate.cosine.decay_steps=600", *linear(700)),
        ("learning_rate=constant", *linear(5000)),
    ):
        _, message = said(*sets)
        override = message.partition(f"add --set={ROOT}.")[2]
        assert said(*sets, override) is None


def test_the_length_of_training_is_not_known():
    """N31: nothing is said of what is measured in passes over the data."""
    assert said(*COSINE, "learning_rate.cosine.decay_steps=1", steps=0) is None


def test_sections_of_others_are_left_alone():
    """N31: an optimizer's section without schedules, as that of Model Garden's ranking models."""
    trainer = TrainerConfig(train_steps=5, optimizer_config=OptimizationConfig(optimizer=opt.OptimizerConfig()))
    assert finding(resolve(ExperimentConfig(trainer=trainer))) is None
