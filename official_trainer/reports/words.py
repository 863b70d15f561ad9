"""The summary of a report in words: how the runs stand, which is the best, what differs, what failed and why.

Owns: the sentences. Does not own: facts about runs (`gathered.py`), messages of errors (`run.json`).
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
from official_trainer.runs import differing
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
    "pruned": "ended early by its sweep",
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
      times: `gathered.account` of each.
    """
    sentences = [*_standing(found), *_compared(found), *_troubles(found)]
    if verdicts := [each["verdict"] for each in times if each is not None and each["verdict"]]:
        many = "" if len(times) == 1 else f" ({_many(len(verdicts), 'run')})"
        sentences.append(("note", f"Steps wait for data{many}: {verdicts[0]}."))
    for each in found.runs:
        if isinstance(slow := each.run.record.get("slow_worker"), Mapping) and isinstance(slow.get("evidence"), str):
            named = f"Worker {slow.get('worker')} of {each.name} was slow in {slow.get('phase')}"
            sentences.append(("note", f"{named}: {slow['evidence']}."))
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


def _standing(found: Gathered) -> Iterator[Sentence]:
    """Yields how the runs stand, and which is the best."""
    runs, best = found.runs, found.best
    experiments = sorted({each.run.recorded.experiment for each in runs if each.run.recorded.experiment})
    of = f" of {first_few(experiments)}" if experiments else ""
    if len(runs) == 1:
        state = STATUS_WORDS.get(runs[0].status, runs[0].status)
        yield "", f"{runs[0].name}, a run{of}, is {state}: {_progress(runs[0])}."
    else:
        states = [trial["state"] for trial in found.sweep["trials"]] if found.sweep else [each.status for each in runs]
        counts = collections.Counter(states).most_common()
        counted = ", ".join(f"{count} {name}" for name, count in counts)
        if len(counts) == 1:
            counted = f"{'both' if len(states) == 2 else 'all'} {counts[0][0]}"
        yield "", f"{len(states):,} {'trials' if found.sweep else 'runs'}{of}: {counted}."
    if best is None or best.best is None:
        if len(runs) > 1:
            why = (
                "no run says which metric decides"
                if found.metric is None
                else f"no run has a value of {found.metric} yet"
            )
            yield "note", f"Which run is the best is not known: {why}."
        return
    reached = f"{found.metric} {show(best.best)}{_at(best)}"
    if len(runs) == 1:
        last = "" if best.final is None or best.final == best.best else f"; the last evaluation has {show(best.final)}"
        yield "best", f"The best {reached}{last}."
        return
    compared = [each for each in runs if each.best is not None]
    values = [each.best for each in runs if each.best is not None]
    equal = [each.name for each in compared if each.best == best.best]
    behind = ""
    if len(compared) == 2:
        behind = f" {compared[1].name} reached {show(values[1])}{_at(compared[1])}."
    elif len(compared) > 2:
        rest = f"the median is {show(statistics.median(values))}, the worst {show(values[-1])}"
        behind = f" The next is {compared[1].name} with {show(values[1])}; {rest}."
    if len(equal) > 1:
        yield "best", f"{_listed(equal)} are equally good: {reached}; {found.direction} is better."
    else:
        yield "best", f"{best.name} is the best: {reached}; {found.direction} is better.{behind}"


def _at(each: Ranked) -> str:
    return "" if each.best_step is None else f" at step {each.best_step:,}"


def _progress(each: Ranked) -> str:
    step, end = each.run.recorded.step, each.run.recorded.end_step
    if step is None:
        return "no step is known"
    return f"step {step:,} of {end:,}" if end and end != step else f"{step:,} steps"


