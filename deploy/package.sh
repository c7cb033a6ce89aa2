#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian package of this checkout, for the Debian that it runs on; as root where
# deploy/install_deps.sh has yet to run.
#   deploy/package.sh [FOLDER]   writes FOLDER/diffserve_VERSION_amd64.deb (default: build) and
#                                prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
case "${1:-build}" in -*) sed -n '3,4p' "$0" | sed 's/^# //' >&2; exit 2 ;; esac
mkdir -p "${1:-build}"
folder=$(realpath "${1:-build}")

deploy/install_deps.sh
. deploy/release.sh
(cd build/release &&
  cpack -B "$folder/package" >"$folder/package.log" 2>&1) ||
    { cat "$folder/package.log" >&2; exit 1; }
deb=$(ls "$folder"/package/*.deb)
mv "$deb" "$folder/"
rm -rf "$folder/package" "$folder/package.log"
echo "$folder/$(basename "$deb")"
