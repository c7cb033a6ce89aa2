# SPDX-License-Identifier: Apache-2.0
"""A program with a terminal of its own: what a person types and sees."""

import os
import pty
import select
import time


class Terminal:
    """`with Terminal([BINARY, "chat", model]) as terminal:`; leaving the block kills the program if
    it still runs."""

    def __init__(self, command: list, environment: dict | None = None):
        self.command = [str(word) for word in command]
        # Containers set no locale; the program must work without one.
        kept = {name: value for name, value in os.environ.items()
                if name != "LANG" and not name.startswith("LC_")}
        self.environment = {**kept, "TERM": "xterm", **(environment or {})}
        self.seen = b""  # since the last answer of until()
        self.code = None

    def __enter__(self) -> "Terminal":
        self.process, self.descriptor = pty.fork()
        if self.process == 0:
            try:
                os.execve(self.command[0], self.command, self.environment)
            finally:
                os._exit(127)
        return self

    def __exit__(self, *_) -> None:
        if self.code is None:
            os.kill(self.process, 9)
            os.waitpid(self.process, 0)
        os.close(self.descriptor)

    def type(self, text: str | bytes) -> None:
        os.write(self.descriptor, text.encode() if isinstance(text, str) else text)

    def until(self, text: str, timeout_s: float = 60) -> str:
        """Waits until the text is seen; returns what was seen up to its end."""
        end, wanted = time.monotonic() + timeout_s, text.encode()
        while wanted not in self.seen:
            if not self._read(end):
                raise AssertionError(f"no {text!r} in {self.seen!r}")
        before, _, self.seen = self.seen.partition(wanted)
        return (before + wanted).decode(errors="replace")

    def end(self, timeout_s: float = 60) -> tuple[int, str]:
        """Waits for the program to end; returns its exit code and what was seen last."""
        end = time.monotonic() + timeout_s
        while self._read(end):
            pass
        while (done := os.waitpid(self.process, os.WNOHANG)) == (0, 0):
            if time.monotonic() > end:
                raise AssertionError(f"it still runs; seen: {self.seen!r}")
            time.sleep(0.01)
        self.code = os.waitstatus_to_exitcode(done[1])
        return self.code, self.seen.decode(errors="replace")

    def _read(self, end: float) -> bool:
        if not select.select([self.descriptor], [], [], max(0, end - time.monotonic()))[0]:
            return False
        try:
            piece = os.read(self.descriptor, 65536)
        except OSError:  # the program has closed the terminal
            return False
        self.seen += piece
        return bool(piece)