def _compared(found: Gathered) -> Iterator[Sentence]:
    """Yields what a sweep has found, and in which fields the runs differ."""
    runs, sweep = found.runs, found.sweep
    if sweep is not None:
        names = {each["path"]: each["name"] for each in sweep["dimensions"]}
        shares = sorted((sweep.get("importances") or {}).items(), key=lambda item: -item[1])
        if shares:
            words = [f"{names.get(path, path)} ({share:.0%})".replace("%", " %") for path, share in shares[:3]]
            yield "", f"What told the best trials from the others most: {_listed(words)}."
        elif missing := sweep.get("importances_missing"):
            yield "", f"Which fields matter cannot be said: {missing}."
        spent, whole = (sweep["steps"][name] for name in ("spent", "without_pruning"))
        if whole > spent:
            yield "", f"Pruning saved {1 - spent / whole:.0%} of the steps: {spent:,} were trained.".replace("%", " %")
    paths = list(dict.fromkeys(path for each in runs for path in each.differs))
    names = short_names(paths)
    groups = differing.groups([ranked.run.recorded for ranked in runs])
    if len(groups) > 1:
        yield "", "They are runs of different experiments; only the configs of one experiment are compared."
    if not paths:
        if len(groups) == 1 and len(groups[0]) > 1:
            yield "", "Their configs are equal, as far as they are known."
        return
    of_best = ""
    if found.best is not None and found.best.differs:
        own = [f"{names[path]} {_value(found.best, path)}" for path in paths if path in found.best.differs]
        of_best = f"{found.best.name} has {_listed(own, _MOST_FIELDS)}."
    if sweep is not None and of_best:
        yield "", of_best
    elif len(runs) == 2:
        pairs = [f"{names[path]} ({' → '.join(_value(each, path) for each in reversed(runs))})" for path in paths]
        before, after = runs[1].name, runs[0].name
        yield "", f"From {before} to {after}, {_many(len(paths), 'field')} changed: {_listed(pairs, _MOST_FIELDS)}."
    else:
        listed = _listed([names[path] for path in paths], _MOST_FIELDS)
        who = "They" if len(groups) == 1 else "Runs of the same experiment"
        yield "", f"{who} differ in {_many(len(paths), 'field')}: {listed}.{of_best and f' {of_best}'}"


def _value(each: Ranked, path: str) -> str:
    text = each.differs.get(path, "–")
    return show(float(text)) if _LONG_NUMBER.fullmatch(text) else shorten(text, _LONGEST_VALUE)


def _troubles(found: Gathered) -> Iterator[Sentence]:
    """Yields why runs failed, those with one reason together; which have not ended; what differs beside configs."""
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
    for status, words in STATUS_WORDS.items():
        named = [each.name for each in found.runs if each.status == status]
        if named and status not in _FAILED and len(found.runs) > 1:
            verb = "is" if len(named) == 1 else "are"
            kind = "running" if status == "running" else "note"
            yield kind, f"{_listed(named, 3)} {verb} {words}."
    records = [each.run.record for each in found.runs]
    if len({str(each["git_revision"]) for each in records if each.get("git_revision")}) > 1:
        yield "note", "They ran with different revisions of the workspace, so more than their configs may differ."
    changed = [each for each in found.runs if str(each.run.record.get("git_revision")).endswith(DIRTY)]
    if changed:
        recorded = all(os.path.exists(files.join(each.run.directory, files.CODE_FILE)) for each in changed)
        where = f": {files.CODE_FILE} in the run directory has them" if recorded else ""
        names = _listed([each.name for each in changed], 3)
        yield "note", f"{names} ran with changes of the code that were not committed{where}."
    for package in ("tensorflow", "keras", "tf_keras", "official_trainer"):
        held = [each["versions"] for each in records if isinstance(each.get("versions"), Mapping)]
        known = sorted({str(each[package]) for each in held if package in each})
        if len(known) > 1:
            yield "note", f"They ran with different versions of {package}: {_listed(known)}."


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


def _listed(words: Sequence[str], most: int = 6) -> str:
    """Returns words with commas and `and`; the first ones of many."""
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most} more"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]])) if words else ""


def _many(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
