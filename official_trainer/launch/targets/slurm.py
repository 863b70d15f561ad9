"""Jobs on Slurm: one allocation and one step of srun for all processes.

Owns: `SlurmProfile`; what Slurm would refuse; the script that runs in the allocation, filled from `slurm.sh`, which
tells each process its place by `TF_CONFIG`; the commands of Slurm that submit a job, show it and end it.
Does not own: what a process makes of `TF_CONFIG` (`distributed/environment.py`).

The script ends with the exit code that `processes/verdict.py` would choose from those of all processes. Every word
of a user is quoted with `shlex.quote`, or is alone on a line of #SBATCH and checked.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Iterator
from typing import Annotated

from official_trainer.config import Between, Positive
from official_trainer.distributed.cluster import CHIEF, PS, WORKER
from official_trainer.distributed.environment import SIGNALLED_TOGETHER
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch.profile import Profile, Resources, command_problems, flag_problems
from official_trainer.launch.spec import JobSpec, is_in
from official_trainer.launch.target import Commands, Rendered, Target
from official_trainer.launch.targets.rendering import script

_SCRIPT = "job.sbatch"
_SERVER_SECONDS = 30  # for workers and parameter servers to notice that their chief has ended
_WORD = re.compile(r"[\w.,:@%+/=&|*()\[\]-]+", re.ASCII)  # what stands on a line of #SBATCH without quotes
_LONGEST_LEAD = 65535  # seconds; sbatch takes no more
_ID = re.compile(r"(?:.*\n)*(\d+)(?:;\S*)?\s*", re.ASCII)  # after the `;`: the cluster, where there are several
_FIXED = "the job relies on it, so leave it out"
_OURS = {
    **{name: f"set {name}" for name in ("account", "nodes", "partition")},
    "cpus-per-task": "set resources.cpus",
    "gpus-per-task": "set resources.gpus",
    "job-name": "set name",
    "mem-per-cpu": "set resources.memory_gib",
    "ntasks": "set workers, chief, ps and evaluator",
    "ntasks-per-node": "set tasks_per_node",
    "requeue": "set max_restarts, to 0 for a job that is not put back",
    "signal": "set signal_seconds",
    "time": "set time_limit",
    "clusters": "`job` has to ask the same cluster, so set SLURM_CLUSTERS in your shell",
    **dict.fromkeys(("array", "chdir", "error", "open-mode", "output", "wait"), _FIXED),
}
_OF_STEP = _OURS | dict.fromkeys(("distribution", "input", "kill-on-bad-exit", "label", "nodelist", "overlap"), _FIXED)
_DEPENDENCY = "--dependency="
_COLUMNS = "JobArrayID:20,State:14,RestartCnt:14,TimeUsed:14,TimeLeft:16,NumNodes:8,ReasonList:40"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SlurmProfile(Profile):
    """The profile of a job on Slurm.

    Attributes:
      max_restarts: the most restarts after exit code 75 or 143; with 0, Slurm does not put a job back for other reasons
        either.
      partition: of the job; empty leaves it to Slurm, as for the other fields of sbatch.
      account: that the job is charged to.
      time_limit: in the format of sbatch: minutes, or `days-hours:minutes:seconds`.
      nodes: number of nodes; None leaves it to Slurm.
      tasks_per_node: processes on each node; None leaves it to Slurm.
      signal_seconds: how long before the time limit processes get SIGTERM to save; None for their grace period.
      python: the interpreter on the nodes; empty for the one that submits.
      setup: commands that run first, each as a list of words: `[[module, load, cuda], [source, ./env.sh]]`.
      node_local: folders that each node has for itself, where run directories are refused.
      sbatch: other options of sbatch, such as `--qos=long` or `--constraint=intel`.
      srun: other options of srun for the step, such as those of a container.
    """

    partition: str = ""
    account: str = ""
    time_limit: str = ""
    nodes: Positive | None = None
    tasks_per_node: Positive | None = None
    signal_seconds: Annotated[int, Between(1, _LONGEST_LEAD)] | None = None
    python: str = ""
    setup: tuple[tuple[str, ...], ...] = ()
    node_local: tuple[str, ...] = ("/tmp", "/var/tmp", "/dev/shm", "/run")
    sbatch: tuple[str, ...] = ()
    srun: tuple[str, ...] = ()

    secrets_go = "set it in the shell that submits; sbatch passes it on"

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        for name in ("partition", "account", "time_limit"):
            if (value := getattr(self, name)) and not _WORD.fullmatch(value):
                yield name, f"{value!r} cannot be on a line of #SBATCH; use letters, digits and .,:@%+/=&|*()[]-"
        for option in self.sbatch:
            if not _WORD.fullmatch(option):
                fix = "write --name or --name=value, without blanks and quotes"
                yield "sbatch", f"{option!r} cannot be on a line of #SBATCH; {fix}"
        yield from flag_problems("sbatch", self.sbatch, _OURS)
        yield from flag_problems("srun", self.srun, _OF_STEP)
        if self.ps_resources not in (Resources(), self.resources):
            what = "has no effect: all processes of an allocation get `resources`; leave it out"
            yield "ps_resources", what
        yield from command_problems("setup", self.setup)

    def resources_of(self, role: str) -> Resources:
        del role
        return self.resources


class Slurm(Target[SlurmProfile]):
    """Slurm, through sbatch, squeue and scancel."""

    name = "slurm"
    profile_class = SlurmProfile
    needs = "run this on a machine from which jobs are submitted, or install Slurm's client there (slurm-client)"
    runs_sweeps = True
    copies_code = True

    def problems(self, job: JobSpec) -> Iterator[str]:
        profile = self.profile
        here = ("the current directory", job.cwd) if job.code is None else ("the workspace", job.code.workspace)
        for what, path in (("--model_dir", job.model_dir), here):
            if path.startswith("ram://"):
                yield f"{what}={path} is in the memory of one process; use a directory that all nodes see"
            for folder in profile.node_local:
                if is_in(path, folder):
                    yield (
                        f"{what} is {path}, and every node has its own {folder}; use a directory that all nodes share, "
                        f"or remove {folder} from node_local in the profile"
                    )
        if job.is_sweep:
            for name in ("nodes", "tasks_per_node"):
                if (count := getattr(profile, name)) not in (None, 1):
                    yield f"{name}: each worker of a sweep is a job of one process, not of {count}; set it to 1"
            return
        tasks = sum(profile.counts.values())
        nodes, tasks_per_node = profile.nodes or 0, profile.tasks_per_node or 0
        if nodes > tasks:
            yield f"nodes: {nodes} nodes for {tasks} processes leave some nodes empty; request fewer nodes"
        if 0 < nodes * tasks_per_node < tasks:
            yield (
                f"nodes: {nodes} nodes with {tasks_per_node} processes each (tasks_per_node) are too few for {tasks} "
                "processes; raise one of the two"
            )

    def render(self, job: JobSpec) -> Rendered:
        return Rendered(files={_SCRIPT: _script(job, self.profile)}, submit=("sbatch", "--parsable", _SCRIPT))

    def id_of(self, name: str, output: str) -> str:
        match = _ID.fullmatch(output)
        return match[1] if match else ""

    def commands(self, job: JobSpec, job_id: str, folder: str) -> Commands:
        names = [f"slurm-{number}.out" for number in range(job.roles[0].count)] if job.is_sweep else ["slurm.out"]
        return Commands(
            status=("squeue", "--states=all", f"--jobs={job_id}", f"--Format={_COLUMNS}"),
            logs=("tail", "--lines=+1", *(f"{folder}/{name}" for name in names)),
            cancel=("scancel", job_id),
        )


def _script(job: JobSpec, profile: SlurmProfile) -> str:
    """Returns the script for the first node of the allocation: the options of sbatch, then the template."""
    workers = None
    if job.is_sweep:  # each of them is a task of an array, with a script like that of a job of one process
        workers = job.roles[0].count
        job = dataclasses.replace(job, roles=(dataclasses.replace(job.roles[0], count=1),))
    roles = {role.name: role for role in job.roles}
    trained = [CHIEF, WORKER, PS] if job.has_servers else [name for name in (CHIEF, WORKER) if name in roles]
    failed = f"|| exit {int(ExitCode.CONFIG)}"
    variables = {SIGNALLED_TOGETHER: "1", **job.roles[0].environ, **profile.environ}  # of all processes
    preparation = [
        f"cd -- {shlex.quote(job.cwd)} {failed}",
        *(f"export {name}={shlex.quote(value)}" for name, value in variables.items()),
        # The name of a command is quoted too, so it is no keyword of the shell.
        *(f"{shlex.join(words)} {failed}" for words in profile.setup),
    ]
    interpreter = profile.python or sys.executable
    commands = [f"  {name}) exec {shlex.join([interpreter, '-m', *role.argv])} ;;" for name, role in roles.items()]
    options = [f"--cpus-per-task={profile.resources.cpus or 1}"]
    options += [f"--gpus-per-task={profile.resources.gpus}"] if profile.resources.gpus else []
    return script(
        "slurm.sh",
        options="\n".join(f"#SBATCH {option}" for option in _options(job, profile, workers)),
        preparation="\n".join(preparation),
        counts=" ".join(f"{name}={role.count}" for name, role in roles.items()),
        commands="\n".join(commands),
        resources=" ".join(options),
        srun="".join(f" {shlex.quote(option)}" for option in profile.srun),
        first=CHIEF if job.has_servers else " ".join(trained),
        trained=" ".join(trained),
        serves=f"{WORKER} | {PS}" if job.has_servers else "none",
        total=sum(role.count for role in job.roles),
        max_restarts=profile.max_restarts,
        config=int(ExitCode.CONFIG),
        retry=int(ExitCode.RETRY),
        again="|".join(str(int(code)) for code in START_AGAIN),
        server_seconds=_SERVER_SECONDS,
    )


def _options(job: JobSpec, profile: SlurmProfile, workers: int | None) -> Iterator[str]:
    """Yields the options of sbatch; every value is checked, or consists of digits; `workers` are those of a sweep."""
    resources = profile.resources
    conditions = [option.removeprefix(_DEPENDENCY) for option in profile.sbatch if option.startswith(_DEPENDENCY)]
    if not workers:  # a second job of this name, which is that of the run directory, waits for the first
        conditions.append("singleton")
    values = {
        "job-name": job.name,
        "dependency": ",".join(dict.fromkeys(conditions)),
        "partition": profile.partition,
        "account": profile.account,
        "time": profile.time_limit,
        "signal": f"TERM@{min(profile.signal_seconds or int(job.grace_seconds) + 1, _LONGEST_LEAD)}",
        "nodes": profile.nodes,
        "ntasks": sum(role.count for role in job.roles),
        "ntasks-per-node": profile.tasks_per_node,
        "cpus-per-task": resources.cpus or 1,
        "gpus-per-task": resources.gpus,
        "mem-per-cpu": resources.memory_gib and f"{-int(-resources.memory_gib * 1024 // (resources.cpus or 1))}M",
        "array": workers and f"0-{workers - 1}",
        "open-mode": "append",
        "output": f"slurm{'-%a' if workers else ''}.out",
    }
    yield from (f"--{name}={value}" for name, value in values.items() if value)
    yield "--requeue" if profile.max_restarts else "--no-requeue"
    yield from (option for option in profile.sbatch if not option.startswith(_DEPENDENCY))
