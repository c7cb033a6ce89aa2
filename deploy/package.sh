#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian package of this checkout, for the Debian that it runs on; as root where
# deploy/install_deps.sh has yet to run.
#   deploy/package.sh [FOLDER]   writes FOLDER/diffserve_VERSION_amd64.deb (default: build) and
#                                prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/release.sh cpu "${1:-build}"

(cd "$build" && cpack -B "$work" >"$work/log" 2>&1) || { cat "$work/log" >&2; exit 1; }
deb=("$work"/*.deb)
mv "${deb[0]}" "$folder/"
echo "$folder/$(basename "${deb[0]}")"
