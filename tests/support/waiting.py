"""Waiting until something is so."""

import time

TIMEOUT_SECONDS = 240


def until(is_so, what="what a test waits for"):
    """Waits; `what` is for the error, and may be a function that returns it. Returns what `is_so()` returned."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not (answer := is_so()):
        assert time.monotonic() < end, f"waited for too long: {what() if callable(what) else what}"
        time.sleep(0.01)
    return answer
