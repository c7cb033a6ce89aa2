#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Looks for known vulnerabilities in the pinned versions of Rust crates and Python packages, by
# RustSec's database and by PyPI's. Needs both on the network. The last line is "N passed, N
# failed", of lists.
#   tests/audit.sh [--reachable]   --reachable only asks whether both databases answer
set -uo pipefail
cd "$(dirname "$0")/.."
audit=build/audit
if [ "${1:-}" = --reachable ]; then
  curl --silent --fail --max-time 10 --output /dev/null https://pypi.org/pypi/pip/25.0/json &&
    git ls-remote --quiet https://github.com/RustSec/advisory-db HEAD >/dev/null 2>&1
  exit
fi
[ -x $audit/bin/pip-audit ] ||
  { python3 -m venv $audit && $audit/bin/pip install -q pip-audit==2.10.1; } || exit 1
[ -x $audit/bin/cargo-audit ] ||
  cargo install --quiet --locked --root $audit cargo-audit --version 0.22.0 || exit 1
passed=0
failed=0
run() { if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); fi; }
run $audit/bin/cargo-audit audit --file engine/text/crates/Cargo.lock
while read -r list; do
  echo "$list"
  run $audit/bin/pip-audit --disable-pip --no-deps --requirement "$list"
done < <(git -c safe.directory='*' ls-files '*requirements*.txt')
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
