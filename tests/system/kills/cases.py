"""What is killed, and where: every case of the contract with its strikes."""

import dataclasses
import functools
import hashlib
import json
import random
import signal
from collections.abc import Sequence
from typing import Any

import pytest

from official_trainer.shown import counted
from tests import ROOT
from tests.support.chaos.contract import RUN, Case, Instant, Part, Step, Strike
from tests.support.chaos.run_directory import RunDirectory
from tests.support.chaos.runs import SOURCES, STEPS_PER_LOOP, STRATEGIES, Variant, digits
from tests.support.forked import Command, trained_digits
from tests.support.garden import data
from tests.support.garden.families import FAMILIES
from tests.support.runs import contents
from tests.system.kills import fits

SIGTERM = signal.SIGTERM


def command(name, *words, cwd=None, made=None, verb="train", place="model_dir", **options):
    """Returns a command as a case, in `cwd` or in the folder that is `made`, which stands for `{}` in its words."""

    def start(shared, folder, *sets, first=None):
        folder_made = shared.made(*made) if made else ROOT
        argv = [verb, f"--{place}={folder}/{RUN}", *(word.format(folder_made) for word in words)]
        return Command([*argv, *(f"--set={word}" for word in sets)], cwd=cwd or folder_made, folder=folder, first=first)

    return Case(name, start, **options)


def assigned(*words):
    return [f"--set={word}" for word in words]


# The digits run.

NO_EXPORTS = ("trainer.export.at_end=false", "trainer.export.best=false")
DIGITS = digits(Variant())
DIGITS_WITHOUT_EXPORTS = digits(Variant(), *NO_EXPORTS, name="without-exports")
ENDLESS = digits(
    Variant(),
    "trainer.train_steps=100000",
    "trainer.checkpoint_interval=1",
    "trainer.validation_interval=100000",
    name="endless",
)
SHORT = digits(
    Variant(),
    "trainer.train_steps=6",
    "trainer.summary_interval=3",
    "trainer.checkpoint_interval=4",
    "trainer.validation_interval=2",
    name="short",
)
EVALUATED_OFTEN = digits(Variant(several="evaluations"))
FALLING_BACK = digits(
    Variant(several="evaluations"),
    "trainer.checkpoint_interval=12",
    "trainer.validation_interval=5",
    "trainer.max_to_keep=3",
    "trainer.export.best=false",
    name="falling-back",
)
ACTIONS = """trainer.actions=[
  {type: replica_integrity, when: {every: 4}}, {type: publish_intermediates, when: {every: 10}},
  {type: early_stopping, monitor: validation_loss, patience: 3},
  {type: checkpoint, monitor: accuracy, max_to_keep: 2}, {type: average_checkpoints, last: 2},
  {type: export_saved_model, when: {every: 15}, max_to_keep: 2}]"""
ACTING = digits(Variant("mirrored2", averages=False, several="evaluations"), ACTIONS, *NO_EXPORTS, name="actions")
STOPPED_EARLY = digits(
    Variant(several="evaluations"),
    "trainer.actions=[{type: early_stopping, monitor: validation_loss, min_delta: 5, patience: 2}]",
    *NO_EXPORTS,
    name="early",
)
STEP_BY_STEP = "trainer.steps_per_loop=1"
AT_ONCE = "trainer.async_checkpoint=false"

EDGES = (1, 21, 22, 23, 43, 47)
"""After the first step; before, at and after the first epoch's end; before the second's; before the last step."""

BATCHES = {"arrays": 20, "records": 16, "stream": 16}  # an epoch of 352 ends inside a batch of 20, at one of 16


def trained_digits_case(strategy, source):
    """Training alone, where epochs end inside of batches and between them."""
    return digits(
        Variant(strategy, source),
        *NO_EXPORTS,
        f"task.train_data.global_batch_size={BATCHES[source]}",
        mode="train",
        name="edges",
    )


LONGER = command(
    "digits_cnn",
    "--experiment=digits_cnn",
    *assigned("trainer.train_steps=120", "trainer.checkpoint_interval=20", "trainer.steps_per_loop=20"),
    *assigned("trainer.export.at_end=false"),
)


XLA = command(
    "xla",
    "--experiment=digits_mlp",  # XLA cannot compile the line that `digits_chaos` writes at each step
    *assigned("runtime.enable_xla=true", "trainer.train_steps=48"),
    *assigned("trainer.summary_interval=5", "trainer.checkpoint_interval=24", "trainer.validation_interval=7"),
)

# Several tasks.

