"""`python -m benchmarks`: measures side by side, prints the tables, and says which promises were not kept."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import harness, processes

PARTS = ("steps", "fit", "jobs", "clusters", "commands", "saves", "resume", "data", "goodput", "sweeps")
README = processes.ROOT / "benchmarks" / "README.md"


def main(argv: Sequence[str] | None = None) -> int:
    """Measures parts, each in a process of its own; returns 1 if a promise was not kept, else 0."""
    argv = sys.argv[1:] if argv is None else list(argv)
    arguments = _parse(argv)
    _refuse_without_bytecode()
    if len(arguments.parts) == 1:
        return _measure(arguments.parts[0], arguments)
    flags = [word for word in argv if word.startswith("--")]
    commands = [[sys.executable, "-m", "benchmarks", name, *flags] for name in arguments.parts]
    return max(subprocess.run(command, cwd=processes.ROOT).returncode for command in commands)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rounds", type=int, help="measurements of each variant; default: each part's own")
    parser.add_argument(
        "--quick", action="store_true", help="show that it runs: one round, few steps; figures mean nothing"
    )
    parser.add_argument(
        "--readme", action="store_true", help="also write the table of each part to benchmarks/README.md"
    )
    arguments = parser.parse_args(argv)
    if unknown := [name for name in arguments.parts if name not in PARTS]:
        parser.error(f"no such part: {', '.join(unknown)}; parts are {', '.join(PARTS)}")
    if arguments.quick and arguments.readme:
        parser.error("--quick gives figures that mean nothing, so --readme cannot write them")
    arguments.parts = arguments.parts or list(PARTS)
    return arguments


def _refuse_without_bytecode() -> None:
    """A start takes several times as long where Python keeps no bytecode of TensorFlow."""
    origin = importlib.util.find_spec("tensorflow").origin
    if not Path(importlib.util.cache_from_source(origin)).exists():
        raise SystemExit(
            f"{origin} has no bytecode, so starts would be measured wrongly; run `python -m compileall` on it"
        )


def _measure(name: str, arguments: argparse.Namespace) -> int:
    os.environ.update(processes.ENVIRONMENT)
    part = importlib.import_module(f"benchmarks.{name}")
    num_rounds = 1 if arguments.quick else arguments.rounds or part.ROUNDS
    values = part.measure(num_rounds, arguments.quick)
    content = f"{harness.table(part.PROMISES, values)}\n{harness.machine()}.\n"
    print(f"{name}\n\n{content}")
    if arguments.quick:
        return 0
    if arguments.readme:
        README.write_text(harness.with_section(README.read_text(), name, f"\n{content}\n"))
    return int(not all(promise.is_kept(values) for promise in part.PROMISES))


if __name__ == "__main__":
    raise SystemExit(main())
