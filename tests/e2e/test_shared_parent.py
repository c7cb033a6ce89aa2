# SPDX-License-Identifier: Apache-2.0
"""`serve --models`: clients share what the parent has, as in a server of one model."""

import contextlib
import gzip
import json
import socket
import unittest

import grpc

import tiny_model
from grpc_client import channel, generate_request, pb, pb_grpc
from models_server import ModelsServer
from raw_http import request_bytes
from server_process import eventually

PLACES = 128  # of requests that wait for a model
OWN_PLACES = 112  # of them, for a client that is alone
STREAMS_PER_CONNECTION = 1024
LARGE = "x" * (1 << 20)


def tiny(**members) -> dict:
    return {"model": str(tiny_model.directory()), **members}


def models_with_one_place(stack, **models):
    """Model `a` is busy, so any other model has to wait."""
    server = stack.enter_context(ModelsServer({"a": tiny(), **models}, "--max-loaded", 1))
    server.close_gate()
    stack.callback(server.open_gate)
    stream = {"prompt": "hello", "max_tokens": 4, "stream": True, "model": "a"}
    post(stack, server, "/v1/completions", stream)
    eventually(lambda: server.metric("diffserve_model_requests_in_flight", model="a") == 1,
               "the stream is under way")
    return server


def post(stack, server, path, body, address="127.0.0.1") -> socket.socket:
    connection = stack.enter_context(
        socket.create_connection(("127.0.0.1", server.port), 60, (address, 0)))
    connection.sendall(request_bytes("POST", path, json.dumps(body).encode()))
    return connection


def waiting(server) -> int:
    return int(server.metric("diffserve_model_requests_waiting", model="b"))


class WaitingTest(unittest.TestCase):
    def setUp(self):
        self.stack = self.enterContext(contextlib.ExitStack())

    def test_no_client_takes_all_places_that_wait_for_a_model(self):
        server = models_with_one_place(self.stack, b=tiny())
        request = {"model": "b", "prompt": "hello"}
        for _ in range(OWN_PLACES):
            post(self.stack, server, "/tokenize", request)
        eventually(lambda: waiting(server) == OWN_PLACES, "the places are taken")
        refused = server.post("/tokenize", request)
        self.assertEqual(refused.status, 429)
        self.assertIn(f"the limit is {PLACES}, an eighth of it kept for others",
                      refused.error["message"])
        self.assertGreater(int(refused.headers["retry-after"]), 0)
        with channel(server) as connection, self.assertRaises(grpc.RpcError) as caught:
            pb_grpc.InferenceStub(connection).GetModel(pb.GetModelRequest(),
                                                       metadata=[("model", "b")])
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("retry-after", dict(caught.exception.trailing_metadata()))
        post(self.stack, server, "/tokenize", request, address="127.0.0.2")
        eventually(lambda: waiting(server) == OWN_PLACES + 1, "another client has a place")

    def test_waiting_bodies_count_against_the_limit_of_all_requests(self):
        server = models_with_one_place(self.stack, b=tiny())
        fits = 58  # bodies of 4 MB in seven eighths of 256 MiB
        body = json.dumps({"model": "b", "prompt": "x" * 4_000_000}).encode()
        waits = 0
        for _ in range(fits + 1):
            connection = self.stack.enter_context(
                socket.create_connection(("127.0.0.1", server.port), 60))
            connection.sendall(request_bytes("POST", "/tokenize", body))
            eventually(lambda: waiting(server) > waits or answered(connection),
                       "the request waits or is refused")
            waits = waiting(server)
        self.assertEqual(waits, fits)
        self.assertIn(b" 503 ", connection.recv(4096))
        self.assertEqual(server.get("/livez").status, 200)

    def test_waiting_messages_have_a_limit_too(self):
        server = models_with_one_place(self.stack, b=tiny())
        fits = 44  # messages of 4 MB in seven eighths of 192 MiB
        connection = self.stack.enter_context(channel(server))
        message = pb.TokenizeRequest(text="x" * 4_000_000)
        calls = []
        for _ in range(fits + 1):
            calls.append(
                pb_grpc.InferenceStub(connection).Tokenize.future(message,
                                                                  metadata=[("model", "b")]))
            self.stack.callback(calls[-1].cancel)
            eventually(lambda: waiting(server) == len(calls) or calls[-1].done(),
                       "the call waits or is refused")
        self.assertEqual([call.done() for call in calls], [False] * fits + [True])
        self.assertEqual(calls[-1].code(), grpc.StatusCode.RESOURCE_EXHAUSTED)
        self.assertIn("take too much memory", calls[-1].details())
        self.assertIn("retry-after", dict(calls[-1].trailing_metadata()))


