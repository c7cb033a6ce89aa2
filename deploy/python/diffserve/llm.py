# SPDX-License-Identifier: Apache-2.0
"""LLM: a client with a server of its own, which is a child process on a private Unix socket."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import weakref
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Dict, List, Optional, Type

from .client import Client
from .errors import DiffserveError, of_ended
from .program import child_environment, find_binary, flag_arguments
from .transport import Transport

MAX_SOCKET_PATH = 107  # bytes that the system allows
DRAIN_S = 5  # for running requests when the server is closed, unless drain_timeout says otherwise
PATIENCE_S = 10  # for the server to end after that; then it is killed
LOG_BYTES = 4000  # of the log's end, in an error


class Child:
    """The server process, its folder and its log. The end of its standard input ends it, so it ends
    with this process, however that ends."""

    all: weakref.WeakSet[Child] = weakref.WeakSet()

    def __init__(self, model: str, flags: Dict[str, Any]):
        self._patience_s = float(flags["drain_timeout"]) + PATIENCE_S
        self.folder = tempfile.mkdtemp(prefix="diffserve-")
        if len(os.fsencode(self.folder)) + len("/http.sock") > MAX_SOCKET_PATH:
            os.rmdir(self.folder)
            self.folder = tempfile.mkdtemp(prefix="diffserve-", dir="/tmp")
        self.socket = f"{self.folder}/http.sock"
        self._log: IO[bytes] = tempfile.TemporaryFile()
        self._owner = os.getpid()
        try:
            self.process = subprocess.Popen(
                [find_binary(), "serve", model, "--unix-socket", self.socket, "--no-grpc",
                 "--stop-with-stdin", *flag_arguments(flags)],
                bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
                env=child_environment(), start_new_session=True)  # Ctrl-C is for this process
        except BaseException:
            shutil.rmtree(self.folder)
            raise
        assert self.process.stdin is not None and self.process.stdout is not None
        self._input, self._output = self.process.stdin, self.process.stdout
        Child.all.add(self)

    def wait_until_ready(self) -> None:
        line = self._output.readline()
        if not line.startswith(b"ready "):
            self.end()
            raise self.why_ended("the server did not start")

    def why_ended(self, what: str) -> DiffserveError:
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LOG_BYTES))
        return of_ended(what, self.process.returncode, self._log.read().decode(errors="replace"))

    def why_lost(self) -> Optional[DiffserveError]:
        try:
            self.process.wait(1)  # a connection may break a moment before the process ends
        except subprocess.TimeoutExpired:
            return None
        return self.why_ended("the server ended")

    def end(self) -> None:
        """Ends the server and waits for it. A forked copy of this process ends nothing."""
        if os.getpid() != self._owner:
            return
        self._input.close()
        try:
            self.process.wait(self._patience_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._output.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @classmethod
    def forget_all(cls) -> None:
        """In a forked copy of this process: servers must not outlive the original."""
        for child in cls.all:
            child._input.close()


os.register_at_fork(after_in_child=Child.forget_all)


class LLM(Client):
    """A model and the server that runs it: a directory or a name, such as demo or hf:ORG/NAME.
    Keywords are the flags of `diffserve serve`: LLM("DIR", max_model_len=4096,
    quantization="int8"). The server ends with close(), at the end of a `with` block, and with this
    process."""

    def __init__(self, model: Any, *, timeout: Optional[float] = None, **flags: Any):
        flags = {"drain_timeout": DRAIN_S, "log_level": "warning", **flags}
        child = Child(os.fspath(model), flags)
        self._end = weakref.finalize(self, child.end)
        child.wait_until_ready()
        super().__init__(Transport(f"unix:{child.socket}", None, timeout, child.why_lost))
        self.pid = child.process.pid

    def close(self) -> None:
        """Ends the server. Idempotent."""
        self._end()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], error: Optional[BaseException],
                 trace: Optional[TracebackType]) -> None:
        self.close()
