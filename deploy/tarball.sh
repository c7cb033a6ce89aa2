#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds an archive of the server of this checkout that runs wherever it is unpacked, on x86-64
# Linux with glibc 2.36 or later; as root where deploy/install_deps.sh --package has yet to run. The
# same commit gives the same file.
#   deploy/tarball.sh [FOLDER]   writes FOLDER/diffserve-VERSION-linux-x86_64.tar.gz (default:
#                                build) and prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
. deploy/release.sh "${1:-build}" --package

name=diffserve-$version-linux-x86_64
deploy/portable_tree.sh "$work/$name"
tar --create --directory "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 \
  --numeric-owner --format=ustar "$name" | gzip --best --no-name >"$folder/$name.tar.gz"
echo "$folder/$name.tar.gz"
