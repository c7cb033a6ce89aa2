#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheel or the tarball twice, looks into it, and uses it in a bare Debian 12 and a bare
# Debian 13 in namespaces: without a network, as a user who is not root. Needs root and namespaces;
# about 10 minutes, and with `cuda` half an hour more for each build of the kernels. Ends with
# "N passed, N failed".
#   deploy/portable_check.sh [--once] wheel|tarball [cuda|arm64]
#                                   --once leaves out the second build, from a clone elsewhere;
#                                   cuda: with the CUDA backend, for a machine without a driver. On
#                                   one with a GPU, deploy/gpu_check/run.py all --wheel FILE;
#                                   arm64: for 64-bit ARM, in systems of it under QEMU; the wheel
#                                   in Debian 12 only
set -uo pipefail
cd "$(dirname "$0")/.."
. deploy/checks.sh

twice=true
size_mib_max=30
kind=""
product=diffserve
backend=()
processor=x86_64
machine="Advanced Micro Devices X86-64"
for argument in "$@"; do
  case "$argument" in
    --once) twice=false ;;
    wheel | tarball) kind=$argument ;;
    cuda) backend=(cuda) product=diffserve_cuda size_mib_max=150 ;;
    arm64) backend=(arm64) processor=aarch64 machine=AArch64 ;;
    *) kind=""; break ;;
  esac
done
[ -n "$kind" ] || { sed -n '3,12p' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2; }
glibc=2.36

need binutils debootstrap iproute2 curl jq python3-venv
work=$(mktemp -d)
server=""
holder=""
leave() {
  [ -n "$holder" ] && kill -KILL "$(first_child "$holder")" && wait "$holder"
  holder=""
} 2>/dev/null
clean_up() {
  leave
  rm -rf --one-file-system "$work"
}
trap clean_up EXIT

# ---- The file
build() {  # build FOLDER: prints the path
  "deploy/$kind.sh" "${backend[@]}" "$1" >"$work/build.log" 2>&1 ||
    { tail -n 30 "$work/build.log" >&2; return 1; }
  tail -n 1 "$work/build.log"
}
file=$(build "$work/first") || { expect "the $kind is built" yes no; finish; exit 1; }
name=$(basename "$file")
expect "$name has $(stat -c %s "$file") bytes, at most $size_mib_max MiB" yes \
  "$([ "$(stat -c %s "$file")" -le $((size_mib_max << 20)) ] && echo yes)"
size_is_documented "$file"
if $twice; then
  git -c safe.directory='*' clone --quiet . "$work/clone" &&
    git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$work/clone"
  [ $product = diffserve ] || ln -s "$(realpath .cuda)" "$work/clone/.cuda"
  if [ $processor = aarch64 ]; then
    mkdir "$work/clone/build"
    ln -s "$PWD/build/arm64-root" "$work/clone/build/"
  fi
  again=$(cd "$work/clone" && build "$work/second")
  expect "a second build, elsewhere, gives the same bytes" "$(sha256sum <"$file")" \
    "$(sha256sum <"${again:-/dev/null}")"
  rm -rf "$work/clone"
fi

# ---- What is inside
if [ "$kind" = wheel ]; then
  python3 -m zipfile -e "$file" "$work/files"
  tree=$work/files/diffserve
  python3 -m venv "$work/audit" &&
    "$work/audit/bin/pip" install -q --disable-pip-version-check \
      -r deploy/python/audit_requirements.txt
  audit() { "$work/audit/bin/$1" "${@:2}" "$file" 2>&1 | tr '\n' ' '; }
  matches "auditwheel: it keeps to manylinux_${glibc/./_}" \
    "consistent with the following platform tag: \"manylinux_${glibc/./_}_$processor\"" \
    "$(audit auditwheel show)"
  matches "twine check" PASSED "$(audit twine check --strict)"
  # W002: several packages of Debian have the same copyright file.
  matches "check-wheel-contents" ': OK' "$(audit check-wheel-contents --ignore W002)"
