#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the suite; the last line is `N passed, N failed`, with `, N skipped` if any. Arguments are
test names as unittest takes them. After `--jobs N` each is run in a process of its own, N at a
time: the tests wait more than they compute."""

import re
import subprocess
import sys
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


class TimedResult(unittest.TextTestResult):
    """Records the time of each test file. A test counts as failed once, however many of its cases
    failed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.seconds, self.passed = {}, 0

    def startTest(self, test):
        super().startTest(test)
        self._start = time.monotonic()

    def addSuccess(self, test):
        super().addSuccess(test)
        self.passed += 1

    def stopTest(self, test):
        name = type(test).__module__
        self.seconds[name] = self.seconds.get(name, 0) + time.monotonic() - self._start
        super().stopTest(test)


def summary(passed: int, failed: int, skipped: int) -> str:
    return f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else "")


def run_each(names: list[str], jobs: int) -> int:
    """What those with failures print comes last."""
    def run(name):
        return subprocess.run([sys.executable, __file__, name], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)

    sums, failures = [0, 0, 0], []  # passed, failed, skipped
    with ThreadPoolExecutor(jobs) as pool:
        for done in pool.map(run, names):
            found = re.search(r"(\d+) passed, (\d+) failed(?:, (\d+) skipped)?\s*\Z", done.stdout)
            counts = [int(number or 0) for number in found.groups()] if found else [0, 1, 0]
            sums = [sum(pair) for pair in zip(sums, counts)]
            if done.returncode == 0:
                print(done.stdout, end="", flush=True)
            else:
                failures.append(done.stdout)
    print(*failures, sep="", end="")
    print(summary(*sums))
    return 1 if failures else 0


def main(folder: Path) -> int:
    if sys.argv[1:2] == ["--jobs"]:
        return run_each(sys.argv[3:], int(sys.argv[2]))
    sys.path.insert(0, str(folder))
    if len(sys.argv) > 1:
        suite = unittest.defaultTestLoader.loadTestsFromNames(sys.argv[1:])
    else:
        suite = unittest.defaultTestLoader.discover(str(folder))
    result = unittest.TextTestRunner(sys.stdout, resultclass=TimedResult, verbosity=2).run(suite)
    for name, seconds in sorted(result.seconds.items(), key=lambda item: -item[1]):
        print(f"{seconds:7.1f} s  {name}")
    failed = {getattr(test, "test_case", test).id() for test, _ in result.failures + result.errors}
    failed |= {test.id() for test in result.unexpectedSuccesses}
    for name in sorted(failed):
        print(f"failed: {name}")
    print(summary(result.passed, len(failed), len(result.skipped)))
    return 1 if failed or not result.testsRun else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))
