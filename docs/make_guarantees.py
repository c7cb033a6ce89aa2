#!/usr/bin/env python3
"""Writes the table of proofs into docs/operate/guarantees.md from docs/results/proofs.json, which
`RECORD=1 tests/long.sh NAME` fills, and prints how old each proof is.

Usage: make_guarantees.py [--check]. --check: exit code 1 if the page says something else; it says
what is written. The page has the block between `<!-- proofs -->` and `<!-- /proofs -->`.
"""

import datetime
import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).parent
PAGE, PROOFS = DOCS / "operate/guarantees.md", DOCS / "results/proofs.json"
BLOCK = re.compile(r"(<!-- proofs -->\n).*?(<!-- /proofs -->)", re.S)


def table(proofs: dict) -> str:
    lines = ["| check (`tests/long.sh NAME`) | passed | failed | minutes | commit | date |",
             "|---|---|---|---|---|---|"]
    for name, proof in sorted(proofs.items()):
        lines.append(f"| {name} | {proof['passed']} | {proof['failed']} "
                     f"| {proof['seconds'] / 60:.1f} | {proof['commit']} | {proof['date']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    proofs = json.loads(PROOFS.read_text())
    page = PAGE.read_text()
    if not BLOCK.search(page):
        print(f"{PAGE}: no block <!-- proofs --> ... <!-- /proofs -->")
        return 1
    made = BLOCK.sub(lambda found: found[1] + table(proofs) + found[2], page)
    if sys.argv[1:] == ["--check"]:
        if made != page:
            print(f"{PAGE} differs from {PROOFS}: run docs/make_guarantees.py")
        return int(made != page)
    PAGE.write_text(made)
    for name, proof in sorted(proofs.items()):
        age = datetime.date.today() - datetime.date.fromisoformat(proof["date"])
        print(f"{name}: {age.days} days old, commit {proof['commit']}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
