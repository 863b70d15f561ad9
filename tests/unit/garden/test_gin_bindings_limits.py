"""N34: files and texts of gin bindings that no run needs are refused in seconds, with their place."""

import os

import pytest

from official_trainer.config import ConfigError
from official_trainer.garden import gin_bindings
from tests.support.bounded import bounded


def _said(files=(), params=()):
    try:
        gin_bindings.read(files, params)
    except ConfigError as error:
        return error.problems[0].message
    return ""


def _write(number, text):
    with open(f"{number}.gin", "w") as file:
        file.write(text)


@pytest.mark.parametrize("each", ["include '{}.gin'\n", "include '{0}.gin'\ninclude '{0}.gin'\n"])
def test_files_that_include_files(tmp_path, monkeypatch, each):
    """N34: a chain, and a diamond of 2^200 files."""
    monkeypatch.chdir(tmp_path)
    for number in range(200):
        _write(number, each.format(number + 1))
    _write(200, "f.x = 1\n")
    assert "is one more than the 100 files of bindings that may be read; put some of them into one" in bounded(
        _said, ["0.gin"]
    )


def test_pipes_and_devices(tmp_path, monkeypatch):
    """N34: nothing is waited for."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.gin")
    said = "cannot be read: it is a pipe or a device; write its content into a file"
    assert bounded(_said, ["pipe.gin"]) == f"--gin_file: 'pipe.gin' {said}"
    assert bounded(_said, ["/dev/zero"]) == f"--gin_file: '/dev/zero' {said}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "f.x = " + "[" * 5000 + "]" * 5000,
            "--gin_params: lists and brackets are nested too deep here; write fewer le",
        ),
        ("f.x = " + "9" * 5000, "9…9999999999 is not a value; allowed: True, None"),
        ("f.\x1b[2J = 1", "--gin_params: not gin's syntax: "),  # the rest is of gin, or of Python's tokenizer
    ],
)
def test_texts(text, said):
    """N34: depth, digits and control characters."""
    message = bounded(_said, (), [text])
    assert said in message
    assert "\x1b" not in message
