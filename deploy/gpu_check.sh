#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The GPU list: everything that only a GPU can prove or measure, in at most 9 minutes with the
# build. Ends with "N passed, N failed".
#   deploy/gpu_check.sh [--prebuilt DIR] [PART...]   all parts, or those named, in this order:
#     build        preset cuda-release
#     correctness  every kernel against its reference, 1,000 repeats, the fuzzer for 60 s, offsets
#                  beyond 2^32 elements
#     sanitizer    compute-sanitizer memcheck, racecheck and synccheck on small cases
#     endtoend     golden logits of every family, the e2e tests with --device cuda, a server with
#                  256 streams
#     figures      calibration, kernels and whole models, into tests/bench/results/cuda_<GPU>.json
#   deploy/gpu_check.sh collect DIR                  after a build: programs and libraries for a
#                                                    machine without compiler or network,
#                                                    where --prebuilt DIR runs them (from a checkout
#                                                    of this repository)
# A missing tool counts as a failure. With no device: one line, exit code 1.
set -uo pipefail
cd "$(dirname "$0")/.."
root=$PWD
logs=${GPU_CHECK_LOGS:-$root/build/gpu_check}
seconds_max=540
size_mib_max=60
build=${GPU_CHECK_BUILD:-$root/build/cuda-release}
programs="$build/tests/cuda_test $build/tests/cuda_bench $build/tests/diffserve_gated"
programs+=" $build/server/diffserve"

usage() {
  sed -n '3,12p' "$0" | sed 's/^# \{0,1\}//' >&2
  exit 2
}

# ---- collect: the programs, stripped, and the shared libraries outside glibc that ldd names.
collect() {  # collect DIR
  local program library
  mkdir -p "$1/bin" "$1/lib" || exit 1
  for program in $programs; do
    if [ ! -x "$program" ]; then
      echo "deploy/gpu_check.sh: $program is not built (part: build)" >&2
      exit 1
    fi
    strip -o "$1/bin/$(basename "$program")" "$program" || exit 1
    ldd "$program" | awk '$2 == "=>" && $3 ~ /^\// { print $3 }'
  done | sort -u | while read -r library; do
    case $(basename "$library") in
      libc.so.* | libm.so.* | libdl.so.* | librt.so.* | libpthread.so.* | libresolv.so.* \
        | libcublas*) ;;
      *) cp -L "$library" "$1/lib/" &&
        strip --strip-unneeded "$1/lib/$(basename "$library")" 2>/dev/null ;;
    esac
  done
  echo "$root" >"$1/source_dir"  # where the programs look for test data
  tar -C "$1" -czf "$1/programs.tar.gz" bin lib source_dir || exit 1
  rm -rf "$1/bin" "$1/lib" "$1/source_dir"
  local size
  size=$(du -sm "$1" | cut -f 1)
  echo "$1: $size MiB, at most $size_mib_max"
  [ "$size" -le $size_mib_max ]
}

prebuilt=""
parts=()
while [ $# -gt 0 ]; do
  case "$1" in
    collect) [ $# -eq 2 ] || usage; collect "$2"; exit ;;
    --prebuilt) [ $# -ge 2 ] || usage; prebuilt=$(realpath "$2"); shift ;;
    build | correctness | sanitizer | endtoend | figures) parts+=("$1") ;;
    *) usage ;;
  esac
  shift
