#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the files of a release page from this checkout, as root on Debian 12; images wherever there
# is docker, podman or buildah. .github/workflows/release.yml calls it on a tag.
#   deploy/make_release.sh [--check] FOLDER [PART...]
#        writes into FOLDER the parts, by default wheel tarball package notes sums:
#          wheel, tarball, package    for CPUs; wheel and tarball each with their bill of materials
#          wheel_arm64, tarball_arm64   for 64-bit ARM, likewise
#          wheel_cuda, tarball_cuda   for a GPU; the kernels take 30 minutes of one core
#          image, image_cuda          the container image as an archive for `docker load`
#          notes                      the version's part of CHANGELOG.md
#          sums                       SHA256SUMS of all files in FOLDER
#        --check proves each file with the script that docs/install.md names for it
set -euo pipefail
cd "$(dirname "$0")/.."
usage() { sed -n '3,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }

check=false
if [ "${1:-}" = --check ]; then check=true; shift; fi
case "${1:-}" in "" | -*) usage ;; esac
mkdir -p "$1"
folder=$(realpath "$1")
shift
[ $# -gt 0 ] || set -- wheel tarball package notes sums
version=$(deploy/version.sh)

proved() { ! $check || "$@" >&2; }
materials() {  # materials BUILD PRODUCT [SUFFIX]
  deploy/sbom.py "build/$1/server/diffserve" "$folder/$2-$version${3:-}.cdx.json"
}
image() {  # image TARGET SUFFIX
  local builder name tag
  for name in ${BUILDER:-docker podman buildah}; do
    if command -v "$name" >/dev/null; then builder=$name; break; fi
  done
  tag=$(deploy/image.sh "$1" | tail -n 1)
  if [ "${builder:?}" = buildah ]; then
    buildah push -q "$tag" "docker-archive:$folder/image.tar:$tag"
  else
    "$builder" save --output "$folder/image.tar" "$tag"
  fi
  gzip --best --no-name <"$folder/image.tar" >"$folder/diffserve-$version-image$2.tar.gz"
  rm "$folder/image.tar"
}

for part; do
  case $part in
    wheel)
      deploy/wheel.sh "$folder"
      materials release diffserve
      proved deploy/portable_check.sh wheel
      ;;
    tarball)
      deploy/tarball.sh "$folder"
      materials release diffserve
      proved deploy/portable_check.sh tarball
      ;;
    package)
      deploy/package.sh "$folder"
      proved deploy/package_check.sh
      ;;
    wheel_arm64)
      deploy/wheel.sh arm64 "$folder"
      materials arm64 diffserve -aarch64
      proved deploy/portable_check.sh --once wheel arm64
      ;;
    tarball_arm64)
      deploy/tarball.sh arm64 "$folder"
      materials arm64 diffserve -aarch64
      proved deploy/portable_check.sh --once tarball arm64
      ;;
    wheel_cuda)
      deploy/wheel.sh cuda "$folder"
      materials cuda-package diffserve_cuda
      proved deploy/portable_check.sh wheel cuda
      ;;
    tarball_cuda)
      deploy/tarball.sh cuda "$folder"
      materials cuda-package diffserve_cuda
      proved deploy/portable_check.sh tarball cuda
      ;;
    image)
      image cpu ""
      proved deploy/image_check.sh
      ;;
    image_cuda)
      image cuda -cuda
      proved deploy/image_check.sh cuda
      ;;
    notes)
      awk -v heading="## [$(deploy/version.sh --release)]" \
        'index($0, "## [") == 1 { within = index($0, heading) == 1; next } within' CHANGELOG.md \
        >"$folder/NOTES.md"
      [ -s "$folder/NOTES.md" ] ||
        { echo "deploy/make_release.sh: CHANGELOG.md has no part for $version" >&2; exit 1; }
      ;;
    sums) (cd "$folder" && rm -f SHA256SUMS && sha256sum -- * >SHA256SUMS) ;;
    *) usage ;;
  esac
done
ls -l "$folder"
