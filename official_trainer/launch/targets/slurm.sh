#!/bin/bash
@@options

# One step of srun with all processes; docs/guides/launch.md says how it ends.
restart=${SLURM_RESTART_COUNT:-0} max_restarts=@@{max_restarts}
export codes=$PWD/state.$SLURM_JOB_ID  # the exit code of each process, in a file with its name
rm -rf -- "$codes" && mkdir -p -- "$codes" || exit @@{config}

# scancel tells this shell too; a preemption with grace time, and the end of the time limit, tell the step alone.
cancelled=0
trap 'cancelled=1' TERM

@@preparation

run() {  # role: becomes its process
  case $1 in
@@commands
  esac
}

finish() {
  local code=$1
  rm -rf -- "$codes"
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

judge() {  # roles: what is not to be started again counts first; a signal that killed a process is not its fault
  local role code worst=0
  for role; do
    for code in $(cat "$codes/$role."* 2>/dev/null); do
      case $code in
      0) ;;
      @@{again}) ((worst)) || worst=$code ;;
      *) ((code > 128)) && { ((worst)) || worst=@@{retry}; } || { echo "$code"; return; } ;;
      esac
    done
  done
  echo "$worst"
}

task() {  # one process on its node: its exit code goes to a file
  local role index node pid code seconds=0
  trap : TERM
  read -r role index node <<<"$(cut -d';' -f$((SLURM_PROCID + 1)) <<<"$members")"
  [ "$node" = "$SLURMD_NODENAME" ] || exit @@{retry}  # srun has distributed them in another way
  export TF_CONFIG="{\"cluster\": {$cluster}, \"task\": {\"type\": \"$role\", \"index\": $index}}"
  run "$role" &
  pid=$!
  while kill -0 "$pid" 2>/dev/null; do
    case $role in
    @@{serves}) [ -e "$codes/chief.0" ] && ((++seconds > @@{server_seconds})) && kill -TERM "$pid" ;;
    evaluator) (($(judge @@first))) && kill -TERM "$pid" ;;
    esac
    sleep 1
  done
  wait "$pid"
  code=$?
  echo "$code" >"$codes/$role.$index"
  exit "$code"
}

options=(--overlap --ntasks=@@total --distribution=block --input=none --label @@resources)
mapfile -t nodes < <(srun "${options[@]}" -- printenv SLURMD_NODENAME | sort -n | sed 's/^ *[0-9]*: //')
((${#nodes[@]} == @@total)) || finish @@{retry}

# The processes by their ranks, and the address of each: that of its node, with a port of its own there.
declare -A address used
names=$(printf '%s\n' "${nodes[@]}" | sort -u | paste -sd,)
while read -r node host; do address[$node]=$host; done < <(
  scontrol -o show node "$names" | sed -n 's/.*NodeName=\([^ ]*\) .*NodeAddr=\([^ ]*\).*/\1 \2/p'
)
port=$((12000 + SLURM_JOB_ID % 320 * 64)) rank=0 members= cluster=
for part in @@counts; do
  role=${part%=*} addresses=
  for ((index = 0; index < ${part#*=}; index++, rank++)); do
    node=${nodes[rank]}
    host=${address[$node]:-$node}
    addresses+=${addresses:+, }\"$host:$((port + ${used[$host]:-0}))\"
    used[$host]=$((${used[$host]:-0} + 1))
    members+="$role $index $node;"
  done
  [ "$role" = evaluator ] || cluster+="${cluster:+, }\"$role\": [$addresses]"
done
export members cluster

srun "${options[@]}" --kill-on-bad-exit=0 --wait=0 --open-mode=append@@srun -- \
  bash -c "$(declare -f run judge task); task" &
step=$!
while kill -0 "$step" 2>/dev/null; do wait "$step"; done  # a signal to this shell does not end the step
wait "$step"
code=$?
while read -r -d';' role index node; do  # one that could not say how it ended has ended as the step
  [ -e "$codes/$role.$index" ] || echo "$code" >"$codes/$role.$index"
done <<<"$members"

code=$(judge @@first)
((code == 0)) || code=$(judge @@trained)
((code)) || code=$(judge evaluator)
finish "$code"
