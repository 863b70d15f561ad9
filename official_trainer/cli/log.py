"""The package's log on the command line: one line for each record, with `warning:` before warnings.

Owns: the handler, for as long as a command runs.
Does not own: the progress of a run (`tracking/console.py`), the records.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from official_trainer.cli import terminal


class _Handler(logging.Handler):
    """Writes to the current `sys.stderr`, which a progress bar replaces to keep its line below the others."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                terminal.report_error(text, record.levelname.lower(), "yellow")
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:
            pass  # stderr is closed; the run continues without its log


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[None]:
    """Shows the package's log inside the block; if `quiet`, only warnings and errors."""
    logger, handler = logging.getLogger("official_trainer"), _Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = (
        False  # TensorFlow's libraries may add a handler to the root logger, which would print each line twice
    )
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
