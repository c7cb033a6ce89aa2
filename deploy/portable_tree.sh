#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs a build into a folder that runs wherever it is put, on a Linux with this system's
# glibc or a later one: bin/diffserve, lib with each shared library but glibc's, share with the
# bundled model, documents and licences. Part of deploy/wheel.sh and deploy/tarball.sh.
#   deploy/portable_tree.sh BUILD FOLDER   BUILD: build/release, build/cuda-package or build/arm64
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
[ $# -eq 2 ] || { echo "usage: deploy/portable_tree.sh BUILD FOLDER" >&2; exit 2; }
umask 022
mkdir -p "$2"
build=$1
folder=$(realpath "$2")
documents=$folder/share/doc

root=""  # of the libraries' system
if grep -q '^CMAKE_TOOLCHAIN_FILE.*/arm64.cmake$' "$build/CMakeCache.txt"; then
  root=$PWD/build/arm64-root
fi
cmake --install "$build" --component program --prefix "$folder" --strip >/dev/null
install -d "$folder/lib" "$documents/common-licenses"
deploy/libraries.sh "$folder/bin/diffserve" | while read -r library package version; do
  [ "$package" != libc6 ] || continue
  install -m 644 "$library" "$folder/lib/"
  install -D -m 644 "$root/usr/share/doc/$package/copyright" "$documents/$package/copyright"
  echo "$(basename "$library") $package $version"
done >"$documents/diffserve/libraries.txt"
# Debian's copyright files name the usual licences by their path.
for licence in /usr/share/common-licenses/*; do
  if grep -rqE "$licence([^-0-9]|$)" "$documents"; then
    install -m 644 "$licence" "$documents/common-licenses/"
  fi
done
# RPATH, not RUNPATH: it holds for the libraries' own libraries too and for what the program opens
# by itself, and comes before LD_LIBRARY_PATH.
# shellcheck disable=SC2016
rpath='$ORIGIN/../lib'
if grep -q '^DIFFSERVE_CUDA:BOOL=ON$' "$build/CMakeCache.txt"; then
  # Where pip puts the package nvidia-cublas beside a wheel, or `pip --target` beside a tarball.
  # shellcheck disable=SC2016
  rpath+=':$ORIGIN/../../nvidia/cu13/lib'
  # CUDA's runtime is compiled in.
  install -D -m 644 .cuda/lib/python3*/site-packages/nvidia_cuda_runtime-*/licenses/License.txt \
    "$documents/nvidia-cuda-runtime/copyright"
fi
patchelf --force-rpath --set-rpath "$rpath" "$folder/bin/diffserve"
