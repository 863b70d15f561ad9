#!/bin/bash
# Trains @@{name} on a Cloud TPU VM. Every boot runs this, on every host of the slice.
set -u
folder=@@{folder}
place=@@{place}
export HOME="${HOME:-/root}"

if [ $# -eq 0 ]; then  # as a service, so that it is told to stop while there still is a network
  mkdir -p "$folder" && cp "$0" "$folder/startup.sh" || exit 1
  exec systemd-run --unit=official-trainer --collect --property=After=network-online.target \
    --property=KillMode=mixed --property=TimeoutStopSec=@@{grace} \
    --property=ExecStopPost="/bin/bash $folder/startup.sh stopped" bash "$folder/startup.sh" train
fi
cd "$folder" || exit 1

#if setup
if [ "$1" = setup ]; then
  set -e
@@{commands}
  touch set-up
  exit
fi
#end
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

# The log of a slice goes on in the one that replaces it.
[ -e @@{log} ] || gcloud storage cp "$place/@@{log}" @@{log} 2>/dev/null
exec >>@@{log} 2>&1
copy_log() (  # gcloud refuses to copy a file that grows; one copy at a time, so that the newest is the last
  flock 9
  cp @@{log} copied.log && gcloud storage cp copied.log "$place/@@{log}"
) 9>copying
finish() {
  printf '{"exit_code": %d, "ended": "%s"}\n' "$1" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" >@@{exit}
  copy_log
  gcloud storage cp @@{exit} "$place/@@{exit}"
  exit "$1"
}
[ "$1" != finish ] || finish "$2"
[ "$1" != stopped ] || { [ -e @@{exit} ] || [ ! -e copying ] || copy_log; exit; }
[ ! -e @@{exit} ] || exit 0  # it has ended before this boot
attempt() {
  for _ in 1 2 3; do
    [ ! -e "$2" ] || return 0
    bash startup.sh "$1" && return 0
    echo "$1 failed" >&2
    sleep 30
  done
  return 1
}
#if setup
attempt setup set-up || finish 1
#end
#if pod
# One process drives the whole slice. The other hosts serve it, which their tpu-runtime does.
worker=$(curl --silent --show-error --fail --retry 10 --retry-connrefused --header 'Metadata-Flavor: Google' \
  "http://${GCE_METADATA_HOST:-metadata.google.internal}/computeMetadata/v1/instance/attributes/agent-worker-number")
[ -n "$worker" ] || { echo 'the metadata server does not say which host of the slice this is' >&2; finish 1; }
[ "$worker" = 0 ] || exit 0
#end
attempt install installed || finish 1

while copy_log; sleep 60 && kill -0 $$; do :; done 2>/dev/null &  # while training runs, in the place of this process
@@{environ}
cd source || finish 1
exec ../venv/bin/python @@{argv}
