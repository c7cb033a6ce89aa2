#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the image twice and proves it on a Debian 12 machine without an image registry: a base by
# debootstrap, a build by buildah in chroots. Started twice over: by `buildah run`, and as a
# container runtime would do it (namespaces of its own, process 1, the root read-only, no
# capability, no new privileges). Needs root and 6 GB; about 15 minutes. Ends with "N passed, N
# failed".
#   deploy/image_check.sh [--once] [cpu|cuda|wheel|wheel-cuda]
#                     --once leaves out the second build, and so the check of equal files; a wheel
#                     has the files of deploy/wheel.sh's, and its program runs
# WORK names a folder to keep, with the build's caches; by default a temporary one.
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/checks.sh

twice=true
target=cpu
for argument in "$@"; do
  case "$argument" in
    --once) twice=false ;;
    cpu | cuda | wheel | wheel-cuda) target=$argument ;;
    *) sed -n '3,10p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
  esac
done

deploy/install_deps.sh --test >&2 || exit 1
need debootstrap buildah iproute2 jq libcap2-bin
work=${WORK:-$(mktemp -d)}
server=""
clean_up() {
  [ -n "$server" ] && kill -KILL "$(first_child "$server")" 2>/dev/null
  buildah rm --all >/dev/null 2>&1
  if [ -z "${WORK:-}" ]; then
    buildah rmi --all --force >/dev/null 2>&1
    rm -rf --one-file-system "$work"
  fi
}
mkdir -p "$work/tmp"
printf '[storage]\ndriver = "vfs"\ngraphroot = "%s"\nrunroot = "%s"\n' "$work/storage" "$work/run" \
  >"$work/storage.conf"
export CONTAINERS_STORAGE_CONF=$work/storage.conf BUILDAH_ISOLATION=chroot BUILDER=buildah \
  TMPDIR=$work/tmp
trap clean_up EXIT

# ---- Build
base=localhost/bare-debian
if ! buildah inspect --type image $base >/dev/null 2>&1; then
  debian_tree "$work/base" || exit 1
  container=$(buildah from scratch)
  buildah add -q "$container" "$work/base" / >/dev/null &&
    buildah commit -q "$container" $base >/dev/null || exit 1
  buildah rm "$container" >/dev/null
  rm -rf "$work/base"
fi

build() {  # build LOG OPTION...: prints the image's name
  local log=$1
  shift
  deploy/image.sh "$target" --build-arg BASE=$base "$@" >"$log" 2>&1 ||
    { tail -n 30 "$log" >&2; return 1; }
  tail -n 1 "$log"
}

