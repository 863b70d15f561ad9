"""Presses Ctrl-C when this process makes its n-th call of a Python function; Python imports this when it starts.

Calls count from the moment in which the command line has prepared its process: before that, Python itself starts.
`CTRL_C_AT` is n; at the end the number of all calls is written to the file `CTRL_C_COUNT`.
"""

import atexit
import os
import signal
import sys

count, at, path = None, int(os.environ.pop("CTRL_C_AT", "0")), os.environ.pop("CTRL_C_COUNT", "")


def look(frame, event, argument):
    global count
    if count is None:
        code = frame.f_code
        if event == "return" and code.co_name == "prepare" and code.co_filename.endswith("cli/process.py"):
            count = 0
    elif event == "call":
        count += 1
        if count == at:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)


def write():
    sys.setprofile(None)
    with open(path, "w") as file:
        file.write(str(count))


if path:
    atexit.register(write)
if at or path:
    sys.setprofile(look)
