"""Stand-ins for Slurm's programs and for Python, with which a rendered script really runs.

`srun` starts all tasks at the same time. `python` notes its words, byte for byte, and ends as it is told to.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

_SRUN = """
import os, subprocess, sys
words = sys.argv[1:]
options, command = words[: words.index("--")], words[words.index("--") + 1 :]
count = int(next(word for word in options if word.startswith("--ntasks=")).partition("=")[2])
if command[0] == "printenv":
    print("\\n".join(f"{i}: n{i // 2 + 1}" for i in reversed(range(count))))
    sys.exit()
os.environ["SRUN_OPTIONS"] = repr(options)
running = []
for rank in range(count):
    environ = {**os.environ, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank // 2 + 1}"}
    running.append(subprocess.Popen(command, env=environ))
codes = [process.wait() for process in running]
sys.exit(max(code if code >= 0 else 128 - code for code in codes))
"""

_PYTHON = """
import json, os, signal, sys
task = json.loads(os.environ["TF_CONFIG"])["task"]
name = f"{task['type']}.{task['index']}"
noted = {
    "argv": [os.fsencode(word).hex() for word in sys.argv[1:]],
    "environ": {name: os.fsencode(value).hex() for name, value in os.environ.items()},
    "cwd": os.fsencode(os.getcwd()).hex(),
}
json.dump(noted, open(os.path.join(os.environ["NOTES"], name), "w"))
code = json.loads(os.environ.get("CODES", "{}")).get(name, 0)
if code == "serves":  # until it is told to end
    signal.pause()
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""

_SCONTROL = """
import os, sys
if sys.argv[1] == "requeue":
    open(os.path.join(os.environ["NOTES"], "requeued"), "w").write(" ".join(sys.argv[1:]))
    sys.exit(1)
for name in sys.argv[4].split(","):
    print(f"NodeName={name} Arch=x86_64 NodeAddr=10.0.0.{name[1:]} NodeHostName={name}")
"""


class StandIns:
    """A folder with the stand-ins.

    Attributes:
      python: the one for Python.
    """

    def __init__(self, folder):
        self.bin, self.notes = Path(folder) / "bin", Path(folder) / "notes"
        self.bin.mkdir(parents=True)
        self.notes.mkdir()
        for name, text in {"srun": _SRUN, "noting": _PYTHON, "scontrol": _SCONTROL}.items():
            (self.bin / name).write_text(f"#!{sys.executable} -SE\n{text}")
            (self.bin / name).chmod(0o755)
        (self.bin / "sleep").write_text("#!/bin/sh\nexec /bin/sleep 0.05\n")  # between two looks at processes
        (self.bin / "sleep").chmod(0o755)
        self.python = str(self.bin / "noting")

    def run(self, script, folder, *, codes=None, **environ):
        """Runs a script in a folder, as Slurm would; returns the exit code, and what is printed."""
        for path in self.notes.iterdir():
            path.unlink()
        environ = {
            "PATH": f"{self.bin}:/usr/bin:/bin",
            "SLURM_JOB_ID": "7",
            "NOTES": str(self.notes),
            "CODES": json.dumps(codes or {}),
            **environ,
        }
        path = os.path.join(folder, "job.sbatch")
        with open(path, "w", encoding="utf-8") as file:
            file.write(script)
        command = ["/bin/bash", path]
        done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, check=False, timeout=60)
        return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def noted(self, process):
        """Returns what a process was given: its words, variables and directory, as bytes."""
        noted = json.loads((self.notes / process).read_text())
        environ = {name: bytes.fromhex(value) for name, value in noted["environ"].items()}
        return [bytes.fromhex(word) for word in noted["argv"]], environ, bytes.fromhex(noted["cwd"])

    @property
    def requeued(self):
        """What was asked of scontrol; empty if nothing was."""
        path = self.notes / "requeued"
        return path.read_text() if path.exists() else ""
