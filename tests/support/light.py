"""A command that fails if it imports what is heavy, and fixtures for modules of tests without TensorFlow."""

import pytest

LIGHT = """
import sys
from official_trainer import cli
code = cli.main(sys.argv[1:])
heavy = {"tensorflow", "tf_keras", "keras", "numpy", "rich", "sklearn", "orbit"} & set(sys.modules)
raise SystemExit(f"imported {heavy}" if heavy else code)
"""


@pytest.fixture(scope="session", autouse=True)
def _devices():
    """In place of the one that starts TensorFlow's devices."""
    yield


@pytest.fixture(autouse=True)
def _clean_keras():
    """In place of the one that clears Keras's state."""
    yield
