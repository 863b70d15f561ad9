#!/bin/bash
# Trains digits-1a2b3c4d on a Cloud TPU VM. Every boot runs this, on every host of the slice.
set -u
folder=/var/lib/official-trainer
place=gs://my-bucket/digits/.launch
export HOME="${HOME:-/root}"

if [ $# -eq 0 ]; then  # as a service, so that it is told to stop while there still is a network
  mkdir -p "$folder" && cp "$0" "$folder/startup.sh" || exit 1
  exec systemd-run --unit=official-trainer --collect --property=After=network-online.target \
    --property=KillMode=mixed --property=TimeoutStopSec=35 \
    --property=ExecStopPost="/bin/bash $folder/startup.sh stopped" bash "$folder/startup.sh" train
fi
cd "$folder" || exit 1

if [ "$1" = setup ]; then
  set -e
  systemctl restart tpu-runtime
  touch set-up
  exit
fi
if [ "$1" = install ]; then
  set -e
  rm -rf source && mkdir source
  gcloud storage cp gs://my-bucket/code.tar.gz source.tar.gz
  tar -xzf source.tar.gz -C source
  python3 -m pip install --quiet --upgrade --target uv uv
  uv/bin/uv venv --quiet --clear --python 3.11 venv
  echo 'tensorflow; python_version < "0"' >overrides.txt  # tensorflow-tpu is installed in its place
  cd source
  ../uv/bin/uv pip install --quiet --python ../venv/bin/python --override ../overrides.txt \
    -r requirements.lock tensorflow-tpu==2.20.0 libtpu==0.0.14
  cd ..
  touch installed
  exit
fi

# The log of a slice goes on in the one that replaces it.
[ -e train.log ] || gcloud storage cp "$place/train.log" train.log 2>/dev/null
exec >>train.log 2>&1
copy_log() (  # gcloud refuses to copy a file that grows; one copy at a time, so that the newest is the last
  flock 9
  cp train.log copied.log && gcloud storage cp copied.log "$place/train.log"
) 9>copying
finish() {
  printf '{"exit_code": %d, "ended": "%s"}\n' "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >exit.json
  copy_log
  gcloud storage cp exit.json "$place/exit.json"
  exit "$1"
}
[ "$1" != finish ] || finish "$2"
[ "$1" != stopped ] || { [ -e exit.json ] || [ ! -e copying ] || copy_log; exit; }
[ ! -e exit.json ] || exit 0  # it has ended before this boot
attempt() {
  for _ in 1 2 3; do
    [ ! -e "$2" ] || return 0
    bash startup.sh "$1" && return 0
    echo "$1 failed" >&2
    sleep 30
  done
  return 1
}
attempt setup set-up || finish 1
# One process drives the whole slice. The other hosts serve it, which their tpu-runtime does.
worker=$(curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
  "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/agent-worker-number")
[ -n "$worker" ] || { echo 'the metadata server does not say which host of the slice this is' >&2; finish 1; }
[ "$worker" = 0 ] || exit 0
attempt install installed || finish 1

while copy_log; sleep 60 && kill -0 $$; do :; done 2>/dev/null &  # while training runs, in the place of this process
export PYTHONUNBUFFERED=1
export TF_USE_LEGACY_KERAS=1
export TPU_NAME=digits-1a2b3c4d
export TPU_LOAD_LIBRARY=0
export GREETING='it'"'"'s $5'
cd source || finish 1
exec ../venv/bin/python -m official_trainer.launch.rerun --max_restarts=3 --finish=../startup.sh -- ../venv/bin/python -m official_trainer train --experiment=digits_mlp --model_dir=gs://my-bucket/digits --mode=train
