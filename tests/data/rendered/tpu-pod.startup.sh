#!/bin/bash
# Trains digits-1a2b3c4d on a Cloud TPU VM. Every boot runs this, on every host of the slice.
set -u
folder=/var/lib/official-trainer
export HOME="${HOME:-/root}"

if [ $# -eq 0 ]; then  # systemd starts it again, and stops it while there still is a network
  mkdir -p "$folder" && cp "$0" "$folder/startup.sh" || exit 1
  exec systemd-run --unit=official-trainer --collect --property=After=network-online.target \
    --property=KillMode=mixed --property=TimeoutStopSec=35 \
    --property=Restart=on-failure --property=RestartSec=10 --property='RestartPreventExitStatus=1 2 3 4 5' \
    --property=StartLimitIntervalSec=infinity --property=StartLimitBurst=4 \
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
if [ "$1" = stopped ]; then  # systemd says how; the log outlives the machine
  case " 0 1 2 3 4 5 " in *" $EXIT_STATUS "*) [ -e ended ] || echo "$EXIT_STATUS" >ended ;; esac
  [ ! -e train.log ] || gcloud storage cp train.log gs://bucket/digits/.launch/train.log
  exit
fi
[ ! -e ended ] || exit "$(cat ended)"  # before this boot

[ -e train.log ] || gcloud storage cp gs://bucket/digits/.launch/train.log train.log 2>/dev/null  # that of the slice before this one goes on
exec >>train.log 2>&1
attempt() {
  for _ in 1 2 3; do
    [ ! -e "$2" ] || return 0
    bash startup.sh "$1" && return 0
    echo "$1 failed" >&2
    sleep 30
  done
  return 1
}
attempt setup set-up || exit 1
if ((1)); then  # one process drives the whole slice; the other hosts serve it, which their tpu-runtime does
  worker=$(curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/agent-worker-number")
  [ -n "$worker" ] || { echo 'the metadata server does not say which host of the slice this is' >&2; exit 1; }
  [ "$worker" = 0 ] || exit 0
fi
attempt install installed || exit 1

export OFFICIAL_TRAINER_COMMIT=$(gzip -dc source.tar.gz | git get-tar-commit-id 2>/dev/null)
export PYTHONUNBUFFERED=1
export TF_USE_LEGACY_KERAS=1
export TPU_NAME=digits-1a2b3c4d
export TPU_LOAD_LIBRARY=0
export GREETING='it'"'"'s $5'
cd source || exit 1
exec ../venv/bin/python -m official_trainer train --experiment=digits_mlp --model_dir=gs://bucket/digits --mode=train
