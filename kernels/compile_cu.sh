#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# compile_cu.sh REPORT NVCC ARGUMENT...: runs nvcc and keeps what ptxas says about every kernel in
# REPORT, for tests/cuda/compile_gate.py. Prints only what the compiler says beside that; a failed
# compile leaves no report.
set -uo pipefail
report=$1
shift
rm -f "$report"
"$@" >"$report.part" 2>&1
code=$?
grep -v -E '^ptxas info|bytes stack frame|^$' "$report.part" >&2
if [ $code -ne 0 ]; then
  rm -f "$report.part"
  exit $code
fi
mv "$report.part" "$report"
