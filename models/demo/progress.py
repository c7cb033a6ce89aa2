# SPDX-License-Identifier: Apache-2.0
"""Reports the progress of long work on stderr."""

import subprocess
import sys
import time
from collections.abc import Callable
from typing import TextIO

FIRST_SECONDS = 2  # shorter work reports nothing
TERMINAL_SECONDS, ELSEWHERE_SECONDS = 0.25, 10
WIPE = "\r\x1b[K"


class Progress:
    """A terminal shows one line, which is rewritten and removed at the end. Other streams get a
    line every 10 s. Use `with Progress() as progress:`; tell() is cheap."""

    def __init__(self, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic):
        self.stream, self.clock = stream or sys.stderr, clock
        self.is_terminal, self.is_shown = self.stream.isatty(), False
        self.begin = clock()
        self.next = self.begin + FIRST_SECONDS

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_) -> None:
        self.wipe()

    def tell(self, text: str) -> None:
        now = self.clock()
        if now < self.next:
            return
        self.next = now + (TERMINAL_SECONDS if self.is_terminal else ELSEWHERE_SECONDS)
        self.stream.write(WIPE + text if self.is_terminal else text + "\n")
        self.stream.flush()
        self.is_shown = self.is_terminal

    def wipe(self) -> None:
        """Call it before other lines for the terminal."""
        if self.is_shown:
            self.stream.write(WIPE)
            self.stream.flush()
        self.is_shown = False

    def run(self, doing: str, command: list) -> None:
        """Runs a command that prints nothing itself and reports how long it has run."""
        process = subprocess.Popen(command)
        while True:
            try:
                code = process.wait(TERMINAL_SECONDS)
            except subprocess.TimeoutExpired:
                self.tell(f"{doing}: {self.clock() - self.begin:.0f} s")
            else:
                break
        if code:
            raise subprocess.CalledProcessError(code, command)
