#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the table of proofs into docs/operate/guarantees.md from docs/results/proofs.json, which
`RECORD=1 tests/long.sh NAME` fills, and prints how old each proof is.

Usage: make_guarantees.py [--check]. --check writes nothing; exit code 1 if the page differs.
"""

import datetime
import json
import sys

from blocks import ROOT, settle, table, with_block

PROOFS = ROOT / "docs/results/proofs.json"
HEADS = ("check (`tests/long.sh NAME`)", "passed", "failed", "minutes", "commit", "date")


def main() -> int:
    proofs = sorted(json.loads(PROOFS.read_text()).items())
    rows = [(name, proof["passed"], proof["failed"], f"{proof['seconds'] / 60:.1f}",
             proof["commit"], proof["date"]) for name, proof in proofs]
    check = sys.argv[1:] == ["--check"]
    code = settle(with_block("proofs", table(HEADS, rows)), check)
    for name, proof in proofs if not check else ():
        age = datetime.date.today() - datetime.date.fromisoformat(proof["date"])
        print(f"{name}: {age.days} days old, commit {proof['commit']}")
    return code


if __name__ == "__main__":
    sys.exit(main())
