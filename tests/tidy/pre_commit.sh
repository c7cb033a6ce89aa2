#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The checks of style that take seconds: tidy, and clang-format on the staged files. As a hook:
#   ln -s ../../tests/tidy/pre_commit.sh .git/hooks/pre-commit
set -euo pipefail
cd "$(git rev-parse --show-toplevel)"
python3 tests/tidy/tidy.py
mapfile -t files < <(git diff --cached --name-only --diff-filter=d -- '*.cc' '*.h' '*.cu' '*.cuh')
[ ${#files[@]} -eq 0 ] || .venv/bin/clang-format --dry-run --Werror "${files[@]}"