fi
if [ "$kind $processor" = "wheel x86_64" ]; then
  python3 -m venv "$work/env" &&
    grep -E '^(numpy|matplotlib)==' tests/e2e/requirements.txt | xargs "$work/env/bin/pip" install \
      -q --disable-pip-version-check &&
    "$work/env/bin/pip" install -q --disable-pip-version-check --no-deps "$file"
  matches "docs/python.md is true of it" '^[1-9][0-9]* passed, 0 failed' \
    "$(env -u PYTHONPATH DIFFSERVE_BINARY="$work/env/bin/diffserve" "$work/env/bin/python" \
      docs/check_commands.py --installed docs/python.md 2>&1 | tail -n 1)"
elif [ "$kind" = tarball ]; then
  mkdir "$work/files"
  tar -xzf "$file" -C "$work/files"
  tree=$work/files/${name%.tar.gz}
fi
objects=("$tree/bin/diffserve" "$tree"/lib/*)
expect "each of its programs and libraries is for $processor, and no other file is one" \
  "${#objects[@]} $machine" \
  "$(find "$work/files" -type f -exec readelf --file-header {} + 2>/dev/null |
    sed -n 's/^ *Machine: *//p' | sort | uniq -c | xargs)"
needed=$(readelf --dynamic "${objects[@]}" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' | sort -u)
shipped=$(cd "$tree/lib" && printf '%s\n' * | sort -u)
if [ $processor = aarch64 ]; then
  of_glibc=$(awk '$2 == "libc6" { print $1 }' build/arm64-root/.libraries)
  # Kernels with pages of 64 KiB, as on many such servers, load nothing that is laid out for less.
  expect "its segments may be loaded into pages of 64 KiB" "" "$(readelf --segments --wide \
    "${objects[@]}" | awk '$1 == "LOAD" && length($NF) < length("0x10000")')"
else
  of_glibc=$(dpkg -L libc6)
fi
of_glibc=$(xargs -n 1 basename <<<"$of_glibc" | sort -u)
expect "nothing but glibc's libraries comes from outside" "" \
  "$(comm -23 <(comm -23 <(echo "$needed") <(echo "$shipped")) <(echo "$of_glibc") | xargs)"
expect "each of its $(wc -l <<<"$shipped") libraries is needed, and none is glibc's" "" \
  "$({ comm -13 <(echo "$needed") <(echo "$shipped")
    comm -12 <(echo "$shipped") <(echo "$of_glibc"); } | xargs)"
newest=$(readelf --version-info "${objects[@]}" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
expect "the newest symbols are of $newest, at most GLIBC_$glibc" "GLIBC_$glibc" \
  "$(printf '%s\n' "${newest:-none}" "GLIBC_$glibc" | sort -V | tail -n 1)"
expect "it says which package each library is of" "$shipped" \
  "$(cut -d ' ' -f 1 "$tree/share/doc/diffserve/libraries.txt" | sort -u)"
expect "each package's licence is there" "" "$(cut -d ' ' -f 2 \
  "$tree/share/doc/diffserve/libraries.txt" | while read -r package; do
  [ -s "$tree/share/doc/$package/copyright" ] || echo "$package"
done)"
expect "and the licences that these name" "" "$(cd "$tree/share/doc" &&
  grep -rhoE '/usr/share/common-licenses/(Apache-2.0|L?GPL-[0-9](\.[0-9])?)' . | sort -u |
  while read -r path; do [ -s "common-licenses/${path##*/}" ] || echo "$path"; done)"
