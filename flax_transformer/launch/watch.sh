#!/usr/bin/env bash
# Run worker.sh on a machine that is reached by ssh, so that it outlives the connection, and show what it says:
#   bash watch.sh ARGUMENT-OF-WORKER...
# Where it runs already it is only shown. Ends with its exit code.
set -uo pipefail

main() {
  cd "$(dirname "$0")"
  if flock -n worker.lock true; then
    rm -f worker.code
    : > worker.log
    # shellcheck disable=SC2016
    setsid nohup flock worker.lock bash -c 'bash worker.sh "$@"; echo $? > worker.code' worker "$@" \
      > worker.log 2>&1 < /dev/null &
    echo $! > worker.pid
  fi
  number=$(hostname | sed 's/.*-w-//')
  tail --pid="$(cat worker.pid)" -n +1 -f worker.log | sed -u "s/^/[$number] /"
  exit "$(cat worker.code 2>/dev/null || echo 143)"
}

main "$@"; exit
