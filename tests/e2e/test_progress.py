# SPDX-License-Identifier: Apache-2.0
"""Progress reports of deploy/gpu_check.sh and models/demo/train.py. Time passes only when the test
says so."""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from server_process import REPOSITORY
from terminal import Terminal

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


class GpuCheckTest(unittest.TestCase):
    """The part `build`: its cmake writes a line and waits, and the test sets its seconds."""

    @contextlib.contextmanager
    def tools(self):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for pipe in ("sleeps", "wake", "builds", "done"):
                os.mkfifo(folder / pipe)
            (folder / "sleep").write_text(
                f'#!/bin/sh\necho >"{folder}/sleeps"; read -r line <"{folder}/wake"\n')
            (folder / "cmake").write_text(
                '#!/bin/sh\necho "[7/9] compiling"\n'
                f'echo >"{folder}/builds"; read -r line <"{folder}/done"\n')
            for tool in ("sleep", "cmake"):
                (folder / tool).chmod(0o755)
            environment = {
                **os.environ, "PATH": f"{folder}:{os.environ['PATH']}",
                "GPU_CHECK_LOGS": f"{folder}/logs", "GPU_CHECK_BUILD": f"{folder}/none"
            }
            yield folder, environment

    @staticmethod
    def sleep(folder: Path, seconds: int) -> None:
        for _ in range(seconds):
            (folder / "sleeps").read_text()
            (folder / "wake").write_text("\n")

    @staticmethod
    def end_build(folder: Path) -> None:
        """Ends a build whose first call of cmake has begun."""
        (folder / "done").write_text("\n")
        (folder / "builds").read_text()
        (folder / "done").write_text("\n")

    def test_line_comes_every_10_seconds(self):
        with self.tools() as (folder, environment):
            check = subprocess.Popen([REPOSITORY / "deploy" / "gpu_check.sh", "build"],
                                     env=environment, stdout=subprocess.PIPE,
                                     stderr=subprocess.PIPE, text=True)
            (folder / "builds").read_text()
            self.sleep(folder, 23)
            lines = [check.stderr.readline() for _ in range(3)]
            self.end_build(folder)
            output, rest = check.communicate(timeout=60)
        self.assertEqual(lines, [f"build: {second} s, [7/9] compiling\n" for second in (2, 12, 22)])
        self.assertEqual((check.returncode, rest), (0, ""))
        self.assertIn("== build: 1 passed, 0 failed", output)

    def test_terminal_line_is_rewritten_and_removed(self):
        with self.tools() as (folder, environment), \
                Terminal([REPOSITORY / "deploy" / "gpu_check.sh", "build"],
                         environment) as terminal:
            (folder / "builds").read_text()
            self.sleep(folder, 4)
            seen = terminal.until("4 s, [7/9] compiling")
            self.end_build(folder)
            code, rest = terminal.end()
        self.assertEqual(seen, "".join(f"{WIPE}build: {second} s, [7/9] compiling"
                                       for second in (2, 3, 4)))
        self.assertTrue(rest.startswith(f"{WIPE}== build: 1 passed"), rest)
        self.assertEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
