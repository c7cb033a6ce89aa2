#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs pinned versions, by default of the clients; does nothing where they are installed.
#   tests/clients/install.sh                      build/clients (2.1 GB): Python and Node.js
#   tests/clients/install.sh VENV REQUIREMENTS    one Python environment
set -euo pipefail
cd "$(dirname "$0")/../.."

install_python() {  # install_python VENV REQUIREMENTS
  if ! cmp -s "$2" "$1/.requirements"; then
    python3 -m venv "$1"
    "$1/bin/pip" install -q --disable-pip-version-check --no-deps -r "$2"
    cp "$2" "$1/.requirements"
  fi
}
if [ $# -eq 2 ]; then
  install_python "$@"
  exit 0
fi

installed=build/clients
mkdir -p "$installed"
install_python "$installed/venv" tests/clients/requirements.txt
install_python "$installed/instructor-venv" tests/clients/instructor_requirements.txt
if ! cmp -s tests/clients/package-lock.json "$installed/package-lock.json"; then
  cp tests/clients/package.json "$installed/"
  cp tests/clients/package-lock.json "$installed/package-lock.new"
  mv "$installed/package-lock.new" "$installed/package-lock.json"
  PATH="$PWD/$installed/venv/bin:$PATH" npm ci --prefix "$installed" --ignore-scripts --no-audit \
    --no-fund --silent || { rm "$installed/package-lock.json"; exit 1; }
fi
