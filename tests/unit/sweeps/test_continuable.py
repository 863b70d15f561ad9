"""What a population may change while it trains, and what else it needs, found before anything starts."""

import dataclasses

import pytest

from official_trainer import config as configuration
from official_trainer.config import Config, ConfigError, ExperimentConfig, Fraction, Positive, TaskConfig, TrainerConfig
from official_trainer.config import optimization as opt
from official_trainer.config.errors import Origin
from official_trainer.sweeps import continuable, space
from official_trainer.sweeps.settings import SweepConfig

RATE = "trainer.optimizer_config.learning_rate.cosine.initial_learning_rate"
SPACE = {RATE: "log(1e-4, 1e-1)"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Net(Config):
    """A network.

    Attributes:
      units: number.
      sizes: of more layers.
    """

    units: Positive = 8
    sizes: tuple[Positive, ...] = ()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labels(TaskConfig):
    """A task.

    Attributes:
      model: the network.
      smoothing: of labels.
    """

    model: Net = Net()
    smoothing: Fraction = 0.0


EXPERIMENT = ExperimentConfig(
    task=Labels(),
    trainer=TrainerConfig(
        train_steps=40,
        validation_interval=10,
        optimizer_config=opt.OptimizationConfig(
            optimizer=opt.OptimizerConfig(type="sgd"),
            learning_rate=opt.LrConfig(
                type="cosine", cosine=opt.CosineLrConfig(initial_learning_rate=0.1, decay_steps=40)
            ),
        ),
    ),
)


def place(keys):
    return Origin(kind="file", name="sweep.yaml", line=2, column=1, text="space:\n  it: here\n")


def settled(written, *sets, experiment=()):
    def resolve(overrides):
        return configuration.resolve(EXPERIMENT, sets=[*experiment, *overrides])

    text = [configuration.flow({"space": written, "population": {"size": 4}})]
    found = configuration.resolve(SweepConfig(), params_overrides=text, sets=sets)
    return continuable.settled(found, space.read(written, place, resolve), resolve, place)


def test_the_number_of_trials_follows_from_size_and_steps():
    """N35: a generation lasts as long as it is to the next evaluation, unless the file says otherwise."""
    config, _ = settled(SPACE)
    assert (config.population.interval, config.trials, config.sampler) == (10, 16, "RandomSampler")
    assert settled(SPACE, "population.interval=20")[0].trials == 8
    assert settled(SPACE, "trials=16")[0].trials == 16


@pytest.mark.parametrize(
    ("path", "distribution", "tries"),
    [
        ("task.smoothing", "float(0, 0.2)", []),
        ("task.train_data.global_batch_size", "int(8, 64, 8)", []),
        ("trainer.optimizer_config.optimizer.sgd.nesterov", "choice(true, false)", []),
        ("trainer.optimizer_config.warmup", "choice({type: linear, linear: {warmup_steps: 5}}, {type: null})", []),
        ("task.model.units", "int(8, 16, 8)", ["8", "16"]),
        ("trainer.optimizer_config.optimizer.type", "choice(sgd, adam)", ["sgd", "adam"]),
        ("task.model", {"choice": {"a": {"units": 1}, "b": {"units": 2}}}, ["{units: 1}", "{units: 2}"]),
    ],
)
def test_what_changes_how_a_run_goes_on_may_be_drawn(path, distribution, tries):
    """N35: rates, losses, data; what may change the variables is tried: a dropout does not, a number of layers does."""
    assert settled({path: distribution, **SPACE})[1] == [f"{path}={each}" for each in tries]


@pytest.mark.parametrize(
    ("path", "distribution", "message"),
    [
        (
            "task.model.sizes",
            "list(1, 2, int(8, 16))",
            r"may change which variables .* \(task.model.sizes: .*; leave it",
        ),
        ("trainer.summary_interval", "int(5, 10, 5)", "does not change what is trained, so a population finds nothing"),
    ],
)
def test_what_a_run_cannot_change_is_refused(path, distribution, message):
    """N35: at its place in the space, with the reason."""
    with pytest.raises(ConfigError, match=message) as caught:
        settled({path: distribution})
    (problem,) = caught.value.problems
    assert problem.path == path and problem.origin.line == 2


@pytest.mark.parametrize(
    ("sets", "experiment", "message"),
    [
        (["population.interval=15"], [], "is 15, where trainer.validation_interval=10 makes no evaluation; set it to"),
        (["population.interval=30"], [], "is 30, and trainer.train_steps=40 is not 2 or more times that"),
        ([], ["trainer.train_steps=0", "trainer.train_epochs=3"], "needs to know when training ends; set"),
        (["sampler=TPESampler"], [], "sampler: has no effect: a population draws at random at first"),
        (["trials=7"], [], "is 7, and 4 members in 4 generations are 16; leave it out: it follows from size, interval"),
        (["objective.evaluation=20"], [], "objective.evaluation: is a step, which only one generation has"),
        (["pruner=MedianPruner"], [], "pruner: cannot be set together with population"),
        (["sampler_options={x: 1}"], [], "sampler_options: cannot be set together with population"),
        (["population.factors=[]"], [], "holds no factor; write"),
    ],
)
def test_settings_that_do_not_fit_are_refused(sets, experiment, message):
    """N35: each with what to write instead."""
    with pytest.raises(ConfigError, match=message):
        settled(SPACE, *sets, experiment=experiment)
