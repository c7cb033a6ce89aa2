#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the checks that are too long for each run of tests/run.sh. Each installs and builds what it
# needs. A check that this machine cannot run is named, not counted. The last line is "N passed, N
# failed".
#   tests/long.sh NAME...       those checks
#   tests/long.sh --usual       those that need neither a container, a network nor much time
#   tests/long.sh --all         all of them
#   tests/long.sh --list [NAME...]   names, usual minutes on two cores and what they prove;
#                               without those that are named
#   tests/long.sh --turn MINUTES     gpu_check, then each that fits into the minutes that are left,
#                               from the one whose turn it is by the number of commits. What still
#                               runs 20 minutes after that is stopped and named, not counted
set -uo pipefail
cd "$(dirname "$0")/.."

sanitizers=(asan asan_engine asan_server asan_cuda tsan)
usual=(cuda cuda_e2e cuda_gate schema templates e2e_long ui helm "${sanitizers[@]}")
each=(gpu_check)  # of every run in CI
others=(debug image package wheel tarball wheel_cuda tarball_cuda bare fleet ray dynamo clients
  recipes transformers reliability soak fuzz loader coverage site release audit arm64
  packages_arm64)
declare -A minutes about
about_check() { minutes[$1]=$2 about[$1]=$3; }
about_check cuda 14 "the CUDA backend on the CPU shim: its tests, its bench"
about_check cuda_e2e 25 "end-to-end files with the server on the CPU shim"
about_check cuda_gate 25 "the CUDA compiler's report on each kernel, and its machine code"
about_check gpu_check 12 "the archive for a GPU machine: its size; it starts in an empty root"
about_check schema 1 "JSON Schema's own test suite against masks"
about_check templates 1 "Jinja2's own test suite against chat templates"
about_check e2e_long 7 "the long end-to-end files"
about_check ui 2 "the page in Chromium"
about_check helm 4 "the Helm chart and the Kubernetes manifests"
about_check asan 22 "tests of kernels and models under ASan and UBSan"
about_check asan_engine 22 "tests of the engine under ASan and UBSan"
about_check asan_server 24 "tests of text and server, and the fuzz corpora, under ASan and UBSan"
about_check asan_cuda 25 "tests of the CUDA backend on the CPU shim under ASan and UBSan"
about_check tsan 10 "engine, text and server tests under TSan"
about_check debug 13 "the preset debug: each file compiles by itself; the C++ tests"
about_check arm64 60 "tests of kernels, models and engine for 64-bit ARM, under QEMU"
about_check packages_arm64 40 "wheel and tarball for 64-bit ARM, built once, in bare systems"
about_check image 15 "the container image, built twice"
about_check package 6 "the Debian package under systemd"
about_check wheel 9 "the Python wheel, built twice, in bare systems of Debian 12 and 13"
about_check tarball 8 "the same of the tarball"
about_check wheel_cuda 75 "the wheel for a GPU, built twice, in bare systems without a driver"
about_check tarball_cuda 40 "the tarball for a GPU, built once, in the same"
about_check bare 13 "deploy/quickstart.sh and tests/run.sh in a bare Debian 12"
about_check fleet 6 "replicas after routers"
about_check dynamo 2 "workers behind NVIDIA Dynamo's frontend"
about_check ray 7 "replicas and batches on a Ray cluster"
about_check clients 6 "real clients of the APIs"
about_check recipes 13 "the commands of docs/recipes with the real programs"
about_check transformers 6 "the comparison with transformers in docs/python.md; PyTorch is 5 GB"
about_check reliability 14 "hostile clients, tenants, faults, kills, gRPC floods"
about_check soak 10 "100,000 requests without growth of memory"
about_check fuzz 20 "each fuzz target for a minute under libFuzzer"
about_check loader 8 "every damage to a checkpoint of every family"
about_check coverage 20 "the C++ tests again, with the lines that they run, by folder"
about_check site 1 "the pages as a site; each link and anchor leads somewhere"
about_check release 6 "the files of a release page but those for a GPU; their bill of materials"
about_check audit 5 "known vulnerabilities of pinned crates and packages"

