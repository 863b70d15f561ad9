"""Functions as trials: which another process can import, and what is said of the others."""

import sys
import types

import pytest

from official_trainer.sweeps import functions
from official_trainer.sweeps.trial import SweepError


def train(trial):
    """A function at the top level of a file."""


def test_a_function_is_found_by_its_module(monkeypatch):
    """N21: or by the file of the script that defines it."""
    assert functions.reference_of(train) == f"{__name__}:train"
    assert functions.load(f"{__name__}:train") is train
    monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(__file__="/work/tune.py", train=train))
    monkeypatch.setattr(train, "__module__", "__main__")
    assert functions.reference_of(train) == "/work/tune.py:train"


@pytest.mark.parametrize(
    "function", [lambda trial: None, (lambda: lambda trial: None)(), types.SimpleNamespace(), train]
)
def test_what_another_process_cannot_import_is_refused(function, monkeypatch):
    """N21: a lambda, a local function, an object; a function of a notebook, whose cell has no file."""
    if function is train:
        monkeypatch.setitem(sys.modules, "__main__", types.SimpleNamespace(train=train))
        monkeypatch.setattr(train, "__module__", "__main__")
    with pytest.raises(SweepError, match=r"cannot import .*Write a function at the top level of a file, .* a notebook"):
        functions.reference_of(function)


def test_a_function_that_has_gone_is_said(tmp_path):
    """With what to do."""
    (tmp_path / "tune.py").write_text("")
    with pytest.raises(SweepError, match=r"tune.py has no function 'train' any more; put it back, or begin a new"):
        functions.load(f"{tmp_path / 'tune.py'}:train")


def test_a_script_that_would_begin_the_sweep_in_each_trial_is_refused(tmp_path):
    """N21: with the line that is missing."""
    lines = "from official_trainer import sweep", "def train(trial): ...", "sweep(train, {}, model_dir='out')"
    (tmp_path / "tune.py").write_text("\n".join(lines))
    with pytest.raises(SweepError, match=r"put the call of sweep under `if __name__ == '__main__':`"):
        functions.load(f"{tmp_path / 'tune.py'}:train")
