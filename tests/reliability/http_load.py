# SPDX-License-Identifier: Apache-2.0
"""An HTTP client for many requests at once: it keeps raw sockets open, so that one core can send a
thousand requests per second to a server on the same machine."""

import asyncio
import json
import time
from dataclasses import dataclass, field


@dataclass
class Reply:
    status: int  # 0: the connection broke
    begin: float  # seconds of the monotonic clock
    seconds: float
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    began: bool = False  # with its status line, whether or not the connection broke then

    def json(self) -> dict:
        return json.loads(self.body)


class Client:
    """Requests of one client; connections are opened as they are needed."""
    def __init__(self, port: int, key: str = ""):
        self.port = port
        self._head = "Host: 127.0.0.1\r\n"
        if key:
            self._head += f"Authorization: Bearer {key}\r\n"
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def get(self, path: str) -> Reply:
        return await self._send(f"GET {path} HTTP/1.1\r\n{self._head}\r\n".encode())

    async def post(self, path: str, body: dict) -> Reply:
        data = json.dumps(body).encode()
        head = (f"POST {path} HTTP/1.1\r\n{self._head}Content-Type: application/json\r\n"
                f"Content-Length: {len(data)}\r\n\r\n")
        return await self._send(head.encode() + data)

    def _take_idle(self):
        """The most recently used idle connection; drops those that the server has closed."""
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof():
                return connection
            connection[1].close()
        return None

    async def _send(self, data: bytes) -> Reply:
        reply = Reply(0, time.monotonic(), 0)
        try:
            connection = self._take_idle() or await asyncio.open_connection("127.0.0.1", self.port)
            connection[1].write(data)
            reply.status = await self._read(connection[0], reply)
        except (OSError, asyncio.IncompleteReadError):
            pass
        reply.seconds = time.monotonic() - reply.begin
        if reply.status == 0:
            return reply
        if reply.headers.get("connection") == "close":
            connection[1].close()
        else:
            self._idle.append(connection)
        return reply

    @staticmethod
    async def _read(reader: asyncio.StreamReader, reply: Reply) -> int:
        """The status, once the reply is whole."""
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        reply.began = True
        reply.headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        if reply.headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                reply.body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            reply.body = await reader.readexactly(int(reply.headers.get("content-length", 0)))
        return int(lines[0].split()[1])

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that is not less than `share` of them; nan if there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
