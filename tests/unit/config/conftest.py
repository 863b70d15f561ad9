"""Files that a config is read from."""

import textwrap

import pytest


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