def answered(connection) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(60)


class StreamsTest(unittest.TestCase):
    def test_streams_of_one_connection_leave_room_for_other_calls(self):
        with ModelsServer({"a": tiny(pinned=True)}) as server, contextlib.ExitStack() as stack:
            server.wait_for_state("a", "loaded")
            server.close_gate()
            stack.callback(server.open_gate)
            options = [("grpc.use_local_subchannel_pool", 1)]
            stubs = [
                pb_grpc.InferenceStub(
                    stack.enter_context(grpc.insecure_channel(server.grpc_address, options)))
                for _ in range(2)
            ]
            streams = [
                stubs[i % 2].Generate(generate_request([7, 8], 4))
                for i in range(STREAMS_PER_CONNECTION + 10)
            ]
            for stream in streams:
                stack.callback(stream.cancel)
            eventually(
                lambda: server.metric("diffserve_model_requests_in_flight", model="a") == len(
                    streams), "the streams are under way")
            self.assertEqual(stubs[0].GetModel(pb.GetModelRequest(), timeout=20).name, "a")


class BodiesTest(unittest.TestCase):
    """A body means the same, however large it is and however it is coded."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ModelsServer({"a": tiny(), "b": tiny()}))

    def model_of(self, body: str, **headers) -> tuple[int, str]:
        answer = self.server.post("/v1/completions", body.encode(), headers=headers)
        return answer.status, answer.json()["model"] if answer.status == 200 else answer.error[
            "code"]

    def test_last_of_repeated_members_names_the_model(self):
        for padding in ("", LARGE):
            rest = f'"prompt": "hello", "max_tokens": 1, "user": "{padding}"'
            self.assertEqual(self.model_of(f'{{"model": "a", {rest}, "model": "b"}}'), (200, "b"))
            self.assertEqual(self.model_of(f'{{"mod\\u0065l": "b", {rest}}}'), (200, "b"))
            self.assertEqual(self.model_of(f'{{"model": "b", {rest}, "model": null}}'), (200, "a"))

    def test_coded_body_names_its_model(self):
        body = json.dumps({"prompt": "hello", "max_tokens": 1, "user": LARGE, "model": "b"})
        answer = self.server.post("/v1/completions", gzip.compress(body.encode()),
                                  headers={"Content-Encoding": "gzip"})
        self.assertEqual((answer.status, answer.json()["model"]), (200, "b"))

    def test_refusal_of_a_large_body_has_the_fields_of_a_small_one(self):
        for padding in ("", LARGE):
            answer = self.server.post("/v1/messages", {"user": padding, "model": "none"},
                                      headers={"X-Request-Id": "mine"})
            self.assertEqual(answer.status, 404)
            self.assertEqual(answer.headers["x-request-id"], "mine")
            self.assertEqual(answer.error["type"], "not_found_error")

    def test_large_body_loads_a_model_too(self):
        answer = self.server.post("/models/load", {"user": LARGE, "model": "b"})
        self.assertEqual(answer.json(), {"success": True})


if __name__ == "__main__":
    unittest.main()
