# SPDX-License-Identifier: Apache-2.0
"""The servers that actors of Ray and workers of Dynamo start, seen from outside."""

import http.client

import psutil

from server_process import ServerProcess

KEY = "sk-fleet"  # of the servers that have keys


class KeyConnection(http.client.HTTPConnection):
    """A connection whose requests have the key of the servers."""

    def request(self, method, url, body=None, headers=None):
        super().request(method, url, body, {"Authorization": f"Bearer {KEY}", **(headers or {})})


class Child(ServerProcess):
    """A server that another process started."""

    def __init__(self, process: psutil.Process):
        self.process, self.port = process, 0
        listening = [c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"]
        for self.port in listening:  # HTTP, gRPC, KV events
            try:
                self.get("/livez", timeout_s=5)
                return
            except (OSError, http.client.HTTPException):
                continue
        raise AssertionError(f"no port of {listening} answers HTTP")

    def connect(self, timeout_s: float = 120) -> http.client.HTTPConnection:
        return KeyConnection("127.0.0.1", self.port, timeout=timeout_s)

    @property
    def alive(self) -> bool:
        return is_alive(self.process)

    def kill(self) -> None:
        self.process.kill()


def is_alive(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def accepted(child: Child) -> int:
    return int(child.metric("diffserve_requests_waiting") +
               child.metric("diffserve_requests_running"))


def under_way(child: Child) -> int:
    """Answers for clients that have not left."""
    return child.get("/load").json()["server_load"]
