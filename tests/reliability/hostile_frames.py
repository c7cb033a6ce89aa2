# SPDX-License-Identifier: Apache-2.0
"""HTTP/2 and gRPC frames that no client library sends: conversations that must not be answered,
each cut at every byte or with a byte changed, and floods of frames that are cheap to send."""

import fcntl
import random
import socket
import struct
import termios
import time
from collections.abc import Iterator

from grpc_client import pb
from grpc_floods import DATA, END_HEADERS, END_STREAM, HEADERS, PREFACE, RST_STREAM, SETTINGS
from grpc_floods import Http2, frame, header_block

PRIORITY, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 2, 5, 6, 7, 8, 9
PADDED, ACK = 8, 1
PATH = "/diffserve.v1.Inference/Detokenize"
MESSAGE = pb.DetokenizeRequest(ids=[5, 6, 7]).SerializeToString()
LARGEST_MESSAGE = 4 << 20
ANSWER_WITHIN_S, TAKEN_WITHIN_S = 3, 10
# What gRPC 1.51 passes over, and then answers: the frame is as if it had not been sent, or the
# message as if it were plain (flag 1) or empty.
PASSED_OVER = {
    "compressed flag 1", "compressed flag 2", "compressed flag 3", "compressed flag 128",
    "compressed flag 255", "bad Huffman code", "DATA on stream 0", "DATA padded beyond its end",
    "HEADERS on stream 0", "PUSH_PROMISE"
}


def u32(number: int) -> bytes:
    return struct.pack(">I", number)


def setting(number: int, value: int) -> bytes:
    return frame(SETTINGS, 0, 0, struct.pack(">HI", number, value))


def envelope(message: bytes = MESSAGE, flag: int = 0, length: int | None = None) -> bytes:
    return bytes([flag]) + u32(len(message) if length is None else length) + message


def field(name: str, value: str) -> bytes:
    """A literal without indexing."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


class Conversations:
    """Conversations of clients with `key`, on stream 1 of a new connection."""

    def __init__(self, key: str):
        self._block = header_block(PATH, ("authorization", f"Bearer {key}"))
        self._head = frame(HEADERS, END_HEADERS, 1, self._block)

    def good(self) -> bytes:
        return PREFACE + frame(SETTINGS, 0, 0) + self._call(envelope())

    def _call(self, body: bytes) -> bytes:
        return self._head + frame(DATA, END_STREAM, 1, body)

    def refused(self) -> Iterator[tuple[str, bytes]]:
        begin = PREFACE + frame(SETTINGS, 0, 0)
        for name, body in self._bodies():
            yield name, begin + self._call(body)
        for name, block in self._blocks():
            yield name, (begin + frame(HEADERS, END_HEADERS, 1, block) +
                         frame(DATA, END_STREAM, 1, envelope()))
        for name, frames in self._frames():
            yield name, begin + frames + self._call(envelope())
        yield "no preface", self.good()[len(PREFACE):]
        yield "another preface", b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n" + self.good()[len(PREFACE):]
        yield "HTTP/1.1", b"POST " + PATH.encode() + b" HTTP/1.1\r\nHost: a\r\n\r\n"
        yield "TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500)
        yield "zeros", bytes(1000)

    def _bodies(self) -> Iterator[tuple[str, bytes]]:
        yield "length 1 too long", envelope(length=len(MESSAGE) + 1)
        yield "length 1 too short", envelope(length=len(MESSAGE) - 1)
        yield "length of 4 GiB", envelope(length=0xffffffff)
        yield "length above the limit", envelope(length=LARGEST_MESSAGE + 1)
        for size in range(5):
            yield f"prefix of {size} bytes", envelope()[:size]
        for flag in (1, 2, 3, 128, 255):
            yield f"compressed flag {flag}", envelope(flag=flag)
        for name, message in (("all ones", b"\xff" * 20), ("a group that never ends", b"\x0b"),
                              ("field 0", b"\x00\x01"), ("a varint of 11 bytes",
                                                         b"\x08" + b"\x80" * 10 + b"\x01"),
                              ("a length beyond the end", b"\x0a\x7f\x01")):
            yield f"no protobuf: {name}", envelope(message)

    def _blocks(self) -> Iterator[tuple[str, bytes]]:
        for name in (":path", ":method"):
            value = PATH if name == ":path" else "POST"
            yield f"no {name}", self._block.replace(field(name, value), b"")
        yield "method GET", self._block.replace(field(":method", "POST"), field(":method", "GET"))
        yield "no key", header_block(PATH)
        yield "gzip, which is off", self._block + field("grpc-encoding", "gzip") * 2
        yield "index 0", b"\x80" + self._block
        yield "index beyond the table", b"\xff\x80\x01" + self._block
        yield "an integer without end", b"\xff" * 20 + self._block
        yield "a table of a gigabyte", b"\x3f\xe1\xff\xff\xff\x03" + self._block
        yield "a literal cut short", self._block + b"\x00\x7f\x61"
        yield "bad Huffman code", self._block + b"\x00\x84\xff\xff\xff\xff\x01a"
        yield "17 KiB of fields", self._block + field("x-a", "b" * 120) * 140

    def _frames(self) -> Iterator[tuple[str, bytes]]:
        for name, kind, flags, stream, payload in (
            ("DATA on stream 0", DATA, 0, 0, b"x"), ("DATA padded beyond its end", DATA, PADDED, 1,
                                                     b"\xff"),
            ("HEADERS on stream 0", HEADERS, END_HEADERS, 0, self._block),
            ("HEADERS padded beyond their end", HEADERS, END_HEADERS | PADDED, 1, b"\xff\x00"),
            ("RST_STREAM of 3 bytes", RST_STREAM, 0, 1, bytes(3)),
            ("SETTINGS of 5 bytes", SETTINGS, 0, 0, bytes(5)),
            ("SETTINGS on stream 1", SETTINGS, 0, 1, b""),
            ("SETTINGS that acknowledge and tell", SETTINGS, ACK, 0, bytes(6)),
            ("PUSH_PROMISE", PUSH_PROMISE, END_HEADERS, 1, bytes(4) + self._block),
            ("PING of 7 bytes", PING, 0, 0, bytes(7)), ("GOAWAY of 7 bytes", GOAWAY, 0, 0,
                                                        bytes(7)),
            ("WINDOW_UPDATE of 3 bytes", WINDOW_UPDATE, 0, 0, bytes(3)),
            ("WINDOW_UPDATE of 0", WINDOW_UPDATE, 0, 0, u32(0)),
            ("CONTINUATION of nothing", CONTINUATION, END_HEADERS, 1, self._block),
            ("HEADERS without end", HEADERS, 0, 1, self._block),
        ):
            yield name, frame(kind, flags, stream, payload)
        yield "a window of 2^31", setting(4, 1 << 31)
        yield "frames of 100 bytes", setting(5, 100)
        yield "frames of 2^24 bytes", setting(5, 1 << 24)
        yield "CONTINUATION of another stream", (frame(HEADERS, 0, 1, self._block) +
                                                 frame(CONTINUATION, END_HEADERS, 3, b""))
        yield "a frame of 20 KB", frame(DATA, 0, 1, bytes(20_000))
        yield "a frame of 16 MB", b"\xff\xff\xff" + bytes(6)


def mutants(good: bytes, count: int, rng: random.Random) -> Iterator[bytes]:
    """`good` cut short, or with some of its bytes changed, in turns."""
    for number in range(count):
        if number % 2 == 0:
            yield good[:rng.randrange(len(good))]
        else:
            changed = bytearray(good)
            for _ in range(rng.choice((1, 1, 2, 8))):
                changed[rng.randrange(len(good))] = rng.randrange(256)
            yield bytes(changed)


def ending(received: bytes) -> str:
    """How the frames so far ended the call on stream 1, or nothing."""
    while len(received) >= 9:
        length, kind, flags = int.from_bytes(received[:3], "big"), received[3], received[4]
        stream, received = int.from_bytes(received[5:9], "big"), received[9 + length:]
        if stream == 1 and (kind == RST_STREAM or kind == HEADERS and flags & END_STREAM):
            return "reset" if kind == RST_STREAM else "ended"
        if kind == GOAWAY:
            return "closed"
    return ""


def converse(port: int, data: bytes) -> str:
    """The server's reaction: it ended the call, reset it, closed the connection, or was silent."""
    received = b""
    with socket.create_connection(("127.0.0.1", port), ANSWER_WITHIN_S) as connection:
        try:
            connection.sendall(data)
            while not ending(received):
                part = connection.recv(1 << 16)
                if not part:
                    return "closed"
                received += part
            return ending(received)
        except TimeoutError:
            return "silent"
        except OSError:
            return "closed"


