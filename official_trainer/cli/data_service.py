"""Run one process of a tf.data service: its dispatcher, or a data worker.

Owns: `data-service`.
Does not own: what the process does (`data_service.py`).
"""

from __future__ import annotations

import argparse

from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError

USAGE = "--role=dispatcher|data_worker [--port=PORT] [flags]"


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `data-service`."""
    parser.value("role", "ROLE", "dispatcher or data_worker")
    parser.value("port", "PORT", "port to listen on (default for a data worker: any free port)")
    parser.value("host", "HOST", "name of this machine for trainers (default: localhost)")
    parser.value("dispatcher", "ADDRESS", "grpc://host:port of the dispatcher, for a data worker")
    parser.value("work_dir", "DIR", "folder for the dispatcher's journal, so that it can restart without losing state")
    parser.note("Ends with SIGTERM. Trainers use it with task.train_data.enable_tf_data_service.")


def run(arguments: argparse.Namespace) -> int:
    """Runs the process until SIGTERM."""
    port = arguments.port or "0"
    if not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"--port={port}: expected a number from 0 to 65535")
    from official_trainer.inputs import data_service

    data_service.serve(
        arguments.role or "",
        host=arguments.host or "localhost",
        port=int(port),
        dispatcher=arguments.dispatcher or "",
        work_dir=arguments.work_dir or "",
    )
    return 0