expect "no file names the folder of the build" "" "$(grep -rlF "$PWD" "$work/files" | xargs)"
if [ $processor = aarch64 ]; then
  deploy/sbom.py build/arm64/server/diffserve "$work/bill.json"
  expect "the bill of materials has each package, for arm64" "" "$(LC_ALL=C comm -23 \
    <(cut -d ' ' -f 2,3 "$tree/share/doc/diffserve/libraries.txt" | LC_ALL=C sort -u) \
    <(jq -r '.components[] | select(.purl | endswith("?arch=arm64")) | "\(.name) \(.version)"' \
      "$work/bill.json" | LC_ALL=C sort) | xargs)"
fi

# What a build with the CUDA backend has beside that.
packages=(.cuda/lib/python3*/site-packages)
cuobjdump=${packages[0]}/nvidia/cu13/bin/cuobjdump
cublas_is_found() {  # cublas_is_found WHERE FOLDER PROGRAM: in FOLDER, where pip has put it
  ln -s "$(realpath "${packages[0]}/nvidia")" "$2/nvidia"
  expect "$1: the loader finds cuBLASLt in nvidia/cu13/lib" "$2/nvidia/cu13/lib/libcublasLt.so.13" \
    "$(LD_PRELOAD=libcublasLt.so.13 LD_TRACE_LOADED_OBJECTS=1 "$3" |
      sed -n 's/.*libcublasLt.* => \(.*\) (0x.*/\1/p' | xargs realpath --no-symlinks)"
  rm "$2/nvidia"
}
if [ $product = diffserve_cuda ]; then
  expect "its machine code is for four kinds of GPU" "sm_100 sm_120 sm_80 sm_90a" \
    "$("$cuobjdump" --list-elf "$tree/bin/diffserve" | grep -oE 'sm_[0-9]+a?' | sort -u | xargs)"
  matches "the licence of CUDA's runtime is there" "NVIDIA" \
    "$(cat "$tree/share/doc/nvidia-cuda-runtime/copyright")"
  if [ "$kind" = wheel ]; then
    site=$("$work/env/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    cublas_is_found "pip install" "$site" "$site/diffserve/bin/diffserve"
    matches "pip takes cuBLASLt from PyPI" '^nvidia-cublas 13\.' "$("$work/env/bin/pip" install \
      --quiet --disable-pip-version-check --dry-run --report - "$file" |
      jq -r '.install[].metadata | "\(.name) \(.version)"')"
    other=$("$PWD/deploy/wheel.sh" "$work/cpu" 2>"$work/build.log" | tail -n 1)
    [ -s "$other" ] || { tail -n 30 "$work/build.log" >&2; exit 1; }
  else
    cublas_is_found "pip install --target" "$work/files" "$tree/bin/diffserve"
  fi
fi

