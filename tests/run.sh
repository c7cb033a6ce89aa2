#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is needed, builds, and runs the tests. The last line is "N passed, N failed".
#   tests/run.sh               what finds most faults: minutes
#   tests/run.sh --all         and everything else that needs no GPU: tests/long.sh --usual
#   tests/run.sh --helm        and the Helm chart (tests/helm/run.sh)
#   tests/run.sh --sanitizers  and the C++ tests again under ASan+UBSan, engine, text and server
#                              tests under TSan
set -uo pipefail
cd "$(dirname "$0")/.."

more=()
for option in "$@"; do
  case "$option" in
    --all) more+=(--usual) ;;
    --helm) more+=(helm) ;;
    --sanitizers) more+=(asan asan_engine asan_server asan_cuda tsan) ;;
    *) echo "usage: tests/run.sh [--all | --helm | --sanitizers]" >&2; exit 2 ;;
  esac
done
. tests/suites.sh

mapfile -t e2e < <(short_e2e)
echo "tidy, tidy_test, format; a build; docs, docs_commands; ${programs[*]};"
echo "${#fuzz[@]} fuzz corpora; ${#e2e[@]} end-to-end files${more:+; then tests/long.sh ${more[*]}}"
deploy/install_deps.sh --test || exit 1

run tidy python3 tests/tidy/tidy.py
run_unittest tidy_test tests/tidy/tidy_test.py
run format tests/tidy/format.sh
build dev diffserve diffserve_gated "${programs[@]}" "${fuzz[@]}"
run docs .venv/bin/python docs/build.py --check
run docs_commands .venv/bin/python docs/check_commands.py
for program in "${programs[@]}"; do run_gtest "$program" "build/dev/tests/$program"; done
replay dev ""
run e2e .venv/bin/python tests/e2e/run.py --jobs 4 "${e2e[@]}"
grep -E " skipped '" "$results/e2e.log"

if [ ${#more[@]} -gt 0 ]; then
  run long tests/long.sh "${more[@]}"
  cat "$results/long.log"
fi
echo "left out, by the name that tests/long.sh knows:"
tests/long.sh --list "${more[@]}" | sed 's/^/  /'
end_of_suites
