#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Holds C++ and CUDA to .clang-format with the version of tests/e2e/requirements.txt.
#   tests/tidy/format.sh        says which lines differ; the last line is "N passed, N failed"
#                               (files)
#   tests/tidy/format.sh --fix  rewrites them
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(git -c safe.directory=* ls-files --cached --others --exclude-standard \
  '*.cc' '*.h' '*.cu' '*.cuh')
if [ "${1:-}" = --fix ]; then exec .venv/bin/clang-format -i "${files[@]}"; fi
findings=$(mktemp)
trap 'rm -f "$findings"' EXIT
.venv/bin/clang-format --dry-run "${files[@]}" 2>"$findings" || true
grep -E ': (warning|error):' "$findings" | head -n 40 || true
failed=$({ grep -E ': (warning|error):' "$findings" || true; } | cut -d: -f1 | sort -u | wc -l)
if [ "$failed" -eq 0 ] && [ -s "$findings" ]; then cat "$findings"; failed=1; fi
echo "$((${#files[@]} - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
