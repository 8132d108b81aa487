#!/usr/bin/env bash
# Run worker.sh on a machine that is reached by ssh, so that it outlives the connection, and show what it says:
#   bash watch.sh ARGUMENT-OF-WORKER...
# Where it runs already it is only shown. Ends with its exit code.
set -uo pipefail

main() {
  cd "$(dirname "$0")"
  exec 9> worker.lock
  if flock -w 1 9; then  # a moment, as others hold it for one when a run has ended
    rm -f worker.code
    : > worker.log
    # Holds the lock as long as the experiment runs, also while that saves to make way,
    # but not as long as what it leaves behind, such as a mount.
    # shellcheck disable=SC2016
    setsid nohup bash -c 'trap : TERM; bash worker.sh "$@" 9>&-; echo $? > worker.code' worker "$@" \
      > worker.log 2>&1 < /dev/null &
  fi
  exec 9>&-
  number=$(hostname | sed 's/.*-w-//')
  flock -s worker.lock true &
  tail --pid=$! -n +1 -f worker.log 2> /dev/null | sed -u "s/^/[$number] /"
  exit "$(cat worker.code 2>/dev/null || echo 143)"
}

main "$@"; exit
