"""Leaving out lines that C++ libraries print to stderr and that are no news to anybody.

Owns: the redirection, for the short time in which they are printed. Does not own: Python's own log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator

BANNER = (b"All log messages before absl::InitializeLog()", b"Started server with target:")
"""What TensorFlow's gRPC server prints when it starts, whatever the log level is."""


@contextlib.contextmanager
def without(banner: tuple[bytes, ...]) -> Iterator[None]:
    """Holds back what is printed to stderr in the block, and prints it afterwards without the lines of a banner."""
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            held.seek(0)
            for line in held:
                if not any(part in line for part in banner):
                    os.write(2, line)
