# SPDX-License-Identifier: Apache-2.0
# What scripts that run tests share, to be sourced: builds, and suites that run with a limit of
# time, are counted, and have a line each. `end_of_suites` prints the sum. `results` is a folder
# that is removed at the end.
passed=0
failed=0
results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT

# Some images set it; then each test file would compile the packages that it imports anew.
unset PYTHONDONTWRITEBYTECODE

# Nothing here takes this long on two cores. A command that does hangs: it fails, the rest runs.
limit_s=1500
# If it is set, what runs at this time of the script is stopped, and not counted.
deadline_s=""
limited() {  # limited COMMAND...
  local left_s=$limit_s
  if [ -n "$deadline_s" ] && [ $((deadline_s - SECONDS)) -lt "$left_s" ]; then
    left_s=$((deadline_s > SECONDS ? deadline_s - SECONDS : 1))
  fi
  timeout --kill-after=10 "$left_s" "$@"
}
stopped_at_deadline() {  # stopped_at_deadline NAME EXIT_CODE
  [ "$2" -eq 124 ] && [ -n "$deadline_s" ] && [ $SECONDS -ge "$deadline_s" ] || return 1
  echo "-- $1 was stopped at $SECONDS s, when the time for all checks was over"
}

# Adds up the last "N passed, N failed[, N skipped]" of a log; a program that died without one
# counts as one failure.
count() {  # count NAME LOG EXIT_CODE
  local line
  ! stopped_at_deadline "$1" "$3" || return 0
  if [ "$3" -eq 124 ]; then
    echo "$1 was ended after $limit_s s; its last lines:"
    grep . "$2" | tail -n 3
  fi
  line=$(grep -oE '[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?' "$2" | tail -n 1)
  local p=0 f=0 s=0
  [ -n "$line" ] && read -r p f s <<<"$(echo "$line" | tr -dc '0-9 ')"
  if [ "$3" -ne 0 ] && [ "$f" -eq 0 ]; then f=1; fi
  if [ "$3" -eq 0 ] && [ "$p" -eq 0 ]; then f=1; echo "$1 ran no test"; fi
  passed=$((passed + p))
  failed=$((failed + f))
  local skipped=""
  if [ "${s:-0}" -gt 0 ]; then skipped=", $s skipped"; fi
  echo "== $1: $p passed, $f failed$skipped (at $SECONDS s)"
}

declare -A started
start() {  # start NAME COMMAND...: in the background, until `finish NAME`
  local name=$1
  shift
  limited "$@" >"$results/$name.log" 2>&1 &
  started[$name]=$!
}

finish() {  # finish NAME
  local log="$results/$1.log" code
  wait "${started[$1]}"
  code=$?
  [ $code -ne 0 ] && tail -n 60 "$log"
  count "$1" "$log" $code
}

run() {  # run NAME COMMAND...
  start "$@"
  finish "$1"
}

# unittest reports "Ran N tests" and "OK" or "FAILED (failures=N, errors=N)".
run_unittest() {  # run_unittest NAME FILE [PYTHON]
  local name=$1 log="$results/$1.log" code ran bad
  limited "${3:-python3}" "$2" >"$log" 2>&1
  code=$?
  ran=$(grep -oE '^Ran [0-9]+' "$log" | grep -oE '[0-9]+')
  bad=$(grep -E '^FAILED' "$log" | grep -oE '[0-9]+' | awk '{ n += $1 } END { print n }')
  echo "$((${ran:-0} - ${bad:-0})) passed, ${bad:-0} failed" >>"$log"
  [ $code -ne 0 ] && tail -n 60 "$log"
  count "$name" "$log" $code
}

# Half of the tests at a time on each of two cores. gtest ends with "[  PASSED  ] N tests." and
# "[  SKIPPED ] N tests"; each failure is a line "[  FAILED  ] NAME (N ms)".
run_gtest() {  # run_gtest NAME PROGRAM, or what runs it
  local name=$1 log="$results/$1.log" code=0 half p f s
  for half in 0 1; do
    start "$name.$half" env GTEST_TOTAL_SHARDS=2 GTEST_SHARD_INDEX=$half "${@:2}"
  done
  for half in 0 1; do wait "${started[$name.$half]}" || code=$?; done
  cat "$results/$name".[01].log >"$log"
  total() { grep -oE "^\\[  $1 \\] [0-9]+" "$log" | awk '{ n += $NF } END { print n }'; }
  p=$(total 'PASSED ')
  s=$(total 'SKIPPED')
  f=$(grep -cE '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log")
  if [ $code -ne 0 ]; then
    grep -vE '^\[( RUN      |       OK |-+)\]' "$log" | tail -n 80
    grep -E '^\[  FAILED  \] .* \([0-9]+ ms\)$' "$log"
  fi
  echo "${p:-0} passed, ${f:-0} failed, ${s:-0} skipped" >>"$log"
  count "$name" "$log" $code
}

replay() {  # replay PRESET PREFIX: the corpora of the fuzz targets
  local target log
  for target in "${fuzz[@]}"; do
    log="$results/$2$target.log"
    if limited "build/$1/tests/$target" "tests/fuzz/corpus/${target%_fuzz}" >"$log" 2>&1; then
      echo "1 passed, 0 failed" >>"$log"
      count "$2$target" "$log" 0
    else
      tail -n 40 "$log"
      count "$2$target" "$log" 1
    fi
  done
}

build() {  # build PRESET TARGET...; the line says what it took
  local preset=$1 code=0 limit_s=7200
  shift
  cmake --preset "$preset" >"$results/configure-$preset.log" 2>&1 ||
    { cat "$results/configure-$preset.log"; exit 1; }
  limited cmake --build "build/$preset" --target "$@" >"$results/build-$preset.log" 2>&1 || code=$?
  if stopped_at_deadline "the build of preset $preset" $code; then end_of_suites; exit; fi
  if [ $code -ne 0 ]; then
    grep -E 'error|FAILED|warning' "$results/build-$preset.log" | head -n 40
    tail -n 20 "$results/build-$preset.log"
    echo "build of preset $preset failed"
    echo "$passed passed, $((failed + 1)) failed"
    exit 1
  fi
  echo "-- built for preset $preset (at $SECONDS s)"
}

programs=(kernels_test models_test engine_test text_test server_test faults_test)
fuzz=(safetensors_fuzz model_config_fuzz tokenizer_file_fuzz tokenizer_text_fuzz grammar_fuzz
  chat_template_fuzz request_json_fuzz http_reader_fuzz http_routes_fuzz grpc_message_fuzz
  tool_messages_fuzz page_store_fuzz)

# End-to-end files of ten seconds and more, or of the GPU's backend on the CPU shim.
long_e2e=(test_reliability test_watching test_needles test_bit_exactness test_embeddings
  test_bad_models test_round_trip test_standard_streams test_replaced_model
  test_four_clients test_cuda_on_cpu test_several_gpus test_code_pages test_float16)

# The end-to-end files that are not long.
short_e2e() {
  local file
  for file in tests/e2e/test_*.py; do
    file=$(basename "$file" .py)
    [[ " ${long_e2e[*]} " == *" $file "* ]] || echo "$file"
  done
}

end_of_suites() {
  echo "$passed passed, $failed failed"
  [ "$failed" -eq 0 ]
}
