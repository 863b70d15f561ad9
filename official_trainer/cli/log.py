"""The package's log as the command line shows it: one line for what is news, with `warning:` before what is worse.

Owns: the handler, for as long as a command runs.
Does not own: the progress of a run (`tracking/console.py`), or what is logged.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator

from official_trainer.cli import terminal


class _Handler(logging.Handler):
    """Writes to stderr as it is now: a progress bar puts something in its place that keeps lines and bar apart."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            text = self.format(record)
            if record.levelno >= logging.WARNING:
                terminal.report_error(text, record.levelname.lower(), "yellow")
            else:
                print(text, file=sys.stderr, flush=True)
        except OSError:
            pass  # nobody reads any more; the run is worth more


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[None]:
    """Shows the package's log in the block; if `quiet`, warnings and errors alone."""
    logger, handler = logging.getLogger("official_trainer"), _Handler()
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.WARNING if quiet else logging.INFO)
    logger.propagate = False  # TensorFlow's libraries may give the root logger a handler, and lines would come twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.level, logger.propagate = before
