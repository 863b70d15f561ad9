"""`python -m benchmarks`: runs everything side by side and prints what it took, with ratios, spread and targets.

Owns: the command. Each part measures in children of this process; see the modules in `PARTS`.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks import (
    actions,
    bookkeeping,
    clusters,
    commands,
    data,
    drop_in,
    fit,
    goodput,
    gpu,
    growth,
    job,
    keras3,
    models,
    pages,
    processes,
    refusals,
    report,
    resume,
    saves,
    start,
    steps,
    sweeps,
    warm,
)
from benchmarks.report import Comparison
from official_trainer.cli.verbs import doctor

TENSORFLOW = Path(importlib.util.find_spec("tensorflow").origin).parent

README = processes.ROOT / "benchmarks" / "README.md"

PARTS: dict[str, tuple[Callable[[int], list[Comparison]], int]] = {
    "steps": (steps.compare, 15),
    "models": (models.compare, 7),
    "keras3": (keras3.compare, 9),
    "gpu": (gpu.compare, 5),
    "job": (job.compare, 7),
    "start": (start.compare, 7),
    "warm": (warm.compare, 7),
    "cli": (commands.compare, 15),
    "compare": (pages.compare_runs, 9),
    "refusals": (refusals.compare, 7),
    "pages": (pages.compare, 7),
    "saves": (saves.compare, 15),
    "resume": (resume.compare, 15),
    "data": (data.compare, 7),
    "bookkeeping": (bookkeeping.compare, 10),
    "actions": (actions.compare, 15),
    "clusters": (clusters.compare, 5),
    "drop_in": (drop_in.compare, 7),
    "fit": (fit.compare, 7),
    "sweeps": (sweeps.compare, 3),
    "growth": (growth.compare, 1),
    "goodput": (goodput.compare, 3),
}
"""What each part measures, and its rounds by default.

A part that returns nothing goes on in the next call, or has said why it does not measure.
"""

PROMISES = "promises"
"""The section of the README with all promises."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmarks; returns 1 if a target was missed, else 0."""
    arguments = _parse(argv)
    if not (bytecode := doctor.check_bytecode(TENSORFLOW, writes=False)).ok:
        raise SystemExit(f"what starts would be measured wrongly, no bytecode of TensorFlow is kept: {bytecode.fix}")
    missed, unfinished = 0, list[str]()
    print(report.machine())
    for name in arguments.only:
        compare, default_rounds = PARTS[name]
        comparisons = compare(arguments.rounds or default_rounds)
        if not comparisons:
            unfinished.append(name)
            continue
        report.print_text(comparisons)
        if arguments.markdown:
            _write(name, report.markdown(comparisons))
        missed += sum(not each.is_met(target) for each in comparisons for target in each.targets)
    if unfinished:
        print(f"not finished: {', '.join(unfinished)}")
    print(f"{missed} target{'s' * (missed > 1)} missed" if missed else "no target missed")
    return int(missed > 0)


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", type=_parts, default=list(PARTS), metavar="PART,…", help=f"of {', '.join(PARTS)}")
    parser.add_argument("--rounds", type=int, help="measurements of each variant; default: each part's own")
    parser.add_argument("--markdown", action="store_true", help="also write the tables to benchmarks/README.md")
    return parser.parse_args(argv)


def _parts(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    return names


def _write(name: str, tables: str) -> None:
    """Puts a part's tables, and the machine they were measured on, into the README, and all promises at its top."""
    section = f"\n{tables}\nMeasured on {report.machine()}.\n\n"
    README.write_text(with_promises(report.replace_section(README.read_text(), name, section)))


def with_promises(text: str) -> str:
    """Returns the README with the table of all promises, which are those of its sections."""
    return report.replace_section(text, PROMISES, report.promises(text, list(PARTS)))


if __name__ == "__main__":
    raise SystemExit(main())
