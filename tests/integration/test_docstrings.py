"""The public names that compute: each has a docstring with an example, and the example is right."""

import pytest

from tests.support import docstrings
from tests.support.cases import cases

FACES = (
    "official_trainer",
    "official_trainer.engine",
    "official_trainer.inputs",
    "official_trainer.program",
    "official_trainer.tasks",
)
MORE = {
    "official_trainer.distributed.trees": {
        *("assert_replica_integrity", "from_json", "gather", "paths", "read", "to_json", "write"),
    },
    "official_trainer.lazy": {""},
    "official_trainer.tasks.publish": {"histogram", "image", "is_wanted", "scalar"},
    "official_trainer.tasks.random_streams": {"enable", "seed", "seeds"},
}
"""Public names of modules without a stub."""

FOR_OTHER_PACKAGES = {
    "official_trainer.inputs": {
        *("call_build_inputs", "check_element_structure", "explain_data_error", "skip", "stack_windows"),
        *("with_training_flag", "without_tuning"),
    },
}
"""What these offer to other packages of ours: no user calls it, so it needs no example."""

UNIT = {"official_trainer": {"Action", "Tracker", "registry"}, "official_trainer.tasks": {"registry"}}
"""What tests/unit/test_docstrings.py checks, because it needs no TensorFlow."""

PUBLIC = docstrings.public(FACES, MORE, FOR_OTHER_PACKAGES | UNIT)


@pytest.mark.parametrize("name", cases(list(PUBLIC), *PUBLIC.keys() - {"official_trainer.sweep"}))
def test_the_example_of_a_public_name_is_right(name, tmp_path, monkeypatch):
    """In an empty working directory, which Python searches as in a session; a name without an example fails too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    docstrings.check(PUBLIC[name], name, monkeypatch)
