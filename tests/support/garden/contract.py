"""Model Garden's own tests, from its wheel, run on our classes in place of theirs, each module in its own process.

A test that fails is a failure, unless it is listed below with the reason why what it asserts is not wanted here. A
listed test that passes is a failure too, and so is a class of ours that no test has used.
"""

import collections
import contextlib
import dataclasses
import fnmatch
import importlib
import os
import pkgutil
import socket
import sys
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")

from official_trainer.lazy import load

_RECORD = "writes the record of a best value without its checkpoint; ours is the manifest of the checkpoint"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contract:
    """What of ours takes the place of theirs in a test module, and what of it is not wanted.

    Attributes:
      ours: returns `{(module, name): replacement}`, the modules imported; for a method, `module:class` and its name.
      defects: patterns of tests that assert what is a defect here, each with the reason.
      calls_first: the function, `module:name`, that the module calls only where it is run by itself.
    """

    ours: Callable[[], Mapping[tuple[str, str], object]]
    defects: Mapping[str, str] = dataclasses.field(default_factory=dict)
    calls_first: str = ""

    def lists(self, test: str) -> bool:
        """Whether a test is listed as asserting a defect."""
        return any(fnmatch.fnmatchcase(test, pattern) for pattern in self.defects)


def _trainer():
    from official_trainer.engine.trainer import Trainer

    return {("official.core.base_trainer", "Trainer"): Trainer, **_exporter()}


def _exporter():
    from tests.support.garden.adapters import Exporter

    return {("official.core.train_utils", "BestCheckpointExporter"): Exporter}


def _driver():
    from official_trainer.program.run_experiment import run_experiment
    from tests.support.garden.adapters import Runner

    return {
        ("official.core.train_lib", "run_experiment"): run_experiment,
        ("official.core.train_lib", "OrbitExperimentRunner"): Runner,
    }


def _only(*names: str, of: Callable[[], Mapping[tuple[str, str], object]]) -> Contract:
    return Contract(ours=lambda: {place: thing for place, thing in of().items() if place[1] in names})


CONTRACTS: Mapping[str, Contract] = {
    "official.core.base_trainer_test": Contract(ours=_trainer),
    "official.core.train_lib_test": Contract(
        ours=_driver,
        defects={
            "test_recovery_test_*": "goes back to a checkpoint without a step, and so ends at the last step with the "
            "first weights, as if all were well; ours refuses such a checkpoint, and fails where every loss is above "
            "the bound"
        },
    ),
    "official.core.train_utils_test": Contract(
        ours=_exporter,
        defects={
            "test_maybe_export": "names the best checkpoint best_ckpt-1, whatever its step; ours is ckpt-STEP",
            "test_export_best_eval_metric*": _RECORD,
        },
    ),
    # Their actions as they are: `test_to_garden.py` has them called by our runs.
    "official.core.actions_test": Contract(ours=dict),
    "official.projects.maxvit.train_test": _only("run_experiment", of=_driver),
    "official.projects.movinet.train_test": _only("run_experiment", of=_driver),
    "official.projects.volumetric_models.train_test": _only("run_experiment", of=_driver),
    "official.recommendation.ranking.train_test": dataclasses.replace(
        _only("run_experiment", "Trainer", of=lambda: {**_trainer(), **_driver()}),
        defects={"test*TPU*": "needs a TPU, and does not skip itself"},
        calls_first="official.recommendation.ranking.common:define_flags",
    ),
    "official.nlp.continuous_finetune_lib_test": _only("run_experiment", of=_driver),
}

LEFT_OUT: Mapping[str, str] = {
    "official.modeling.multitask.train_lib_test": "`test_several.py` compares its weights with those of ours",
    "official.projects.yt8m.train_test": "the wheel lacks official.projects.yt8m.dataloaders",
}
"""Modules of theirs with drivers that do not run here, each with the reason."""


@dataclasses.dataclass
class Outcome:
    """How the tests of a module went: names by `passed`, `failed`, `skipped`, and what our classes were used for."""

    tests: dict[str, list[str]]
    details: dict[str, str]
    used: collections.Counter


