"""The summary of a report in words: how the runs stand, which is the best, what differs, what failed and why.

Owns: the sentences. Does not own: facts about runs (`gathered.py`, `times.py`), messages of errors (`run.json`).
"""

from __future__ import annotations

import collections
import os
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from official_trainer import files
from official_trainer.config.text import short_names
from official_trainer.reports.gathered import Gathered, Ranked
from official_trainer.runs.recorded import duration_text
from official_trainer.shown import first_few, shorten
from official_trainer.tracking.git_state import DIRTY
from official_trainer.tracking.monitored import show

Sentence = tuple[str, str]
"""A kind (`best`, `failed`, `note`, `running` or empty), which has a colour on the page, and a text."""

STATUS_WORDS: Mapping[str, str] = {
    "running": "still running",
    "stalled": "stalled",
    "died": "died: its record says running, and no process does",
    "preempted": "stopped, and can be continued",
    "unknown": "without a record that can be read",
    "Model Garden": "of Model Garden's driver, which records no status",
    "empty": "an empty folder",
    "no run": "a folder without a run",
    "unreadable": "a folder that cannot be read",
}
"""What a status means, where it needs to be said."""

_FAILED = ("failed", "stalled", "died")
_MOST_REASONS, _MOST_FIELDS = 4, 4
_LONGEST_REASON, _LONGEST_VALUE = 240, 40
_NAMES_STEP = re.compile(r"\bsteps? \d")
_LONG_NUMBER = re.compile(r"-?\d*\.\d{5,}(e-?\d+)?")


def summary(found: Gathered, times: Sequence[Mapping[str, Any] | None]) -> list[Sentence]:
    """Returns the sentences, the most important first.

    Args:
      found: the runs.
      times: `times.account` of each.
    """
    sentences = [
        ("", _overview(found)),
        *_best(found),
        *_sweep(found),
        *_differences(found),
        *_failures(found),
        *_others(found),
        *_code(found),
        *_time(times),
    ]
    if found.sweep is None:  # else a sentence may begin with a trial, which is no name of a folder
        return sentences
    return [(kind, text[:1].upper() + text[1:]) for kind, text in sentences]


def facts(found: Gathered, times: Sequence[Mapping[str, Any] | None]) -> list[tuple[str, str, str]]:
    """Returns a few numbers, each with what it is and a remark."""
    statuses = collections.Counter(each.status for each in found.runs)
    shown = [
        ("Runs", f"{len(found.runs):,}", ", ".join(f"{count} {status}" for status, count in statuses.most_common()))
    ]
    if len(found.runs) == 1:
        only = found.runs[0]
        shown = [("Status", only.status, _progress(only))]
    if (best := found.best) is not None and best.best is not None:
        where = "" if best.best_step is None else f", step {best.best_step:,}"
        name = "" if len(found.runs) == 1 else f", {best.name}"
        shown.append((f"Best {found.metric}", show(best.best), f"{found.direction} is better{where}{name}"))
    known = [each for each in times if each is not None]
    seconds = sum(sum(each["parts"].values()) for each in known)
    if seconds > 0:
        kept = sum((each["goodput"] or 0.0) * sum(each["parts"].values()) for each in known)
        shown.append(("Time", duration_text(seconds), f"{kept / seconds:.0%} in steps that count".replace("%", " %")))
        restarted = [each["restarts"] for each in known if each["restarts"]]
        if restarted:
            shown.append(("Restarts", f"{sum(restarted):,}", f"in {_many(len(restarted), 'run')}"))
    steps = sum(each.run.recorded.step or 0 for each in found.runs)
    if steps and len(found.runs) > 1:
        shown.append(("Steps", f"{steps:,}", "of all runs"))
    return shown


def _overview(found: Gathered) -> str:
    runs = found.runs
    experiments = sorted({each.run.recorded.experiment for each in runs if each.run.recorded.experiment})
    of = f" of {first_few(experiments)}" if experiments else ""
    if len(runs) == 1:
        only = runs[0]
        state = STATUS_WORDS.get(only.status, only.status)
        return f"{only.name}, a run{of}, is {state}: {_progress(only)}."
    if found.sweep is not None:
        states = collections.Counter(trial["state"] for trial in found.sweep["trials"])
        what, counts = f"{len(found.sweep['trials'])} trials", _counted(states)
    else:
        what, counts = f"{len(runs):,} runs", _counted(collections.Counter(each.status for each in runs))
    return f"{what}{of}: {counts}."


