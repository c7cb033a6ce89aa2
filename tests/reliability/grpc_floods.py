#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory that hostile gRPC calls cost. Prints one JSON object per flood, with the server's
resident memory in MiB before, at its peak and after, and whether it still answers.

    grpc_floods.py [--resets 100000] [--messages 2000000] [--unread 10000] [FLOOD...]

Floods: resets (streams opened and reset on one connection, again on a new one whenever the server
closes it), messages (a chat of empty messages), unread (streams with unread replies),
reflection (streams held open), deadlines (calls that have 1 ms: how many arrived, how many gRPC let
begin, and how many of those are counted with their code).
Needs a built server (DIFFSERVE_BINARY names another); run it with .venv/bin/python.
"""

import argparse
import json
import socket
import struct
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from grpc_client import generate_request, pb, pb_grpc  # noqa: E402
from server_process import DEMO_MODEL, ServerProcess  # noqa: E402

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
GENERATE = "/diffserve.v1.Inference/Generate"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(
        ">I", stream) + payload


def header_block(path, *more):
    """Literal fields without indexing, so neither side keeps a table."""
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "x"),
              ("content-type", "application/grpc"), ("te", "trailers"), *more]
    literal = lambda text: bytes([len(text)]) + text.encode()  # noqa: E731
    return b"".join(b"\x00" + literal(name) + literal(value) for name, value in fields)


class Http2:
    """A connection that sends frames and throws away what it receives, or does not read at all."""

    def __init__(self, server, window=65535, reads=True):
        self.socket = socket.create_connection(("127.0.0.1", server.grpc_port))
        self.socket.sendall(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        self.next_stream = 1
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while self.socket.recv(1 << 16):
                pass
        except OSError:
            pass

    def open_frames(self, path, message=None, *fields):
        stream, self.next_stream = self.next_stream, self.next_stream + 2
        frames = frame(HEADERS, END_HEADERS, stream, header_block(path, *fields))
        if message is not None:
            body = b"\0" + struct.pack(">I", len(message)) + message
            frames += frame(DATA, END_STREAM, stream, body)
        return stream, frames


def rss_mib(server):
    for line in Path(f"/proc/{server.process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) // 1024
    raise RuntimeError("no VmRSS")


def answers(server):
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = pb_grpc.InferenceStub(channel)
        return len(list(stub.Generate(generate_request([1, 2, 3], 2), timeout=60))) > 0


def resets(server, arguments):
    done, connections = 0, 0
    while done < arguments.resets:
        connection = Http2(server)
        connections += 1
        try:
            while done < arguments.resets:
                batch = b""
                for _ in range(100):
                    stream, frames = connection.open_frames(GENERATE)
                    batch += frames + frame(RST_STREAM, 0, stream, struct.pack(">I", 8))
                connection.socket.sendall(batch)
                done += 100
        except OSError:
            pass  # the server has closed it
        connection.socket.close()
    return {"resets": done, "connections": connections}


def messages(server, arguments):
    chat = b"\x0a\x00" * arguments.messages  # that many empty ChatMessages
    request = pb.GenerateRequest(chat=pb.Chat.FromString(chat))
    with grpc.insecure_channel(server.grpc_address) as channel:
        stub = pb_grpc.InferenceStub(channel)
        begin = time.monotonic()
        try:
            list(stub.Generate(request, timeout=120))
            code = "OK"
        except grpc.RpcError as error:
            code = f"{error.code().name}: {error.details()}"
        return {"messages": arguments.messages, "bytes": request.ByteSize(), "answer": code,
                "seconds": round(time.monotonic() - begin, 2)}


def unread(server, arguments):
    request = generate_request([1, 2, 3], 500).SerializeToString()
    held, opened, refused = [], 0, 0
    while opened < arguments.unread and refused < 100:
        connection = Http2(server, window=1, reads=False)
        held.append(connection)
        try:
            for _ in range(100):
                connection.socket.sendall(connection.open_frames(GENERATE, request)[1])
                opened += 1
        except OSError:
            refused += 1
    time.sleep(10)
    held_mib = rss_mib(server)
    for connection in held:
        connection.socket.close()
    return {"streams": opened, "connections": len(held), "held_mib": held_mib}


def reflection(server, _):
    held = []
    for _ in range(40):
        connection = Http2(server)
        connection.socket.sendall(connection.open_frames(REFLECTION)[1])
        held.append(connection)
    time.sleep(1)
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
        ProtoReflectionDescriptorDatabase)
    begin = time.monotonic()
    with grpc.insecure_channel(server.grpc_address) as channel:
        try:
            answer = sorted(ProtoReflectionDescriptorDatabase(channel).get_services())
        except grpc.RpcError as error:
            answer = error.code().name
    return {"held": len(held), "answer": answer, "seconds": round(time.monotonic() - begin, 2)}


def deadlines(server, arguments):
    def counts():
        metrics = server.metrics()
        ended = sum(value for name, value in metrics.items()
                    if name.startswith("diffserve_grpc_requests_total"))
        stages = [metrics[f'diffserve_grpc_calls_total{{stage="{stage}"}}']
                  for stage in ("arrived", "begun")]
        return ended, *stages

    before, request = counts(), generate_request([1, 2, 3], 50).SerializeToString()
    for _ in range(arguments.deadlines // 100):
        connection = Http2(server)
        for _ in range(100):
            connection.socket.sendall(
                connection.open_frames(GENERATE, request, ("grpc-timeout", "1m"))[1])
        time.sleep(0.2)
        connection.socket.close()
    time.sleep(1)
    counted, arrived, begun = (int(now - then) for now, then in zip(counts(), before))
    return {"calls": arguments.deadlines, "arrived": arrived, "begun": begun, "counted": counted}


FLOODS = {flood.__name__: flood for flood in (resets, messages, unread, reflection, deadlines)}


def run(flood, arguments):
    with ServerProcess("--log-level", "error", model=DEMO_MODEL) as server:
        answers(server)
        before, peak, ended = rss_mib(server), 0, threading.Event()

        def watch():
            nonlocal peak
            while not ended.wait(0.05):
                peak = max(peak, rss_mib(server))

        watcher = threading.Thread(target=watch)
        watcher.start()
        result = FLOODS[flood](server, arguments)
        time.sleep(arguments.rest)
        ended.set()
        watcher.join()
        print(json.dumps({"flood": flood, **result, "rss_mib": [before, peak, rss_mib(server)],
                          "answers": answers(server)}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--resets", type=int, default=100_000)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--unread", type=int, default=10_000)
    parser.add_argument("--deadlines", type=int, default=10_000)
    parser.add_argument("--rest", type=float, default=5, help="seconds after a flood")
    parser.add_argument("floods", nargs="*", metavar="FLOOD", default=list(FLOODS))
    arguments = parser.parse_args()
    for flood in arguments.floods:
        run(flood, arguments)


if __name__ == "__main__":
    main()
