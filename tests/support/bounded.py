"""Calls that might never return: in a forked process, which is killed when it takes too much."""

import contextlib
import multiprocessing
import os
import resource
import traceback

CPU_SECONDS = 10
WALL_SECONDS = 240
"""For a process that waits; a busy machine must not end one that works."""
MEMORY_BYTES = 6 << 30

_context = multiprocessing.get_context("fork")


def bounded(function, *arguments):
    """Returns what `function(*arguments)` returns in a process that may use 10 s of a core.

    Fails if it needs more, waits for something, or ends with a signal or an error.
    """
    here, there = _context.Pipe(duplex=False)
    process = _context.Process(target=_run, args=(there, function, arguments), daemon=True)
    process.start()
    there.close()
    try:
        with contextlib.suppress(EOFError):
            if here.poll(WALL_SECONDS):
                is_good, result = here.recv()
                assert is_good, result
                return result
    finally:
        process.kill()
        process.join()
    raise AssertionError(f"killed by signal {-(process.exitcode or 0)}: too slow, too large, or it crashed")


def _run(there, function, arguments):
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        there.send((True, function(*arguments)))
    except BaseException:
        there.send((False, traceback.format_exc()))
    os._exit(0)
