#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real clients against the server: Claude Code, codex, the AI SDK, openai-node, langchain-js,
# litellm, pydantic-ai, instructor, and request shapes that other servers have refused. Installs
# pinned versions (install.sh), starts the server on the bundled model and on one
# that says fixed texts, and prints "N passed, N failed" last.
# Nothing but 127.0.0.1 is reached: the tests run in a network namespace of their own, where the
# system allows one (as root).
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
binary=${1:-build/dev/server/diffserve}
model=${2:-models/demo/diff}
shift $(($# < 2 ? $# : 2))

tests/clients/install.sh
run=(python3 tests/clients/run.py "$binary" "$model" "$@")
if unshare --net true 2>/dev/null; then
  exec unshare --net bash -c 'ip link set lo up && exec "$@"' - "${run[@]}"
fi
echo "no network namespace (needs root): the clients see the machine's network"
exec "${run[@]}"
