#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what another machine needs for all that only a GPU can prove or measure: one archive, of at
# most 30 MiB, for a machine with an NVIDIA driver and Python 3.12 and without compiler or network.
#   deploy/gpu_check.sh collect DIR [ARCHITECTURE...]   DIR/gpu_check.tar.xz with kernels for 90a
#                               (Hopper), or for those named (80: all others)
# There, unpacked, deploy/gpu_check/run.py runs it (docs/gpu.md). Needs deploy/install_deps.sh
# --test and deploy/install_cuda.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" != collect ] || [ $# -lt 2 ]; then
  sed -n '3,8p' "$0" | sed 's/^# \{0,1\}//' >&2
  exit 2
fi
folder=$2
shift 2
architectures=${*:-90a}
cmake --preset gpu-check -DDIFFSERVE_CUDA_ARCHITECTURES="${architectures// /;}"
cmake --build --preset gpu-check --target gpu_check
python3 deploy/gpu_check/collect.py build/gpu-check/tests/gpu_check "$folder"
