#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints each shared library that the files load, those of libraries included, with its Debian
# package: lines "LIBRARY PACKAGE VERSION". A library that is missing, or that no package has, is an
# error.
#   deploy/libraries.sh FILE...   programs or shared libraries; one for 64-bit ARM on another
#                                 machine has the libraries of deploy/arm64_sysroot.sh
set -euo pipefail
export LC_ALL=C
[ $# -ge 1 ] || { sed -n '3,7p' "$0" | sed 's/^# //' >&2; exit 2; }

if [ "$(uname -m)" != aarch64 ] && readelf -h "$1" | grep -q 'Machine: *AArch64'; then
  root=$(realpath "$(dirname "$0")/../build/arm64-root")
  needed=$(for file in "$@"; do
    qemu-aarch64-static -L "$root" "$root/lib/ld-linux-aarch64.so.1" --list "$file"
  done)
  if grep 'not found' <<<"$needed" >&2; then exit 1; fi
  grep -oE '/[^ ]+ \(0x' <<<"$needed" | cut -d ' ' -f 1 | sort -u | while read -r library; do
    library=$root${library#"$root"}
    file=$(realpath "$library")
    of=$(awk -v file="${file#"$root"}" \
      'BEGIN { sub("^/usr", "", file) } $1 == file { print $2, $3; exit }' "$root/.libraries")
    [ -n "$of" ] || { echo "deploy/libraries.sh: no package has $file" >&2; exit 1; }
    echo "$library $of"
  done
  exit
fi

needed=$(ldd "$@")
if grep 'not found' <<<"$needed" >&2; then exit 1; fi
mapfile -t libraries < <(grep -oE '/[^ ]+ \(0x' <<<"$needed" | cut -d ' ' -f 1 | sort -u)
mapfile -t files < <(realpath "${libraries[@]}")

# dpkg knows a file under /usr/lib, or under /lib, which is a link to it.
declare -A package_of version_of
while read -r package file; do
  package_of[${file#/usr}]=${package%%:*}
done < <(dpkg-query --search "${files[@]}" "${files[@]#/usr}" 2>/dev/null)
while read -r package version; do
  version_of[$package]=$version
done < <(dpkg-query -W -f '${Package} ${Version}\n' "${package_of[@]}")

for i in "${!libraries[@]}"; do
  package=${package_of[${files[i]#/usr}]:-}
  [ -n "$package" ] || { echo "deploy/libraries.sh: no package has ${files[i]}" >&2; exit 1; }
  echo "${libraries[i]} $package ${version_of[$package]}"
done