names=()
budget=""
except=""
case "${1:-}" in
  --usual) names=("${usual[@]}"); shift; names+=("$@") ;;
  --all) names=("${usual[@]}" "${each[@]}" "${others[@]}") ;;
  --turn) budget=${2:?minutes} ;;
  --list)
    shift
    [[ " $* " != *" --usual "* ]] || except="${usual[*]}"
    for name in "${usual[@]}" "${each[@]}" "${others[@]}"; do
      [[ " $except $* " == *" $name "* ]] ||
        printf '%-14s %3d min  %s\n' "$name" "${minutes[$name]}" "${about[$name]}"
    done
    exit 0
    ;;
  "" | -*) sed -n '2,/^set /{/^#/p}' "$0" | sed 's/^# \{0,1\}//' >&2; exit 2 ;;
  *) names=("$@") ;;
esac
for name in "${names[@]}"; do
  if [ -z "${minutes[$name]:-}" ]; then
    echo "no check is called $name; tests/long.sh --list has their names" >&2
    exit 2
  fi
done
. tests/suites.sh
limit_s=3600

# The reason why this machine cannot run a check, or nothing.
obstacle() {  # obstacle NAME
  case "$1" in
    gpu_check | image | package | wheel | tarball | wheel_cuda | tarball_cuda | bare | release | \
      packages_arm64)
      [ "$(id -u)" -eq 0 ] || { echo "needs root"; return; }
      unshare --mount --pid --net --fork true 2>/dev/null || { echo "needs namespaces"; return; }
      [ "$1" != gpu_check ] || python3 tests/cuda/empty_root.py --python >/dev/null 2>&1 ||
        echo "needs Python 3.12"
      [ "$1" != packages_arm64 ] || unshare --user --map-root-user --mount \
        mount -t binfmt_misc none /proc/sys/fs/binfmt_misc 2>/dev/null || echo "needs Linux 6.7"
      ;;
    audit) tests/audit.sh --reachable || echo "needs PyPI's and RustSec's databases" ;;
    clients) command -v npm >/dev/null || echo "needs Node.js" ;;
    transformers)
      [ -d build/transformers ] || [ "$(df --output=avail . | tail -n 1)" -ge $((8 << 20)) ] ||
        echo "needs 8 GB of disk"
      ;;
    recipes)
      command -v npm >/dev/null || { echo "needs Node.js"; return; }
      [ "$(id -u)" -eq 0 ] || dpkg -s python3-torch >/dev/null 2>&1 || echo "needs python3-torch"
      ;;
  esac
}

