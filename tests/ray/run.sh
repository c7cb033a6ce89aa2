#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/ray on a Ray cluster of this machine: answers, kills, clients that leave, autoscaling, and
# the batch example. Installs Ray into a Python virtual environment in build/ray-venv (750 MB),
# builds the gated server, prints a table of figures; the last line is "N passed, N failed". About
# five minutes after the first build.
#   tests/ray/run.sh             everything
#   tests/ray/run.sh TEST...     some of it, as unittest names it: test_batch,
#                                test_serve.AutoscalingTest, ...
# DIFFSERVE_GATED_BINARY names a gated server that is built already.
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
[ $# -gt 0 ] || set -- test_serve test_batch

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
if [ -z "${DIFFSERVE_GATED_BINARY:-}" ]; then
  deploy/install_deps.sh
  if ! { cmake --preset release &&
    cmake --build build/release --target diffserve_gated; } >"$results/build" 2>&1; then
    tail -n 40 "$results/build"
    echo "0 passed, 1 failed"
    exit 1
  fi
fi

venv=build/ray-venv
if ! cmp -s tests/ray/requirements.txt "$venv/.requirements"; then
  python3 -m venv --clear "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r tests/ray/requirements.txt
  cp tests/ray/requirements.txt "$venv/.requirements"
fi

code=0
PYTHONPATH=tests/ray:tests/fleet FLEET_FIGURES="$results/figures" \
  "$venv/bin/python" tests/e2e/run.py "$@" | tee "$results/log" || code=$?
echo
[ ! -f "$results/figures" ] ||
  sort "$results/figures" | awk -F '\t' '{ printf "%-56s %s\n", $1, $2 }'
tail -n 1 "$results/log"
exit $code
