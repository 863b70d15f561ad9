"""A local job's starter, forked from a process that has TensorFlow: importing it is most of what such a job costs."""

import contextlib
import os
import signal
import sys
import time
import traceback
from multiprocessing import Pipe

from official_trainer.processes import children, starter


class _Forked:
    """What `children.Starter` needs of a `subprocess.Popen`."""

    def __init__(self, pid):
        self.pid, self._code = pid, None

    def wait(self, seconds=None):
        until = time.monotonic() + (seconds or float("inf"))
        while self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > until:
                raise children.subprocess.TimeoutExpired("starter", seconds)
            else:
                time.sleep(0.01)
        return self._code

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)


class ForkedStarter(children.Starter):
    """Forks this process, which must not have started TensorFlow's runtime, instead of starting Python again."""

    def __enter__(self):
        self._control, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            self._control.close()
            os._exit(_serve(theirs, self._preload))
        theirs.close()
        self._process = _Forked(pid)
        return self


def _serve(control, preload):
    """Is the starter, then one of its children; returns the exit code."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    descriptor = os.dup(control.fileno())
    control.close()
    code = 1
    try:
        starter.main(descriptor, preload)
        code = 0
    except SystemExit as error:
        code = error.code or 0
    except BaseException:
        traceback.print_exc()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    return code