class _Result(unittest.TestResult):
    def __init__(self) -> None:
        super().__init__()
        self.outcome: dict[str, str] = {}
        self.details: dict[str, str] = {}

    def _name(self, test) -> str:
        return test.id().rpartition(".")[2]

    def addSuccess(self, test) -> None:
        self.outcome.setdefault(self._name(test), "passed")

    def addSkip(self, test, reason) -> None:
        self.outcome[self._name(test)] = "skipped"

    def addFailure(self, test, err) -> None:
        self.outcome[self._name(test)] = "failed"
        self.details[self._name(test)] = self._exc_info_to_string(err, test)

    addError = addFailure

    def addSubTest(self, test, subtest, err) -> None:
        if err is not None:
            self.addFailure(test, err)


@contextlib.contextmanager
def ours_in_place(contract: Contract, used: collections.Counter) -> Iterator[None]:
    """Puts our classes in the place of theirs, and counts how often each is used."""
    with contextlib.ExitStack() as stack:
        for (module, name), replacement in contract.ours().items():
            place = pkgutil.resolve_name(module)
            stack.enter_context(mock.patch.object(place, name, _counted(replacement, name, used)))
        yield


def _counted(thing, name: str, used: collections.Counter):
    used[name] = 0
    if isinstance(thing, types.FunctionType):

        def call(*arguments, **options):
            used[name] += 1
            return thing(*arguments, **options)

        return call

    class Counted(thing):
        def __init__(self, *arguments, **options) -> None:
            used[name] += 1
            super().__init__(*arguments, **options)

    return Counted


def run(module: str) -> Outcome:
    """Runs the tests of a module in this process."""
    load("tensorflow")
    from absl import flags

    _bring_along()
    contract, used = CONTRACTS[module], collections.Counter()
    if contract.calls_first:
        pkgutil.resolve_name(contract.calls_first)()
    with ours_in_place(contract, used):
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
        if not flags.FLAGS.is_parsed():
            flags.FLAGS([module])
        result = _Result()
        suite.run(result)
    tests: dict[str, list[str]] = {"passed": [], "failed": [], "skipped": []}
    for name, how in result.outcome.items():
        tests[how].append(name)
    return Outcome(tests, result.details, used)


def _bring_along() -> None:
    """Gives their tests what they need and this environment lacks."""
    # Theirs asks it for ports, and the wheel does not bring it along.
    sys.modules.setdefault("portpicker", types.SimpleNamespace(pick_unused_port=_free_port))
    numpy = load("numpy")
    reshape = numpy.reshape

    def with_old_name(array, shape=None, order="C", *, newshape=None):
        return reshape(array, shape if newshape is None else newshape, order)

    def of_any_type(array, mode=None):
        return fromarray(array.astype("uint8") if mode == "L" else array, mode)

    pictures = load("PIL.Image")
    fromarray = pictures.fromarray
    numpy.reshape = with_old_name  # NumPy 2.4 has no `newshape`, with which they make pictures
    pictures.fromarray = of_any_type  # nor does Pillow 12 make one of their masks, which are int64


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def problems(contract: Contract, outcome: Outcome) -> list[str]:
    """Returns what of an outcome is not as the list says."""
    is_listed = contract.lists
    found = [f"fails: {name}\n{outcome.details[name]}" for name in outcome.tests["failed"] if not is_listed(name)]
    found += [
        f"listed as asserting a defect, and passes: {name}" for name in outcome.tests["passed"] if is_listed(name)
    ]
    known = [name for names in outcome.tests.values() for name in names]
    unmatched = [pattern for pattern in contract.defects if not fnmatch.filter(known, pattern)]
    found += [f"listed, and there is no such test: {pattern}" for pattern in unmatched]
    found += [f"{name} of ours was used by no test" for name, count in outcome.used.items() if not count]
    return found if outcome.tests["passed"] else [*found, "no test has passed"]


def main(module: str) -> int:
    """Runs the tests of a module, prints how they went, and returns the exit code."""
    outcome = run(module)
    found = problems(CONTRACTS[module], outcome)
    counts = ", ".join(f"{len(names)} {how}" for how, names in outcome.tests.items())
    listed = sum(map(CONTRACTS[module].lists, outcome.tests["failed"]))
    used = ", ".join(f"{name} {count}×" for name, count in outcome.used.items())
    print(f"{module}: {counts} ({listed} of the failed as listed); ours: {used or 'nothing'}")
    print("".join(f"\n{problem}\n" for problem in found), end="")
    return 1 if found else 0
