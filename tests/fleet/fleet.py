# SPDX-License-Identifier: Apache-2.0
"""Replicas and the routers in front of them, a client that records how each request ended, and the
figures that tests report."""

import http.client
import json
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
from server_process import (BINARY, DEMO_MODEL, REPOSITORY, GatedServer, HttpTarget, ServerProcess,
                            eventually, free_port)

START_TIMEOUT_S = 60
FIGURES = Path(os.environ.get("FLEET_FIGURES", os.devnull))
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
STREAM_TOKENS = 64
FIRST_STEPS = 4  # after them a stream has sent tokens and has many more to send
SOON_FULL = "--max-num-seqs", 1, "--max-waiting-requests", 1


def figure(name: str, value: str) -> None:
    """One line of the table that tests/fleet/run.sh prints at the end."""
    with FIGURES.open("a") as file:
        file.write(f"{name}\t{value}\n")


def event_ports() -> tuple[int, int]:
    return free_port(), free_port()


def events_flags(ports: tuple[int, int]) -> tuple:
    return "--kv-events-endpoint", f"tcp://*:{ports[0]}", "--kv-events-replay-endpoint", \
f"tcp://127.0.0.1:{ports[1]}"


class Replica(ServerProcess):
    """A server with one thread and the bundled model, whose ports stay the same after a restart."""

    def __init__(self, *flags, **options):
        self.ports = free_port(), free_port()
        super().__init__("--port", self.ports[0], "--grpc-port", self.ports[1], "--threads", 1,
                         *flags, model=DEMO_MODEL, **options)

    def start(self) -> "Replica":
        self.code = None
        return self.__enter__()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.code = 0  # an intended kill


class GatedReplica(Replica, GatedServer):
    """A replica whose steps a test can hold."""


def certificate(folder: Path) -> Path:
    """A PEM file with a key and a self-signed certificate for localhost."""
    key, chain, both = folder / "key.pem", folder / "chain.pem", folder / "site.pem"
    subprocess.run([
        "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
        "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", chain
    ], check=True, capture_output=True)
    both.write_bytes(chain.read_bytes() + key.read_bytes())
    return both


