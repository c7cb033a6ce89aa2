"""An HTTP client for many requests at once: raw sockets that are kept open, so that a thousand
requests a second can be sent from one core beside the server that they are for."""

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
        """The one used last; those that the server has closed meanwhile are dropped."""
        while self._idle:
            connection = self._idle.pop()
            if not connection[0].at_eof():
                return connection
            connection[1].close()
        return None

    async def _send(self, data: bytes) -> Reply:
        begin = time.monotonic()
        try:
            connection = self._take_idle() or await asyncio.open_connection("127.0.0.1", self.port)
            connection[1].write(data)
            reply = await self._read(connection[0], begin)
        except (OSError, asyncio.IncompleteReadError):
            return Reply(0, begin, time.monotonic() - begin)
        if reply.headers.get("connection") == "close":
            connection[1].close()
        else:
            self._idle.append(connection)
        return reply

    @staticmethod
    async def _read(reader: asyncio.StreamReader, begin: float) -> Reply:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {
            name.lower(): value.strip()
            for name, _, value in (line.partition(":") for line in lines[1:])
        }
        body = b""
        if headers.get("transfer-encoding") == "chunked":
            while size := int(await reader.readuntil(b"\r\n"), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readexactly(2)
        else:
            body = await reader.readexactly(int(headers.get("content-length", 0)))
        return Reply(int(lines[0].split()[1]), begin, time.monotonic() - begin, headers, body)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()


def percentile(values: list[float], share: float) -> float:
    """The smallest value that is not less than `share` of them; nan if there is none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
