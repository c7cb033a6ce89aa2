# SPDX-License-Identifier: Apache-2.0
# What the check scripts of this folder share, to be sourced: counted checks, tools, a bare Debian
# tree, the wait for a server.
passed=0
failed=0

expect() {  # expect WHAT EXPECTED FOUND: the two are equal
  if [ "$2" = "$3" ]; then
    passed=$((passed + 1))
    echo "ok   $1"
  else
    failed=$((failed + 1))
    echo "FAIL $1: found ${3:-nothing}, expected ${2:-nothing}"
  fi
}

matches() {  # matches WHAT REGEX FOUND: a line of it matches
  if grep -qE -- "$2" <<<"$3"; then expect "$1" yes yes; else expect "$1" "$2" "$3"; fi
}

finish() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
}

need() {  # need PACKAGE...: installs those that are missing
  local package missing=()
  [ "$(id -u)" -eq 0 ] || { echo "$0: must run as root" >&2; exit 1; }
  for package in "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  apt-get update -q >&2
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >&2
}

# Debian 12's smallest system in a folder, with this machine's package sources and its settings for
# reaching registries. DEBIAN_TREE, if set, is such a tree from before, to be copied.
debian_tree() {  # debian_tree FOLDER
  local mirror file
  if [ -n "${DEBIAN_TREE:-}" ]; then cp -a "$DEBIAN_TREE" "$1"; return; fi
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk \
    '$2 == "bookworm" { print $1; exit }')
  if ! debootstrap --variant=minbase bookworm "$1" "${mirror:-http://deb.debian.org/debian}" \
    >"$1.log" 2>&1; then
    tail -n 5 "$1.log" >&2
    return 1
  fi
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/pip.conf \
    /root/.cargo/config.toml; do
    if [ -e "$file" ]; then install -D -m 644 "$file" "$1$file"; else rm -f "$1$file"; fi
  done
  if [ -e /etc/ssl/certs/ca-certificates.crt ]; then
    install -D -m 644 /etc/ssl/certs/ca-certificates.crt \
      "$1/usr/local/share/ca-certificates/host.crt"
  fi
  rm -rf "$1"/var/cache/apt/archives/*.deb "$1"/var/lib/apt/lists/*
}

first_child() { pgrep -o -P "$1"; }

# The first value of a field of /proc/PID/status.
status_of() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$1/status"; }  # status_of PID NAME
