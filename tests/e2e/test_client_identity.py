# SPDX-License-Identifier: Apache-2.0
"""A model's process knows who the client of its parent is, and serves only its parent."""

import json
import os
import re
import signal
import socket
import tempfile
import unittest
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

from grpc_client import channel, collect, generate_request, pb, pb_grpc, vllm_pb, vllm_pb_grpc
from models_server import NEEDED, ModelsServer, listening_ports
from server_process import ServerProcess, eventually
from test_front_door import ask
from test_several_models import tiny

JSON = "Host: localhost\r\nContent-Type: application/json"
STORED = {"input": "my secret", "max_output_tokens": 2, "store": True}
ALICE, BOB = "127.0.0.2", "127.0.0.3"
ZEROS = "0" * 64


def store(server, source=ALICE, fields="", key=None, **members) -> str:
    """The path of a new stored response."""
    reply = ask(server, "POST /v1/responses", f"{JSON}\r\n{fields}",
                json.dumps({**STORED, **members}).encode(), key, source=source)
    found = re.search(rb'"id":"(resp_[0-9a-f]+)"', reply.body)
    assert found, reply.body
    return f"/v1/responses/{found[1].decode()}"


def status_of(server, path, source=ALICE, fields="", key=None, method="GET") -> int:
    return ask(server, f"{method} {path}", f"Host: localhost\r\n{fields}", key=key,
               source=source).status


