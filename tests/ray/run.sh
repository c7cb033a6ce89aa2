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

. tests/suites.sh
if [ -z "${DIFFSERVE_GATED_BINARY:-}" ]; then
  deploy/install_deps.sh
  build dev diffserve_gated
fi
venv=build/ray-venv
tests/clients/install.sh $venv tests/ray/requirements.txt

code=0
PYTHONPATH=tests/ray:tests/fleet FLEET_FIGURES="$results/figures" \
  $venv/bin/python tests/e2e/run.py "$@" | tee "$results/log" || code=$?
echo
[ ! -f "$results/figures" ] ||
  sort "$results/figures" | awk -F '\t' '{ printf "%-56s %s\n", $1, $2 }'
tail -n 1 "$results/log"
exit $code
