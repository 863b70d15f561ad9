"""The script that runs in an allocation of Slurm: starts a step for each role, and says how the job has ended.

Owns: that script. Every word of the user's goes through `shlex.quote`, or stands on a line of #SBATCH that holds
nothing else. Does not own: what is asked of Slurm (`slurm.py`).

How it ends is judged as `launch/verdict.py` does, from the exit codes of all processes: what is not to be started again
counts before what is.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from official_trainer import files
from official_trainer.distributed.cluster import CHIEF, EVALUATOR, LAYOUT, PS, WORKER
from official_trainer.distributed.slurm import HOSTS, ROLE
from official_trainer.errors import START_AGAIN, ExitCode
from official_trainer.launch.spec import JobSpec

BATCH_LOG = "slurm-%a.out"
_SERVER_SECONDS = 30  # for workers and parameter servers to see that their chief has ended


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What the script takes from a profile.

    Attributes:
      python: the interpreter; empty for this one.
      environ: variables for all processes.
      setup_script: a file that is read first; empty for none.
      setup: commands that run then.
      sweep: overrides for each task of an array.
      cpus: of each process.
      gpus: of each process.
      gpus_per_node: of all processes on a node, of which each has as many where there are several roles.
      max_restarts: how often the job goes back to the queue.
    """

    python: str
    environ: Mapping[str, str]
    setup_script: str
    setup: Sequence[Sequence[str]]
    sweep: Sequence[Sequence[str]]
    cpus: int
    gpus: int
    gpus_per_node: int
    max_restarts: int


def log_name(role: str, leader: str, run: int | None) -> str:
    """Returns the file that takes what a role prints; what leads shares that of the script.

    Args:
      role: whose.
      leader: the role that leads.
      run: which of an array; None for a job alone.
    """
    return ("slurm" if role == leader else role) + ("" if run is None else f"-{run}") + ".out"


def header(options: Iterable[str]) -> str:
    """Returns the first lines, which sbatch reads."""
    return "#!/bin/bash\n" + "".join(f"#SBATCH {option}\n" for option in options)


def body(job: JobSpec, settings: Settings) -> str:
    """Returns the rest, which the first node of the allocation runs."""
    again = "|".join(str(int(code)) for code in START_AGAIN)
    parts = [
        _BEGIN.format(max_restarts=settings.max_restarts, config=int(ExitCode.CONFIG), layout=LAYOUT),
        _preparation(job, settings),
        _FUNCTIONS.format(
            hosts=HOSTS,
            role=ROLE,
            again=again,
            retry=int(ExitCode.RETRY),
            cpus=settings.cpus,
            resources=" ".join(_resources(job, settings)),
            shared_gpus=settings.gpus if len(job.roles) > 1 else 0,
        ),
        _steps(job, settings),
        _END,
    ]
    return "\n".join(parts)


def _resources(job: JobSpec, settings: Settings) -> Iterator[str]:
    """Yields what srun gives to a step; of several, each has all GPUs of its nodes, and its processes take theirs."""
    yield f"--cpus-per-task={settings.cpus}"
    if settings.gpus and len(job.roles) > 1:
        yield f"--gres=gpu:{settings.gpus_per_node}"
    elif settings.gpus:
        yield f"--gpus-per-task={settings.gpus}"


def _preparation(job: JobSpec, settings: Settings) -> str:
    quote = shlex.quote
    lines = [f"cd -- {quote(job.cwd)} || exit {int(ExitCode.CONFIG)}"]
    lines += [f"export {name}={quote(value)}" for name, value in settings.environ.items()]
    if script := settings.setup_script:  # one without a folder would be looked for on the PATH
        lines += [f"source {quote(script if '/' in script else f'./{script}')} || exit {int(ExitCode.CONFIG)}"]
    # The name of a command is quoted too, so that it is none of the shell's own words.
    lines += [f"{shlex.join(words)} || exit {int(ExitCode.CONFIG)}" for words in settings.setup]
    lines += ["more=()"]
    if settings.sweep:
        lines += ["case $SLURM_ARRAY_TASK_ID in"]
        for number, overrides in enumerate(settings.sweep):
            words = [f"--model_dir={files.join(job.model_dir, str(number))}", *(f"--set={each}" for each in overrides)]
            lines += [f"{number}) more=({shlex.join(words)}) ;;"]
        lines += ["esac"]
    return "\n".join(lines) + "\n"


def _steps(job: JobSpec, settings: Settings) -> str:
    """Returns the lines that start the steps, and wait for them in the order that says how the job has ended."""
    python = settings.python or sys.executable
    roles = {role.name: role for role in job.roles}
    lines, first = [], 0
    hosts = []
    for role in roles.values():
        hosts.append(f"{role.name}=$(nodes {first} {role.count})")
        first += role.count
    lines += [f"slots {first}", f'{HOSTS}="{";".join(hosts)}"', f"export {HOSTS}"]
    first = 0
    leader = next(iter(roles))
    for role in roles.values():
        log = "" if role.name == leader else role.name
        words = shlex.join([python, "-m", *role.argv])
        lines.append(f'step {role.name} "{log}" {first} {role.count} {words} "${{more[@]}}"')
        first += role.count
    trained = [name for name in (CHIEF, WORKER) if name in roles]
    if PS in roles:
        lines += [f"ended {CHIEF}", f"leave {_SERVER_SECONDS} {WORKER} {PS}"]
        lines += [f"code=$(judge {CHIEF})", f"((code == 0)) || code=$(judge {CHIEF} {WORKER} {PS})"]
    else:
        lines += [f"ended {name}" for name in trained]
        lines += [f"code=$(judge {' '.join(trained)})"]
    if EVALUATOR in roles:
        lines += [f"if ((code)); then leave 0 {EVALUATOR}; else ended {EVALUATOR}; code=$(judge {EVALUATOR}); fi"]
    return "\n".join(lines) + "\n"


