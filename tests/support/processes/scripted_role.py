"""A process of a job that does what a test says: Python source by the name of the process, with these words in it."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from official_trainer.distributed.cluster import process_name

FOLDER, SOURCES = Path(sys.argv[1]), json.loads(sys.argv[2])
TASK = json.loads(os.environ["TF_CONFIG"])["task"]
NAME = process_name(TASK["type"], TASK["index"])


def touch(mark, text=""):
    """Leaves a mark, whole or not at all; the other processes and the test see it."""
    path = FOLDER / f"{mark}.{os.getpid()}"
    path.write_text(text)
    path.rename(FOLDER / mark)


def has(mark):
    return (FOLDER / mark).exists()


def wait(mark):
    while not has(mark):
        time.sleep(0.01)


def wait_for_end(name):
    """Waits until another process has ended and its end has been seen."""
    wait(f"pid of {name}")
    pid = (FOLDER / f"pid of {name}").read_text()
    while Path("/proc", pid).exists():
        time.sleep(0.01)


def lives():
    """Counts the lives of this process, this one included."""
    count = 1
    while has(f"{NAME} {count}"):
        count += 1
    touch(f"{NAME} {count}", os.environ.get("TF_CONFIG", ""))
    return count


def on_term(act):
    signal.signal(signal.SIGTERM, lambda *_: act())


def forever():
    while True:
        signal.pause()


touch(f"pid of {NAME}", str(os.getpid()))
source = SOURCES.get(NAME, SOURCES.get(TASK["type"], ""))
exec(source)
