#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the Python wheel of this checkout: deploy/python with the server inside it, for x86-64
# Linux with glibc 2.36 or later; as root where deploy/install_deps.sh --package has yet to run. The
# same commit gives the same file. `cuda`: with the CUDA backend, whose kernels take about 30
# minutes of one core; it depends on NVIDIA's package of cuBLASLt. `arm64`: for 64-bit ARM.
#   deploy/wheel.sh [cuda|arm64] [FOLDER]
#        writes FOLDER/diffserve-VERSION-py3-none-manylinux_2_36_x86_64.whl or diffserve_cuda-...
#        (default: build) and prints its path last
set -euo pipefail
cd "$(dirname "$0")/.."
backend=cpu
case "${1:-}" in cuda | arm64) backend=$1; shift ;; esac
. deploy/release.sh "$backend" "${1:-build}" --package

cp -r deploy/python/. README.md LICENSE NOTICE "$work"
# cuBLASLt's functions stay what they are within a major version, the 13 of libcublasLt.so.13; all
# that are called are in its first. PyTorch pins its own, which may be that one.
if [ "$backend" = cuda ]; then
  sed -i -e 's/^name = "diffserve"$/name = "diffserve_cuda"/' \
    -e 's/^dependencies = \["numpy"\]$/dependencies = ["numpy", "nvidia-cublas>=13.0,<14"]/' \
    "$work/pyproject.toml"
fi
deploy/portable_tree.sh "$build" "$work/diffserve"
(cd "$work" && DIFFSERVE_VERSION=$version DIFFSERVE_PROCESSOR=$processor \
  hatchling build --target wheel --directory "$folder" >"$work/log" 2>&1) ||
  { cat "$work/log" >&2; exit 1; }
wheel=("$folder/$product-$version-"*.whl)
chmod 644 "${wheel[0]}"
echo "${wheel[0]}"
