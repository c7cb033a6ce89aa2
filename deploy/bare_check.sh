#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a newcomer types, deploy/quickstart.sh and tests/run.sh, in a bare Debian 12: from a clone,
# with empty caches, and with nothing but what the two install. Needs root, namespaces and a
# network; about 13 minutes. Ends with "N passed, N failed".
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/checks.sh

need debootstrap
work=$(mktemp -d)
trap 'rm -rf --one-file-system "$work"' EXIT
system=$work/system
debian_tree "$system" || exit 1
cp /etc/resolv.conf /etc/hosts "$system/etc/"
git -c safe.directory='*' clone --quiet . "$system/root/diffserve" || exit 1

# Runs a command in the clone, in namespaces that end with it. The network is the host's, the
# environment is empty.
in_system() {  # in_system COMMAND...
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child bash -c '
    set -e
    mount --make-rprivate /
    mount -t proc proc "$0/proc"
    mount --rbind /sys "$0/sys"
    mount --rbind /dev "$0/dev"
    exec chroot "$0" env -i HOME=/root LANG=C.UTF-8 \
      PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      bash -c "cd /root/diffserve && \"\$@\"" bash "$@"' "$system" "$@"
}

try() {  # try COMMAND...
  local began=$SECONDS code
  in_system "$@" >"$work/log" 2>&1
  code=$?
  [ $code -eq 0 ] || { grep -aE '^(failed:|\[  FAILED|== .* [1-9][0-9]* failed)' "$work/log"
    tail -n 40 "$work/log"; }
  expect "$* in $((SECONDS - began)) s: $(tail -n 1 "$work/log")" 0 $code
}
try deploy/quickstart.sh --check
try tests/run.sh
finish