def flood_frames(key: str) -> dict[str, tuple[bytes, bytes]]:
    """For each flood, the frames that begin its connection and those that are repeated."""
    block = header_block(PATH, ("authorization", f"Bearer {key}"))
    opened = frame(HEADERS, END_HEADERS, 1, block)
    return {
        "continuations": (frame(HEADERS, 0, 1, block), frame(CONTINUATION, 0, 1, field("a", "b"))),
        "empty_continuations": (frame(HEADERS, 0, 1, block), frame(CONTINUATION, 0, 1)),
        "pings": (b"", frame(PING, 0, 0, bytes(8))),
        "settings": (b"", setting(4, 65535)),
        "priorities": (b"", frame(PRIORITY, 0, 1, bytes(5))),
        "empty_data": (opened, frame(DATA, 0, 1)),
        "window_updates": (opened, frame(WINDOW_UPDATE, 0, 1, u32(1))),
        "trickled_message": (opened + frame(DATA, 0, 1, envelope(b"", length=1 << 20)),
                             frame(DATA, 0, 1, b"x")),
    }


def undelivered(connection: Http2) -> int:
    """Number of sent bytes that the server has not taken."""
    return struct.unpack("i", fcntl.ioctl(connection.socket, termios.TIOCOUTQ, bytes(4)))[0]


def flood(server, begin: bytes, repeated: bytes, count: int, connections: int) -> dict:
    """Sends until `count` frames are sent or `connections` connections were closed. The peer reads
    nothing and leaves connections that the server no longer reads."""
    sent, opened, batch = 0, [], 200
    while sent < count and len(opened) < connections:
        opened.append(Http2(server, reads=False))
        peer = opened[-1].socket
        peer.settimeout(2)
        try:
            peer.sendall(begin)
            while sent < count:
                peer.sendall(repeated * batch)
                sent += batch
        except OSError:
            pass
    end = time.monotonic() + TAKEN_WITHIN_S
    while any(map(undelivered, opened)) and time.monotonic() < end:
        time.sleep(0.01)
    left = sum(undelivered(connection) for connection in opened)
    for connection in opened:
        connection.socket.close()
    return {"frames": sent, "connections": len(opened), "bytes_not_taken": left}