check_cuda() {
  build dev cuda_test cuda_bench
  run_gtest cuda_test build/dev/tests/cuda_test
  run cuda_bench bash -c 'build/dev/tests/cuda_bench --smoke && echo "1 passed, 0 failed"'
}
# What a device computes or keeps. Other files test what is the same on each, or what a GPU refuses:
# draft models, float32 and float16 pages, --kv-cache-commit.
check_cuda_e2e() {
  build dev diffserve diffserve_on_shim
  local on_shim=$PWD/build/dev/tests/diffserve_on_shim
  # Few sequences and tokens, as a server runs its largest steps before it is ready. Little memory,
  # as the simulation protects all of it around kernels.
  run e2e_cuda_on_cpu env DIFFSERVE_DEVICE=cuda DIFFSERVE_BINARY="$on_shim" \
    DIFFSERVE_MAX_NUM_SEQS=8 DIFFSERVE_MAX_NUM_BATCHED_TOKENS=64 DIFFSERVE_KV_CACHE_MEMORY=32MiB \
    DIFFSERVE_GATED_BINARY="$on_shim" .venv/bin/python tests/e2e/run.py --jobs 2 \
    test_bit_exactness.{Bit,Int8,Int4,Int8Pages,Fp8Pages,FourBitPages}ExactnessTest \
    test_bit_exactness.Logit{Row,Tile,Anchored}ExactnessTest test_kv_disk test_attention \
    test_embeddings test_speculation test_phi4flash.ExactnessTest
}
check_cuda_gate() {
  run_unittest cuda_gate_test tests/cuda/compile_gate_test.py
  run cuda_gate bash -c 'deploy/install_cuda.sh && python3 tests/cuda/compile_gate.py'
}
# Kernels for Hopper show the archive's size; with the shim's in their place it runs here.
check_gpu_check() {
  run_unittest gpu_check_test tests/cuda/gpu_check_test.py
  deploy/install_cuda.sh || return 1
  # shellcheck disable=SC2016
  run gpu_check_size bash -c 'deploy/gpu_check.sh collect "$0" && echo "1 passed, 0 failed"' \
    build/gpu-check/archive
  build dev gpu_check
  local on_shim=build/dev/gpu_check
  # shellcheck disable=SC2016
  run gpu_check_on_shim bash -c '.venv/bin/python deploy/gpu_check/collect.py "$0" "$1" &&
    python3 tests/cuda/empty_root.py "$1/gpu_check.tar.xz" all --seconds 1500 --sample 12' \
    build/dev/tests/gpu_check $on_shim
}
check_schema() {
  build dev schema_suite
  run schema_suite .venv/bin/python tests/schema/run.py
  grep -E '^[0-9]+ enforced, ' "$results/schema_suite.log"
}
check_templates() {
  build dev template_suite
  run template_suite .venv/bin/python tests/templates/run.py
  run jinja_readme bash -o pipefail -c "CARGO_TARGET_DIR=build/cargo cargo test --quiet --locked \
    --release --doc --package diffserve-jinja --manifest-path engine/text/crates/Cargo.toml |
    tr ';' ','"
}
check_e2e_long() {
  build dev diffserve diffserve_gated diffserve_on_shim
  run e2e_long .venv/bin/python tests/e2e/run.py "${long_e2e[@]}"
  grep -A 5 '^needles asked' "$results/e2e_long.log"
}
check_ui() {
  deploy/install_deps.sh --browser || return 1
  build dev diffserve diffserve_gated
  run ui .venv/bin/python tests/ui/run.py
  grep '^first contentful paint' "$results/ui.log"
}
check_helm() {
  build dev diffserve
  run helm env DIFFSERVE_BINARY="$PWD/build/dev/server/diffserve" tests/helm/run.sh
}
run_under_asan() {  # run_under_asan PROGRAM...
  export ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1
  build debug-asan "$@"
  local program
  for program in "$@"; do
    [[ $program == *_fuzz ]] || run_gtest "asan_$program" "build/debug-asan/tests/$program"
  done
}
check_asan() { run_under_asan kernels_test models_test; }
check_asan_engine() { run_under_asan engine_test faults_test; }
check_asan_server() {
  run_under_asan text_test server_test "${fuzz[@]}"
  replay debug-asan asan_
}
check_asan_cuda() { run_under_asan cuda_test; }
check_tsan() {
  export TSAN_OPTIONS=halt_on_error=1:ignore_noninstrumented_modules=1
  TSAN_OPTIONS+=:suppressions=$PWD/tests/tsan_suppressions.txt
  build tsan engine_test text_test server_test
  local program
  for program in engine_test text_test server_test; do
    run_gtest "tsan_$program" "build/tsan/tests/$program"
  done
}
check_debug() {
  build debug all
  local program
  for program in "${programs[@]}"; do
    run_gtest "debug_$program" "build/debug/tests/$program"
  done
}
# The kernels also on a processor whose best level is the lowest.
check_arm64() {
  deploy/install_deps.sh --arm64 && deploy/arm64_sysroot.sh || return 1
  build arm64 kernels_test models_test engine_test
  local program
  under_qemu() {  # under_qemu NAME CPU PROGRAM
    run_gtest "$1" qemu-aarch64-static -cpu "$2" -L build/arm64-root "build/arm64/tests/$3"
  }
  under_qemu arm64_kernels_v8.0 cortex-a72 kernels_test
  for program in kernels models engine; do
    under_qemu "arm64_$program" max "${program}_test"
  done
}
check_packages_arm64() {
  run wheel_arm64 deploy/portable_check.sh --once wheel arm64
  run tarball_arm64 deploy/portable_check.sh --once tarball arm64
}
check_image() { run image deploy/image_check.sh; }
check_package() { run package deploy/package_check.sh; }
check_wheel() { run wheel deploy/portable_check.sh wheel; }
check_tarball() { run tarball deploy/portable_check.sh tarball; }
check_wheel_cuda() {
  local limit_s=7200  # two builds of the kernels
  run wheel_cuda deploy/portable_check.sh wheel cuda
}
check_tarball_cuda() { run tarball_cuda deploy/portable_check.sh --once tarball cuda; }
check_bare() { run bare deploy/bare_check.sh; }
check_fleet() { run fleet tests/fleet/run.sh; }
check_dynamo() { run dynamo tests/dynamo/run.sh; }
check_ray() { run ray tests/ray/run.sh; }
check_clients() {
  build dev diffserve
  run clients tests/clients/run.sh
}
check_recipes() {
  build dev diffserve
  run recipes tests/recipes/run.sh
  run_unittest recipes_test tests/recipes/run_test.py
}
check_transformers() {
  build dev diffserve
  tests/clients/install.sh build/transformers tests/golden/requirements.txt || return 1
  run transformers build/transformers/bin/python docs/check_commands.py --check transformers \
    docs/python.md
}
# A program of tests/reliability ends with exit code 0 if nothing that it looks at was broken.
whole() {  # whole NAME COMMAND...
  # shellcheck disable=SC2016
  run "$1" bash -c '"$@" && echo "1 passed, 0 failed"' bash "${@:2}"
}
check_reliability() {
  build dev diffserve diffserve_gated
  local program
  for program in "hostile_clients --quick" "faults --quick" "kv_disk_kills --kills 20" \
    "grpc_floods --resets 10000 --messages 200000"; do
    # shellcheck disable=SC2086
    set -- $program
    whole "$1" .venv/bin/python "tests/reliability/$1.py" "${@:2}"
  done
  run_unittest tenants tests/reliability/tenants.py .venv/bin/python
}
check_soak() {
  build dev diffserve
  whole soak .venv/bin/python tests/reliability/soak.py --requests 100000
}
check_fuzz() {
  deploy/install_deps.sh --fuzz || return 1
  whole fuzz tests/fuzz/run.sh 60
}
check_loader() {
  build dev diffserve loader_robustness
  whole loader build/dev/tests/loader_robustness
}
check_coverage() {
  deploy/install_deps.sh --coverage || return 1
  build coverage "${programs[@]}"
  run coverage python3 tests/coverage.py "${programs[@]}"
  grep -E '^(folder|[a-z_/]+) +[0-9]+ ' "$results/coverage.log"
}
check_site() { run site docs/site.sh; }
check_release() { run release tests/release/run.sh; }
check_audit() { run audit tests/audit.sh; }

if [ -n "$budget" ]; then
  deadline_s=$((budget * 60 + 1200))
  every=("${usual[@]}" "${others[@]}")
  first=$(($(git -c safe.directory=* rev-list --count HEAD) % ${#every[@]}))
  names=("${each[@]}" "${every[@]:first}" "${every[@]:0:first}")
fi
deploy/install_deps.sh --test || exit 1
for name in "${names[@]}"; do
  if [ -n "$budget" ] && [ $((SECONDS + minutes[$name] * 60)) -gt $((budget * 60)) ]; then
    echo "-- not this time: $name (${minutes[$name]} min)"
    continue
  fi
  reason=$(obstacle "$name")
  if [ -n "$reason" ]; then echo "-- $name cannot run here: $reason"; continue; fi
  echo "-- $name"
  "check_$name" || failed=$((failed + 1))
done
end_of_suites