# ---- In a bare system
# The tree of a system, in namespaces of its own with only the loopback interface. `init` is a
# process in them. Programs for 64-bit ARM run under QEMU: a user namespace has its own list of what
# runs which files (binfmt_misc), so this machine's stays as it is.
settle() {  # settle TREE: becomes a process in it
  set -e
  mount --make-rprivate /
  mount -t proc proc "$1/proc"
  mount -t tmpfs -o mode=1777 tmpfs "$1/tmp"
  mount -t tmpfs -o mode=755 tmpfs "$1/dev"
  cp -a /dev/null /dev/zero /dev/urandom "$1/dev/"
  ip link set lo up
  if [ "$processor" = aarch64 ]; then
    unshare --user --mount bash -c 'settle_arm64 "$1"' bash "$1" &
    while [ -n "$(cat "$1/proc/$!/uid_map")" ]; do sleep 0.1; done
    echo "0 0 65536" >"$1/proc/$!/gid_map"
    echo "0 0 65536" >"$1/proc/$!/uid_map"
    wait
    exit
  fi
  echo entered
  exec chroot "$1" sleep infinity
}
settle_arm64() {  # settle_arm64 TREE: the same in a user namespace, once its users are mapped
  set -e
  local magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
  local mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
  until [ -n "$(cat "$1/proc/self/uid_map")" ]; do sleep 0.1; done
  mount -t binfmt_misc none "$1/proc/sys/fs/binfmt_misc"
  echo ":aarch64:M::$magic:$mask:/usr/bin/qemu-aarch64-static:F" \
    >"$1/proc/sys/fs/binfmt_misc/register"
  echo entered
  exec chroot "$1" sleep infinity
}
user_namespace=()
[ $processor = x86_64 ] || user_namespace=(--user)
export -f settle settle_arm64
export processor
enter() {  # enter TREE
  : >"$work/entered"
  # shellcheck disable=SC2016
  unshare --mount --pid --fork --kill-child --net --uts --ipc bash -c 'settle "$1"' bash "$1" \
    >"$work/entered" 2>"$work/enter.log" &
  holder=$!
  until [ -s "$work/entered" ]; do
    kill -0 "$holder" 2>/dev/null || { cat "$work/enter.log" >&2; return 1; }
    sleep 0.1
  done
  init=$(first_child "$holder")
  [ $processor = x86_64 ] || init=$(first_child "$init")
}
# The user's part: a home, and nothing of the host's environment.
as_user() { (become_user "$@"); }  # as_user COMMAND...
become_user() {
  exec nsenter --target "$init" "${user_namespace[@]}" --mount --pid --net --uts --ipc --root \
    --wd --setuid 1000 --setgid 1000 env -i HOME=/home/user PATH=/usr/bin:/bin LANG=C.UTF-8 "$@"
}
answer() {
  nsenter --net -t "$init" curl -sS --max-time 60 -H 'Content-Type: application/json' \
    -d "$(chat_body demo)" http://127.0.0.1:8000/v1/chat/completions 2>&1
}

# Each level of the kernels, on a processor that has no higher one.
try_levels() {  # try_levels WHERE PROGRAM
  local cpu level
  for cpu in cortex-a72:neon neoverse-n1:neon_dot max:neon_bf16; do
    level=${cpu#*:}
    cpu=${cpu%:*}
    expect "$1: the level of a $cpu" "cpu level: $level" \
      "$(as_user QEMU_CPU=$cpu "$2" --version 2>&1 | grep '^cpu level: ')"
    matches "$1: it answers there" 48213 "$(as_user QEMU_CPU=$cpu "$2" generate demo --chat \
      --temperature 0 --prompt "$question" 2>&1)"
  done
}

# serves WHERE PROGRAM PREFIX: the bundled model, from the tree at PREFIX, beside libraries of the
# system that LD_LIBRARY_PATH names
serves() {
  local mapped
  matches "$1: --version" "^version: [0-9.]+(dev0\+g[0-9a-f]+)?$" "$(as_user "$2" --version 2>&1)"
  start become_user "LD_LIBRARY_PATH=/usr/lib/$processor-linux-gnu" "$2" serve demo
  pid=$(first_child "$server")
  matches "$1: diffserve serve demo is ready in $started s" \
    '^ready http=127.0.0.1:8000 grpc=127.0.0.1:8001 model=demo$' "$line"
  matches "$1: it answers" 48213 "$(answer)"
  mapped=$(sed -n 's|^[^/]*\(/.*\.so[.0-9]*\)$|\1|p' "/proc/$pid/maps" | sort -u)
  expect "$1: its own libraries and glibc's are loaded, no other" "$(wc -l <<<"$shipped") " \
    "$(grep -cF "$3/lib/" <<<"$mapped") $(grep -vF "$3/lib/" <<<"$mapped" |
      xargs -n 1 basename | sort -u | comm -23 - <(echo "$of_glibc") | xargs)"
  stop
  expect "$1: SIGTERM ends it" 0 $code
  [ $processor = x86_64 ] || try_levels "$1" "$2"
  [ $product = diffserve_cuda ] || return 0
  expect "$1: one line says that there is no driver" 1 \
    "$(grep -c 'gpu_not_used reason="no NVIDIA driver on this machine' "$work/server.log")"
  matches "$1: both backends are in it" "^backends: cpu, cuda$" "$(as_user "$2" --version 2>&1)"
  expect "$1: --device cuda is refused in one line" "diffserve: --device cuda: no NVIDIA driver on\
 this machine (libcuda.so.1 is not found)" "$(as_user "$2" serve demo --device cuda 2>&1)"
}

