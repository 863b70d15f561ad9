"""Serve an exported model, as TensorFlow Serving does.

It is for trying a model on this machine, before a server of its own has it: TensorFlow Serving takes the same requests.
Requests that wait are computed together. Ctrl-C or SIGTERM ends it once all that it has taken is answered.

Owns: `serve`. Does not own: the server (`formats/serving.py`), the export (`official-trainer export`).
"""

from __future__ import annotations

import argparse
import os

from official_trainer import files
from official_trainer.cli import flags, terminal
from official_trainer.cli.parser import UsageError
from official_trainer.errors import ExitCode

USAGE = "RUN|EXPORT|FILE [--port=PORT] [--name=NAME] [flags]"
EXAMPLES = (
    ("official-trainer serve runs/digits", "the newest export of a run, at /v1/models/digits"),
    ("official-trainer serve runs/digits/export/500/model.onnx", "a file of any format but weights"),
)
NEXT = ("official-trainer report runs/digits", "how it was trained")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `serve`."""
    parser.group("Model", "It is loaded, and so may run code: name only what you trust.")
    parser.positional("path", "PATH", "a run directory, the folder of a SavedModel, or a file of another format")
    parser.value("name", "NAME", "of the model in addresses (default: the name of the run, else `model`)")
    parser.group("Limits")
    parser.value("port", "PORT", "port on 127.0.0.1 (default: 8501, as TensorFlow Serving has)")
    parser.value("max_batch_size", "N", "most examples that are computed together (default: 1024)")
    parser.value("max_waiting", "N", "most requests that wait; others are refused with 503 (default: 1000)")
    parser.value("max_mebibytes", "N", "most MiB of a request (default: 32)")
    parser.value("timeout_seconds", "N", "most seconds to read a request, and again to compute it (default: 60)")


def run(arguments: argparse.Namespace) -> int:
    """Serves until the process is told to stop.

    Raises:
      UsageError: no model is named.
      UserError: it cannot be served, or its libraries are not installed.
    """
    if not arguments.path:
        raise UsageError("name what to serve: a run directory, a SavedModel or a file, such as runs/digits")
    path = os.path.expanduser(arguments.path).rstrip("/")
    read = {name: flags.read_number(arguments, name, least=1) for name in ("port", "max_batch_size", "max_waiting")}
    read |= {name: flags.read_number(arguments, name, least=1) for name in ("max_mebibytes", "timeout_seconds")}
    from official_trainer.formats import kinds

    for what, fix in kinds.missing(["serve"]):
        raise kinds.FormatError(f"{what}; {fix}")
    is_run = files.exists(files.join(path, files.PARAMS_FILE))
    model = _newest_export(path) if is_run else path
    kinds.refuse_missing(model)
    from official_trainer.formats import serving

    limits = serving.Limits(**{name: value for name, value in read.items() if value is not None})
    name = arguments.name or (files.base_name(path) if is_run else "model")
    served = serving.Served(name, model)
    with serving.listening(limits.port) as place:
        terminal.show(f"http://{serving.HOST}:{place.getsockname()[1]}/v1/models/{name} is {model}; Ctrl-C ends it")
        serving.serve(served, place, limits)
    return int(ExitCode.DONE)


def _newest_export(run_dir: str) -> str:
    from official_trainer.formats.kinds import UnknownFileError
    from official_trainer.tasks import export

    for path in reversed(export.numbered(files.join(run_dir, "export"))):
        if export.kind_of(path):
            return path
    raise UnknownFileError(f"{run_dir} has no export; write one: official-trainer export --model_dir={run_dir}")
