"""Functions as trials: `python -m official_trainer.sweeps.functions FUNCTION DIR VALUES` calls one.

Owns: the reference to a function (`MODULE:NAME`, `FILE.py:NAME`), importing it, `TrialRun`, the process of its trial.
Does not own: the values (`space.py`).
"""

from __future__ import annotations

import contextvars
import dataclasses
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from official_trainer.cli import dispatch, process, terminal
from official_trainer.errors import ExitCode
from official_trainer.sweeps.trial import SweepError

_SCRIPT = "__trial_main__"
_is_trial = contextvars.ContextVar("is_trial", default=False)


@dataclasses.dataclass(frozen=True)
class TrialRun:
    """What the function of a sweep gets.

    Attributes:
      number: of the trial, from 0.
      values: name → what was drawn; a list, and a named choice, is the value itself.
      model_dir: the run directory of the trial, for `Program(model_dir=…)`.
    """

    number: int
    values: Mapping[str, Any]
    model_dir: str

    @classmethod
    def of(cls, model_dir: str, values: Mapping[str, Any]) -> TrialRun:
        """Returns the run in `DIR/trials/N/run`."""
        return cls(int(os.path.basename(os.path.dirname(model_dir))), values, model_dir)


def reference_of(function: Callable[[TrialRun], object]) -> str:
    """Returns the reference to a function, by which another process imports it.

    Raises:
      SweepError: another process cannot import it.
    """
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__qualname__", "")
    place, script = module, sys.modules.get("__main__")
    found = getattr(sys.modules.get(module), name, None)
    if module == "__main__" and getattr(script, "__spec__", None) is not None:
        place = script.__spec__.name  # type: ignore[union-attr] # of python -m
    elif module == "__main__":
        place = os.path.abspath(getattr(script, "__file__", None) or "")
    if "." in name or "<" in name or not place.removesuffix(os.getcwd()) or found is not function:
        what = name or repr(function)
        raise SweepError(
            f"each trial is a process of its own, and it cannot import {what}. Write a function at the top level of a "
            "file, `def train(trial): …`, and import it from there in a notebook"
        )
    return f"{place}:{name}"


def load(reference: str) -> Callable[[TrialRun], object]:
    """Imports a function, in the process of a trial.

    Raises:
      SweepError: it is not there any more.
    """
    place, _, name = reference.rpartition(":")
    token = _is_trial.set(True)
    try:
        if place.endswith(".py"):
            spec = importlib.util.spec_from_file_location(_SCRIPT, place)
            assert spec is not None and spec.loader is not None
            module = sys.modules[_SCRIPT] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(place)
    finally:
        _is_trial.reset(token)
    if not callable(found := getattr(module, name, None)):
        raise SweepError(f"{place} has no function {name!r} any more; put it back, or begin a new sweep")
    return found


def refuse_in_trial() -> None:
    """Refuses a sweep that begins where a trial imports its function.

    Raises:
      SweepError: it does.
    """
    if _is_trial.get():
        raise SweepError(
            "the process of a trial imports the file of its function, and that began the sweep again; put the call of "
            "sweep under `if __name__ == '__main__':`"
        )


def main() -> int:
    """Calls the function that the command line names; returns the exit code of the process."""

    def call() -> int:
        reference, model_dir, values = sys.argv[1:]
        with process.interruptible(), terminal.log_shown(quiet=False):
            load(reference)(TrialRun.of(model_dir, json.loads(values)))
        return int(ExitCode.DONE)

    process.prepare()
    return dispatch.reported(call, sys.argv, ends_process=True)


if __name__ == "__main__":
    from official_trainer.sweeps import functions  # in which a sweep that the function's file begins looks

    raise SystemExit(functions.main())
