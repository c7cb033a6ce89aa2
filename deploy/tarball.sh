#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds an archive of the server of this checkout that runs wherever it is unpacked, on x86-64
# Linux with glibc 2.36 or later; as root where deploy/install_deps.sh --package has yet to run. The
# same commit gives the same file. `cuda`: with the CUDA backend, but without cuBLASLt. `arm64`: for
# 64-bit ARM.
#   deploy/tarball.sh [cuda|arm64] [FOLDER]
#        writes FOLDER/diffserve-VERSION-linux-x86_64.tar.gz, diffserve_cuda-... or
#        ...-linux-aarch64.tar.gz (default: build) and prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
backend=cpu
case "${1:-}" in cuda | arm64) backend=$1; shift ;; esac
. deploy/release.sh "$backend" "${1:-build}" --package

name=$product-$version-linux-$processor
deploy/portable_tree.sh "$build" "$work/$name"
tar --create --directory "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
  --numeric-owner --format=ustar "$name" | gzip --best --no-name >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
