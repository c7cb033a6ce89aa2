#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs replicas on this machine and a router in front of them, until it is interrupted.
#   deploy/fleet/run.sh ROUTER REPLICAS MODEL_DIR [-- FLAGS]
#       deploy/fleet/run.sh vllm-router 2 models/demo/diff
#
#   ROUTER    vllm-router, smg or haproxy, as deploy/fleet/router.sh takes them
#   FLAGS     handed to each replica
#
# Environment: PORT of the router (8080); BASE, replica n has the ports BASE + 10 n and the three
# after it (8100); DIFFSERVE, the program (build/diffserve); and router.sh's own. For vllm-router
# the replicas publish KV events, on all interfaces (an endpoint that listens has a * in it): they
# hold the prompts' token ids, so BASE + 10 n + 2 is not for strangers.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() { sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }

[ $# -ge 3 ] && [[ "$2" =~ ^[1-9][0-9]?$ ]] || usage
router=$1 count=$2 model=$3
shift 3
[ $# -eq 0 ] || { [ "$1" = -- ] && shift; } || usage
case "$router" in vllm-router | smg | haproxy) ;; *) usage ;; esac

pids=()
logs=$(mktemp -d)
stop() {
  trap - EXIT INT TERM
  [ ${#pids[@]} -eq 0 ] || kill "${pids[@]}" 2>/dev/null || true
  wait
  rm -rf "$logs"
}
trap stop EXIT
trap 'exit 0' INT TERM

replicas=()
for ((n = 0; n < count; n++)); do
  http=$((${BASE:-8100} + 10 * n))
  replica="127.0.0.1:$http:$((http + 1))"
  events=()
  if [ "$router" = vllm-router ]; then
    events=(--kv-events-endpoint "tcp://*:$((http + 2))" --kv-events-replay-endpoint \
      "tcp://127.0.0.1:$((http + 3))")
    replica+=":$((http + 2)):$((http + 3))"
  fi
  "${DIFFSERVE:-build/diffserve}" serve "$model" --port "$http" --grpc-port "$((http + 1))" \
    "${events[@]}" "$@" >"$logs/$n" &
  pids+=($!)
  replicas+=("$replica")
done
for ((n = 0; n < count; n++)); do
  until grep -q '^ready ' "$logs/$n"; do
    kill -0 "${pids[$n]}" 2>/dev/null || exit 1
    sleep 0.1
  done
  cat "$logs/$n"
done

export MODEL=${MODEL:-$(sed -n 's/.* model=//p' "$logs/0")}
deploy/fleet/router.sh "$router" "${PORT:-8080}" "${replicas[@]}" &
pids+=($!)
wait -n
exit 1
