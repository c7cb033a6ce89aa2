"""How a programme ends: its figures as JSON where they are wanted, what is wrong on stderr."""

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
