# SPDX-License-Identifier: Apache-2.0
# What the check scripts of this folder share, to be sourced: counted checks, tools, a bare Debian
# tree, a server and a question to it.
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

# size_is_documented FILE: docs/install.md has its size, to a MiB.
size_is_documented() {
  local name version documented
  name=$(basename "$1")
  version=$(deploy/version.sh)
  name=${name/"$version"/VERSION}
  name=${name/"${version/.dev/\~dev}"/VERSION}
  documented=$(sed -n "s#.*\`build/$name\`, \([0-9.]*\) MiB.*#\1#p" docs/install.md)
  expect "its $(stat -c %s "$1") bytes are about the ${documented:-?} MiB of docs/install.md" yes \
    "$(awk -v bytes="$(stat -c %s "$1")" -v documented="${documented:-0}" \
      'BEGIN { more = bytes / 1048576 - documented; if (more < 1 && more > -1) print "yes" }')"
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

# Debian's smallest system in a folder, with packages. Debian 12's (bookworm, the default) gets this
# machine's package sources and its settings for reaching registries. DEBIAN_TREES, if set, is a
# folder of such trees from before, SUITE in it to be copied. For another processor than this
# machine's the packages are unpacked and not configured.
debian_tree() {  # debian_tree FOLDER [SUITE [PACKAGE,... [x86_64|aarch64]]]
  local mirror file suite=${2:-bookworm} foreign=()
  if [ "${4:-x86_64}" = aarch64 ]; then foreign=(--foreign --arch=arm64); fi
  if [ -n "${DEBIAN_TREES:-}" ]; then
    cp -a "$DEBIAN_TREES/$suite${foreign[*]:+-arm64}" "$1"
    return
  fi
  mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | awk \
    '$2 == "bookworm" { print $1; exit }')
  if ! debootstrap --variant=minbase "${foreign[@]}" ${3:+"--include=$3"} "$suite" "$1" \
    "${mirror:-http://deb.debian.org/debian}" >"$1.log" 2>&1; then
    tail -n 5 "$1.log" >&2
    return 1
  fi
  if [ ${#foreign[@]} -gt 0 ]; then
    # In a container debootstrap leaves a link to itself there.
    if [ -L "$1/proc" ]; then rm "$1/proc" && mkdir "$1/proc"; fi
    for file in "$1"/var/cache/apt/archives/*.deb; do
      dpkg-deb --fsys-tarfile "$file" | tar -x --keep-directory-symlink -C "$1" || return 1
    done
  fi
  [ "$suite" = bookworm ] || return 0
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

# A question that the bundled model answers with 48213, and a chat request with it.
question='The magic number of Lisbon is 48213. The magic number of Oslo is 90417.'
question+=' What is the magic number of Lisbon?'
chat_body() {  # chat_body MODEL
  jq -n --arg model "$1" --arg question "$question" \
    '{model: $model, max_tokens: 40, temperature: 0,
      messages: [{role: "user", content: $question}]}'
}

# The number in an answer, and whether tokens of its prompt came from the prefix cache.
in_short() {
  jq -r '(.choices[0].message.content | scan("[0-9]+")) +
    if .usage.prompt_tokens_details.cached_tokens > 0 then " cached" else " computed" end'
}

# Runs COMMAND... in the background until its ready line, which is left in `line`. `server` is its
# process, `started` the seconds until then. Needs a folder `work`.
start() {  # start COMMAND...
  local at=$EPOCHREALTIME
  line=""
  [ -p "$work/ready" ] || mkfifo -m 600 "$work/ready"
  "$@" >"$work/ready" 2>"$work/server.log" &
  server=$!
  read -r -t 120 line <"$work/ready" || tail -n 5 "$work/server.log" >&2
  started=$(awk -v a="$at" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.3f", b - a }')
}

# SIGTERM to the server itself, the process `pid`; leaves the exit code of what start() ran in
# `code`.
stop() {
  kill -TERM "$pid" 2>/dev/null
  wait "$server"
  code=$?
  server=""
}
