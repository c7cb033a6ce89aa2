#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel of this checkout: deploy/python with the server inside it, for x86-64
# Linux with glibc 2.36 or later; as root where deploy/install_deps.sh --package has yet to run. The
# same commit gives the same file.
#   deploy/wheel.sh [FOLDER]   writes FOLDER/diffserve-VERSION-py3-none-manylinux_2_36_x86_64.whl
#                              (default: build) and prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/release.sh "${1:-build}" --package

cp -r deploy/python/. README.md LICENSE NOTICE CMakeLists.txt "$work"
deploy/portable_tree.sh "$work/diffserve"
(cd "$work" && hatchling build --target wheel --directory "$folder" >"$work/log" 2>&1) ||
  { cat "$work/log" >&2; exit 1; }
wheel=("$folder/diffserve-$version-"*.whl)
chmod 644 "${wheel[0]}"
echo "${wheel[0]}"
