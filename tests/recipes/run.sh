#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Follows the recipes of docs/recipes with the real programs. Installs pinned versions into
# build/clients and build/recipes, and prints "N passed, N failed" last. Needs .venv, as
# deploy/install_deps.sh --test makes it.
#   tests/recipes/run.sh [RECIPE...]    as docs/recipes names its pages; DIFFSERVE_BINARY names the
#                                       server
# Nothing but 127.0.0.1 is reached: the programs run in a network namespace of their own, where the
# system allows one (as root).
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
tests/clients/install.sh
for requirements in tests/recipes/requirements/*.txt; do
  recipe=$(basename "$requirements" .txt)
  [ $# -gt 0 ] && [[ " $* " != *" $recipe "* ]] ||
    tests/clients/install.sh "build/recipes/$recipe" "$requirements"
done
# GuideLLM loads its data with PyTorch. PyPI's brings 5 GB of CUDA, Debian's is for the CPU.
if [ $# -eq 0 ] || [[ " $* " == *" guidellm "* ]]; then
  dpkg -s python3-torch >/dev/null 2>&1 || {
    apt-get update -q && apt-get install -y -q --no-install-recommends python3-torch; }
  ln -sfn /usr/lib/python3/dist-packages/torch build/recipes/guidellm/lib/python3.11/site-packages/
fi
# npm's own links need the scripts of the packages, which are not run.
packages=$PWD/build/clients/node_modules
mkdir -p build/recipes/bin
ln -sf "$packages/@anthropic-ai/claude-code-linux-x64/claude" \
  "$packages/@cline/cli-linux-x64/bin/cline" "$packages/.bin/cn" \
  "$packages"/@openai/codex-linux-x64/vendor/*/bin/codex build/recipes/bin/

run=(.venv/bin/python tests/recipes/run.py "$@")
if unshare --net true 2>/dev/null; then
  exec unshare --net bash -c 'ip link set lo up && exec "$@"' - "${run[@]}"
fi
echo "no network namespace (needs root): the programs see the machine's network"
exec "${run[@]}"
