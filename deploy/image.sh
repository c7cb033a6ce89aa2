#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the container image of this checkout as diffserve:VERSION and diffserve:latest (as
# diffserve:VERSION-cuda and diffserve:cuda) with docker, podman or buildah, whichever there is
# first; BUILDER names another order. With `wheel` or `wheel-cuda` it writes the Python wheel into
# build/ instead, on any system. The same commit gives the same files.
#   deploy/image.sh [cpu|cuda|wheel|wheel-cuda] [OPTION...]
#                               options go to the builder: --no-cache,
#                               --build-arg BASE=registry.example/debian, ...
set -euo pipefail
cd "$(dirname "$0")/.."

target=cpu
case "${1:-}" in
  cpu | cuda | wheel | wheel-cuda) target=$1; shift ;;
  "" | -*) ;;
  *) sed -n '3,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
esac

builder=""
why="no ${BUILDER:-docker, podman or buildah} here"
for name in ${BUILDER:-docker podman buildah}; do
  command -v "$name" >/dev/null || continue
  # Docker's old builder knows neither the mounts of the Dockerfile nor --output.
  if [ "$name" = docker ] && ! docker buildx version >/dev/null 2>&1; then
    why="docker is here without buildx; install docker-buildx-plugin (Docker's packages) or"
    why+=" docker-buildx (Debian's and Ubuntu's), or podman or buildah"
    continue
  fi
  builder=$name
  break
done
[ -n "$builder" ] || { echo "deploy/image.sh: $why" >&2; exit 1; }

version=$(deploy/version.sh)
commit=${DIFFSERVE_COMMIT:-$(git rev-parse --short=12 HEAD)}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
tag=diffserve:$(deploy/version.sh --image)
latest=diffserve:latest
if [ "$target" != cpu ]; then
  tag=$tag-$target
  latest=diffserve:$target
fi
result=(--tag "$tag" --tag "$latest")
case $target in
  wheel) product=diffserve ;;
  wheel-cuda) product=diffserve_cuda ;;
  *) product="" ;;
esac
[ -z "$product" ] || result=(--output type=local,dest=build)
options=(--target "$target" "${result[@]}" --file deploy/Dockerfile --build-arg \
  "DIFFSERVE_VERSION=$version"
  --build-arg "DIFFSERVE_COMMIT=$commit" --build-arg "SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH")
# Only Docker's own format has HEALTHCHECK; the time stamp is for what the builder itself writes.
[ "$builder" = docker ] || options+=(--format docker --timestamp "$SOURCE_DATE_EPOCH")
"$builder" build "${options[@]}" "$@" .
[ -z "$product" ] || tag=$(ls "build/$product-$version-"*.whl)
echo "$tag"
