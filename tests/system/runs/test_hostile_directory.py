"""A file or a folder of a run directory that is damaged, replaced or another run's, for every verb that reads there."""

import concurrent.futures
import itertools
from pathlib import Path

import pytest

from official_trainer.cli import verbs
from tests.support import hostile
from tests.support.checkpoint_damage import FILE_HARMS, FOLDER_HARMS

FEW = {
    "run.json": ["nested", "foreign"],
    "params.yaml": ["link", "nested", "pipe"],
    "status.json": ["pipe"],
    "metrics.jsonl": ["directory", "zeroed"],
    "ckpt-N.index": ["swapped"],
    "ckpt-N.data-N-of-N": ["flipped"],
    "ckpt-N.manifest.json": ["truncated"],
    "best": ["file", "deleted"],
    "continuous_eval/lease.json": ["empty"],
}
"""What the quick test damages, and how: each harm at least once; the full one finds every kind of file and folder."""

DEAR = ("check", "export", "eval_best", "continuous_eval")
"""Commands that meet the first harm of each file in the quick test: they read as `train`, `eval` and `predict` do."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The directory of a run, that of another run, and the results of all commands on a copy of the first."""
    folders = [tmp_path_factory.mktemp(name) for name in ("one", "other")]
    run, other = hostile.make_run(folders[0]), hostile.make_run(folders[1], "runtime.seed=2")
    expected = hostile.Try(run, other, None, None, tmp_path_factory.mktemp("whole") / "try").results()
    assert {result["code"] for result in expected.values()} == {0}, expected
    return run, other, expected


def broken(runs, cases, folder, without=lambda case: ()):
    run, other, expected = runs

    def check(numbered):
        number, case = numbered
        return hostile.broken(run, other, case, expected, folder / str(number), without(case))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [*itertools.chain.from_iterable(pool.map(check, enumerate(cases)))]


def test_every_verb_is_tried_or_has_no_run_directory():
    """N6: a new verb has to say which."""
    tried = {hostile.VERBS[name](Path("run"))[0] for name in hostile.VERBS}
    assert tried | hostile.NO_RUN_DIRECTORY == {name.replace("-", "_") for name in verbs.names()}


def test_damage_to_a_run_directory_is_said_and_never_gives_other_values(runs, tmp_path):
    """N3, N6, N34: exit code 0, 2 or 75, a message, no traceback, no hang; each harm to one place."""
    cases = [(kind, harm) for kind, harms in FEW.items() for harm in harms]
    assert {harm for _, harm in cases} == {*FILE_HARMS, *FOLDER_HARMS}
    assert {*cases} <= {*hostile.all_cases(runs[0])}
    assert broken(runs, cases, tmp_path, lambda case: () if case[1] == FEW[case[0]][0] else DEAR) == []


@pytest.mark.full
def test_every_damage_to_every_kind_of_file_and_folder(runs, tmp_path):
    """N3, N6, N34: as above, for all of them."""
    cases = hostile.all_cases(runs[0])
    assert len(cases) > 400
    assert broken(runs, cases, tmp_path) == []
