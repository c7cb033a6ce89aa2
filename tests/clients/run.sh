#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Real clients against the server: Claude Code, codex, the AI SDK, openai-node, langchain-js,
# litellm, pydantic-ai, instructor, and request shapes that other servers have refused. Installs
# pinned versions into build/clients (1.3 GB), starts the server on the bundled model and on one
# that says fixed texts, and prints "N passed, N failed" last.
# Nothing but 127.0.0.1 is reached: the tests run in a network namespace of their own, where the
# system allows one (as root).
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
binary=${1:-build/release/server/diffserve}
model=${2:-models/demo/diff}
shift $(($# < 2 ? $# : 2))

installed=build/clients
mkdir -p "$installed"
install_python() {  # install_python VENV REQUIREMENTS
  if ! cmp -s "$2" "$1/.requirements"; then
    python3 -m venv "$1"
    "$1/bin/pip" install -q --disable-pip-version-check --no-deps -r "$2"
    cp "$2" "$1/.requirements"
  fi
}
install_python "$installed/venv" tests/clients/requirements.txt
install_python "$installed/instructor-venv" tests/clients/instructor_requirements.txt
if ! cmp -s tests/clients/package-lock.json "$installed/package-lock.json"; then
  cp tests/clients/package.json "$installed/"
  cp tests/clients/package-lock.json "$installed/package-lock.new"
  mv "$installed/package-lock.new" "$installed/package-lock.json"
  PATH="$PWD/$installed/venv/bin:$PATH" npm ci --prefix "$installed" --ignore-scripts --no-audit \
    --no-fund --silent || { rm "$installed/package-lock.json"; exit 1; }
fi

run=(python3 tests/clients/run.py "$binary" "$model" "$@")
if unshare --net true 2>/dev/null; then
  exec unshare --net bash -c 'ip link set lo up && exec "$@"' - "${run[@]}"
fi
echo "no network namespace (needs root): the clients see the machine's network"
exec "${run[@]}"
