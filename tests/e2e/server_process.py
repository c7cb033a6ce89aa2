# SPDX-License-Identifier: Apache-2.0
"""Starts the built server on free ports, reads its ready line, and stops it the way an operator
would."""

import contextlib
import http.client
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import tiny_model

REPOSITORY = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("DIFFSERVE_BINARY", REPOSITORY / "build" / "diffserve"))
GATED_BINARY = Path(
    os.environ.get("DIFFSERVE_GATED_BINARY",
                   REPOSITORY / "build" / "dev" / "tests" / "diffserve_gated"))
DEMO_MODEL = REPOSITORY / "models" / "demo" / "diff"
DEVICE = os.environ.get("DIFFSERVE_DEVICE", "cpu")  # where all servers of the suite run
DEVICE_FLAGS = ["--device", DEVICE] + ["--batch-invariant"] * (DEVICE == "cuda")
# Slots per page, and bytes per number in tiny_model's KV pages.
PAGE_SLOTS, KV_BYTES = (64, 2) if DEVICE == "cuda" else (16, 4)
START_TIMEOUT_S = 30 if DEVICE == "cpu" else 120
STOP_TIMEOUT_S = 30


def eventually(condition, what: str, timeout_s: float = 60) -> None:
    """Waits until condition() holds. An immediate change is seen immediately."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.01)


def free_port() -> int:
    """A free port below the range for outgoing connections, so that none takes it meanwhile."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


class Response:
    def __init__(self, status: int, headers: dict[str, str], body: bytes):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    @property
    def error(self) -> dict:
        return self.json()["error"]


class HttpTarget:
    """What answers HTTP on `port`: a server, or a program before servers."""

    def connect(self, timeout_s: float = 120) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def request(self, method: str, path: str, body=None, headers: dict | None = None,
                timeout_s: float = 120) -> Response:
        """Sends one HTTP request on a new connection; `body` is bytes or a value to write as
        JSON."""
        connection = self.connect(timeout_s)
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        if body is not None:
            headers.setdefault("Content-Type", "application/json")
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            return Response(response.status, {k.lower(): v
                                              for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def get(self, path: str, **options) -> Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body, **options) -> Response:
        return self.request("POST", path, body, **options)


class ServerProcess(HttpTarget):
    """`with ServerProcess("--max-num-seqs", 4) as server:`; leaving the block sends SIGTERM and
    expects exit code 0."""
    def __init__(self, *flags, model: Path | None = None, binary: Path = BINARY,
                 environment: dict | None = None, ports: tuple[int, int] = (0, 0)):
        self.model, self._ports = model or tiny_model.directory(), ports
        self.flags = [str(flag) for flag in flags]
        self.binary, self.environment = binary, {**os.environ, **(environment or {})}
        self.code = None

    def open_gate(self) -> None:
        """Nothing to open; GatedServer holds steps."""

    def what_is_served(self) -> list:
        return [self.model]

    def __enter__(self):
        self._stderr = tempfile.TemporaryFile()
        command = [
            self.binary, "serve", *self.what_is_served(), "--port",
            str(self._ports[0]), "--grpc-port",
            str(self._ports[1]), *DEVICE_FLAGS, *self.flags
        ]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=self._stderr, env=self.environment)
        line = self._first_line()
        match = re.fullmatch(r"ready http=127\.0\.0\.1:(\d+) grpc=127\.0\.0\.1:(\d+) model=(\S+)\n",
                             line)
        if not match:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no ready line but {line!r}\n{self.stderr()[-4000:]}")
        self.port, self.grpc_port, self.name = int(match[1]), int(match[2]), match[3]
        self.url, self.grpc_address = f"http://127.0.0.1:{self.port}", f"127.0.0.1:{self.grpc_port}"
        return self

    def _first_line(self) -> str:
        end, line = time.monotonic() + START_TIMEOUT_S, b""
        while not line.endswith(b"\n") and (left := end - time.monotonic()) > 0:
            if select.select([self.process.stdout], [], [], left)[0]:
                byte = os.read(self.process.stdout.fileno(), 1)
                if not byte:
                    break
                line += byte
        return line.decode()

    def __exit__(self, kind, *_):
        code = self.stop()
        if kind is None and code != 0:
            raise AssertionError(f"exit code {code}\n{self.stderr()[-4000:]}")

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.process.kill()
        self.code = self.process.wait() + signal.SIGKILL  # 0: the signal that must have ended it
        self.process.stdout.close()

    def wait(self, timeout_s: float = STOP_TIMEOUT_S) -> int:
        if self.code is None:
            try:
                self.code = self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError(
                    f"still running {timeout_s} s after SIGTERM\n{self.stderr()[-4000:]}") from None
            finally:
                self.process.stdout.close()
        return self.code

    def stop(self) -> int:
        if self.code is None and self.process.poll() is None:
            self.open_gate()
            self.terminate()
        return self.wait()

    def stderr(self) -> str:
        self._stderr.seek(0)
        return self._stderr.read().decode(errors="replace")

    def metrics(self) -> dict[str, float]:
        """Each sample of /metrics by its name with labels."""
        samples = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                samples[name] = float(value)
        return samples

    def metric(self, name: str, **labels) -> float:
        """The sum over the samples of `name` that have `labels`."""
        found = [
            value for sample, value in self.metrics().items()
            if sample.partition("{")[0] == name and all(f'{k}="{v}"' in sample
                                                        for k, v in labels.items())
        ]
        if not found:
            raise AssertionError(f"/metrics has no {name} {labels}")
        return sum(found)

    def pages_used(self) -> float:
        return self.metric("diffserve_kv_pages", state="used")

    def wait_until_idle(self) -> None:
        def idle() -> bool:
            metrics = self.metrics()
            names = ("diffserve_requests_waiting", "diffserve_requests_running",
                     'diffserve_kv_pages{state="used"}')
            return all(metrics[name] == 0 for name in names)
        eventually(idle, "nothing waits, nothing runs, pages of all sequences are free or cached")

    def cpu_seconds(self) -> float:
        """User and system time of all its threads so far, in clock ticks (10 ms)."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Gate:
    """Holds the steps of every gated server that has `gate` in DIFFSERVE_GATE. Open at first."""
    def __init__(self):
        self._folder, self._round = tempfile.TemporaryDirectory(prefix="diffserve-gate-"), 0
        self.gate = Path(self._folder.name) / "gate"
        self.open_gate()

    def allow(self, steps: int) -> None:
        """Lets the engine begin N more steps (-1: any number) before it waits at the gate."""
        self._round += 1
        new = self.gate.with_name("new")
        new.write_text(f"{self._round} {steps}")
        new.rename(self.gate)

    def open_gate(self) -> None:
        self.allow(-1)

    def close_gate(self) -> None:
        self.allow(0)


class GatedServer(Gate, ServerProcess):
    """A server whose steps a test can hold, so that requests overlap on every machine. The gate is
    open at first."""
    def __init__(self, *flags, **options):
        ServerProcess.__init__(self, *flags, **{"binary": GATED_BINARY, **options})
        Gate.__init__(self)
        self.environment["DIFFSERVE_GATE"] = str(self.gate)

    def wait_for_waiting(self, continuations: int) -> None:
        """Waits until `continuations` are accepted, while the gate is closed before the first of
        them."""
        eventually(lambda: self.metric("diffserve_requests_waiting") == continuations,
                   f"{continuations} continuations wait", 60)

    def wait_until_left(self) -> None:
        """Waits until the server has noticed that all waiting HTTP clients are gone."""
        eventually(lambda: self.get("/load").json()["server_load"] == 0, "no answer is under way",
                   60)
