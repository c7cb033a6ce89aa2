# SPDX-License-Identifier: Apache-2.0
# Begins a script that packages this checkout, to be sourced from the repository's root: installs
# what is needed and builds the server in the folder `build`. Leaves `product`, which begins the
# package's name, `processor`, which is in it, `folder` for the package, `work` for files that are
# removed at the end, `version`, and SOURCE_DATE_EPOCH, the time that packages give to their files.
#   . deploy/release.sh cpu|cuda|arm64 FOLDER [OPTION...]   FOLDER is the script's argument; OPTION
#                                                           goes to deploy/install_deps.sh
case "$2" in -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
mkdir -p "$2"
folder=$(realpath "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$(deploy/version.sh)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
export SOURCE_DATE_EPOCH
deploy/install_deps.sh "${@:3}"
product=diffserve
preset=release
processor=x86_64
if [ "$1" = arm64 ]; then
  preset=arm64
  processor=aarch64
  deploy/install_deps.sh --arm64
  deploy/arm64_sysroot.sh
fi
if [ "$1" = cuda ]; then
  product=diffserve_cuda
  preset=cuda-package
  deploy/install_cuda.sh --wheels
fi
build=build/$preset
cmake --preset "$preset" >/dev/null
cmake --build "$build" --target diffserve
