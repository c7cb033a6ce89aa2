# SPDX-License-Identifier: Apache-2.0
"""The console script `diffserve`: becomes the program that lies in this package."""

import os
import sys

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "diffserve")


def main() -> None:
    os.execv(PROGRAM, sys.argv)
