"""A stream that says it is a terminal."""

import io


class Terminal(io.StringIO):
    """Keeps what is written to it."""

    def isatty(self):
        return True
