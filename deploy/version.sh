#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the version of what this checkout builds: that of CMakeLists.txt, if this commit is tagged
# as its release (v0.3.0). Any other commit is a step towards the next release and has its name:
# 0.3.1.dev0+g0123456789ab. DIFFSERVE_VERSION is printed as it is, DIFFSERVE_COMMIT replaces git's
# commit: for a tree without .git.
#   deploy/version.sh            as Python's packages write it
#   deploy/version.sh --release  that of CMakeLists.txt
#   deploy/version.sh --image    as a tag of an image, which may not hold a +
set -euo pipefail
cd "$(dirname "$0")/.."
release=$(sed -n 's/^project(diffserve VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)
git() { command git -c safe.directory='*' "$@" 2>/dev/null; }
version=${DIFFSERVE_VERSION:-}
if [ -z "$version" ] && [ -e .git ] && git tag --points-at HEAD | grep -qxF "v$release"; then
  version=$release
elif [ -z "$version" ]; then
  commit=${DIFFSERVE_COMMIT:-$([ ! -e .git ] || git rev-parse --short=12 HEAD || true)}
  version=${release%.*}.$((${release##*.} + 1)).dev0+g${commit:-unknown}
fi
case "${1:-}" in
  "") echo "$version" ;;
  --release) echo "$release" ;;
  --image) echo "${version//+/-}" ;;
  *) sed -n '3,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac
