"""Modules of TensorFlow without a public name that this package uses: what a new release may move or change.

Not listed is what is found from a public name: the modules of operations (`keyed_draws.place_of`), those
of the reader of checkpoints (`first_weights.py`), classes of protocol buffers (`lazy.message`). Private attributes of
objects are not listed either.
"""

import ast
import re

import pytest

from tests.support.source import ENGINE, PATHS, tree_of

PRIVATE = {
    "checkpoints/matching.py": {"python.training.saving.saveable_object_util"},
    "checkpoints/store.py": {"python.checkpoint.functional_saver"},
    "engine/coordinator.py": {"python.eager.cancellation"},
    "tasks/keyed_draws.py": {"python.eager.context"},
    "tasks/scopes.py": {"python.ops.control_flow_v2_func_graphs"},
}
"""By module of this package, where a comment says why. One that is no longer used fails, to be removed."""


def private_names(tree):
    """Returns the modules below `tensorflow.python`, `.core`, … that a source imports, or names in a string."""
    said = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            said.append(node.value)
        elif isinstance(node, ast.Import):
            said += [each.name for each in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.startswith("tensorflow.") and node.module.endswith(("protobuf", ".python", ".ops"))
            said += [f"{node.module}.{each.name}" for each in node.names] if parts else [node.module]
    found = (re.fullmatch(r"tensorflow\.((?:python|core|compiler|tsl|lite)\.[\w.]+)", each) for each in said)
    return {each[1] for each in found if each}


def test_the_private_modules_of_tensorflow_are_these():
    found = {path.relative_to(ENGINE).as_posix(): private_names(tree_of(path)) for path in PATHS}
    assert {name: names for name, names in found.items() if names} == PRIVATE
    assert sum(map(len, PRIVATE.values())) <= 5, "each has to be looked up again for each release of TensorFlow"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("from tensorflow.python.eager import context", "python.eager"),
        ("from tensorflow.core.protobuf import saved_model_pb2", "core.protobuf.saved_model_pb2"),
        ("import tensorflow.python.ops.gen_image_ops as ops", "python.ops.gen_image_ops"),
        ("ops = load('tensorflow.python.ops.gen_image_ops')", "python.ops.gen_image_ops"),
    ],
)
def test_a_private_module_is_seen_in_each_spelling(source, name):
    assert private_names(ast.parse(source)) == {name}


def test_public_names_are_none():
    assert private_names(ast.parse("import tensorflow as tf\ntf.compat.v1.train\nload('tensorflow')")) == set()
