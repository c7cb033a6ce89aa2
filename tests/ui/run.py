#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the page's tests in a headless browser; arguments and last line as in tests/e2e/run.py. With
--write-pictures it writes the pictures of the README again."""

import os
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
sys.path[0] = str(FOLDER.parent / "e2e")
sys.path.insert(1, str(FOLDER))

import run  # of tests/e2e
from pictures import WRITE

if __name__ == "__main__":
    if "--write-pictures" in sys.argv:
        sys.argv.remove("--write-pictures")
        os.environ[WRITE] = "1"
    sys.exit(run.main(FOLDER))
