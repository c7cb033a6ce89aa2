# SPDX-License-Identifier: Apache-2.0
"""A wall clock that jumps by a day and trembles, while the monotonic clock runs on: no deadline,
timeout or order of a server changes. Uses libfaketime from Debian."""

import email.utils
import os
import socket
import tempfile
import threading
import time
from pathlib import Path

import grpc
from grpc_client import channel, generate_request, pb_grpc
from grpc_floods import GENERATE, Http2
from raw_http import request_bytes
from server_process import GatedServer, eventually
from test_http_gate import BODY

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
DAY_S = 86400
WAITING = 4  # requests whose order is checked
DEADLINES = 'diffserve_grpc_requests_total{method="Generate",code="4"}'
JUMPS = {"a day back": [-DAY_S], "a day ahead": [DAY_S],
         "a second to and fro": [(-1)**i for i in range(20)]}


class Clock:
    """The wall clock of processes with this environment."""

    def __init__(self, folder: Path):
        self._file = folder / "clock"
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(LIBRARIES[0]), "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"
        }

    def set(self, offset_s: int) -> None:
        new = self._file.with_name("new")
        new.write_text(f"{offset_s:+d}\n")
        os.replace(new, self._file)


def offset_s(server) -> float:
    date = server.get("/livez").headers["date"]
    return email.utils.parsedate_to_datetime(date).timestamp() - time.time()


class Waiting(threading.Thread):
    """A request that waits at the closed gate."""

    def __init__(self, ask, ended: list):
        super().__init__()
        self._ask, self._ended, self.answer = ask, ended, None
        self.start()

    def run(self) -> None:
        try:
            self.answer = self._ask()
        except grpc.RpcError as error:
            self.answer = error.code().name
        self._ended.append(self)


def deadline_passes(server, clock: Clock, offsets: list[int]) -> list[str]:
    """A call that runs while the clock jumps ends at its deadline."""
    server.close_gate()
    before = server.metrics().get(DEADLINES, 0)
    call = Http2(server)
    call.socket.sendall(
        call.open_frames(GENERATE, generate_request([5], 3).SerializeToString(),
                         ("grpc-timeout", "2S"))[1])
    server.wait_for_waiting(1)
    for offset in offsets:
        clock.set(offset)
        seen = offset_s(server)
    eventually(lambda: server.metrics().get(DEADLINES, 0) == before + 1, "the deadline passes")
    server.open_gate()
    call.socket.close()
    server.wait_until_idle()
    return [f"the clock has not jumped: {seen}"] * (abs(seen - offsets[-1]) > 30)


def nothing_changes(server, clock: Clock, offsets: list[int], stub) -> list[str]:
    """Waiting requests, an idle connection, and one that has sent half a request."""
    server.close_gate()
    ended, requests, found = [], [], []
    for number in range(WAITING):
        body = {"prompt": f"{number}", "max_tokens": 1}
        requests.append(
            Waiting(lambda body=body: server.post("/v1/completions", body).status, ended))
        server.wait_for_waiting(number + 1)
    call = generate_request([5], 1)
    requests.append(Waiting(lambda: len(list(stub.Generate(call, timeout=600))), ended))
    server.wait_for_waiting(WAITING + 1)
    half = request_bytes("POST", "/v1/completions", BODY)
    with socket.create_connection(("127.0.0.1", server.port), 60) as kept, \
            socket.create_connection(("127.0.0.1", server.port), 60) as half_sent:
        kept.sendall(request_bytes("GET", "/livez"))
        kept.recv(1 << 16)
        half_sent.sendall(half[:20])
        for offset in offsets:
            clock.set(offset)
            offset_s(server)
        found += ["a request ended while the gate was closed"] * bool(ended)
        for count in range(1, len(requests) + 1):
            server.allow(1)
            eventually(lambda count=count: len(ended) == count, "a step ends a request")
        server.open_gate()
        half_sent.sendall(half[20:])
        kept.sendall(request_bytes("GET", "/livez"))
        for name, peer in (("half-sent", half_sent), ("kept", kept)):
            if not peer.recv(1 << 16).startswith(b"HTTP/1.1 200"):
                found.append(f"a {name} connection was not answered")
    if ended != requests or [request.answer for request in requests[:-1]] != [200] * WAITING:
        found.append(f"ended in another order, or not whole: {[r.answer for r in ended]}")
    return found


def run(_) -> dict:
    if not LIBRARIES:
        return {"left_out": "Debian's package libfaketime is not installed"}
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        clock = Clock(Path(folder))
        with GatedServer("--max-num-seqs", 1, environment=clock.environment) as server:
            with channel(server) as connection:
                stub = pb_grpc.InferenceStub(connection)
                for name, offsets in JUMPS.items():
                    found = deadline_passes(server, clock, offsets)
                    clock.set(0)
                    found += nothing_changes(server, clock, offsets, stub)
                    clock.set(0)
                    problems += [f"{name}: {what}" for what in found]
    return {"jumps": list(JUMPS), "problems": problems}
