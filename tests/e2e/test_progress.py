# SPDX-License-Identifier: Apache-2.0
"""Progress reports of models/demo/train.py. Time passes only when the test says so."""

import io
import subprocess
import sys
import unittest

from server_process import REPOSITORY

sys.path.append(str(REPOSITORY / "models" / "demo"))
import progress  # noqa: E402

WIPE = progress.WIPE


class Stream(io.StringIO):
    def __init__(self, is_terminal: bool):
        super().__init__()
        self.isatty = lambda: is_terminal


class TrainingTest(unittest.TestCase):
    def told(self, is_terminal: bool, times: list[float]) -> str:
        stream, now = Stream(is_terminal), 0.0
        with progress.Progress(stream, lambda: now) as line:
            for now in times:
                line.tell(f"step {now}")
        return stream.getvalue()

    def test_elsewhere_than_on_a_terminal_a_line_comes_every_10_seconds(self):
        self.assertEqual(self.told(False, [0, 1.9, 2, 3, 11.9, 12.5, 22, 22.5]),
                         "step 2\nstep 12.5\nstep 22.5\n")

    def test_terminal_line_is_rewritten_and_removed(self):
        self.assertEqual(self.told(True, [1, 2, 2.1, 2.25, 3]),
                         f"{WIPE}step 2{WIPE}step 2.25{WIPE}step 3{WIPE}")

    def test_short_work_reports_nothing(self):
        for is_terminal in (False, True):
            self.assertEqual(self.told(is_terminal, [0, 1, 1.99]), "")

    def test_line_makes_room_for_others(self):
        stream, now = Stream(True), 0
        line = progress.Progress(stream, lambda: now)
        now = progress.FIRST_SECONDS
        line.tell("training")
        line.wipe()
        line.wipe()
        self.assertEqual(stream.getvalue(), f"{WIPE}training{WIPE}")

    def test_command_that_fails_is_an_error(self):
        with self.assertRaises(subprocess.CalledProcessError):
            progress.Progress(Stream(False)).run("failing", [sys.executable, "-c", "exit(3)"])


if __name__ == "__main__":
    unittest.main()