class ForwardedClientTest(unittest.TestCase):
    def test_stored_responses_are_found_only_by_the_address_that_made_them(self):
        with ModelsServer({"a": tiny()}) as server:
            for members in ({}, {"stream": True}):
                path = store(server, **members)
                self.assertEqual(status_of(server, path, BOB), 404)
                self.assertEqual(status_of(server, path, BOB, method="DELETE"), 404)
                self.assertEqual(status_of(server, path), 200)
            os.kill(server.children()["a"], signal.SIGKILL)
            eventually(lambda: server.states()["a"] == "unloaded", "the process has ended")
            path = store(server)
            self.assertEqual([status_of(server, path, who) for who in (BOB, ALICE)], [404, 200])

    def test_stored_responses_are_found_only_by_the_key_that_made_them(self):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write("alice\nbob\n")
            keys.flush()
            with ModelsServer({"a": tiny()}, "--api-key-file", keys.name) as server:
                path = store(server, key="alice")
                self.assertEqual(status_of(server, path, BOB, key="bob"), 404)
                self.assertEqual(status_of(server, path, BOB, key="alice"), 200)
                # The parent has read it at its start.
                Path(keys.name).write_text("carol\nalice\nbob\n")
                ask(server, "POST /models/unload", JSON, b'{"model": "a"}', "bob")
                path = store(server, key="bob")
                self.assertEqual(status_of(server, path, key="alice"), 404)
                self.assertEqual(status_of(server, path, key="bob"), 200)

    def test_calls_go_on_after_a_restart(self):
        with ModelsServer({"a": tiny()}) as server, channel(server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            self.assertEqual(stub.GetModel(pb.GetModelRequest()).name, "a")
            os.kill(server.children()["a"], signal.SIGKILL)
            eventually(lambda: server.states()["a"] == "unloaded", "the process has ended")
            self.assertEqual(stub.GetModel(pb.GetModelRequest()).name, "a")
            self.assertEqual(server.post("/tokenize", {"prompt": "x"}).status, 200)

    def test_no_client_names_itself(self):
        with ModelsServer({"a": tiny()}) as server:
            path = store(server)
            for name in ("X-Diffserve-Client", "x-diffserve-client", "X-DIFFSERVE-CLIENT"):
                for value in (ALICE, f":{ALICE}", f"{ZEROS}:{ALICE}", f"{ZEROS}{ALICE}", ""):
                    for more in ("", f"\r\n{name}: {value}", f"\r\nConnection: close, {name}",
                                 f"\r\nTrailer: {name}\r\nTE: trailers"):
                        forged = f"{name}: {value}{more}"
                        self.assertEqual(status_of(server, path, BOB, forged), 404, forged)
            # Nor does a name that it gives spoil its own.
            own = store(server, BOB, f"X-Diffserve-Client: {ZEROS}:{ALICE}\r\n"
                                     "Connection: x-diffserve-client, close")
            self.assertEqual([status_of(server, own, who) for who in (BOB, ALICE)], [200, 404])

    def test_a_trailer_names_no_client(self):
        with ModelsServer({"a": tiny()}) as server:
            path = store(server)
            chunked = (f"DELETE {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                       "Transfer-Encoding: chunked\r\nTrailer: x-diffserve-client\r\n\r\n0\r\n"
                       f"X-Diffserve-Client: {ZEROS}:{ALICE}\r\n\r\n").encode()
            self.assertEqual(ask(server, "GET /livez", "Host: localhost").status, 200)
            self.assertEqual(send(server.port, chunked, BOB), 404)
            self.assertEqual(status_of(server, path), 200)

    def test_no_reply_and_no_log_line_has_the_name_or_the_secret(self):
        with ModelsServer({"a": tiny()}, "--log-level", "debug") as server:
            replies = [ask(server, target, JSON, b"{}") for target in (
                "POST /v1/completions", "POST /v1/nowhere", "GET /metrics", "GET /version")]
            pid = server.children()["a"]
            seen = b"".join((*(reply.body for reply in replies), server.stderr().encode(),
                             *(str(reply.fields).encode() for reply in replies),
                             Path(f"/proc/{pid}/cmdline").read_bytes(),
                             Path(f"/proc/{pid}/environ").read_bytes()))
            self.assertNotIn(b"x-diffserve-client", seen.lower())
            self.assertNotRegex(seen, rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")

    def test_heads_at_the_limit_pass(self):
        with (ModelsServer({"a": tiny()}) as several, ServerProcess(*NEEDED) as one):
            body = b'{"prompt": "x"}'
            for start in ("POST /tokenize HTTP/1.1\r\nHost:a.localhost\r\n",
                          "POST /tokenize HTTP/1.1\r\nHost:127.1\r\n",
                          "POST /tokenize HTTP/1.0\r\nHost:127.1\r\n"):
                for fields in (97, 98, 99):
                    statuses = [send(s.port, crowded(start, body, fields)) for s in (several, one)]
                    self.assertEqual(*statuses, (start, fields))
                    self.assertEqual(statuses[0], 421 if "a.localhost" in start else 200)
            bare = b"GET /version HTTP/1.0\r\nHost:127.1\r\n" + b"".join(
                b"a%d:\r\n" % i for i in range(99)) + b"\r\n"
            self.assertEqual([send(s.port, bare) for s in (several, one)], [200, 200])


class ChildPortsTest(unittest.TestCase):
    """Requests of other users of this machine to the ports of a model's process."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ModelsServer({"a": tiny(pinned=True)}))
        cls.server.wait_for_state("a", "loaded")
        cls.http, cls.grpc = listening_ports(cls.server.children()["a"])
        cls.direct = cls.enterClassContext(grpc.insecure_channel(f"127.0.0.1:{cls.grpc}"))

    def test_http_serves_no_stranger(self):
        for forged in ("", f"X-Diffserve-Client: {ZEROS}:{ALICE}\r\n", "X-Diffserve-Client:\r\n",
                       f"X-Diffserve-Client: {ALICE}\r\n",
                       f"X-Diffserve-Client: {ZEROS}:a\r\nX-Diffserve-Client: {ZEROS}:a\r\n"):
            for target in ("GET /livez", "GET /metrics", "OPTIONS *", "GET /v1/models", "GET /",
                           "GET /nowhere", "POST /v1/completions", "DELETE /v1/responses/resp_x"):
                data = (f"{target} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{forged}"
                        "\r\n").encode()
                self.assertEqual(send(self.http, data), 403, (target, forged))

    def test_grpc_serves_no_stranger(self):
        triton = triton_client(self.grpc)
        model = pb_grpc.InferenceStub(self.direct)
        vllm = vllm_pb_grpc.VllmEngineStub(self.direct)
        health = health_pb2_grpc.HealthStub(self.direct)
        for metadata in ((), (("x-diffserve-client", f"{ZEROS}:{ALICE}"),),
                         (("x-diffserve-client", ""),) * 2):
            for call in (
                lambda: model.GetModel(pb.GetModelRequest(), metadata=metadata),
                lambda: collect(model.Generate(generate_request([7], 1), metadata=metadata)),
                lambda: vllm.HealthCheck(vllm_pb.HealthCheckRequest(), metadata=metadata),
                lambda: health.Check(health_pb2.HealthCheckRequest(), metadata=metadata),
                lambda: next(health.Watch(health_pb2.HealthCheckRequest(), metadata=metadata))):
                with self.assertRaises(grpc.RpcError) as caught:
                    call()
                self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)
        with self.assertRaisesRegex(Exception, "only for the server that started it"):
            triton.is_server_live()
        with self.assertRaisesRegex(Exception, "only for the server that started it"):
            ProtoReflectionDescriptorDatabase(self.direct).get_services()

    def test_forged_metadata_changes_nothing_at_the_parent(self):
        forged = (("x-diffserve-client", f"{ZEROS}:key:0"),) * 2
        with channel(self.server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            self.assertEqual(stub.GetModel(pb.GetModelRequest(), metadata=forged).name, "a")
            answer = collect(stub.Generate(generate_request([7, 8], 4), metadata=forged))
            self.assertEqual(answer.usage.completion_tokens, 4)

    def test_metadata_at_the_limit_passes(self):
        with (ServerProcess(*NEEDED) as one, channel(self.server) as routed,
              channel(one) as direct):
            results = []
            for connection in (routed, direct):
                stub = pb_grpc.InferenceStub(connection)
                results.append([takes(stub, size) for size in range(15_400, 16_400, 50)])
            self.assertEqual(*results)
            self.assertEqual(set(results[0]), {True, False})


def takes(stub, size: int) -> bool:
    try:
        return stub.GetModel(pb.GetModelRequest(), metadata=(("pad", "x" * size),)).name != ""
    except grpc.RpcError:
        return False


def triton_client(port: int):
    import tritonclient.grpc as triton

    return triton.InferenceServerClient(f"127.0.0.1:{port}")


def send(port: int, data: bytes, source: str = "127.0.0.1") -> int:
    """The status of the reply; the server ends the connection."""
    with socket.create_connection(("127.0.0.1", port), 30, (source, 0)) as connection:
        connection.sendall(data)
        received = bytearray()
        while part := connection.recv(1 << 16):
            received += part
    return int(received.split()[1])


def crowded(start: str, body: bytes, num_fields: int) -> bytes:
    """A request of exactly 16 KiB before its body, with no space after any colon."""
    head = start + "Content-Type:application/json\r\nConnection:close\r\n"
    head += f"Content-Length:{len(body)}\r\n"
    head += "".join(f"x{i}:1\r\n" for i in range(num_fields - 5))
    head += "pad:" + "p" * (16384 - len(head) - len("pad:\r\n\r\n")) + "\r\n\r\n"
    return head.encode() + body
