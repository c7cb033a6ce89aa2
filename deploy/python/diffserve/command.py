# SPDX-License-Identifier: Apache-2.0
"""The console script `diffserve`: becomes the program that lies in this package."""

import os
import sys

from .installed import conflict, with_cublas

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "diffserve")


def main() -> None:
    reason = conflict()
    if reason is not None:
        sys.exit(f"diffserve: {reason}")
    os.execve(PROGRAM, sys.argv, with_cublas(dict(os.environ)))