done
[ ${#parts[@]} -gt 0 ] || parts=(build correctness sanitizer endtoend figures)

has_part() { printf '%s\n' "${parts[@]}" | grep -qx "$1"; }
# GPU_CHECK_ANYWAY: for trying this script out with programs of the CPU shim.
if [ "${parts[*]}" != build ] && [ -z "${GPU_CHECK_ANYWAY:-}" ] &&
  ! compgen -G '/dev/nvidia[0-9]*' >/dev/null && [ ! -e /dev/dxg ]; then
  echo "deploy/gpu_check.sh: this machine has no NVIDIA device (no /dev/nvidia0)"
  exit 1
fi

mkdir -p "$logs"
passed=0
failed=0
begin=$SECONDS

result() {  # result NAME PASSED FAILED REMARK
  passed=$((passed + $2))
  failed=$((failed + $3))
  echo "== $1: $2 passed, $3 failed${4:+ ($4)}"
}

# While it runs, on stderr from the 2nd second on: how long NAME has taken, and the last line of its
# log. On a terminal one line, rewritten each second; elsewhere a line every 10 s.
watch_log() {  # watch_log NAME
  local seconds=0 line
  trap 'kill $(jobs -p) 2>/dev/null; exit' TERM
  while sleep 1 & wait $! && kill -0 $$ 2>/dev/null; do
    seconds=$((seconds + 1))
    if [ $seconds -lt 2 ]; then continue; fi
    if [ ! -t 2 ] && [ $(((seconds - 2) % 10)) -ne 0 ]; then continue; fi
    line="$1: $seconds s, $(tail -n 1 "$logs/$1.log" 2>/dev/null | tr -cd '[:print:]' | cut -c -60)"
    if [ -t 2 ]; then printf '\r\033[K%s' "$line" >&2; else echo "$line" >&2; fi
  done
}

# Runs a command with what is left of the time, at most SECONDS; its output goes to a log.
bounded() {  # bounded SECONDS NAME COMMAND...
  local left=$((seconds_max - SECONDS + begin)) limit=$1 name=$2
  shift 2
  [ $left -lt $limit ] && limit=$left
  if [ $limit -le 0 ]; then echo "no time left of $seconds_max s" >"$logs/$name.log"; return 124; fi
  local code watcher
  : >"$logs/$name.log"
  watch_log "$name" &
  watcher=$!
  timeout -k 5 $limit "$@" >"$logs/$name.log" 2>&1
  code=$?
  kill $watcher
  wait $watcher 2>/dev/null
  if [ -t 2 ]; then printf '\r\033[K' >&2; fi
  return $code
}

gtest() {  # gtest NAME SECONDS COMMAND...: counts the tests of its log; those skipped are named
  local name=$1 limit=$2 at=$SECONDS code p f s
  shift 2
  bounded "$limit" "$name" "$@"
  code=$?
  p=$(grep -oE '^\[  PASSED  \] [0-9]+' "$logs/$name.log" | grep -oE '[0-9]+$' | tail -n 1)
  f=$(grep -cE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$logs/$name.log")
  s=$(grep -oE '^\[  SKIPPED \] [0-9]+ test' "$logs/$name.log" | grep -oE '[0-9]+' | tail -n 1)
  if [ $code -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  if [ "${p:-0}" -eq 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  if [ "$f" -ne 0 ]; then tail -n 40 "$logs/$name.log"; fi
  result "$name" "${p:-0}" "$f" "exit code $code, ${s:-0} skipped, $((SECONDS - at)) s"
}

# ---- build
if has_part build; then
  at=$SECONDS
  if [ -n "$prebuilt" ]; then
    echo "== build: not done, --prebuilt"
  elif bounded 420 build bash -c \
    'cmake --preset cuda-release -B "$0" &&
     cmake --build "$0" --target diffserve diffserve_gated cuda_test cuda_bench' "$build"; then
    result build 1 0 "$((SECONDS - at)) s"
  else
    tail -n 30 "$logs/build.log"
    remedy="deploy/install_deps.sh and deploy/install_cuda.sh bring what it needs, or --prebuilt"
    result build 0 1 "$((SECONDS - at)) s; $remedy"
  fi
fi

# ---- Where the programs and the libraries are. cuBLASLt (500 MB) is always the machine's own.
if [ -n "$prebuilt" ]; then
  if [ -f "$prebuilt/programs.tar.gz" ]; then
    mkdir -p "$logs/prebuilt" && tar -C "$logs/prebuilt" -xzf "$prebuilt/programs.tar.gz" || exit 1
    prebuilt=$logs/prebuilt
  fi
  bin=$prebuilt/bin
  export LD_LIBRARY_PATH=$prebuilt/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  source_dir=$(cat "$prebuilt/source_dir")
  if [ ! -e "$source_dir" ]; then
    mkdir -p "$(dirname "$source_dir")" && ln -s "$root" "$source_dir"
  fi
  if [ ! -d "$source_dir/tests/golden" ]; then
    result "test data at $source_dir" 0 1 "the programs were built there"
  fi
else
  bin=$root/build/gpu_check/bin
  mkdir -p "$bin"
  for program in $programs; do ln -sf "$program" "$bin/"; done
fi
for folder in $(python3 -c \
  'import nvidia; print(*(path + "/cu13/lib" for path in nvidia.__path__))' 2>/dev/null) \
  "$root"/.cuda/lib/python3*/site-packages/nvidia/cu13/lib /usr/local/cuda*/lib64 \
    /usr/lib/x86_64-linux-gnu; do
  if [ -e "$folder/libcublasLt.so.13" ]; then
    export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    break
  fi
done

if [ "${parts[*]}" != build ]; then
  if ! bounded 60 device "$bin/cuda_bench" --smoke; then
    tail -n 3 "$logs/device.log"
    result device 0 1
    echo "$passed passed, $failed failed"
    exit 1
  fi
  gpu=$(sed -n 's/.*"device": {"name": "\([^"]*\)".*/\1/p' "$logs/device.log")
  grep 'no figure of cuBLASLt' "$logs/device.log"
  echo "device: $gpu"
fi

# ---- correctness
if has_part correctness; then
  gtest correctness 200 env DIFFSERVE_FUZZ_SECONDS=60 "$bin/cuda_test" --gtest_brief=1
  grep -hE 'random shapes, from seed|registers of A' "$logs/correctness.log"
fi

# ---- sanitizer: racecheck gives false alarms about bulk copies, so it gets the cases without them.
small='PtxTest.*:WgmmaTest.Products*:RowwiseTest.RmsNorm*:*RopeAppendTest.EveryStyle*'
small+=':AttentionPlanOnDeviceTest.*:SampleTest.Random*'
decode='*DiffAttentionTest.EveryFamily*/decode*:*DiffAttentionTest.EmptyBatch*/decode*'
prefill='*DiffAttentionTest.EveryFamily*/prefill*'
without_bulk='RowwiseTest.RmsNorm*:*RopeAppendTest.EveryStyle*:AttentionPlanOnDeviceTest.*'
without_bulk+=':DiffDecodeTest.MixedBatchWithoutBulk*:*DiffAttentionTest.EveryFamily*/prefill'
if has_part sanitizer; then
  tool=$(command -v compute-sanitizer || ls /usr/local/cuda*/bin/compute-sanitizer 2>/dev/null |
    tail -n 1)
  if [ -z "$tool" ]; then
    result sanitizer 0 3 \
      "compute-sanitizer is missing: memcheck, racecheck and synccheck have not run"
  else
    check() {  # check TOOL FILTER
      gtest "$1" 60 "$tool" --tool "$1" --error-exitcode 9 "$bin/cuda_test" --gtest_brief=1 \
        --gtest_filter="$2"
    }
    check memcheck "$small:$decode:$prefill"
    check racecheck "$without_bulk"
    check synccheck "$small:$decode:$prefill"
  fi
fi

# ---- endtoend
if has_part endtoend; then
  gtest golden 60 "$bin/cuda_test" --gtest_brief=1 \
    --gtest_filter='CudaDecoderTest.*:CudaEngineTest.*'
  python=python3
  [ -x .venv/bin/python ] && python=.venv/bin/python
  missing=$($python -c 'import importlib.util as found
print(*(name for name in ("openai", "grpc", "grpc_reflection") if found.find_spec(name) is None))' \
  2>&1)
  if [ -n "$missing" ]; then
    result e2e 0 1 "not run: Python has no $missing (deploy/install_deps.sh --test)"
  else
    bounded 120 e2e env DIFFSERVE_DEVICE=cuda DIFFSERVE_BINARY="$bin/diffserve" \
      DIFFSERVE_GATED_BINARY="$bin/diffserve_gated" $python tests/e2e/run.py
    code=$?
    read -r p f _ <<<"$(grep -oE '^[0-9]+ passed, [0-9]+ failed' "$logs/e2e.log" |
      tail -n 1 | tr -dc '0-9 ')"
    if [ $code -ne 0 ] && [ "${f:-0}" -eq 0 ]; then f=1; fi
    if [ "$f" -ne 0 ]; then tail -n 40 "$logs/e2e.log"; fi
    result e2e "${p:-0}" "$f" "exit code $code"
  fi
  if bounded 60 streams bash -c \
    'python3 tests/bench/streams.py "$1" models/demo/diff --streams 256 --tokens 128 \
       --flag=--device=cuda \
       --flag=--max-num-seqs=256 2>"$2/streams.err" >"$2/streams.json"' _ "$bin/diffserve" \
         "$logs"; then
    result streams 1 0 "256 at once"
  else
    tail -n 5 "$logs/streams.err"
    result streams 0 1
  fi
fi

# ---- figures
figure() {  # figure NAME SECONDS COMMAND...: standard output is NAME.json
  local name=$1 limit=$2
  shift 2
  rm -f "$logs/$name.json"
  if bounded "$limit" "$name" bash -c '"${@:2}" >"$1"' _ "$logs/$name.json" "$@"; then
    result "$name" 1 0
  else
    tail -n 5 "$logs/$name.log"
    rm -f "$logs/$name.json"
    result "$name" 0 1
  fi
}
if has_part figures; then
  figure kernels 120 "$bin/cuda_bench"
  for model in diff_3b transformer_3b; do
    figure $model 70 "$bin/diffserve" bench tests/bench/models/$model --device cuda --load-format \
      dummy --json --repeat 5 \
      --prompt 2048,4096 --depth 2048 --batch 1,64 --generate 64
  done
  figure engine 60 "$bin/diffserve" bench models/demo/diff --device cuda --json --repeat 3 \
    --prompt 32 --depth 32 --batch 256 \
    --generate 128
  if python3 tests/bench/report_cuda.py --combine "$logs" tests/bench/results; then
    result report 1 0
  else
    result report 0 1
  fi
fi

echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
