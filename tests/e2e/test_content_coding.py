# SPDX-License-Identifier: Apache-2.0
"""Compressed request bodies, made by Python's gzip and zlib: which are accepted, and how others are
refused."""

import gzip
import json
import subprocess
import unittest
import zlib

import grpc

import tiny_model
from grpc_client import channel, collect, pb, pb_grpc
from models_server import ModelsServer
from raw_http import exchange, request_bytes
from server_process import BINARY, ServerProcess

COMPLETIONS = "/v1/completions"
BODY = json.dumps({"prompt": "hello", "max_tokens": 3, "temperature": 0}).encode()
LIMIT = 4 << 20  # bytes of a body
RAISED = 5 << 20  # by --max-body-size
GZIP = gzip.compress(BODY)
ZEROS = bytes(64 * LIMIT)  # compressed a thousandth of that


def raw_deflate(data: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(data) + compressor.flush()


def padded(size: int) -> bytes:
    """The same request, padded to `size` bytes."""
    return BODY[:-1] + b" " * (size - len(BODY)) + b"}"


TAKEN = [
    ("gzip", GZIP),
    ("x-gzip", GZIP),
    ("GZip", GZIP),
    ("gzip", gzip.compress(BODY, compresslevel=0)),
    ("gzip", gzip.compress(BODY[:9]) + gzip.compress(BODY[9:])),  # two members
    ("gzip", gzip.compress(padded(LIMIT))),
    ("deflate", zlib.compress(BODY)),
    ("Deflate", raw_deflate(BODY)),
    ("identity", BODY),
    ("", BODY),
]

# Content-Encoding, body, status, words of the message
REFUSED = [
    ("br", BODY, 415, 'Content-Encoding is "br"; allowed: gzip, deflate, identity'),
    ("zstd", BODY, 415, '"zstd"'),
    ("compress", BODY, 415, '"compress"'),
    ("gzip, gzip", gzip.compress(GZIP), 415, '"gzip, gzip"'),
    ("gzip;q=1", GZIP, 415, '"gzip;q=1"'),
    ("*", BODY, 415, '"*"'),
    ("gzip", BODY, 400, "does not match its Content-Encoding"),
    ("gzip", zlib.compress(BODY), 400, "does not match its Content-Encoding"),
    ("gzip", GZIP[:-1], 400, "truncated"),
    ("gzip", GZIP[:5], 400, "truncated"),
    ("gzip", b"", 400, "truncated"),
    ("gzip", GZIP[:-8] + bytes(8), 400, "does not match its Content-Encoding"),  # its checksum
    ("gzip", GZIP + b"more", 400, "does not match its Content-Encoding"),
    ("deflate", zlib.compress(BODY) + b"more", 400, "data after its compressed stream"),
    ("deflate", zlib.compress(BODY)[:-1], 400, "truncated"),
    ("deflate", b"\xff" * 40, 400, "does not match its Content-Encoding"),
    ("gzip", gzip.compress(padded(LIMIT + 1)), 413, "the decompressed body has at least"),
    ("gzip", gzip.compress(ZEROS), 413, "the decompressed body has at least"),
    ("deflate", raw_deflate(ZEROS), 413, "allowed: at most 4194304 (--max-body-size)"),
    ("gzip", gzip.compress(b"{"), 400, "the body is not valid JSON"),
]


def setUpModule():
    global server
    server = unittest.enterModuleContext(ServerProcess())


def send(coding: str, body: bytes, path: str = COMPLETIONS):
    return server.post(path, body, headers={"Content-Encoding": coding})


class ContentCodingTest(unittest.TestCase):
    def test_compressed_bodies_are_answered_as_plain_ones(self):
        plain = server.post(COMPLETIONS, BODY).json()["choices"]
        for coding, body in TAKEN:
            with self.subTest(coding=coding, size=len(body)):
                response = send(coding, body)
                self.assertEqual(response.status, 200, response.body)
                self.assertEqual(response.json()["choices"], plain)

    def test_everything_else_is_refused_by_name(self):
        for coding, body, status, words in REFUSED:
            with self.subTest(coding=coding, size=len(body)):
                response = send(coding, body)
                self.assertEqual(response.status, status, response.body)
                self.assertIn(words, response.error["message"])
                accepted = "gzip, deflate, identity" if status == 415 else None
                self.assertEqual(response.headers.get("accept-encoding"), accepted)
        self.assertEqual(send("gzip", GZIP).status, 200, "the server goes on")

    def test_every_route_accepts_them_and_refuses_in_its_own_form(self):
        chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
        for path, body in (("/v1/chat/completions", chat), ("/v1/messages", chat),
                           ("/v1/messages/count_tokens", {"messages": chat["messages"]}),
                           ("/v1/responses", {"input": "hi", "max_output_tokens": 16}),
                           ("/tokenize", {"prompt": "hi"}), ("/detokenize", {"tokens": [5]}),
                           ("/v1/attention", {"text": "hi"}), ("/v1/embeddings", {"input": "hi"}),
                           ("/v1/completions/render", {"prompt": "hi"})):
            data = gzip.compress(json.dumps(body).encode())
            with self.subTest(path=path):
                response = send("gzip", data, path)
                self.assertEqual(response.status, 200, response.body)
                response = send("gzip", data[:-1], path)
                self.assertEqual(response.status, 400)
                anthropic = path.startswith("/v1/messages")
                self.assertEqual(response.json().get("type"), "error" if anthropic else None)
                self.assertEqual(response.error["type"], "invalid_request_error")

    def test_compressed_body_may_come_in_chunks_of_a_byte(self):
        head = (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
                b"Content-Type: application/json\r\n"
                b"Content-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n")
        chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in GZIP) + b"0\r\n\r\n"
        answer = exchange(server.port, head + chunks)
        self.assertEqual(answer.status, 200)
        self.assertIn(b"text_completion", answer.body)