def _counted(counts: Mapping[str, int]) -> str:
    if len(counts) == 1:
        ((name, count),) = counts.items()
        return f"{'both' if count == 2 else 'all'} {name}"
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: -item[1]))


def _progress(each: Ranked) -> str:
    step, end = each.run.recorded.step, each.run.recorded.end_step
    if step is None:
        return "no step is known"
    return f"step {step:,} of {end:,}" if end and end != step else f"{step:,} steps"


def _best(found: Gathered) -> Iterator[Sentence]:
    compared = [each for each in found.runs if each.best is not None]
    best = found.best
    if best is None or best.best is None:
        if found.metric is not None and len(found.runs) > 1:
            yield "note", f"Which run is the best is not known: no run has a value of {found.metric} yet."
        elif len(found.runs) > 1:
            yield "note", "Which run is the best is not known: no run says which metric decides."
        return
    step = "" if best.best_step is None else f" at step {best.best_step:,}"
    reached = f"{found.metric} {show(best.best)}{step}"
    if len(found.runs) == 1:
        last = "" if best.final is None or best.final == best.best else f"; the last evaluation has {show(best.final)}"
        yield "best", f"The best {reached}{last}."
        return
    equal = [each for each in compared if each.best == best.best]
    if len(equal) > 1:
        yield (
            "best",
            f"{_listed([each.name for each in equal])} are equally good: {reached}; {found.direction} is better.",
        )
    else:
        yield "best", f"{best.name} is the best: {reached}; {found.direction} is better.{_behind(compared)}"


def _behind(compared: Sequence[Ranked]) -> str:
    """Returns how far the others are behind the best."""
    values = [each.best for each in compared if each.best is not None]
    if len(compared) == 2:
        step = "" if compared[1].best_step is None else f" at step {compared[1].best_step:,}"
        return f" {compared[1].name} reached {show(values[1])}{step}."
    if len(compared) > 2:
        median, worst = statistics.median(values), values[-1]
        rest = f"the median is {show(median)}, the worst {show(worst)}"
        return f" The next is {compared[1].name} with {show(values[1])}; {rest}."
    return ""


def _sweep(found: Gathered) -> Iterator[Sentence]:
    if found.sweep is None:
        return
    names = {each["path"]: each["name"] for each in found.sweep["dimensions"]}
    shares = sorted((found.sweep.get("importances") or {}).items(), key=lambda item: -item[1])
    if shares:
        words = [f"{names.get(path, path)} ({share:.0%})".replace("%", " %") for path, share in shares[:3]]
        yield "", f"What told the best trials from the others most: {_listed(words)}."
    elif missing := found.sweep.get("importances_missing"):
        yield "", f"Which fields matter cannot be said: {missing}."
    spent, whole = (found.sweep["steps"][name] for name in ("spent", "without_pruning"))
    if whole > spent:
        yield "", f"Pruning saved {1 - spent / whole:.0%} of the steps: {spent:,} were trained.".replace("%", " %")


def _differences(found: Gathered) -> Iterator[Sentence]:
    runs = found.runs
    paths = list(dict.fromkeys(path for each in runs for path in each.differs))
    if not paths:
        if len([each for each in runs if each.run.recorded.config]) > 1:
            yield "", "Their configs are equal, as far as they are known."
        return
    if found.sweep is not None and found.best is not None:
        yield "", f"{found.best.name} has {_values(found.best, paths)}."
        return
    names = short_names(paths)
    if len(runs) == 2:
        pairs = [f"{names[path]} ({' → '.join(_value(each, path) for each in reversed(runs))})" for path in paths]
        before, after = runs[1].name, runs[0].name
        yield "", f"From {before} to {after}, {_many(len(paths), 'field')} changed: {_listed(pairs, _MOST_FIELDS)}."
        return
    listed = _listed([names[path] for path in paths], _MOST_FIELDS)
    best = f" {found.best.name} has {_values(found.best, paths)}." if found.best is not None else ""
    yield "", f"They differ in {_many(len(paths), 'field')}: {listed}.{best}"