class Router(HttpTarget):
    """deploy/fleet/router.sh in front of running replicas. Ready when it has routed one complete
    request."""
    def __init__(self, kind: str, replicas: list, policy: str | None = None, flags: tuple = (),
                 events: list | None = None, **environment):
        self.kind, self.replicas = kind, replicas
        self.port, self.metrics_port = free_port(), free_port()
        self._folder = tempfile.TemporaryDirectory(prefix="diffserve-fleet-")
        self.folder, self.tls = Path(self._folder.name), None
        environment = {
            **os.environ, **{name: str(value)
                             for name, value in environment.items()}, "MODEL": DEMO_MODEL.name
        }
        if policy:
            environment["POLICY"] = policy
        if kind == "haproxy":
            self.pem, self.admin = certificate(self.folder), self.folder / "admin"
            self.tls = ssl.create_default_context(cafile=self.pem)
            environment.update(CERTIFICATE=str(self.pem), ADMIN_SOCKET=str(self.admin))
        else:
            flags = ("--prometheus-port", self.metrics_port, "--prometheus-host", "127.0.0.1",
                     *flags)
        addresses = [":".join(map(str, ("127.0.0.1", *replica.ports, *more))) for replica, more in
                     zip(replicas, events or [()] * len(replicas))]
        self.command = [
            REPOSITORY / "deploy/fleet/router.sh", kind,
            str(self.port), *addresses, "--", *map(str, flags)
        ]
        self.environment = environment

    def __enter__(self) -> "Router":
        self._log = (self.folder / "log").open("wb")
        self.process = subprocess.Popen(self.command, env=self.environment,
                                        stdin=subprocess.DEVNULL, stdout=self._log,
                                        stderr=subprocess.STDOUT)
        try:
            eventually(self._answers, f"{self.kind} answers", START_TIMEOUT_S)
        except AssertionError as problem:
            problem.add_note(self.log()[-2000:])
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()
        self._folder.cleanup()

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def _answers(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError(f"{self.kind} ended with {self.process.returncode}")
        try:
            return self.request(
                "POST", COMPLETIONS,
                {"model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 1}).status == 200
        except OSError:
            return False

    def administer(self, command: str) -> str:
        """HAProxy's answer to a command on its admin socket."""
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(str(self.admin))
            admin.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()

    def take_out(self, replica: Replica) -> None:
        """Takes the replica out of HAProxy and waits until its requests have ended, so that no
        client notices a rolling restart."""
        name = f"replica{self.replicas.index(replica) + 1}"
        self.administer(f"set server http/{name} state drain")
        eventually(
            lambda: all(
                row.split(",")[4] == "0" for row in self.administer("show stat").splitlines()
                if row.split(",")[1:2] == [name]), f"{name} has no request", 60)

    def put_back(self, replica: Replica) -> None:
        self.administer(f"set server http/replica{self.replicas.index(replica) + 1} state ready")

    def connect(self, timeout_s: float = 120) -> http.client.HTTPConnection:
        if self.tls:
            return http.client.HTTPSConnection("localhost", self.port, timeout=timeout_s,
                                               context=self.tls)
        return super().connect(timeout_s)


class Stream(threading.Thread):
    """One SSE completion through a router or to a replica, read to its end."""

    def __init__(self, target, max_tokens: int, prompt: str = "load"):
        super().__init__(daemon=True)
        self.target, self.status, self.tokens, self.done, self.problem = target, 0, 0, False, None
        self.body = {
            "model": DEMO_MODEL.name, "prompt": prompt, "max_tokens": max_tokens, "stream": True,
            "ignore_eos": True, "temperature": 0, "logprobs": 0
        }
        self.start()

    @property
    def complete(self) -> bool:
        return (self.status == 200 and self.done and self.problem is None
                and self.tokens == self.body["max_tokens"])

    def run(self):
        connection = self.target.connect()
        try:
            connection.request("POST", COMPLETIONS, json.dumps(self.body),
                               {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status = response.status
            for line in response:
                if line == b"data: [DONE]\n":
                    self.done = True
                elif line.startswith(b"data: "):
                    self._take(json.loads(line[6:]))
        except (OSError, http.client.HTTPException, ValueError) as problem:
            self.problem = problem
        finally:
            connection.close()

    def _take(self, chunk) -> None:
        self.problem = chunk.get("error", self.problem)
        for choice in chunk.get("choices", ()):
            self.tokens += len(
                choice["logprobs"]["token_logprobs"]) if choice.get("logprobs") else 0


class Load:
    """Clients that send one request after another, streamed and whole in turn, until they are
    stopped."""

    def __init__(self, router: Router, clients: int, max_tokens: int):
        self.router, self.max_tokens, self.failures, self.completed = router, max_tokens, [], 0
        self._stop, self._lock = threading.Event(), threading.Lock()
        self._threads = [
            threading.Thread(target=self._client, args=(i, ), daemon=True) for i in range(clients)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _client(self, index: int) -> None:
        while not self._stop.is_set():
            failure = self._streamed() if index % 2 else self._whole()
            with self._lock:
                self.completed += failure is None
                self.failures += [] if failure is None else [failure]
            index += 1

    def _streamed(self) -> str | None:
        stream = Stream(self.router, self.max_tokens)
        stream.join()
        return None if stream.complete else (f"stream: {stream.status} {stream.tokens} tokens "
                                             f"{stream.problem!r}")

    def _whole(self) -> str | None:
        body = {
            "model": DEMO_MODEL.name, "prompt": "load", "max_tokens": self.max_tokens,
            "ignore_eos": True, "temperature": 0
        }
        try:
            response = self.router.post(COMPLETIONS, body)
            tokens = response.json()["usage"]["completion_tokens"] if response.status == 200 else 0
        except (OSError, http.client.HTTPException, ValueError) as problem:
            return f"answer: {problem!r}"
        return None if tokens == self.max_tokens else (f"answer: {response.status} "
                                                       f"{response.body[:200]!r}")

    def wait_for(self, more: int) -> None:
        """Waits until `more` requests have ended from now on."""
        target = self.completed + len(self.failures) + more
        eventually(lambda: self.completed + len(self.failures) >= target,
                   f"{more} more requests end", 120)


def fill(replica: GatedReplica) -> list[Stream]:
    """Makes a replica with the flags SOON_FULL full until its gate opens: one stream runs and one
    waits."""
    replica.allow(FIRST_STEPS)
    streams = [Stream(replica, STREAM_TOKENS)]
    eventually(lambda: streams[0].tokens, "one stream runs")
    streams.append(Stream(replica, STREAM_TOKENS))
    eventually(lambda: replica.metric("diffserve_requests_waiting") == 1, "one stream waits")
    return streams


def refused_when_full(replica) -> float:
    return replica.metric("diffserve_requests_refused_total", reason="queue_full")


def requests_taken(replica) -> float:
    """Completions and chats that a replica has begun or refused."""
    return sum(value for name, value in replica.metrics().items()
               if name.startswith("diffserve_http_requests_total{") and "completions" in name)
