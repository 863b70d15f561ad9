"""What all tests but tests/gpu have: no GPU; one cache for Model Garden."""

import os
import sys
import tempfile

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", TF_USE_LEGACY_KERAS="1")
if os.environ.get("GPU_TESTS") != "gpu":  # which tests/gpu alone are for
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"

import hypothesis
import pytest

# The processes of a run, of which there are hundreds, compile a module once and not each for itself.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# How long an example takes says nothing about what is tested: the machine may be busy with other work.
hypothesis.settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("any machine")

_cache = None


def pytest_configure(config):
    """Gives all processes of this run one cache of what is read from Model Garden, and none of an earlier run."""
    global _cache
    if not hasattr(config, "workerinput"):
        _cache = tempfile.TemporaryDirectory(prefix="cache")
        os.environ["XDG_CACHE_HOME"] = _cache.name


def pytest_addoption(parser):
    parser.addoption("--chaos-seed", type=int, default=0, help="seed of the instants at which kills strike")
    parser.addoption("--update-golden", action="store_true", help="write what is said now into the files of messages")


@pytest.fixture(scope="session", autouse=True)
def _workspaces():
    """Tests use many workspaces in one process, which a command does not."""
    from tests.support import workspaces

    with workspaces.one_after_another():
        yield


@pytest.fixture
def model_dir(tmp_path):
    return str(tmp_path / "run")


@pytest.fixture
def place(tmp_path):
    """Where a tracker writes."""
    from official_trainer.tracking import Place

    return Place(directory=str(tmp_path), experiment="digits", name="run")
