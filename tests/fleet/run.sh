#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two real replicas behind vllm-router, smg and HAProxy: equal answers, prefixes, kills, restarts,
# full replicas, hostile clients. Installs what it needs (Debian packages as root, a Python virtual
# environment in build/fleet-venv), builds what it runs, prints a table of figures; the last line is
# "N passed, N failed". About five minutes after the first build.
#   tests/fleet/run.sh             everything
#   tests/fleet/run.sh TEST...     some of it, as unittest names it: test_haproxy,
#                                  test_routers.SmgTest, ...
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
[ $# -gt 0 ] || set -- test_routers test_prefixes test_haproxy test_deployment

deploy/install_deps.sh
missing=()
for package in python3 python3-venv haproxy openssl curl; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
    missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
  apt-get update -q
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

venv=build/fleet-venv
if ! cat tests/e2e/requirements.txt tests/fleet/requirements.txt |
  cmp -s - "$venv/.requirements"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r tests/fleet/requirements.txt
  cat tests/e2e/requirements.txt tests/fleet/requirements.txt >"$venv/.requirements"
fi

. tests/suites.sh
build dev diffserve diffserve_gated

code=0
PATH="$PWD/$venv/bin:$PATH" PYTHONPATH=tests/fleet FLEET_FIGURES="$results/figures" \
  "$venv/bin/python" tests/e2e/run.py "$@" | tee "$results/log" || code=$?
echo
[ ! -f "$results/figures" ] ||
  sort "$results/figures" | awk -F '\t' '{ printf "%-76s %s\n", $1, $2 }'
tail -n 1 "$results/log"
exit $code