JOINT, MIRRORED = "trainer.trainer_type=joint", "runtime={distribution_strategy: mirrored, num_logical_cpus: 2}"
SEVERAL = {
    "digits_tasks": (
        ROOT, "trainer.train_steps=30", "trainer.steps_per_loop=7", "trainer.summary_interval=5",
        "trainer.checkpoint_interval=6", "trainer.validation_interval=16",
        "trainer.optimizer_config.ema={average_decay: 0.9}",
    ),
    "two_heads": (
        ROOT / "tests" / "support" / "garden" / "workspace",
        "trainer.optimizer_config.ema={average_decay: 0.9, trainable_weights_only: true}",
    ),
}  # fmt: skip
WAYS = {"interleaved": (), "joint": (JOINT,), "interleaved-mirrored": (MIRRORED,), "joint-mirrored": (JOINT, MIRRORED)}


def several(experiment, way):
    cwd, *sets = SEVERAL[experiment]
    words = [f"--experiment={experiment}", *assigned(*sets, *WAYS[way])]
    return command(f"{experiment}-{way}", *(word.replace("{", "{{").replace("}", "}}") for word in words), cwd=cwd)


# Model Garden's families: augmentation, shuffled files, dropout, stochastic depth and samplers.


def family(found):
    def write(folder):
        data.write(folder / "tiny_data")

    words = [f"--experiment={found.experiment}", f"--config_file={found.overlay}"]
    words += assigned("trainer.async_checkpoint=false", "trainer.export.at_end=false")
    return command(found.name, *words, made=("garden", write))


# What gin has bound.


class OfBindings(RunDirectory):
    """The first checkpoint has them at the latest."""

    def check(self, before, process):
        super().check(before, process)
        kept = (self._run / "operative_config.train_and_eval.gin").read_text()
        assert "width.units = 9" in kept
        checksum = hashlib.sha256(kept.encode()).hexdigest()
        assert json.loads((self._run / "run.json").read_text())["gin"]["operative_config_sha256"] == checksum


GIN = command(
    "gin",
    "--experiment=held",
    "--gin_params=width.units=9",
    *assigned("trainer.export.at_end=false", "trainer.async_checkpoint=false"),
    cwd=ROOT / "tests" / "support" / "chaos" / "workspace",
    directory=OfBindings,
)

# Predictions.

PREDICTED = {
    "off": ["task.validation_data.global_batch_size=17"],
    "mirrored": ["task.validation_data.global_batch_size=10", "runtime.num_logical_cpus=2",
                 "runtime.distribution_strategy=mirrored"],
}  # fmt: skip


class Shards:
    """Files that are there stay, and the same command writes the others."""

    def __init__(self, run, unbroken):
        self._run = run

    def newest(self):
        """Returns how many files are there."""
        return sum("tmp" not in path.name for path in self._run.glob("predictions-*"))

    def says(self, files):
        return f"continuing with {counted(files, 'file')} there already"

    def phase(self, process):
        return "predict"

    def check(self, before, process):
        assert self.newest() >= before

    def check_stopped(self):
        pass


def _differences_of_files(broken, unbroken):
    ours, theirs = contents(broken), contents(unbroken)
    assert len(theirs) == 9
    return (
        {"files": sorted(name for name in ours | theirs if ours.get(name) != theirs.get(name))}
        if ours != theirs
        else {}
    )


def predictions(strategy, format):
    def make(folder):
        trained_digits(folder)

    name = f"predictions-{strategy}-{format}"
    words = ["--model_dir={}/run", f"--format={format}", "--shard_size=50", *PREDICTED[strategy]]
    case = command(name, *words, verb="predict", place="output", cwd=ROOT, made=("trained", make), directory=Shards)

    def ended(shared, folder):
        """Once more: all is there."""
        expected = contents(folder / RUN)
        completed = case.start(shared, folder).wait()
        assert (completed.code, "all predictions are there already" in completed.err) == (0, True)
        assert contents(folder / RUN) == expected

    return dataclasses.replace(case, compare=_differences_of_files, ended=ended)


# Calls of `Program.fit`.

PLAIN = fits.fit("fit-plain", fits.plain)
FIT = fits.fit("fit-callbacks", fits.with_callbacks, named=2 + 3)  # the best two; the newest two and the one of step 9
OF_KERAS_3 = fits.fit("fit-keras3", fits.with_callbacks, "keras", named=2)
CONFIGURED = fits.fit("fit-settings", fits.with_settings)


# Where they are struck.


def _in_a_shard(**options):
    return [Part(0.05, **options), Part(0.33, gains=True, **options), Part(0.33, gains=True, **options)]


def _stops(*steps):
    return [Step(step, by=SIGTERM, leaves=step) for step in steps]


