#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder that holds usr/bin/diffserve a whole root file system, from the Debian that this
# runs in: shared libraries, CA certificates, accounts, and each library's package entry and
# licence. Part of deploy/Dockerfile.
#   deploy/image_root.sh ROOT [LIBRARY...]   LIBRARY: what the binary opens by itself, to be found
#                                            beside the other libraries
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
[ $# -ge 1 ] &&
  [ -x "$1/usr/bin/diffserve" ] ||
    { echo "usage: deploy/image_root.sh ROOT [LIBRARY...]" >&2; exit 2; }
root=$(realpath "$1")
shift
libraries=usr/lib/x86_64-linux-gnu

install -d "$root/$libraries" "$root/usr/lib64" \
  "$root"/{etc/ssl/certs,var/lib/dpkg/status.d,dev,proc,run,sys}
install -d -m 1777 "$root/tmp" "$root/var/tmp"
# A volume that is mounted here takes over owner and mode: the server's user may write to it.
install -d -m 700 -o 10001 -g 10001 "$root/var/cache/diffserve"
ln -sfn usr/bin "$root/bin"
ln -sfn usr/lib "$root/lib"
ln -sfn usr/lib64 "$root/lib64"

# The version and licence of a package, as Debian has them.
describe() {  # describe PACKAGE
  dpkg-query --status "$1" >"$root/var/lib/dpkg/status.d/$1"
  install -D -m 644 "/usr/share/doc/$1/copyright" "$root/usr/share/doc/$1/copyright"
}

for library in "$@"; do cp -L "$library" "$root/$libraries/"; done
deploy/libraries.sh "$root/usr/bin/diffserve" "$@" | while read -r library package _; do
  case $library in
    /lib64/*) cp -L "$library" "$root/usr/lib64/" ;;
    *) cp -L "$library" "$root/$libraries/" ;;
  esac
  describe "$package"
done

# Debian's own certificates, without others that the build trusts.
sed -n 's|^\([^!#].*\)|/usr/share/ca-certificates/\1|p' /etc/ca-certificates.conf | sort |
  xargs sed -s '$a\' \
  >"$root/etc/ssl/certs/ca-certificates.crt"
describe ca-certificates
# What libedit reads: the letters of UTF-8, and the keys of terminals.
install -d "$root/usr/lib/locale"
cp -RL /usr/lib/locale/C.utf8 "$root/usr/lib/locale/"
cp -RL /lib/terminfo "$root/usr/lib/"
describe libc-bin
describe ncurses-base
describe base-files
cp -L /etc/os-release /etc/debian_version "$root/etc/"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
printf '%s\n' 'root:x:0:0:root:/:/usr/sbin/nologin' \
  'diffserve:x:10001:10001:diffserve:/:/usr/sbin/nologin' >"$root/etc/passwd"
printf '%s\n' 'root:x:0:' 'diffserve:x:10001:' >"$root/etc/group"

find "$root" -exec touch --no-dereference --date="@${SOURCE_DATE_EPOCH:-0}" {} +
