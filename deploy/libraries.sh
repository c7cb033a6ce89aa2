#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints each shared library that the files load, those of libraries included, with its Debian
# package: lines "LIBRARY PACKAGE VERSION". A library that is missing, or that no package has, is an
# error.
#   deploy/libraries.sh FILE...   programs or shared libraries
set -euo pipefail
export LC_ALL=C
[ $# -ge 1 ] || { sed -n '3,6p' "$0" | sed 's/^# //' >&2; exit 2; }

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
