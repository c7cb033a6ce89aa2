#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/run.sh SECONDS [TARGET...]: fuzzes each target (by default all) for so long, one after
# another, from its corpus, and prints its executions and findings. What it learns stays in
# build/fuzz/learnt/TARGET, what it finds in build/fuzz/found/TARGET.
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:?seconds a target}
shift
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then mapfile -t targets < <(ls tests/fuzz/corpus); fi

# Model directories are written for each input: in memory, where the machine has such a place.
if [ -d /dev/shm ]; then export TMPDIR=/dev/shm; fi

# What is freed counts towards the memory of the inputs after it.
export ASAN_OPTIONS=quarantine_size_mb=32:${ASAN_OPTIONS:-}

cmake --preset fuzz >/dev/null
cmake --build --preset fuzz --target "${targets[@]/%/_fuzz}"
failed=0
for target in "${targets[@]}"; do
  learnt=build/fuzz/learnt/$target found=build/fuzz/found/$target log=build/fuzz/$target.log
  mkdir -p "$learnt" "$found"
  # An input of 64 KiB may take a second and 1 GiB; the sanitizers slow it down by ten.
  "build/fuzz/tests/${target}_fuzz" -max_total_time="$seconds" -max_len=65536 -len_control=300 \
    -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 -artifact_prefix="$found/" \
    "$learnt" "tests/fuzz/corpus/$target" >"$log" 2>&1 || failed=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  echo "$target: ${executions:-?} executions, $(find "$found" -type f | wc -l) findings"
done
exit $failed
