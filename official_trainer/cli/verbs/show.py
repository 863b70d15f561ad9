"""Show the values of an experiment or a run, and who set each.

Values that the flags change are shown as `train` would use them. With --diff, only the fields that differ are shown;
with --time, where the time of a run went.

Owns: `show`.
Does not own: resolving, dumping and explaining (`config/`).
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from official_trainer import files
from official_trainer.cli import flags, target, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.shown import counted, wrapped

if TYPE_CHECKING:
    from official_trainer.config import Resolved

GROUP = "Start with these, in this order"
ORDER = 3
IN_WORKSPACE = True
USAGE = "EXPERIMENT|MODEL_DIR [--explain=PATH|--diff|--time] [flags] [PATH=VALUE …]"
EXAMPLES = (
    ("official-trainer show digits_cnn", "every value, and who set it"),
    ("official-trainer show digits_cnn --explain=trainer.train_steps", "one field: meaning, allowed values, origin"),
    ("official-trainer show digits_cnn --config_file=configs/digits_cnn.yaml", "with the values of a file"),
    ("official-trainer show runs/digits", "the values that a run used"),
    ("official-trainer show runs/digits --diff", "only those that differ from the experiment's own"),
    ("official-trainer show runs/digits --time", "what its start, steps, saves and the rest took so far"),
)
NEXT = ("official-trainer check digits_cnn", "try the experiment")
_GIN = ("gin_file", "gin_params")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `show`."""
    parser.group("Experiment or run")
    parser.positional("name", "EXPERIMENT", "name of an experiment, or the directory of a run")
    parser.value("experiment", "NAME", "name of an experiment, as in `train`")
    flags.add_import_flag(parser)
    flags.add_config_flags(parser)
    for name in _GIN:  # without help: `run` says why they do nothing
        parser.value(name, "VALUE", argparse.SUPPRESS, repeat=True)
    parser.output_group()
    parser.value("explain", "PATH", "show one field: type, allowed values, who set it")
    parser.switch("diff", "show only what differs from the experiment's own values")
    parser.switch("time", "show where the time of a run went, up to its last checkpoint if it goes on")


def run(arguments: argparse.Namespace) -> int:
    """Prints the resolved configuration, one field of it, or what differs from the experiment's own values.

    Raises:
      UsageError: the flags contradict each other, or the directory is not a run's.
    """
    if given := [f"--{name}" for name in _GIN if any(getattr(arguments, name) or ())]:
        what = "no effect here: gin binds arguments of functions and does not change the config"
        raise UsageError(f"{' and '.join(given)} would have {what}; leave it out")
    asked = [f"--{name}" for name in ("explain", "time", "diff") if getattr(arguments, name)]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked[:2])} cannot be combined; keep one")
    run_dir = arguments.name if arguments.name and target.is_run(arguments.name) else None
    if arguments.time:
        if run_dir is None:
            raise UsageError("--time needs the directory of a run, such as: official-trainer show runs/digits --time")
        if flags.changes_config(arguments):
            raise UsageError("--time cannot be combined with changes of the config; leave them out")
        terminal.show(_time(run_dir))
        return 0
    if run_dir and not asked and not flags.changes_config(arguments):
        made = _made_by_task(run_dir)
        lines = [f"# {name} of the task: {optimizer}" for name, optimizer in made.items()]
        terminal.show("\n".join([files.read_text(target.params_path(run_dir)).rstrip("\n"), *lines]))
        return 0
    from official_trainer import config

    experiment = target.recorded_experiment(run_dir) if run_dir else target.named_experiment(arguments)
    resolved = target.resolve(experiment, arguments, run_dir=run_dir)
    if arguments.diff:
        own = target.resolve(experiment, argparse.Namespace(**{**vars(arguments), **flags.UNCHANGED}))
        changed = " with the flags of this command" if flags.changes_config(arguments) else ""
        names = experiment, f"{run_dir or experiment}{changed}"
        text = _difference(names, (own, resolved))
    elif arguments.explain:
        text = config.explain(resolved, arguments.explain)
    else:
        text = config.dump(resolved, origins=True)
    terminal.show(text.rstrip())
    return 0


def _made_by_task(run_dir: str) -> dict[str, str]:
    """Returns the optimizers of a run that its config does not describe, each in words by its name."""
    path = files.join(run_dir, files.RUN_FILE)
    with contextlib.suppress(OSError, files.UnreadableFileError):
        made = files.read_json(path).get("optimizers")
        return made if isinstance(made, dict) else {}
    return {}


def _time(run_dir: str) -> str:
    """Returns where the time of a run went.

    Raises:
      UsageError: it has recorded no time.
    """
    path = files.join(run_dir, files.RUN_FILE)
    time = files.read_json(path).get("time") if files.exists(path) else None
    if not time:
        raise UsageError(f"{path} has no time yet: a run records it with each checkpoint, and at its end")
    return wrapped("\n".join(_time_lines(time)), terminal.table_width())


def _time_lines(time: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line for each part of a run's time, the longest first, and what the start of its newest process took."""
    from official_trainer.runs.health.time_account import start_parts
    from official_trainer.runs.recorded import duration_text

    total = time["total"]
    wall, seconds_by_part, count = total["wall_seconds"], total["seconds"], total["restarts"] + 1
    elapsed = wall + seconds_by_part["between"]
    ran, lasted = duration_text(wall), duration_text(elapsed)
    over = f", over {lasted}" if lasted != ran else ""
    yield f"{ran} in {count} process{'es' * (count > 1)}{over}, {counted(total['steps'], 'step')}"
    for part, seconds in sorted(seconds_by_part.items(), key=lambda item: -(item[1] or 0)):
        time_text = "unknown" if seconds is None else f"{duration_text(seconds):>12} {100 * seconds / elapsed:4.0f} %"
        yield f"{part:10} {time_text}"
    yield f"the start of the newest process: {start_parts(time['attempts'][-1])}"
    if peaks := total["peak_memory_bytes"]:
        yield f"memory at most: {', '.join(f'{name} {size / 2**30:.2f} GiB' for name, size in peaks.items())}"


def _difference(names: tuple[str, str], both: tuple[Resolved, Resolved]) -> str:
    """Returns the fields that differ between two configurations."""
    from official_trainer.config import compare

    differences = compare.differences(*map(compare.sides, both))
    number = len(differences)
    count = f"{number} fields differ" if number > 1 else "1 field differs" if number else "no field differs"
    head = [f"--- {names[0]}", f"+++ {names[1]}", count]
    return "\n".join([*head, *([""] if differences else []), *compare.text(differences)])
