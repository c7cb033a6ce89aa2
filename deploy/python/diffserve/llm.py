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
from .errors import DiffserveError
from .transport import Transport

MAX_SOCKET_PATH = 107  # bytes that the system allows
DRAIN_S = 5  # for running requests when the server is closed, unless drain_timeout says otherwise
PATIENCE_S = 10  # for the server to end after that; then it is killed
LOG_BYTES = 4000  # of the log's end, in an error


def find_binary() -> str:
    """The program in the package; else what DIFFSERVE_BINARY names; else the one on PATH."""
    packaged = Path(__file__).parent / "bin" / "diffserve"
    if packaged.is_file():
        return str(packaged)
    found = os.environ.get("DIFFSERVE_BINARY") or shutil.which("diffserve")
    if found is None:
        raise DiffserveError(f"there is no program diffserve: not {packaged}, not in "
                             "DIFFSERVE_BINARY, not on PATH")
    return found


def child_environment() -> Dict[str, str]:
    """This process's. The socket is this user's alone, so the server asks for no key."""
    return {name: value for name, value in os.environ.items() if name != "DIFFSERVE_API_KEY_FILE"}


def flag_arguments(flags: Dict[str, Any]) -> List[str]:
    """max_model_len=4096 as --max-model-len 4096; ui=False as --no-ui; None is left out."""
    arguments: List[str] = []
    for name, value in flags.items():
        dashed = name.replace("_", "-")
        if value is True or value is False:
            arguments.append(f"--{dashed}" if value else f"--no-{dashed}")
        elif isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            arguments += [f"--{dashed}={part}" for part in value]
        elif isinstance(value, (list, tuple)):
            arguments.append(f"--{dashed}={','.join(map(str, value))}")
        elif value is not None:
            arguments.append(f"--{dashed}={value}")
    return arguments


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
            raise DiffserveError(f"the server did not start: {self.last_words()}")

    def last_words(self) -> str:
        """The exit code and the end of the log."""
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - LOG_BYTES))
        text = self._log.read().decode(errors="replace").strip()
        return f"exit code {self.process.returncode}: {text}"

    def why_lost(self) -> Optional[str]:
        try:
            self.process.wait(1)  # a connection may break a moment before the process ends
        except subprocess.TimeoutExpired:
            return None
        return f"the server ended, {self.last_words()}"

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
    """A model and the server that runs it: a directory or hf:ORG/NAME. Keywords are the flags of
    `diffserve serve`: LLM("DIR", max_model_len=4096, quantization="int8"). The server ends with
    close(), at the end of a `with` block, and with this process."""

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