@dataclasses.dataclass(frozen=True)
class Strikes:
    """What is done to a case.

    Attributes:
      case: what is struck.
      at: one strike for each start; a class and a number are so many strikes by chance.
      sets: settings that the unbroken run does not have.
      name: which of them, where a case has several.
      is_quick: whether it runs every time.
    """

    case: Case
    at: Sequence[Strike] | tuple[type, int]
    sets: tuple[str, ...] = ()
    name: str = ""
    is_quick: bool = False

    def drawn(self, seed):
        """Returns the strikes."""
        if not isinstance(self.at[0], type):
            return self.at
        kind, number = self.at
        chance = random.Random(f"{seed}/{self.case}/{self.name}/{kind.__name__}")
        return [kind(chance.random()) for _ in range(number)]


def table(*all_strikes: Any):
    """Returns the parameters of a test."""
    marks = {True: (), False: pytest.mark.full}
    return [
        pytest.param(each, id="-".join(filter(None, (each.case.name, each.name))), marks=marks[each.is_quick])
        for each in all_strikes
    ]


CAMPAIGNS = [
    functools.partial(
        Strikes,
        digits(Variant.number(number)),
        sets=(f"trainer.steps_per_loop={STEPS_PER_LOOP[number % 3]}",),
        name=str(number),
    )
    for number in range(48)
]
"""The variants of the digits run in turn."""

BEFORE_CHANGES = table(
    Strikes(DIGITS, (Part, 1), sets=(STEP_BY_STEP,), is_quick=True),
    Strikes(STOPPED_EARLY, [Part(0.95, leaves=21)]),
    *(Strikes(other, (Part, 12), sets=("trainer.steps_per_loop=3",)) for other in (ACTING, XLA)),
    *(campaign(at=(Part, 3)) for campaign in CAMPAIGNS),
    *(
        Strikes(
            several(experiment, way),
            [Part(part) for part in ((0.4,) if is_quick else (0.075, 0.13, 0.15, 0.2, 0.25))],
            sets=("trainer.steps_per_loop=3",),
            is_quick=is_quick,
        )
        for experiment in SEVERAL
        for way in WAYS
        for is_quick in [(experiment, way) == ("digits_tasks", "interleaved")]
    ),
    *(
        Strikes(
            of_a_fit,
            [Part(part), Part(random.Random(part).random() / 3)],
            name=f"{part}",
        )
        for of_a_fit in (FIT, OF_KERAS_3)
        for part in (0.15, 0.3, 0.45, 0.6, 0.75, 0.9, 0.99)
    ),
    *(
        Strikes(
            predictions(strategy, format),
            _in_a_shard(),
            is_quick=(strategy, format) == ("mirrored", "tfrecord"),
        )
        for strategy in PREDICTED
        for format in ("tfrecord", "jsonl", "npy")
    ),
)

AT_INSTANTS = table(
    Strikes(DIGITS, (Instant, 2), sets=(STEP_BY_STEP,), is_quick=True),
    *(Strikes(other, (Instant, 12), sets=("trainer.steps_per_loop=3",)) for other in (ACTING, XLA)),
    *(campaign(at=(Instant, 5)) for campaign in CAMPAIGNS),
)

AT_MOMENTS = table(
    Strikes(OF_KERAS_3, [Step(8)], is_quick=True),
    Strikes(PLAIN, [Step(7), Step(13)]),
    Strikes(CONFIGURED, [Step(5)]),
    *(Strikes(family(found), [Step(6, leaves=4)], sets=("trainer.steps_per_loop=2",)) for found in FAMILIES.values()),
    Strikes(LONGER, [Step(30), Step(70)], sets=("trainer.steps_per_loop=10",)),
    *(
        Strikes(case, [Step(23, leaves=0), Step(45, leaves=24)], sets=(STEP_BY_STEP, AT_ONCE), is_quick=is_quick)
        for case, is_quick in ((EVALUATED_OFTEN, False), (ACTING, True), (XLA, True))
    ),
    Strikes(GIN, [Step(30, leaves=20)]),
)

STOPS = table(
    Strikes(
        trained_digits_case("off", "stream"), _stops(*EDGES[::2]), sets=(STEP_BY_STEP,), name="some", is_quick=True
    ),
    *(
        Strikes(trained_digits_case(strategy, source), _stops(*EDGES), sets=(STEP_BY_STEP,))
        for strategy in STRATEGIES
        for source in SOURCES
    ),
    Strikes(DIGITS_WITHOUT_EXPORTS, _stops(18), sets=(STEP_BY_STEP,)),
    Strikes(LONGER, _stops(30, 70), sets=("trainer.steps_per_loop=10",)),
    Strikes(GIN, _stops(30)),
    *(
        Strikes(
            predictions(strategy, format),
            _in_a_shard(by=SIGTERM, saves=False),
            is_quick=strategy == "off",
        )
        for strategy, format in (("off", "jsonl"), ("mirrored", "npy"))
    ),
)
