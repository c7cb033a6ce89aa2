#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Servers behind Dynamo's frontend, without etcd and NATS, by Dynamo's sidecar for vLLM and by
# deploy/dynamo: answers, routing by KV events, clients that leave, a killed server, drains, the
# contract of an engine. Installs Dynamo into a Python virtual environment in build/dynamo-venv (600
# MB), builds the gated server; the last line is "N passed, N failed". Two minutes after the first
# build.
#   tests/dynamo/run.sh             everything
#   tests/dynamo/run.sh TEST...     some of it, as unittest names it: test_sidecar.SidecarTest, ...
# DIFFSERVE_GATED_BINARY names a gated server that is built already.
set -euo pipefail
cd "$(dirname "$0")/../.."

case "${1:-}" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
[ $# -gt 0 ] || set -- test_dynamo test_sidecar

. tests/suites.sh
if [ -z "${DIFFSERVE_GATED_BINARY:-}" ]; then
  deploy/install_deps.sh
  build dev diffserve_gated
fi
venv=build/dynamo-venv
tests/clients/install.sh $venv tests/dynamo/requirements.txt

PYTHONPATH=tests/dynamo:tests/ray:deploy/ray $venv/bin/python tests/e2e/run.py "$@"
