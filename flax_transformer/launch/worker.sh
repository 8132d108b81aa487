#!/usr/bin/env bash
# Prepare this worker, once for each version of the code, and run the experiment on it:
#   bash worker.sh DIGEST REQUIREMENT BUCKET EXPERIMENT OPTION...
# Ends with the experiment's exit code, or with 143 where it was told to make way, after it has saved.
set -euo pipefail

main() {
  digest=$1 requirement=$2 bucket=$3
  shift 3
  from=$(cd "$(dirname "$0")" && pwd)
  code=$HOME/flax_transformer_launch/$digest

  if [ ! -e "$code/ready" ]; then
    rm -rf "$code" && mkdir -p "$code"
    cat "$from"/code.tar.xz* >"$code.tar.xz"  # in one piece, or in several
    python3 -m tarfile --extract "$code.tar.xz" "$code"  # no program for xz is needed
    rm "$code.tar.xz"
    # The machines' own Python may be too old; uv fetches one.
    PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --quiet uv
    (cd "$code" && python3 -m uv venv --quiet --python 3.12 venv &&
      python3 -m uv pip install --quiet --python venv/bin/python "$requirement")
    touch "$code/ready"
  fi

  if ! mountpoint -q "/gcs/$bucket"; then
    if ! command -v gcsfuse >/dev/null; then
      key=/usr/share/keyrings/cloud.google.asc
      curl -fsSL https://packages.cloud.google.com/apt/doc/apt-key.gpg | sudo tee $key >/dev/null
      echo "deb [signed-by=$key] https://packages.cloud.google.com/apt gcsfuse-$(lsb_release -c -s) main" |
        sudo tee /etc/apt/sources.list.d/gcsfuse.list >/dev/null
      sudo apt-get -qq update && sudo apt-get -qq install -y gcsfuse >/dev/null
    fi
    sudo mkdir -p "/gcs/$bucket" && sudo chown "$(id -u)" "/gcs/$bucket"
    # Nothing is remembered of what the bucket holds, because other workers write to it too; checkpoints are renamed folders.
    gcsfuse --implicit-dirs --rename-dir-limit=1000000 --metadata-cache-ttl-secs=0 "$bucket" "/gcs/$bucket" >/dev/null
  fi

  stopped='' child=''
  trap 'stopped=yes; kill -TERM "$child" 2>/dev/null || true' TERM
  cd "$code"
  PYTHONUNBUFFERED=1 venv/bin/python "$@" &
  child=$! status=0
  wait "$child" || status=$?
  while kill -0 "$child" 2>/dev/null; do  # a signal ends the wait, not the experiment
    status=0
    wait "$child" || status=$?
  done
  [ -z "$stopped" ] || exit 143
  exit "$status"
}

main "$@"; exit  # on one line: bash has read all of it before this file may change
