# SPDX-License-Identifier: Apache-2.0
"""How a program ends: figures as JSON on request, faults on stderr."""

import json
import sys
from pathlib import Path


def finish(figures, problems: list[str], file: Path | None) -> int:
    """The exit code."""
    for problem in problems:
        print(problem, file=sys.stderr)
    if file:
        file.write_text(json.dumps(figures, indent=1) + "\n")
    return 1 if problems else 0
