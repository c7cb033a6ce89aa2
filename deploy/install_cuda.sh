#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What the preset `cuda-release` needs beside deploy/install_deps.sh: a CUDA toolkit >= 13.0. A
# toolkit of the machine's own is taken if there is one (CUDA_HOME, /usr/local/cuda, nvcc on PATH);
# else the compiler and the libraries come as Python wheels into .cuda, pinned to the versions that
# kernels/cuda_resources.json was recorded with. Needs no GPU, no driver, not root. Does nothing the
# second time.
#   deploy/install_cuda.sh            prints the path of the chosen nvcc last
#   deploy/install_cuda.sh --wheels   takes the wheels even where the machine has a toolkit
#   deploy/install_cuda.sh --arm64    and puts CUDA's runtime for 64-bit ARM into .cuda/arm64, for
#                                     the preset `arm64-cuda`; takes the wheels too
#   deploy/install_cuda.sh --find     installs nothing: prints the nvcc, or nothing and exit code 1
#                                     (CMake asks this way)
set -euo pipefail
cd "$(dirname "$0")/.."

minimum=13.0
pins=(
  nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-cccl==13.0.85 nvidia-cuda-runtime==13.0.96
  nvidia-cublas==13.1.0.3
  # The oldest there are; they read older objects.
  nvidia-cuda-cuobjdump==13.2.51 nvidia-cuda-nvdisasm==13.2.51
)
stamp=.cuda/.pins

arm64_runtime=nvidia-cuda-runtime==13.0.96

use_system=true
arm64=false
install=true
for option in "$@"; do
  case "$option" in
    --wheels) use_system=false ;;
    --arm64) use_system=false arm64=true ;;
    --find) install=false ;;
    *) echo "usage: deploy/install_cuda.sh [--wheels] [--arm64] [--find]" >&2; exit 2 ;;
  esac
done

# Whole: new enough, and with the library that the build links. (cuBLASLt may lie elsewhere:
# kernels/cuda.cmake.)
is_whole_toolkit() {  # is_whole_toolkit NVCC
  local version root
  [ -x "$1" ] || return 1
  version=$("$1" --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
  [ -n "$version" ] &&
    [ "$(printf '%s\n' "$minimum" "$version" | sort -V | head -n 1)" = "$minimum" ] || return 1
  root=$(dirname "$(dirname "$(readlink -f "$1")")")
  [ -n "$(find -L "$root" -maxdepth 5 -name libcudart_static.a -print -quit 2>/dev/null)" ]
}

install_arm64() {
  $arm64 && ! cmp -s .cuda/arm64/.pin <(echo $arm64_runtime) || return 0
  .cuda/bin/pip install -q --disable-pip-version-check --no-deps --upgrade --target .cuda/arm64 \
    --platform manylinux2014_aarch64 --only-binary=:all: $arm64_runtime >&2
  echo $arm64_runtime >.cuda/arm64/.pin
}
wheels_nvcc() { find .cuda/lib -path '*/nvidia/cu13/bin/nvcc' -print -quit 2>/dev/null || true; }

# Wheels asked for once stay in use, so that a build does not change its compiler when the machine
# gets a toolkit.
if cmp -s "$stamp" <(printf '%s\n' "${pins[@]}"); then
  nvcc=$(wheels_nvcc)
  if [ -n "$nvcc" ] && is_whole_toolkit "$nvcc"; then
    install_arm64
    realpath "$nvcc"
    exit 0
  fi
fi
if $use_system; then
  for nvcc in "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc \
    "$(command -v nvcc || true)"; do
    if is_whole_toolkit "$nvcc"; then realpath "$nvcc"; exit 0; fi
  done
fi
$install || exit 1

[ -x .cuda/bin/python3 ] || python3 -m venv .cuda
# --no-deps: the list above is whole, and no newer version comes in through a dependency.
.cuda/bin/pip install -q --disable-pip-version-check --no-deps "${pins[@]}" >&2
nvcc=$(wheels_nvcc)
if [ -z "$nvcc" ] || ! is_whole_toolkit "$nvcc"; then
  echo "deploy/install_cuda.sh: .cuda holds no whole CUDA toolkit >= $minimum after the install" >&2
  exit 1
fi
printf '%s\n' "${pins[@]}" >"$stamp"
install_arm64
realpath "$nvcc"