def _values(each: Ranked, paths: Sequence[str]) -> str:
    names, own = short_names(paths), [path for path in paths if path in each.differs]
    return (
        _listed([f"{names[path]} {_value(each, path)}" for path in own], _MOST_FIELDS) or "the values of its experiment"
    )


def _value(each: Ranked, path: str) -> str:
    text = each.differs.get(path, "–")
    return show(float(text)) if _LONG_NUMBER.fullmatch(text) else shorten(text, _LONGEST_VALUE)


def _failures(found: Gathered) -> Iterator[Sentence]:
    """Yields why runs failed; those with one reason together."""
    by_reason: dict[str, list[Ranked]] = {}
    for each in found.runs:
        if each.status in _FAILED:
            by_reason.setdefault(reason(each), []).append(each)
    groups = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    for why, runs in groups[:_MOST_REASONS]:
        names = _listed([each.name for each in runs], 3)
        step = runs[0].run.recorded.step
        at = "" if len(runs) > 1 or step is None or _NAMES_STEP.search(why) else f" at step {step:,}"
        did = "failed" if runs[0].status == "failed" else runs[0].status
        yield "failed", f"{names} {did}{at}: {why}."
    if rest := sum(len(runs) for _, runs in groups[_MOST_REASONS:]):
        yield "failed", f"{_many(rest, 'more run')} failed for other reasons."


def reason(each: Ranked) -> str:
    """Returns why a run failed, on one line, without the full stop."""
    if each.status == "died":
        return STATUS_WORDS["died"].partition(": ")[2]
    error = error_of(each)
    line = next((line.strip() for line in (error or "").splitlines() if line.strip()), "")
    said = line or "; ".join(each.run.recorded.notes) or "it left no message"
    return shorten(said, _LONGEST_REASON).rstrip(".")


def error_of(each: Ranked) -> str | None:
    """Returns the message of the error that ended a run; None if it has none."""
    error = each.run.record.get("error")
    return error if isinstance(error, str) and error.strip() else None


def _others(found: Gathered) -> Iterator[Sentence]:
    """Yields what needs a word about runs that neither ended nor failed."""
    if len(found.runs) == 1:
        return
    for status, words in STATUS_WORDS.items():
        named = [each.name for each in found.runs if each.status == status]
        if named and status not in _FAILED:
            verb = "is" if len(named) == 1 else "are"
            kind = "running" if status == "running" else "note"
            yield kind, f"{_listed(named, 3)} {verb} {words}."


def _code(found: Gathered) -> Iterator[Sentence]:
    """Yields what differs between the runs other than their configs."""
    records = [each.run.record for each in found.runs]
    if len({str(each["git_revision"]) for each in records if each.get("git_revision")}) > 1:
        yield "note", "They ran with different revisions of the workspace, so more than their configs may differ."
    changed = [each for each in found.runs if str(each.run.record.get("git_revision")).endswith(DIRTY)]
    if changed:
        recorded = all(os.path.exists(files.join(each.run.directory, files.CODE_FILE)) for each in changed)
        where = f": {files.CODE_FILE} in the run directory has them" if recorded else ""
        names = _listed([each.name for each in changed], 3)
        yield "note", f"{names} ran with changes of the code that were not committed{where}."
    for package in ("tensorflow", "official_trainer"):
        held = [each["versions"] for each in records if isinstance(each.get("versions"), Mapping)]
        known = sorted({str(each[package]) for each in held if package in each})
        if len(known) > 1:
            yield "note", f"They ran with different versions of {package}: {_listed(known)}."


def _time(times: Sequence[Mapping[str, Any] | None]) -> Iterator[Sentence]:
    verdicts = [each["verdict"] for each in times if each is not None and each["verdict"]]
    if verdicts:
        many = "" if len(times) == 1 else f" ({_many(len(verdicts), 'run')})"
        yield "note", f"Steps wait for data{many}: {verdicts[0]}."


def _listed(words: Sequence[str], most: int = 6) -> str:
    """Returns words with commas and `and`; the first ones of many."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
