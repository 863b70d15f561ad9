"""An engine of a few lines of shell, and the target for it."""

import dataclasses
import os
from typing import Literal

from official_trainer.config import Positive
from official_trainer.launch import targets
from official_trainer.launch.profile import Profile
from official_trainer.launch.target import GONE, JobState, Phase, Rendered, Target, unknown

_PROGRAM = """#!/usr/bin/env python3
import json, os, signal, sys, time
signal.signal(signal.SIGINT, signal.SIG_DFL)
here = os.path.dirname(os.path.abspath(__file__))
words = sys.argv[1:]
with open(os.path.join(here, "calls"), "a") as file:
    file.write(json.dumps([os.getcwd(), *words]) + "\\n")
if os.environ.get("ENGINE_FAILS") == words[0]:
    sys.exit(print("engine: no such queue", file=sys.stderr) or 3)
jobs = os.path.join(here, "jobs")
os.makedirs(jobs, exist_ok=True)
if words[0] == "start":
    name = f"id-{len(os.listdir(jobs)) + 1}"
    open(os.path.join(jobs, name), "w").write("RUNNING")
    print(os.environ.get("ENGINE_SAYS", name))
elif words[0] == "stop":
    if os.path.exists(os.path.join(jobs, words[1])):
        open(os.path.join(jobs, words[1]), "w").write("CANCELLED")
elif words[0] == "status":
    how = os.environ.get("ENGINE_ANSWERS")
    if how == "never":
        os.fork()  # a script around the real program has a second process, too
        with open(os.path.join(here, "pids"), "a") as file:
            file.write(f"{os.getpid()}\\n")
        time.sleep(600)
    elif how:
        sys.exit(print(how))
    missing = [word for word in words[1:] if not os.path.exists(os.path.join(jobs, word))]
    for word in words[1:]:
        if word not in missing:
            print(word, open(os.path.join(jobs, word)).read())
    if missing:
        sys.exit("".join(f"engine: no such job: {word}\\n" for word in missing))
elif words[0] == "logs":
    print("a line", flush=True)
    time.sleep(60 if "-f" in words else 0)
"""


def install(folder):
    """Puts the program there."""
    folder.mkdir()
    (folder / "engine").write_text(_PROGRAM)
    (folder / "engine").chmod(0o755)


def be_the_only_target(monkeypatch, folder):
    """Installs the program in a new folder, puts that on the PATH, and makes `scripted` the only target of `launch`."""
    install(folder)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(targets, "names", lambda: ("scripted",))
    monkeypatch.setattr(targets, "get", lambda name: Scripted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedProfile(Profile):
    """Attributes: steps: commands that start a job. code_as: see `Target`."""

    steps: Positive = 1
    code_as: Literal["folder", "archive"] | None = None


class Scripted(Target):
    name = "scripted"
    profile_class = ScriptedProfile
    needs = "install it from nowhere"
    file = "job.txt"
    prints_to = ()

    def code_as(self, model_dir):
        return self.profile.code_as

    def problems(self, job):
        profile = self.profile
        if profile.ps > 8:
            yield "too many servers"
        if profile.max_restarts > 90:
            yield "too many restarts"

    def render(self, job):
        profile = self.profile
        text = f"{profile.workers} workers of {job.name}\n{job.roles[0].argv}\n"
        text += f"{job.cwd}\n" if profile.code_as else ""
        commands = [("engine", "start", "a b", self.file), ("engine", "start2")]
        return Rendered(files={self.file: text}, submit=tuple(commands[: profile.steps]))

    def id_of(self, name, output):
        return output.strip() if output.startswith("id-") else ""

    def status(self, job_id):
        return ("engine", "status", job_id)

    def query(self, job_ids):
        return ("engine", "status", *job_ids)

    def states(self, job_ids, ran):
        rows = dict(row for row in map(str.split, ran.stdout.splitlines()) if len(row) == 2)
        for job_id in job_ids:
            if f"no such job: {job_id}\n" in ran.stderr:
                yield GONE
            elif state := rows.get(job_id):
                phase = Phase.RUNNING if state in ("PENDING", "RUNNING") else Phase.ENDED
                yield JobState(phase, state.lower())
            else:
                yield unknown(ran)

    def logs(self, job_id, *, follow):
        return ("engine", "logs", job_id, *(["-f"] if follow else []))

    def log_files(self):
        return self.prints_to

    def cancel(self, job_id):
        return (("engine", "stop", job_id),)
