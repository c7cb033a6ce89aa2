# SPDX-License-Identifier: Apache-2.0
"""Starts the built server with a rendered container's arguments, on this machine's ports and
with the bundled model."""

import http.client
import json
import os
import re
import select
import socket
import subprocess
import tempfile
import time

from chart import REPOSITORY, Workload

BINARY = os.environ.get("DIFFSERVE_BINARY", REPOSITORY / "build" / "diffserve")
MODEL = REPOSITORY / "models" / "demo" / "diff"
START_TIMEOUT_S = 120
KUBELETS_HOST = "10.1.2.3:8000"  # a probe's Host header is the pod's address
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(
    5)  # and empty SETTINGS


def serve_flags() -> set[str]:
    """The flags that `diffserve serve --help` lists."""
    text = subprocess.run([BINARY, "serve", "--help"], capture_output=True, text=True,
                          check=True).stdout
    return set(re.findall(r"^  (--[\w-]+)", text, re.M))


def version() -> str:
    """The last or the next release, by CMakeLists.txt."""
    return subprocess.run([REPOSITORY / "deploy/version.sh", "--release"], capture_output=True,
                          text=True, check=True).stdout.strip()


def local_args(workload: Workload, key_file, cache) -> list[str]:
    args = workload.expanded_args("127.0.0.1")
    args[1] = str(MODEL)
    replaced = {
        "--port": lambda old: "0", "--grpc-port": lambda old: "0",
        "--api-key-file": lambda old: str(key_file), "--kv-cache-dir": lambda old: str(cache),
        "--kv-events-endpoint": lambda old: "tcp://127.0.0.1:*",
        "--kv-events-replay-endpoint": lambda old: "tcp://127.0.0.1:*"
    }
    for i, name in enumerate(args[:-1]):
        if name in replaced:
            args[i + 1] = replaced[name](args[i + 1])
    return args


class Server:
    """`with Server(workload, key_file, cache) as server:`; leaving the block sends SIGTERM and
    expects exit code 0. `cache`: the folder of its pages, if it keeps any."""

    def __init__(self, workload: Workload, key_file=None, cache=None):
        self.command = [BINARY, *local_args(workload, key_file, cache)]

    def __enter__(self):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log,
                                        text=True)
        line = self.process.stdout.readline() if select.select([self.process.stdout], [], [],
                                                               START_TIMEOUT_S)[0] else ""
        ready = re.fullmatch(r"ready http=(\S+):(\d+) grpc=(\S+):(\d+) model=(\S+)\n", line)
        if not ready:
            self.process.kill()
            self.process.wait()
            raise RuntimeError(f"no ready line but {line!r}: {self.last_words()}")
        self.host, self.port, _, self.grpc_port, self.model = ready.groups()
        self.log.seek(0)
        self.event_ports = [
            int(port)
            for port in re.findall(r"endpoint=\"?tcp://127\.0\.0\.1:(\d+)", self.log.read())
        ]
        return self

    def __exit__(self, kind, *_):
        self.process.terminate()
        try:
            code = self.process.wait(START_TIMEOUT_S)
        finally:
            self.process.kill()
            self.process.stdout.close()
        if kind is None and code != 0:
            raise RuntimeError(f"exit code {code} after SIGTERM: {self.last_words()}")

    def last_words(self) -> str:
        self.log.seek(0)
        return self.log.read()[-500:]

    def get(self, path: str, key: str | None = None) -> tuple[int, str]:
        return self.request("GET", path, {"Authorization": f"Bearer {key}"} if key else {})

    def request(self, method: str, path: str, headers: dict, body=None) -> tuple[int, str]:
        connection = http.client.HTTPConnection("localhost", int(self.port), timeout=30)
        connection.request(method, path, body, {"Host": KUBELETS_HOST} | headers)
        answer = connection.getresponse()
        body = answer.read().decode()
        connection.close()
        return answer.status, body

    def cached_tokens(self) -> int:
        """How much of a prompt, always the same, was cached."""
        body = json.dumps({"model": self.model, "prompt": "one two three " * 20, "max_tokens": 1})
        status, answer = self.request("POST", "/v1/completions",
                                      {"Content-Type": "application/json"}, body)
        if status != 200:
            raise RuntimeError(f"{status}: {answer}")
        return json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def metric_names(self, key: str | None = None) -> set[str]:
        return set(re.findall(r"^([a-zA-Z_:][\w:]*)[ {]", self.get("/metrics", key)[1], re.M))

    def speaks_http2(self) -> bool:
        """Whether the gRPC port answers HTTP/2 in clear text: its first frame is SETTINGS (type
        4)."""
        with socket.create_connection(("localhost", int(self.grpc_port)), timeout=30) as connection:
            connection.sendall(HTTP2_PREFACE)
            frame = b""
            end = time.monotonic() + 30
            while len(frame) < 9 and time.monotonic() < end and (more :=
                                                                 connection.recv(9 - len(frame))):
                frame += more
            return len(frame) == 9 and frame[3] == 4
