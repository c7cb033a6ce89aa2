#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Opens HTTP/2 streams to the gRPC service and resets each: a client that costs the server more
than itself. It connects from 127.0.0.2, so that the other clients of a test have another
address.

  reset_flood.py PORT CA_FILE STREAMS HOW
      prints {"streams": sent, "connections": opened, "refused": not accepted or cut}

HOW: at_once: the reset follows the request at once. provoked: an invalid frame makes the server
reset the stream. once_begun: the reset follows when the proxy has read the request and passed it
on. At the end, and with once_begun for each 100 streams, an answered PING shows that everything
has been read.
"""

import json
import socket
import ssl
import struct
import sys
import time

HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 1, 3, 4, 6, 8
END_HEADERS, CANCEL, BATCH = 4, 8, 100
REFUSED_ENOUGH = 20  # connections in a row


def frame(kind: int, stream: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def literal(name: bytes, value: bytes) -> bytes:
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


REQUEST = b"".join(
    literal(name, value)
    for name, value in ((b":method", b"POST"), (b":scheme", b"https"),
                        (b":path", b"/diffserve.v1.Inference/Generate"),
                        (b":authority", b"localhost"), (b"content-type",
                                                        b"application/grpc"), (b"te", b"trailers")))
PROBE = b"flooding"


class Connection:
    def __init__(self, port: int, ca_file: str):
        context = ssl.create_default_context(cafile=ca_file)
        context.set_alpn_protocols(["h2"])
        plain = socket.create_connection(("127.0.0.1", port), 10, source_address=("127.0.0.2", 0))
        self.socket = context.wrap_socket(plain, server_hostname="localhost")
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0))
        self.next = 1

    def send(self, how: str) -> None:
        """Sends BATCH streams. Replies are read, so that the other side never waits for this
        client."""
        ids = range(self.next, self.next + 2 * BATCH, 2)
        self.next += 2 * BATCH
        if how == "once_begun":
            self.socket.sendall(b"".join(frame(HEADERS, i, REQUEST, END_HEADERS) for i in ids))
            self.wait()
            self.socket.sendall(b"".join(
                frame(RST_STREAM, i, struct.pack(">I", CANCEL)) for i in ids))
            return
        end = (RST_STREAM, struct.pack(">I", CANCEL)) if how == "at_once" else (WINDOW_UPDATE,
                                                                                bytes(4))
        self.socket.sendall(b"".join(
            frame(HEADERS, i, REQUEST, END_HEADERS) + frame(end[0], i, end[1]) for i in ids))
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
            raise ConnectionError("closed")
        except (ssl.SSLWantReadError, BlockingIOError):
            self.socket.settimeout(30)

    def wait(self) -> None:
        """Waits until the other side has read everything."""
        self.socket.settimeout(30)
        self.socket.sendall(frame(PING, 0, PROBE))
        read = b""
        while PROBE not in read:
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError("closed")
            read = read[-len(PROBE):] + part


def flood(port: int, ca_file: str, streams: int, how: str) -> dict:
    sent = connections = refused = in_a_row = 0
    while sent < streams and in_a_row < REFUSED_ENOUGH:
        try:
            connection = Connection(port, ca_file)
        except OSError:
            refused, in_a_row = refused + 1, in_a_row + 1
            time.sleep(0.01)
            continue
        connections, in_a_row = connections + 1, 0
        try:
            while sent < streams:
                connection.send(how)
                sent += BATCH
            connection.wait()
        except OSError:
            refused += 1
        finally:
            connection.socket.close()
    return {"streams": sent, "connections": connections, "refused": refused}


if __name__ == "__main__":
    print(json.dumps(flood(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4])))
