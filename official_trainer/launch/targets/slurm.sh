#!/bin/bash
@@options

# <the same in every job>
# One step for each role; docs/guides/launch.md says how it ends.
folder=$PWD restart=${SLURM_RESTART_COUNT:-0} max_restarts=@@{max_restarts}
state=$folder/state.$SLURM_JOB_ID
rm -rf -- "$state" && mkdir -p -- "$state/codes" || exit @@{config}

# scancel tells this shell too; a preemption with grace time, and the end of the time limit, tell the steps alone.
cancelled=0 interrupted=0
trap 'cancelled=1 interrupted=1' TERM
unset TF_CONFIG @@{layout}
# </the same in every job>

@@preparation

# <the same in every job>
declare -A steps count used
task='codes=$1 role=$2 gpus=$3 offsets=($4); shift 4; trap : TERM
if ((gpus)); then  # steps share the GPUs of a node, so each process takes its own
  IFS=, read -ra all <<<"${CUDA_VISIBLE_DEVICES-}"
  export CUDA_VISIBLE_DEVICES=$(IFS=,; echo "${all[*]:offsets[SLURM_PROCID]*gpus:gpus}")
fi
"$@"; code=$?; echo "$code" >"$codes/$role.$SLURM_PROCID"; exit "$code"'

slots() {  # which node each process gets, in the order of the roles
  local options=(--overlap --ntasks="$1" --distribution=block --cpus-per-task=@@{cpus} --input=none --label) host
  mapfile -t places < <(srun "${options[@]}" -- printenv SLURMD_NODENAME | sort -n | sed 's/^ *[0-9]*: //')
  unset SLURM_NTASKS_PER_NODE SLURM_GPUS_PER_TASK  # of all roles together
  for host in "${places[@]}"; do offsets+=("${used[$host]:-0}") used[$host]=$((${used[$host]:-0} + 1)); done
  ((${#places[@]} == $1)) || finish @@{retry}
}

nodes() {  # of so many processes from one on, with commas
  local IFS=,
  echo "${places[*]:$1:$2}"
}

step() {  # role, name of the log, first place, how many, command
  local role=$1 log=$2 first=$3
  local options=(--overlap --distribution=arbitrary --ntasks="$4" @@{resources}) mine="${offsets[*]:$3:$4}"
  options+=(--kill-on-bad-exit=0 --wait=0 --input=none --open-mode=append@@{srun})
  [ -z "$log" ] || options+=("--output=$folder/$log.out")
  (($4 == 1)) || options+=(--label)
  count[$role]=$4
  printf '%s\n' "${places[@]:first:$4}" >"$state/$role.hosts"
  shift 4
  @@{role}=$role SLURM_HOSTFILE=$state/$role.hosts \
    srun "${options[@]}" -- bash -c "$task" task "$state/codes" "$role" @@{shared_gpus} "$mine" "$@" &
  steps[$role]=$!
}

ended() {  # waits for a step; a signal to this shell does not end that
  local code
  while :; do
    interrupted=0
    wait "${steps[$1]}"
    code=$?
    ((interrupted)) || break
  done
  local found=("$state/codes/$1."*)
  [ -e "${found[0]}" ] && ((${#found[@]} == ${count[$1]})) || echo "$code" >"$state/codes/$1.step"
}

leave() {  # seconds, roles: for those that only served, and end by themselves
  local seconds=$1 role
  shift
  for role; do
    while ((seconds > 0)) && kill -0 "${steps[$role]}" 2>/dev/null; do
      sleep 1
      seconds=$((seconds - 1))
    done
    kill -TERM "${steps[$role]}" 2>/dev/null
  done
}

judge() {  # roles: what is not to be started again counts first; a signal that killed a process is not its fault
  local role code worst=0
  for role; do
    for code in $(cat "$state/codes/$role."* 2>/dev/null); do
      case $code in
      0) ;;
      @@{again}) ((worst)) || worst=$code ;;
      *) ((code > 128)) && { ((worst)) || worst=@@{retry}; } || { echo "$code"; return; } ;;
      esac
    done
  done
  echo "$worst"
}

finish() {
  local code=$1
  rm -rf -- "$state"
  case $code in
  @@{again})
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
}
# </the same in every job>

@@steps
#if servers
ended chief
leave @@{server_seconds} worker ps
code=$(judge chief)
((code == 0)) || code=$(judge chief worker ps)
#end
#if workers
@@waits
code=$(judge @@trained)
#end
#if evaluator
if ((code)); then leave 0 evaluator; else ended evaluator; code=$(judge evaluator); fi
#end

finish "$code"