# Wheels for a CPU and for a GPU have files of the same names, which pip does not mind.
try_both_wheels() {  # try_both_wheels SYSTEM PYTHON
  local words='diffserve and diffserve_cuda are both installed in .* pip uninstall diffserve'
  as_user "$2/pip" install --quiet --no-index --no-deps "/${other##*/}"
  expect "$1: pip install of the other wheel beside it" 0 $?
  matches "$1: both together are refused in one line" "^diffserve: $words" \
    "$(as_user "$2/diffserve" --version 2>&1)"
  matches "$1: by the Python interface too" "DiffserveError: $words" \
    "$(as_user "$2/python" -c 'import diffserve.program as p; p.find_binary()' 2>&1)"
  as_user "$2/pip" uninstall --quiet --yes diffserve
  matches "$1: without one of them, the other does not seem to be there" "No such file" \
    "$(as_user "$2/diffserve" --version 2>&1)"
  as_user "$2/pip" uninstall --quiet --yes diffserve_cuda
  as_user "$2/pip" install --quiet --no-index --no-deps "/$name"
  matches "$1: installed again after both are gone, it works" "^version: " \
    "$(as_user "$2/diffserve" --version 2>&1)"
}

try_wheel() {  # try_wheel SYSTEM
  local python=/home/user/env/bin
  as_user python3 -m venv /home/user/env
  as_user find /home/user | sort >"$work/before.txt"
  # Without numpy, which the Python interface needs and the program does not.
  as_user $python/pip install --quiet --no-index --no-deps "/$name"
  expect "$1: pip install" 0 $?
  serves "$1" $python/diffserve /diffserve
  local version=${name#*-}  # of the file
  version=${version%%-*}
  expect "$1: version of the program" "$version" \
    "$(as_user $python/diffserve --version | sed -n 's/^version: //p')"
  expect "$1: version of the package" "$version" \
    "$(as_user $python/pip show $product 2>&1 | sed -n 's/^Version: //p')"
  [ $product = diffserve ] || try_both_wheels "$1" $python
  as_user $python/pip uninstall --quiet --yes $product
  expect "$1: pip uninstall leaves nothing" "0 " \
    "$? $(as_user find /home/user | sort | diff "$work/before.txt" -)"
}

try_tarball() {  # try_tarball SYSTEM
  local folder='/home/user/a folder with späces'
  as_user mkdir "$folder"
  as_user tar -xzf "/$name" -C "$folder"
  serves "$1" "$folder/${name%.tar.gz}/bin/diffserve" "$folder/${name%.tar.gz}"
  as_user ln -s "$folder/${name%.tar.gz}/bin/diffserve" /home/user/diffserve
  matches "$1: it starts through a link" "^version: " \
    "$(as_user /home/user/diffserve --version 2>&1)"
}

suites=(bookworm trixie)
# Under QEMU 7.2 the Python of Debian 13 fails to install its own pip.
[ "$kind $processor" != "wheel aarch64" ] || suites=(bookworm)
for suite in "${suites[@]}"; do
  packages=""
  if [ $kind = wheel ]; then packages=python3-venv; fi
  system=$work/$suite
  debian_tree "$system" $suite "$packages" $processor || exit 1
  install -m 644 "$file" ${other:+"$other"} "$system/"
  install -d -o 1000 -g 1000 "$system/home/user"
  enter "$system" || exit 1
  "try_$kind" "$(sed -n 's/^PRETTY_NAME="\(.*\)"/\1/p' "$system/etc/os-release")"
  leave
  rm -rf --one-file-system "$system"
done
finish
