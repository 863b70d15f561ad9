"""Run one process of a tf.data service.

A service has one dispatcher and any number of data workers. Each process runs until SIGTERM. It listens on all
interfaces, without authentication: keep its port behind a firewall.

Owns: `data-service`.
Does not own: what the process does (`data_service.py`).
"""

from __future__ import annotations

import argparse
import os

from official_trainer.cli import flags
from official_trainer.cli.parser import UsageError

GROUP = "Use several processes or machines"
USAGE = "--role=dispatcher|data_worker [--port=PORT] [flags]"
EXAMPLES = (
    ("official-trainer data-service --role=dispatcher --port=5050", "start the dispatcher"),
    (
        "official-trainer data-service --role=data_worker --dispatcher=grpc://localhost:5050",
        "start a data worker on the same machine",
    ),
)
NEXT = ("official-trainer train --help", "--tf_data_service reads from a service")


def add_flags(parser: flags.Parser) -> None:
    """Declares the flags of `data-service`."""
    parser.group("Process and address")
    parser.value("role", "ROLE", "dispatcher or data_worker", choices=("dispatcher", "data_worker"))
    parser.value("port", "PORT", "port to listen on (default of a data worker: a free one)")
    parser.value("host", "HOST", "name of this machine for trainers (default: localhost)")
    parser.group("Only with --role=data_worker")
    parser.value("dispatcher", "ADDRESS", "grpc://HOST:PORT of the dispatcher")
    parser.group("Only with --role=dispatcher")
    parser.value("work_dir", "DIR", "directory of its journal; with it, a restart loses no state")


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
        work_dir=os.path.expanduser(arguments.work_dir or ""),
    )
    return 0
