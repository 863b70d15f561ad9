"""Model Garden's own tests on our classes, and that what runs them tells what is wrong."""

import collections
import functools
import importlib.util
import re
from pathlib import Path

import pytest

from tests import ROOT
from tests.support.forked import Child
from tests.support.garden import contract
from tests.support.garden.contract import CONTRACTS, LEFT_OUT, Contract, Outcome, problems

_QUICK = ("official.core.train_utils_test",)


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.full) for name in CONTRACTS]
)
def test_their_tests_run_on_ours(module, tmp_path):
    """T1: but for those that assert what is a defect here."""
    done = Child(functools.partial(contract.main, module), cwd=ROOT, folder=tmp_path).wait()
    assert done.code == 0, done.out[-10_000:] + done.err[-2_000:]
    assert f"{module}: " in done.out


_USES_WHAT_WE_REPLACE = re.compile(
    r"run_experiment|run_continuous|train(_lib)?\.main\(|CheckpointExporter\(|RecoveryCondition\("
)


def test_no_module_of_theirs_is_forgotten():
    """T1: each in the wheel that runs a driver, but those that cannot run here."""
    (root,) = importlib.util.find_spec("official").submodule_search_locations
    found = {
        ".".join(("official", *path.relative_to(root).with_suffix("").parts))
        for path in Path(root).rglob("*_test.py")
        if _USES_WHAT_WE_REPLACE.search(path.read_text())
    }
    assert len(found) > 7
    assert found <= CONTRACTS.keys() | LEFT_OUT.keys()
    assert found >= LEFT_OUT.keys()
    for missing in re.findall(r"the wheel lacks (\S+)", "\n".join(LEFT_OUT.values())):
        assert importlib.util.find_spec(missing) is None


def outcome(used=(), **tests):
    tests = {"passed": [], "failed": [], "skipped": [], **tests}
    return Outcome(tests, dict.fromkeys(tests["failed"], "why"), collections.Counter(dict(used)))


@pytest.mark.parametrize(
    ("defects", "found", "message"),
    [
        ({}, outcome(passed=["test_a"], failed=["test_b"]), "fails: test_b"),
        ({"test_a*": "because"}, outcome(passed=["test_a_1", "test_b"]), "and passes: test_a_1"),
        ({"test_c": "because"}, outcome(passed=["test_a"]), "there is no such test: test_c"),
        ({}, outcome(passed=["test_a"], used={"Trainer": 0}), "Trainer of ours was used by no test"),
        ({}, outcome(skipped=["test_a"]), "no test has passed"),
    ],
)
def test_what_is_not_as_listed_is_told(defects, found, message):
    assert message in "".join(problems(Contract(ours=dict, defects=defects), found))


def test_what_is_as_listed_is_fine():
    listed = Contract(ours=dict, defects={"test_b*": "because"})
    assert not problems(listed, outcome(passed=["test_a"], failed=["test_b_1"], used={"Trainer": 1}))
