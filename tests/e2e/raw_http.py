# SPDX-License-Identifier: Apache-2.0
"""Sends raw bytes to a socket and reads the answer: requests that no HTTP client can send."""

import socket
from dataclasses import dataclass


@dataclass
class RawAnswer:
    status: int  # 0: closed without an answer
    headers: dict[str, str]
    body: bytes
    closed: bool  # the server ended the connection


def request_bytes(method: str, path: str, body: bytes = b"", headers: tuple[str, ...] = (),
                  host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def exchange(port: int, data: bytes, timeout_s: float = 10) -> RawAnswer:
    """Sends `data` and reads one answer; then waits a moment for the server to close."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        try:
            connection.sendall(data)
        except OSError:
            pass  # refused while we were still sending; the answer can be read
        received = _read_head(connection)
        head, _, rest = received.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 "):
            return RawAnswer(0, {}, received, True)
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines)
        }
        length = 0 if data.startswith(b"HEAD ") else int(headers.get("content-length", 0))
        while len(rest) < length:
            part = _receive(connection)
            if not part:
                break
            rest += part
        connection.settimeout(2 if headers.get("connection", "").lower() == "close" else 0.2)
        return RawAnswer(int(status_line.split()[1]), headers, rest, _receive(connection) == b"")


def _read_head(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        part = _receive(connection)
        if not part:
            break
        received += part
    return received


def _receive(connection: socket.socket) -> bytes | None:
    """Received bytes; empty when the connection is closed or reset, None when nothing comes in
    time."""
    try:
        return connection.recv(65536)
    except TimeoutError:
        return None
    except OSError:
        return b""
