#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the C++ tests of a build of the preset `coverage` and prints, by folder, how many lines of
the product's C++ they run. Rust, CUDA and what only the end-to-end tests run are not counted. The
last line is "N passed, N failed".

  tests/coverage.py [PROGRAM...]   by default kernels_test models_test engine_test text_test
                                   server_test faults_test
"""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build/coverage"
PROGRAMS = ["kernels_test", "models_test", "engine_test", "text_test", "server_test",
            "faults_test"]
COUNTS = re.compile(r"^\[  (PASSED|FAILED)  \] (\d+) tests?", re.M)


def run(program: str) -> Counter:
    """Runs a test program; writes its profile beside it."""
    path = BUILD / "tests" / program
    done = subprocess.run([path, "--gtest_brief=1"], cwd=ROOT, capture_output=True, text=True,
                          check=False,
                          env=os.environ | {"LLVM_PROFILE_FILE": f"{path}.profraw"})
    counted = Counter({word: int(number) for word, number in COUNTS.findall(done.stdout)})
    if done.returncode and not counted["FAILED"]:
        counted["FAILED"] = 1
    if counted["FAILED"]:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n")
    return counted


def lines_by_folder(programs: list[str]) -> dict[str, Counter]:
    paths = [BUILD / "tests" / program for program in programs]
    profile = BUILD / "coverage.profdata"
    subprocess.run(["llvm-profdata-19", "merge", "--sparse", "--output", profile,
                    *(f"{path}.profraw" for path in paths)], check=True)
    objects = [argument for path in paths[1:] for argument in ("--object", path)]
    exported = subprocess.run(["llvm-cov-19", "export", "--summary-only", "--instr-profile",
                               profile, paths[0], *objects], check=True, capture_output=True,
                              text=True)
    folders = {}
    for file in json.loads(exported.stdout)["data"][0]["files"]:
        path = Path(file["filename"])
        if not path.is_relative_to(ROOT) or path.relative_to(ROOT).parts[0] in ("tests", "build"):
            continue
        lines = file["summary"]["lines"]
        for folder in ("/".join(path.relative_to(ROOT).parent.parts[:2]), "all"):
            folders.setdefault(folder, Counter()).update(
                {"lines": lines["count"], "run": lines["covered"]})
    return folders


def main() -> int:
    programs = sys.argv[1:] or PROGRAMS
    total = sum((run(program) for program in programs), Counter())
    folders = lines_by_folder(programs)
    print(f"{'folder':24} {'lines':>7} {'run':>7}")
    for folder, lines in sorted(folders.items(), key=lambda item: (item[0] == "all", item[0])):
        print(f"{folder:24} {lines['lines']:7} {100 * lines['run'] / lines['lines']:6.1f}%")
    print(f"{total['PASSED']} passed, {total['FAILED']} failed")
    return int(total["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())
