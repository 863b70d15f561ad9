"""The warm server of a test, and commands of a workspace whose experiment is a script in the variable DO."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

from tests import ROOT

TIMEOUT_SECONDS = 120

START = """
import json, sys
from official_trainer.processes import children
children.PRELOAD = json.loads(sys.argv[1])
from official_trainer import cli
sys.exit(cli.main(["warm", *sys.argv[2:]]))
"""
TRAIN = (
    "from official_trainer.cli import main\n\nif __name__ == '__main__':\n    raise SystemExit(main(script=__file__))\n"
)
IS_WARM = "'official_trainer.warm.server' in sys.modules"


class Place:
    """A workspace with a `scripted` experiment, and the folder of a warm server's socket."""

    def __init__(self, folder, preload=("colorsys",)):
        self.workspace, self.preload = Path(folder) / "workspace", list(preload)
        (self.workspace / "experiments").mkdir(parents=True)
        (self.workspace / "train.py").write_text(TRAIN)
        (self.workspace / "experiments" / "scripted.py").write_text(
            "import os, sys\n"
            "from official_trainer import register_config_factory\n"
            "exec(os.environ['DO'])\n"
            "@register_config_factory('scripted')\n"
            "def scripted(): sys.exit(0)\n"
        )
        runtime = Path(folder) / "runtime"
        runtime.mkdir(mode=0o700)
        environ = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
        environ |= {"PYTHONUNBUFFERED": "", "PYTHONPATH": str(ROOT), "HOME": str(folder), "DO": ""}
        self.environ = environ | {"XDG_RUNTIME_DIR": str(runtime), "CUDA_VISIBLE_DEVICES": "-1"}
        self.socket = runtime / "official-trainer" / "warm"

    def warm(self, *words, **environ):
        """Runs `official-trainer warm`; returns what it did."""
        command = [sys.executable, "-c", START, json.dumps(self.preload), *words]
        return self._run(command, {**self.environ, **environ})

    def server(self):
        """Returns the pid of the server."""
        return int(self.warm("--status").stdout.split("pid ")[1].split(",")[0])

    def run(self, do, *flags, before=(), words=(), cold=False, **options):
        """Runs `python train.py`, which does `do`, after the words `before`."""
        command = [*before, sys.executable, *words, "train.py", "--experiment=scripted", *flags]
        environ = {**self.environ, "DO": do, **options.pop("environ", {})}
        environ |= {"XDG_RUNTIME_DIR": "/nowhere"} if cold else {}
        return self._run(command, environ, **options)

    def start(self, do, before=(), **options):
        """Starts `python train.py`, which does `do`, after the words `before`; it is killed after a while."""
        options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **options}
        command = [*before, sys.executable, "train.py", "--experiment=scripted"]
        process = subprocess.Popen(
            command, cwd=self.workspace, env={**self.environ, "DO": do}, text=True, start_new_session=True, **options
        )
        timer = threading.Timer(TIMEOUT_SECONDS, process.kill)
        timer.daemon = True
        timer.start()
        return process

    def _run(self, command, environ, **options):
        options = {"cwd": self.workspace, "stdin": subprocess.DEVNULL, **options}
        if "input" in options:
            del options["stdin"]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False, **options
        )
        return done

    def close(self):
        with contextlib.suppress(Exception):
            self.warm("--stop")


def ended(pid):
    """Waits until a process is gone."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while os.path.exists(f"/proc/{pid}") and state(pid) != "Z":
        assert time.monotonic() < end, f"{pid} still runs"
        time.sleep(0.02)


def state(pid):
    """Returns the letter of a process's state, such as T if it is stopped."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return "Z"


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