_BEGIN = """
# One step for each role; docs/launch.md says how it ends.
folder=$PWD restart=${{SLURM_RESTART_COUNT:-0}} max_restarts={max_restarts}
state=$folder/state.$SLURM_JOB_ID
rm -rf -- "$state" && mkdir -p -- "$state/codes" || exit {config}

# scancel tells this shell too; a preemption with grace time, and the end of the time limit, tell the steps alone.
cancelled=0 interrupted=0
trap 'cancelled=1 interrupted=1' TERM
unset TF_CONFIG {layout}
"""

_FUNCTIONS = """\
declare -A steps count used
task='codes=$1 role=$2 gpus=$3 offsets=($4); shift 4; trap : TERM
if ((gpus)); then  # steps share the GPUs of a node, so each process takes its own
  IFS=, read -ra all <<<"${{CUDA_VISIBLE_DEVICES-}}"
  export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${{all[*]:offsets[SLURM_PROCID]*gpus:gpus}}")
fi
"$@"; code=$?; echo "$code" >"$codes/$role.$SLURM_PROCID"; exit "$code"'

slots() {{  # which node each process gets, in the order of the roles
  local options=(--overlap --ntasks="$1" --distribution=block --cpus-per-task={cpus} --input=none --label) host
  mapfile -t places < <(srun "${{options[@]}}" -- printenv SLURMD_NODENAME | sort -n | sed 's/^ *[0-9]*: //')
  unset SLURM_NTASKS_PER_NODE SLURM_GPUS_PER_TASK  # of all roles together
  for host in "${{places[@]}}"; do offsets+=("${{used[$host]:-0}}") used[$host]=$((${{used[$host]:-0}} + 1)); done
  ((${{#places[@]}} == $1)) || finish {retry}
}}

nodes() {{  # of so many processes from one on, with commas
  local IFS=,
  echo "${{places[*]:$1:$2}}"
}}

step() {{  # role, name of the log, first place, how many, command
  local role=$1 log=$2 first=$3
  local options=(--overlap --distribution=arbitrary --ntasks="$4" {resources}) mine="${{offsets[*]:$3:$4}}"
  options+=(--kill-on-bad-exit=0 --wait=0 --input=none --open-mode=append)
  [ -z "$log" ] || options+=("--output=$folder/$log${{SLURM_ARRAY_TASK_ID:+-$SLURM_ARRAY_TASK_ID}}.out")
  (($4 == 1)) || options+=(--label)
  count[$role]=$4
  printf '%s\\n' "${{places[@]:first:$4}}" >"$state/$role.hosts"
  shift 4
  {role}=$role SLURM_HOSTFILE=$state/$role.hosts \\
    srun "${{options[@]}}" -- bash -c "$task" task "$state/codes" "$role" {shared_gpus} "$mine" "$@" &
  steps[$role]=$!
}}

ended() {{  # waits for a step; a signal to this shell does not end that
  local code
  while :; do
    interrupted=0
    wait "${{steps[$1]}}"
    code=$?
    ((interrupted)) || break
  done
  local found=("$state/codes/$1."*)
  [ -e "${{found[0]}}" ] && ((${{#found[@]}} == ${{count[$1]}})) || echo "$code" >"$state/codes/$1.step"
}}

leave() {{  # seconds, roles: for those that only served, and end by themselves
  local seconds=$1 role
  shift
  for role; do
    while ((seconds > 0)) && kill -0 "${{steps[$role]}}" 2>/dev/null; do
      sleep 1
      seconds=$((seconds - 1))
    done
    kill -TERM "${{steps[$role]}}" 2>/dev/null
  done
}}

judge() {{  # roles: what is not to be started again counts first; a signal that killed a process is not its fault
  local role code worst=0
  for role; do
    for code in $(cat "$state/codes/$role."* 2>/dev/null); do
      case $code in
      0) ;;
      {again}) ((worst)) || worst=$code ;;
      *) ((code > 128)) && {{ ((worst)) || worst={retry}; }} || {{ echo "$code"; return; }} ;;
      esac
    done
  done
  echo "$worst"
}}

finish() {{
  local code=$1
  rm -rf -- "$state"
  case $code in
  {again})
    if ((cancelled)); then
      echo "official-trainer: exit code $code, and Slurm has signalled the job: it comes back only if Slurm says so"
    elif ((restart < max_restarts)); then
      echo "official-trainer: exit code $code: back to the queue, restart $((restart + 1)) of $max_restarts"
      scontrol requeue "$SLURM_JOB_ID" && sleep 600  # until Slurm ends this shell
    else
      echo "official-trainer: exit code $code: not started again, max_restarts=$max_restarts is used up"
    fi
    ;;
  esac
  exit "$code"
}}
"""

_END = """\
finish "$code"
"""
