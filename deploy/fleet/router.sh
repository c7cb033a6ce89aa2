#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starts one router in front of running replicas, in the foreground.
#   deploy/fleet/router.sh ROUTER PORT REPLICA... [-- FLAGS]
#
#   ROUTER    vllm-router or smg (from PyPI, on the PATH), or haproxy (Debian's; deploy/haproxy.cfg)
#   REPLICA   HOST:HTTP_PORT:GRPC_PORT, for kv_aware
#             HOST:HTTP_PORT:GRPC_PORT:EVENTS_PORT:REPLAY_PORT
#   FLAGS     handed to the router
#
# Environment: HOST to listen on (127.0.0.1); POLICY (vllm-router: kv_aware where replicas name
# their events, else cache_aware; smg: cache_aware); MODEL, the served name, and PAGE_SIZE (16), for
# kv_aware; CERTIFICATE for haproxy, a PEM file.
set -euo pipefail
cd "$(dirname "$0")/../.."

usage() { sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }

[ $# -ge 3 ] || usage
router=$1
port=$2
shift 2
host=${HOST:-127.0.0.1}
urls=() events=() count=0
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  IFS=: read -r address http grpc event replay <<<"$1"
  [ -n "$grpc" ] || usage
  shift
  count=$((count + 1))
  url="http://$address:$http"
  urls+=("$url")
  [ -z "$event" ] || events+=(--kv-event-source "$url=tcp://$address:$event")
  [ -z "$replay" ] || events+=(--kv-event-replay-source "$url=tcp://$address:$replay")
  export "REPLICA${count}_HTTP=$address:$http" "REPLICA${count}_GRPC=$address:$grpc"
done
[ "${1:-}" != -- ] || shift
[ $count -gt 0 ] || usage

# A replica that drains answers /health with 503; it is asked every second, and one answer is
# enough. One that comes back is used again.
watch=(--health-check-interval-secs 1 --health-failure-threshold 1 --health-success-threshold 1 \
  --health-check-timeout-secs 2
       --worker-startup-check-interval 1 --cb-timeout-duration-secs 2)

case "$router" in
  vllm-router)
    policy=${POLICY:-cache_aware}
    if [ ${#events[@]} -gt 0 ] && [ "${POLICY:-kv_aware}" = kv_aware ]; then
      policy=kv_aware
      events+=(--kv-event-model "${MODEL:?the served model name}" --kv-event-block-size \
        "${PAGE_SIZE:-16}")
    else
      events=()
    fi
    exec vllm-router --host "$host" --port "$port" --worker-urls "${urls[@]}" --policy "$policy" \
      "${events[@]}" "${watch[@]}" "$@"
    ;;
  smg)
    exec smg launch --host "$host" --port "$port" --worker-urls "${urls[@]}" --policy \
      "${POLICY:-cache_aware}" \
      --disable-tokenizer-autoload "${watch[@]}" "$@"
    ;;
  haproxy)
    export FRONT="$host:$port" CERTIFICATE="${CERTIFICATE:?a PEM file with certificate and key}"
    exec haproxy -db -f deploy/haproxy.cfg "$@"
    ;;
  *) usage ;;
esac
