"""A run of `digits_mlp`, and its export in all formats."""

import pytest

from tests.support.forked import trained_digits
from tests.support.formats.exports import ALL, export


@pytest.fixture(scope="session")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("formats")
    run = trained_digits(folder)
    done = export(run, folder, ALL)
    assert done.code == 0, done.err
    return run, run / "export" / "20"
