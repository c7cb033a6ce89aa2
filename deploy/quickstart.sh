#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh clone to a running server: installs, builds, serves the bundled model, streams one
# answer and prints the address of the page.
#   deploy/quickstart.sh           leaves the server running in the foreground; Ctrl-C stops it
#   deploy/quickstart.sh --check   the same, then stops the server; exit code 0 if the answer came
set -euo pipefail
cd "$(dirname "$0")/.."

check=false
case "${1:-}" in
  "") ;;
  --check) check=true ;;
  *) echo "usage: deploy/quickstart.sh [--check]" >&2; exit 2 ;;
esac

deploy/install_deps.sh
echo "building (a few minutes the first time) ..."
cmake --preset dev >/dev/null
cmake --build build/dev --target diffserve

# The first free port from $1 on.
free_port() {
  local port=$1
  while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
  echo "$port"
}
port=$(free_port 8000)
grpc_port=$(free_port $((port + 1)))

ready=$(mktemp)
build/diffserve serve models/demo/diff --port "$port" --grpc-port "$grpc_port" >"$ready" &
server=$!
stop() {
  kill -TERM "$server" 2>/dev/null || true
  wait "$server" 2>/dev/null || true
  rm -f "$ready"
}
trap stop EXIT
until grep -q '^ready ' "$ready"; do
  kill -0 "$server" 2>/dev/null || { echo "the server did not start" >&2; exit 1; }
  sleep 0.1
done
cat "$ready"

question='The magic number of Lisbon is 48213. The magic number of Oslo is 90417.'
question+=' What is the magic number of Lisbon?'
body='{"model":"diff","stream":true,"max_tokens":40,"temperature":0,"messages":'
body+='[{"role":"user","content":"'$question'"}]}'
echo
echo "try it:"
url=http://127.0.0.1:$port/v1/chat/completions
echo "curl -N $url -H 'Content-Type: application/json' -d '$body'"
echo
answer=$(curl -sSN --max-time 60 "$url" -H 'Content-Type: application/json' -d "$body" |
  tee >(cat >&2))
curl -sSf --max-time 60 -o /dev/null "http://127.0.0.1:$port/"
if ! grep -q '"content":"' <<<"$answer" || ! grep -q '^data: \[DONE\]' <<<"$answer"; then
  echo "no answer came" >&2
  exit 1
fi
echo
if $check; then
  echo "check passed"
  exit 0
fi
echo "open http://127.0.0.1:$port/ for a chat, the engine at work and a look into its attention"
echo "serving on http://127.0.0.1:$port and grpc 127.0.0.1:$grpc_port; Ctrl-C stops"
wait "$server"
