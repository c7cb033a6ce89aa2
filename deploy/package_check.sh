#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian package in a bare Debian 12 whose own systemd is started in namespaces, runs
# the unit there, and purges it again. Needs root, namespaces and cgroup v2; about 3 minutes after
# the build. Ends with "N passed, N failed".
#   deploy/package_check.sh [FILE.deb]   by default the package that deploy/package.sh builds
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/checks.sh
case "${1:-}" in -*) sed -n '3,5p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;; esac
[ $# -le 1 ] || { echo "usage: deploy/package_check.sh [FILE.deb]" >&2; exit 2; }

need debootstrap iproute2 curl jq lintian systemd
work=$(mktemp -d)
tree=$work/tree
group=""
boot=""
init=""
clean_up() {
  [ -n "$boot" ] && kill -KILL "$(first_child "$boot")" 2>/dev/null && wait "$boot" 2>/dev/null
  # Groups go from the leaves up, once the kernel has released their processes.
  for _ in $(seq 50); do
    [ -d "$group" ] || break
    find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
    sleep 0.1
  done
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT

deb=${1:-$(deploy/package.sh "$work")} || exit 1
deb=$(echo "$deb" | tail -n 1)
expect "the package is there: $(basename "$deb"), $(stat -c %s "$deb") bytes" yes \
  "$([ -s "$deb" ] && echo yes)"
size_is_documented "$deb"

# ---- The package as a file
expect "depends on what its binary needs, by dpkg-shlibdeps" "libc6 libgrpc++1.51 libssl3" \
  "$(dpkg-deb -f "$deb" Depends | tr ',' '\n' | awk '{ print $1 }' | grep -xE \
    'libc6|libgrpc\+\+1.51|libssl3' | sort | xargs)"
# Not a part of Debian: its changes are in CHANGELOG.md, and the tree names no licence.
expect "lintian finds no other error" "" "$(lintian --fail-on none --allow-root \
  --tags-from-profile debian/main "$deb" 2>&1 |
  grep '^E:' | grep -vE 'no-changelog|no-copyright-file')"

# ---- The unit as a file
dpkg-deb -x "$deb" "$work/files"
unit=$(find "$work/files" -name diffserve.service)
setting() { sed -n "s/^$1=//p" "$unit"; }
of_config() { jq -r "$1" "$work/files/etc/diffserve/config.json"; }
exposure=$(systemd-analyze security --offline=true --threshold=20 "$unit" 2>&1)
expect "systemd-analyze security: $(grep -o 'exposure level.*: [0-9.]*' <<<"$exposure" | grep -o \
  '[0-9.]*$'), at most 2.0" 0 \
  "$(systemd-analyze security --offline=true --threshold=20 "$unit" >/dev/null 2>&1; echo $?)"
drain=$(of_config .drain_timeout)
expect "the drain of $drain s ends before systemd's $(setting TimeoutStopSec) s" yes \
  "$([ "$(setting TimeoutStopSec)" -ge $((drain + 20)) ] && echo yes)"

# ---- A bare Debian, as it starts
debian_tree "$tree" || exit 1
cp "$deb" "$tree/diffserve.deb"
inside() {  # inside COMMAND...: in the tree, before it runs
  unshare --mount bash -c \
    'mount --rbind /dev "$0/dev" && mount -t proc proc "$0/proc" &&
      cp /etc/resolv.conf "$0/etc/" 2>/dev/null
    exec chroot "$0" env DEBIAN_FRONTEND=noninteractive LANG=C "$@"' "$tree" "$@"
}
# Once it runs it has no network: what the package depends on is there before.
inside sh -c 'apt-get update -q && apt-get install -y -q --no-install-recommends systemd &&
  apt-get install -y -q --no-install-recommends --download-only /diffserve.deb' >"$work/apt.log" \
    2>&1 || { tail "$work/apt.log"; exit 1; }

start_systemd() {
  local cgroups=/sys/fs/cgroup
  if [ -d $cgroups/unified ]; then cgroups=$cgroups/unified; fi
  group=$cgroups/diffserve-check.$$
  mkdir "$group" || exit 1
  # shellcheck disable=SC2016
  (echo $BASHPID >"$group/cgroup.procs"
    exec unshare --mount --pid --fork --kill-child --net --uts --ipc --cgroup bash -c '
      set -e
      mount --make-rprivate /
      mount --bind "$0" "$0"
      cd "$0"
      mount -t proc proc proc
      mount -t sysfs -o ro sysfs sys
      mount -t cgroup2 cgroup2 sys/fs/cgroup
      mount -t tmpfs -o mode=755 tmpfs dev
      cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty dev/
      mkdir dev/pts dev/shm
      mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
      ln -s pts/ptmx dev/ptmx
      ln -s /proc/self/fd dev/fd
      mount -t tmpfs tmpfs run
      ip link set lo up
      pivot_root . mnt
      umount -l /mnt
      mount --make-rshared /
      exec env -i container=check /lib/systemd/systemd --log-target=console' "$tree") \
        >"$work/boot.log" 2>&1 &
  boot=$!
  for _ in $(seq 300); do
    init=$(first_child "$boot")
    [ -n "$init" ] && [ "$(run systemctl is-system-running 2>/dev/null)" = running ] && break
    sleep 0.2
  done
}
run() { nsenter --all --target "$init" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C "$@"; }
property() { run systemctl show diffserve -p "$1" --value; }
eventually() {  # eventually COMMAND...: within a minute
  for _ in $(seq 300); do
    "$@" >/dev/null 2>&1 && return
    sleep 0.2
  done
  return 1
}
start_systemd
expect "systemd runs the bare system" running "$(run systemctl is-system-running 2>&1)"

# What packages and services leave behind; the rest are logs, caches and systemd's own notes.
state() {
  run dpkg-query -W -f '${Package} ${Status}\n'
  (cd "$tree" &&
    find etc usr var -printf '%p %y %m %l\n' | sort |
      grep -vE '^var/(log|cache/(apt|debconf|ldconfig|private )|lib/apt)' |
      grep -vE '^var/lib/systemd/(random-seed|timers)')
}
apt_get() { run env DEBIAN_FRONTEND=noninteractive apt-get -y -q "$@" >>"$work/apt.log" 2>&1; }
install_package() { apt_get install --no-install-recommends --reinstall /diffserve.deb; }
set_config() {  # set_config JQ_EXPRESSION
  jq "$1" "$work/files/etc/diffserve/config.json" >"$tree/etc/diffserve/config.json"
}
url=http://127.0.0.1:8000
is_ready() { run diffserve probe $url; }
has() { [ "$(property "$1")" = "$2" ]; }  # has PROPERTY VALUE
state >"$work/before.txt"

# ---- Installed
install_package
expect "apt-get install" 0 $?
expect "installing starts nothing" "inactive disabled" \
  "$(property ActiveState) $(property UnitFileState)"
expect "systemd-analyze verify finds nothing to say" "" \
  "$(run systemd-analyze verify diffserve.service 2>&1)"
version=$(dpkg-deb -f "$deb" Version)
expect "the binary is the package's version" "version: ${version/\~dev/.dev}" \
  "$(run diffserve --version | head -n 1)"

expect "the licence and those of the libraries are installed" \
  "CHANGELOG.md LICENSE NOTICE README.md THIRD_PARTY.md copyright docs third_party_licences.txt" \
  "$(run ls /usr/share/doc/diffserve | sed 's/\.gz$//' | LC_ALL=C sort | xargs)"

# ---- Run
run systemctl enable --now diffserve 2>/dev/null
eventually is_ready
expect "enabled and started, it is ready" 0 $?
pid=$(run systemctl show diffserve -p MainPID --value)
in_process() { run awk -v name="$1:" '$1 == name { print $2 }' "/proc/$pid/status"; }
expect "a dynamic user" yes \
  "$([ "$(in_process Uid)" -ge 61184 ] && [ "$(in_process Uid)" -le 65519 ] && echo yes)"
expect "capabilities" "0000000000000000 0000000000000000" \
  "$(in_process CapPrm) $(in_process CapBnd)"
expect "no new privileges, a filter of system calls" "1 2" \
  "$(in_process NoNewPrivs) $(in_process Seccomp)"
matches "its root is read-only" '^ro(,|$)' \
  "$(run awk '$5 == "/" { print $6 }' "/proc/$pid/mountinfo" | tail -n 1)"
expect "it sees no devices but the harmless ones" "" \
  "$(run ls "/proc/$pid/root/dev" | grep -E '^(sd|vd|nvme|mem|kmsg|nvidia)')"
body=$(chat_body demo)
curl_inside() { nsenter --net -t "$init" curl -sS --max-time 60 "$@"; }
ask() { curl_inside -H 'Content-Type: application/json' "$@" -d "$body" \
  $url/v1/chat/completions; }
matches "it answers" 48213 "$(ask 2>&1)"
matches "it logs into the journal" 'ready http=127.0.0.1:8000' \
  "$(run journalctl --no-pager -u diffserve)"

run systemctl kill --signal=KILL diffserve
eventually has NRestarts 1 && eventually is_ready
expect "killed, it is started again and ready" 0 $?
run systemctl stop diffserve
expect "stopped by SIGTERM: exit code and result" "0 success" \
  "$(property ExecMainStatus) $(property Result)"

# ---- The prefix cache on disk
set_config '.kv_cache_dir = "/var/cache/diffserve"'
run systemctl start diffserve
eventually is_ready
expect "with kv_cache_dir it answers" "48213 computed" "$(ask | in_short)"
has_pages() { curl_inside $url/metrics | grep -qE '^diffserve_kv_tier_pages [1-9]'; }
eventually has_pages
run systemctl kill --signal=KILL diffserve
eventually has NRestarts 1 && eventually is_ready
expect "killed, it takes pages of the prompt from disk" "48213 cached" "$(ask | in_short)"
run systemctl restart diffserve
eventually is_ready
expect "restarted, too" "48213 cached" "$(ask | in_short)"
expect "only root and the server's user can enter the directory" "700 700" \
  "$(run stat -c %a /var/cache/private /var/cache/private/diffserve | xargs)"
run systemctl stop diffserve

# ---- Settings
with_drop_in() {  # with_drop_in LINE...: restarted with them, as `systemctl edit` writes them
  mkdir -p "$tree/etc/systemd/system/diffserve.service.d"
  printf '%s\n' '[Service]' "$@" >"$tree/etc/systemd/system/diffserve.service.d/override.conf"
  run systemctl daemon-reload
  run systemctl restart diffserve
}
socket=/run/diffserve/http.sock
set_config ".unix_socket = \"$socket\" | .grpc = false"
with_drop_in User=daemon
eventually run diffserve probe unix:$socket
expect "a Unix socket in the unit's folder: ready" 0 $?
expect "its user alone may connect" "daemon 600" "$(run stat -c '%U %a' $socket)"
set_config .
with_drop_in PrivateDevices=no 'DeviceAllow=char-nvidia* rw' SystemCallFilter=@resources
eventually is_ready
expect "the lines for a GPU: ready" 0 $?
set_config '.log_format = "json"'
with_drop_in Environment=HF_HOME=/var/cache/diffserve/hub IPAddressAllow=any
eventually is_ready
expect "the log as JSON" serving "$(run journalctl --no-pager -o cat -u diffserve |
  jq -Rr 'fromjson? | .event' | grep -m 1 serving)"
rm "$tree/etc/systemd/system/diffserve.service.d/override.conf"
run systemctl daemon-reload
run systemctl stop diffserve

set_config '.port = 99999'
run systemctl start diffserve
eventually has ActiveState failed
expect "a wrong setting: exit code 2, and no second try" "2 0" \
  "$(property ExecMainStatus) $(property NRestarts)"
nsenter --net -t "$init" ip address add 192.0.2.1/32 dev lo
(umask 077 && echo secret-key >"$tree/etc/diffserve/keys")
set_config '.host = "192.0.2.1" | .port = 8002
  | .api_key_file = "/run/credentials/diffserve.service/keys"'
url=http://192.0.2.1:8002
with_drop_in LoadCredential=keys:/etc/diffserve/keys
logged() { run journalctl --no-pager -u diffserve | grep -q "ready http=192.0.2.1:8002"; }
eventually logged
expect "a key file that root alone can read: taken" 0 $?
run diffserve probe $url 2>/dev/null
expect "another address than the loopback's: closed" 1 $?
with_drop_in LoadCredential=keys:/etc/diffserve/keys IPAddressAllow=192.0.2.1
eventually is_ready
expect "opened by IPAddressAllow: ready" 0 $?
status_code() { ask -o /dev/null -w '%{http_code}' "$@"; }
expect "without a key, and with it" "401 200" "$(status_code) $(status_code -H \
  'Authorization: Bearer secret-key')"

# ---- Upgraded, removed, purged
pid=$(property MainPID)
install_package
eventually is_ready
expect "a new package restarts the server and keeps the settings" "yes 8002" \
  "$([ "$(property MainPID)" != "$pid" ] && is_ready && echo yes) $(jq .port \
    "$tree/etc/diffserve/config.json")"
pid=$(property MainPID)
apt_get remove diffserve
run test -e "/proc/$pid"
expect "removed: no process, no unit, the settings stay" "1 not-found 8002" \
  "$? $(property LoadState) $(jq .port "$tree/etc/diffserve/config.json")"
apt_get purge diffserve
rm -f "$tree/etc/diffserve/keys"
rmdir "$tree/etc/diffserve" 2>/dev/null  # dpkg leaves a folder with files of the administrator
apt_get autoremove --purge
state >"$work/after.txt"
expect "purged: packages and files are as they were" "" \
  "$(diff "$work/before.txt" "$work/after.txt")"
finish