at=$SECONDS
image=$(build "$work/build.log") || { expect "the image is built" yes no; finish; exit 1; }
expect "the image is built ($image, $((SECONDS - at)) s)" yes yes
if [[ $target = wheel* ]]; then
  own=("$work/own")
  [ "$target" = wheel ] || own=(cuda "${own[@]}")
  deploy/wheel.sh "${own[@]}" >"$work/own.log" 2>&1 || tail -n 30 "$work/own.log" >&2
  # Libraries and Rust are those of the base, so bytes may differ from a wheel that is built here.
  names() { python3 -m zipfile -l "$1" | awk 'NR > 1 { print $1 }' | sort; }
  expect "$image has the files of deploy/wheel.sh's" "$(names "$work/own/${image##*/}")" \
    "$(names "$image")"
  python3 -m zipfile -e "$image" "$work/wheel"
  chmod +x "$work/wheel/diffserve/bin/diffserve"
  matches "its program runs, of this commit" "^commit: $(git rev-parse --short=12 HEAD)$" \
    "$("$work/wheel/diffserve/bin/diffserve" --version)"
  finish
  exit
fi
container=$(buildah from "localhost/$image")
root=$(buildah mount "$container")

# Every file with what belongs to it: mode, owner, time, link, content.
listing() {  # listing ROOT
  (cd "$1" && find . -mindepth 1 -printf '%P %y %M %U:%G %T@ %l\n' | sort &&
    find . -type f -print0 | sort -z | xargs -0 sha256sum)
}
layers() { buildah inspect --type image "localhost/$1" | jq -r '.OCIv1.rootfs.diff_ids[]'; }
listing "$root" >"$work/first.txt"
layers "$image" >"$work/first_layers.txt"

# ---- What is inside
programs=$(cd "$root" && find . -type f -perm /111 ! -name '*.so.*' | sort)
expect "the only program is diffserve: no shell, compiler, interpreter, package tool" \
  ./usr/bin/diffserve "$programs"
expect "no set-id file" "" "$(find "$root" -type f -perm /6000)"
expect "no file with capabilities" "" "$(getcap -r "$root" 2>/dev/null)"
expect "nothing that all may write but the folders for temporary files" "tmp var/tmp" \
  "$(cd "$root" && find . ! -type l -perm /022 -printf '%P\n' | sort | xargs)"
linked=$(cd "$root" && for object in usr/bin/diffserve $(find . -name 'libcublas*.so.*'); do
  chroot . /usr/lib64/ld-linux-x86-64.so.2 --list "/$object"
done 2>&1)
expect "no library is missing" 0 "$(grep -c 'not found' <<<"$linked")"
matches "the libraries are looked up in the image" 'libgrpc\+\+\.so\.[0-9.]+ => /lib' "$linked"
packages=$(grep -l '^Version: ' "$root"/var/lib/dpkg/status.d/* | xargs -n 1 basename)
for name in libc6 libssl3 'libgrpc\+\+1.51' libedit2 libcurl4 ncurses-base ca-certificates; do
  matches "its packages are listed: $name" "^$name$" "$packages"
done
certificates=$(grep -c BEGIN "$root/etc/ssl/certs/ca-certificates.crt")
expect "CA certificates ($certificates)" yes "$([ "$certificates" -gt 100 ] && echo yes)"

# ---- What it says
config=$(buildah inspect --type image "localhost/$image" | jq .Docker.config)
of_config() { jq -c "$1" <<<"$config"; }
expect "user" '"10001:10001"' "$(of_config .User)"
expect "stop signal" '"SIGTERM"' "$(of_config .StopSignal)"
expect "entry point" '["diffserve"]' "$(of_config .Entrypoint)"
matches "health check by diffserve probe, without a shell" '^\["CMD","diffserve","probe",' \
  "$(of_config .Healthcheck.Test)"
mapfile -t health < <(of_config .Healthcheck.Test | jq -r '.[1:][]')
mapfile -t command < <(of_config '.Entrypoint + .Cmd' | jq -r '.[]')
environment=$(of_config '.Env | join(" ")' | jq -r .)  # no value has a space
expect "environment: where it listens, and where models by name are kept" \
  "PATH=/usr/bin DIFFSERVE_HOST=0.0.0.0 HF_HOME=/var/cache/diffserve/hub" "$environment"

about=$(buildah run "$container" -- diffserve --version)
said() { sed -n "s/^$1: //p" <<<"$about"; }
expect "label of the version" "$(said version)" \
  "$(of_config '.Labels["org.opencontainers.image.version"]' | jq -r .)"
expect "label of the commit" "$(said commit)" "$(of_config \
  '.Labels["org.opencontainers.image.revision"]' | jq -r .)"
expect "the commit is this checkout's" "$(git rev-parse --short=12 HEAD)" "$(said commit)"
expect "backends" "$([ "$target" = cuda ] && echo 'cpu, cuda' || echo cpu)" "$(said backends)"

# ---- What it does
started=""  # seconds from the start to the ready line
pid=""      # of the server, as this shell sees it

with_buildah() { exec unshare --net bash -c 'ip link set lo up && exec buildah run "$@"' bash \
  "$container" -- "$@"; }

# A container as a runtime makes it: the server is process 1 of its namespaces, and can write
# nowhere.
contained() {  # contained ARGUMENT...
  # shellcheck disable=SC2016
  exec unshare --mount --pid --net --ipc --uts --fork --kill-child bash -c '
    set -e
    root=$1 model=$2 volume=$3 environment=$4 capsh=$(command -v capsh)
    shift 4
    mount --make-rprivate /
    mount --bind "$root" "$root"
    mount -o remount,bind,ro "$root"
    mount -t proc proc "$root/proc"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    cp -a /dev/null /dev/urandom "$root/dev/"
    if [ -n "$model" ]; then
      mount --bind "$model" "$root/model" && mount -o remount,bind,ro "$root/model"
    fi
    if [ -n "$volume" ]; then mount --bind "$volume" "$root/var/cache/diffserve"; fi
    ip link set lo up
    exec env -i $environment "$capsh" --no-new-privs --chroot="$root" --drop=all --groups= \
      --gid=10001 --uid=10001 \
      --shell=/usr/bin/diffserve -- "$@"' bash "$root" "${model:-}" "${volume:-}" \
    "$environment" "$@"
}

curl_inside() { nsenter --net -t "$pid" curl -sS --max-time 60 "$@"; }
chat() {  # chat MODEL
  curl_inside -H 'Content-Type: application/json' -d "$(chat_body "$1")" \
    http://127.0.0.1:8000/v1/chat/completions
}

# asks NAME MODEL: one question each over HTTP and gRPC, and the health check, in the server's
# namespaces
asks() {
  local answer
  answer=$(chat "$2" | jq -r '.choices[0].message.content' 2>&1)
  matches "$1: answers over HTTP" 48213 "$answer"
  answer=$(nsenter --net -t "$pid" env PYTHONPATH=tests/e2e .venv/bin/python -c '
import sys, grpc
from grpc_client import collect, pb, pb_grpc
message = pb.ChatMessage(role="user", content=sys.argv[1])
request = pb.GenerateRequest(chat=pb.Chat(messages=[message]),
                             stopping=pb.StoppingParams(max_tokens=40),
                             sampling=pb.SamplingParams(temperature=0))
stub = pb_grpc.InferenceStub(grpc.insecure_channel("127.0.0.1:8001"))
print(collect(stub.Generate(request)).text[0])' "$question" 2>&1)
  matches "$1: answers over gRPC" 48213 "$answer"
  env -i PATH=/usr/bin "$(command -v nsenter)" --net --root --wd --setuid 10001 --setgid 10001 -t \
    "$pid" "${health[@]}" >/dev/null 2>&1
  expect "$1: exit code of the health check" 0 $?
}

start with_buildah "${command[@]}"
for candidate in $(pgrep -x diffserve); do
  if [ "$(readlink "/proc/$candidate/ns/net")" = "$(readlink "/proc/$server/ns/net")" ]; then
    pid=$candidate
  fi
done
expect "buildah run: ready" "ready http=0.0.0.0:8000 grpc=0.0.0.0:8001 model=demo" "$line"
expect "buildah run: user and group" "10001 10001" "$(status_of "$pid" Uid) $(status_of "$pid" Gid)"
asks "buildah run" demo
stop
expect "buildah run: exit code after SIGTERM" 0 "$code"

times=()
for _ in 1 2 3 4 5; do
  start contained "${command[@]:1}"
  pid=$(first_child "$server")
  times+=("$started")
  [ ${#times[@]} -eq 5 ] || stop
done
expect "contained: ready ($(printf '%s\n' "${times[@]}" | sort -n | \
  xargs) s after the start, namespaces included)" \
  "ready http=0.0.0.0:8000 grpc=0.0.0.0:8001 model=demo" "$line"
expect "contained: process" 1 "$(awk '$1 == "NSpid:" { print $NF }' "/proc/$pid/status")"
expect "contained: user, group, no others" "10001 10001 " \
  "$(status_of "$pid" Uid) $(status_of "$pid" Gid) $(status_of "$pid" Groups)"
expect "contained: capabilities" "0000000000000000 0000000000000000 0000000000000000" \
  "$(status_of "$pid" CapPrm) $(status_of "$pid" CapEff) $(status_of "$pid" CapBnd)"
expect "contained: no new privileges" 1 "$(status_of "$pid" NoNewPrivs)"
asks contained demo
stop
expect "contained: exit code after SIGTERM" 0 "$code"
refusal=$( (contained convert /usr/share/diffserve/models/demo /tmp/copy) 2>&1)
expect "contained: writing fails" 1 $?
matches "contained: for the root is read-only" "Read-only file system" "$refusal"

mkdir "$root/model"
model=$PWD/models/demo/twin
start contained serve /model --served-model-name mounted
pid=$(first_child "$server")
expect "a mounted model: ready" "ready http=0.0.0.0:8000 grpc=0.0.0.0:8001 model=mounted" "$line"
asks "a mounted model" mounted
stop
expect "a mounted model: exit code after SIGTERM" 0 "$code"

# A new named volume begins as a copy of the image's directory, with its owner and mode.
model=""
volume=$work/volume
rm -rf "$volume" && cp -a "$root/var/cache/diffserve" "$volume"
cached_server() {
  start contained serve /usr/share/diffserve/models/demo --kv-cache-dir /var/cache/diffserve
  pid=$(first_child "$server")
}
cached_server
expect "the prefix cache in a volume: it answers" "48213 computed" "$(chat demo | in_short)"
for _ in $(seq 300); do
  curl_inside http://127.0.0.1:8000/metrics | grep -qE '^diffserve_kv_tier_pages [1-9]' && break
  sleep 0.1
done
kill -KILL "$pid" && wait "$server"
cached_server
expect "killed: tokens of the prompt come from the volume" "48213 cached" "$(chat demo | in_short)"
stop
cached_server
expect "restarted: too" "48213 cached" "$(chat demo | in_short)"
stop

# ---- How large
buildah push -q "localhost/$image" "oci:$work/oci:$target" >/dev/null 2>&1
manifest=$(jq -r '.manifests[0].digest' "$work/oci/index.json" | sed 's|:|/|')
mib() { awk -v bytes="$1" 'BEGIN { printf "%.1f MiB", bytes / 1048576 }'; }
compressed=$(jq '[.layers[].size] | add' "$work/oci/blobs/$manifest")
content=$(find "$root" -type f -printf '%s\n' | awk '{ n += $1 } END { print n }')
expect "size: $(mib "$content") of files, $(mib "$compressed") compressed" yes \
  "$([ "${compressed:-0}" -gt 0 ] && echo yes)"
rm -rf "$work/oci"

# ---- The same again
if $twice; then
  export TMPDIR=$work/tmp2  # the caches of a build are there: this one starts without any
  rm -rf "$TMPDIR" && mkdir "$TMPDIR"
  buildah rm --all >/dev/null
  at=$SECONDS
  if image=$(build "$work/build2.log" --no-cache); then
    container=$(buildah from "localhost/$image")
    listing "$(buildah mount "$container")" >"$work/second.txt"
    expect "a second build gives the same $(grep -c '^[0-9a-f]\{64\} ' \
      "$work/second.txt") files ($((SECONDS - at)) s)" "" \
      "$(diff "$work/first.txt" "$work/second.txt")"
    expect "and the same layers" "$(cat "$work/first_layers.txt")" "$(layers "$image")"
  else
    expect "a second build" yes no
  fi
fi
finish
