"""Configuration tests never import TensorFlow, so the fixtures that prepare it are switched off."""

import textwrap

import pytest


@pytest.fixture(scope="session", autouse=True)
def _devices():
    yield


@pytest.fixture(autouse=True)
def _clean_keras():
    yield


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes files into the working directory and returns their names."""
    monkeypatch.chdir(tmp_path)

    def write(text, name="a.yaml"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return name

    return write
