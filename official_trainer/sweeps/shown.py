"""What a sweep shows: a line for each event, a bar below them on a terminal, the table of its trials at the end.

Owns: these, by rich. Does not own: when something happens (`driver.py`), what is read of a study (`results.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from official_trainer.cli import terminal
from official_trainer.config.text import short_names
from official_trainer.shown import printable
from official_trainer.sweeps.results import STATES
from official_trainer.sweeps.settings import Objective
from official_trainer.tracking.console import can_redraw, rich_console

_WIDTH = 80  # of the table, where the output is no terminal


class Shown:
    """Shows a sweep while it runs, and the end of each trial."""

    def __init__(self, space: Mapping[str, object], objective: Objective, *, quiet: bool = False) -> None:
        """Takes what is drawn, what is compared, and whether nothing is shown."""
        self._names, self._objective, self._is_quiet = names_of(space), objective, quiet
        self._bar: Any = None
        if not quiet and can_redraw(sys.stdout):
            from rich import progress

            columns: list[Any] = [
                "trials",
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TextColumn("{task.fields[last]}"),
            ]
            self._bar = progress.Progress(*columns, console=rich_console(sys.stdout))
            self._task = self._bar.add_task("trials", last="")
            self._bar.start()

    def say(self, text: str) -> None:
        """Shows something about the sweep as a whole."""
        if self._bar is not None:
            self._bar.console.print(printable(text))
        elif not self._is_quiet:
            print(printable(text), flush=True)

    def count(self, done: int, total: int) -> None:
        """Shows how many trials are done."""
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total)

    def start(self, number: int, values: Mapping[str, object], *, continues: bool) -> None:
        """Shows that a trial is started, or continues from its newest checkpoint."""
        drawn = ", ".join(f"{self._names.get(path, path)}={_short(value)}" for path, value in values.items())
        self.say(f"trial {number} {'continues' if continues else 'starts'}: {drawn}")

    def report(self, number: int, step: int, value: float) -> None:
        """Shows an evaluation of a trial, on a terminal alone."""
        if self._bar is not None:
            self._bar.update(self._task, last=f"trial {number} at step {step}: {value:.4g}")

    def end(self, trial: Any) -> None:
        """Shows how a trial has ended."""
        self.say(f"trial {trial.number} {ending(trial, self._objective.metric)}")

    def close(self) -> None:
        """Nothing more comes."""
        if self._bar is not None:
            self._bar.stop()


def names_of(space: Mapping[str, object]) -> dict[str, str]:
    """Returns what the fields of a space are called in lines and tables: short, and different from each other."""
    names = short_names(space)
    branches = [name.removesuffix(".type") for name in names.values()]  # `optimizer` says more than `type`
    return names if len(set(branches)) < len(branches) else dict(zip(names, branches, strict=True))


def ending(trial: Any, metric: str) -> str:
    """Returns how a trial stands, as in `complete: accuracy 0.97 at step 200`."""
    state, facts = STATES[trial.state.name], trial.user_attrs
    if state == "complete":
        return f"complete: {metric} {trial.value:.6g} at step {facts.get('step')}"
    at = f" after step {trial.last_step}" if state == "pruned" and trial.last_step is not None else ""
    return f"{state}{at}: {facts['reason']}" if "reason" in facts else f"{state}{at}"


def print_table(described: Mapping[str, Any], study: Any, best: int | None) -> None:
    """Prints the table of a sweep's trials, and below it why trials failed.

    Args:
      described: the content of `sweep.json`.
      study: Optuna's.
      best: the number of the best trial; None without one.
    """
    names = names_of(described["sweep"]["space"])
    metric = described["sweep"]["objective"]["metric"]
    trials, rows = study.get_trials(deepcopy=False), []
    for trial in trials:
        state = "best" if trial.number == best else STATES[trial.state.name]
        value = "" if trial.value is None else f"{trial.value:.6g}"
        cells = [_short(trial.params[path]) if path in trial.params else "" for path in names]
        rows.append([str(trial.number), state, value, *map(printable, cells)])
    headings = ["trial", "state", metric, *names.values()]
    numbers = [0, *range(2, len(headings))]
    print("\n".join(terminal.table(headings, rows, numbers=numbers, fit=terminal.table_width() or _WIDTH)))
    for trial in trials:
        if trial.state.name == "FAIL":
            terminal.show(f"trial {trial.number} {ending(trial, metric)}")


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