class RaisedLimitTest(unittest.TestCase):
    """--max-body-size is the limit of every door, also of several models."""

    def check(self, server):
        allowed = f"allowed: at most {RAISED} (--max-body-size)"
        fits, too_long = padded(RAISED), padded(RAISED + 1)
        zipped = {"Content-Encoding": "gzip"}
        for body, headers in ((fits, {}), (gzip.compress(fits), zipped)):
            self.assertEqual(server.post(COMPLETIONS, body, headers=headers).status, 200)
        length = f"Content-Length: {len(too_long)}"  # refused before the body comes
        refused = exchange(server.port, request_bytes("POST", COMPLETIONS, headers=(length,)))
        self.assertEqual(refused.status, 413)
        self.assertIn(f"the body has {RAISED + 1} bytes; {allowed}", refused.body.decode())
        response = server.post(COMPLETIONS, gzip.compress(too_long), headers=zipped)
        self.assertEqual(response.status, 413)
        self.assertRegex(response.error["message"], "^the decompressed body has at least ")
        self.assertIn(allowed, response.error["message"])
        with channel(server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            for size, code in ((RAISED - 100, grpc.StatusCode.INVALID_ARGUMENT),
                               (RAISED + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
                with self.assertRaises(grpc.RpcError) as caught:
                    collect(stub.Generate(pb.GenerateRequest(text="x" * size)))
                self.assertEqual(caught.exception.code(), code)

    def test_one_model(self):
        with ServerProcess("--max-body-size", "5MiB") as server:
            self.check(server)

    def test_several_models(self):
        with ModelsServer({"m": {"model": str(tiny_model.directory())}}, "--max-body-size",
                          "5MiB") as server:
            self.check(server)

    def test_size_out_of_range_is_refused(self):
        done = subprocess.run(
            [BINARY, "serve", tiny_model.directory(), "--max-body-size", "65MiB"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn('--max-body-size is "65MiB"; allowed: bytes with suffix (5G, 512MiB), '
                      "1024 to 67108864", done.stderr)
