"""A short run, killed before each change that it makes on disk, or on a disk that is full from that change on."""

import pytest

from tests.support.cases import cases
from tests.support.chaos.contract import CHANGES, Broken, Change, FullDisk
from tests.system.kills.cases import SHORT

EVERY = 288
"""A test has every 288th change, so 288 tests have all."""

MORE = 16
"""By how much the numbers of changes of two runs may differ: time decides how often `status.json` is written."""


def check_changes(first, strike, shared, tmp_path):
    """Strikes at every 288th change from the `first` on; each time the next start has to end as the unbroken run."""
    failed = []
    for number in range(first, shared.unbroken(SHORT).changes + MORE, EVERY):
        folder = tmp_path / f"{number}"
        broken = Broken(shared, SHORT, folder)
        try:
            broken.is_struck(strike(number))
            broken.finish()
            broken.check_end()
        except AssertionError as error:
            failed.append(f"{number}, {(folder / CHANGES).read_text().splitlines()[-1]}: {error}")
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("first", cases(range(1, EVERY + 1), 7))
def test_killed_before_each_change(first, shared, tmp_path):
    """N1, N3: also between two halves of a write, in C++ and in any thread."""
    check_changes(first, Change, shared, tmp_path)


@pytest.mark.parametrize("first", cases(range(1, EVERY + 1), 19))
def test_a_disk_that_is_full_from_each_change_on(first, shared, tmp_path):
    """N1, N3, N6: exit code 75 and one line, or the run goes on; then the same command ends as an unbroken run."""
    check_changes(first, FullDisk, shared, tmp_path)
