#!/bin/bash
# Trains @@{name} on a Cloud TPU VM. Every boot runs this, on every host of the slice.
set -u
folder=@@{folder}
export HOME="${HOME:-/root}"

if [ $# -eq 0 ]; then  # systemd starts it again, and stops it while there still is a network
  mkdir -p "$folder" && cp "$0" "$folder/startup.sh" || exit 1
  exec systemd-run --unit=official-trainer --collect --property=After=network-online.target \
    --property=KillMode=mixed --property=TimeoutStopSec=@@{grace} \
    --property=Restart=on-failure --property=RestartSec=10 --property='RestartPreventExitStatus=@@{final}' \
    --property=StartLimitIntervalSec=infinity --property=StartLimitBurst=@@{starts} \
    --property=ExecStopPost="/bin/bash $folder/startup.sh stopped" bash "$folder/startup.sh" train
fi
cd "$folder" || exit 1

if [ "$1" = setup ]; then
  set -e
@@{commands}
  touch set-up
  exit
fi
if [ "$1" = install ]; then
  set -e
  rm -rf source && mkdir source
  gcloud storage cp @@source source.tar.gz
  tar -xzf source.tar.gz -C source
  python3 -m pip install --quiet --upgrade --target uv uv
  uv/bin/uv venv --quiet --clear --python @@{python} venv
  echo 'tensorflow; python_version < "0"' >overrides.txt  # tensorflow-tpu is installed in its place
  cd source
  ../uv/bin/uv pip install --quiet --python ../venv/bin/python --override ../overrides.txt \
    @@{words} tensorflow-tpu==@@{tensorflow_tpu} libtpu==@@{libtpu}
  cd ..
  touch installed
  exit
fi
if [ "$1" = stopped ]; then  # systemd says how; the log outlives the machine
  case " 0 @@{final} " in *" $EXIT_STATUS "*) [ -e ended ] || echo "$EXIT_STATUS" >ended ;; esac
  [ ! -e @@{log} ] || gcloud storage cp @@{log} @@kept
  exit
fi
[ ! -e ended ] || exit "$(cat ended)"  # before this boot

[ -e @@{log} ] || gcloud storage cp @@kept @@{log} 2>/dev/null  # that of the slice before this one goes on
exec >>@@{log} 2>&1
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
if ((@@is_pod)); then  # one process drives the whole slice; the other hosts serve it, which their tpu-runtime does
  worker=$(curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
    "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/agent-worker-number")
  [ -n "$worker" ] || { echo 'the metadata server does not say which host of the slice this is' >&2; exit 1; }
  [ "$worker" = 0 ] || exit 0
fi
attempt install installed || exit 1

export @@{commit}=$(gzip -dc source.tar.gz | git get-tar-commit-id 2>/dev/null)
@@{environ}
cd source || exit 1
exec @@{argv}
