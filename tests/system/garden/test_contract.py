"""Model Garden's own tests on our classes, and that the command which runs them tells what is wrong."""

import collections
import subprocess
import sys

import pytest

from tests.support.garden.contract import CONTRACTS, Contract, Outcome, problems

_QUICK = ("orbit.standard_runner_test", "official.core.train_utils_test")


@pytest.mark.parametrize(
    "module", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.full) for name in CONTRACTS]
)
def test_their_tests_run_on_ours(module):
    """T1: but for those that assert what is a defect here."""
    command = [sys.executable, "-m", "tests.support.garden.contract", module]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr[-2_000:]
    assert f"{module}: " in done.stdout


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
    contract = Contract(ours=dict, defects={"test_b*": "because"})
    assert not problems(contract, outcome(passed=["test_a"], failed=["test_b_1"], used={"Trainer": 1}))


def test_a_module_that_is_not_theirs_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.garden.contract", "os"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "os: not one of official.core.base_trainer_test" in done.stdout
