"""An engine of a few lines of shell, and the target for it."""

import dataclasses
import os

from official_trainer.launch import targets
from official_trainer.launch.profile import Profile
from official_trainer.launch.target import Commands, Rendered, Target

_PROGRAM = """#!/bin/bash
echo "$PWD $*" >>"${0%/*}/calls"
[ "$ENGINE_FAILS" != "$1" ] || { echo 'engine: no such queue' >&2; exit 3; }
case $1 in
start) echo "${ENGINE_SAYS-id-1}" ;;
logs) echo 'a line'; [ -z "$ENGINE_FOLLOWS" ] || exec sleep 60 ;;
esac
"""


def be_the_only_target(monkeypatch, folder):
    """Installs the program in a new folder, puts that on the PATH, and makes `scripted` the only target of `launch`."""
    folder.mkdir()
    (folder / "engine").write_text(_PROGRAM)
    (folder / "engine").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setattr(targets, "names", lambda: ("scripted",))
    monkeypatch.setattr(targets, "get", lambda name: Scripted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedProfile(Profile):
    """Attributes: none of its own."""


class Scripted(Target):
    name = "scripted"
    profile_class = ScriptedProfile
    needs = "install it from nowhere"

    def problems(self, job):
        if self.profile.ps > 8:
            yield "too many servers"

    def render(self, job):
        text = f"{self.profile.workers} workers of {job.name}\n{job.roles[0].argv}\n{job.cwd}\n"
        return Rendered(files={"job.txt": text}, submit=("engine", "start", "a b", "job.txt"))

    def id_of(self, name, output):
        return output.strip() if output.startswith("id-") else ""

    def commands(self, job, job_id, folder):
        status, logs, cancel = (("engine", word, job_id) for word in ("status", "logs", "cancel"))
        return Commands(status=status, logs=logs, cancel=cancel)
