# SPDX-License-Identifier: Apache-2.0
"""The strict gate in front of the HTTP parser, with raw sockets: requests that two parsers could
read differently are refused."""

import json
import socket
import unittest

from raw_http import exchange, request_bytes
from server_process import DEVICE, GatedServer, eventually

BODY = b'{"prompt":"x","max_tokens":1}'
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /version HTTP/1.1\r\n"
LENGTH = b"Content-Length: %d\r\n" % len(BODY)


def chunked(framed: bytes, extra: bytes = b"") -> bytes:
    return POST + extra + b"Transfer-Encoding: chunked\r\n\r\n" + framed


# name, bytes, allowed statuses
REFUSED = [
    ("not HTTP at all", b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", {400}),
    ("no version", b"GET /version\r\n\r\n", {400, 505}),
    ("HTTP/1.9", b"GET /version HTTP/1.9\r\nHost: localhost\r\n\r\n", {400, 505}),
    ("HTTP/2.0", b"GET /version HTTP/2.0\r\nHost: localhost\r\n\r\n", {400, 505}),
    ("the HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {400, 505}),
    ("no Host", GET + b"\r\n", {400}),
    ("two Hosts", GET + b"Host: localhost\r\nHost: localhost\r\n\r\n", {400}),
    ("Host with a path", GET + b"Host: a/x?y\r\n\r\n", {400}),
    ("Host with user info", GET + b"Host: a@b\r\n\r\n", {400}),
    ("Host with a blank", GET + b"Host: a b\r\n\r\n", {400}),
    ("length and chunked", POST + LENGTH + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", {400}),
    ("chunked and length", chunked(b"0\r\n\r\n", LENGTH), {400}),
    ("two lengths that differ", POST + LENGTH + b"Content-Length: 5\r\n\r\n" + BODY, {400}),
    ("two lengths that agree", POST + LENGTH + LENGTH + b"\r\n" + BODY, {400}),
    ("a list of lengths", POST + b"Content-Length: 4, 4\r\n\r\n" + BODY, {400}),
    ("length +29", POST + b"Content-Length: +29\r\n\r\n" + BODY, {400}),
    ("length -1", POST + b"Content-Length: -1\r\n\r\n" + BODY, {400}),
    ("length 0x1d", POST + b"Content-Length: 0x1d\r\n\r\n" + BODY, {400}),
    ("length beyond 64 bits", POST + b"Content-Length: 99999999999999999999\r\n\r\n" + BODY,
     {400, 413}),
    ("chunked in HTTP/1.0", chunked(b"0\r\n\r\n").replace(b"HTTP/1.1", b"HTTP/1.0"), {400}),
    ("chunked, identity", POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
     {400, 501}),
    ("xchunked", POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("gzip, chunked", POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", {400, 501}),
    ("chunk size 0x1d", chunked(b"0x1d\r\n" + BODY + b"\r\n0\r\n\r\n"), {400}),
    ("negative chunk size", chunked(b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"), {400}),
    ("chunk size beyond 64 bits", chunked(b"fffffffffffffffff\r\n" + BODY + b"\r\n0\r\n\r\n"),
     {400, 413}),
    ("bare line feed in a chunk extension",
     chunked(b"1d;a\n=b\r\n" + BODY + b"\r\n0\r\n\r\n"), {400}),
    ("chunk longer than its size", chunked(b"1c\r\n" + BODY + b"\r\n0\r\n\r\n"), {400}),
    ("folded header", GET + b"Host: localhost\r\nX-A: b\r\n c\r\n\r\n", {400}),
    ("blank before the colon", GET + b"Host : localhost\r\n\r\n", {400}),
    ("NUL in a value", GET + b"Host: localhost\r\nX-A: b\0c\r\n\r\n", {400}),
    ("bare line feeds", b"GET /version HTTP/1.1\nHost: localhost\n\n", {400}),
    ("header without a colon", GET + b"Host: localhost\r\nnonsense\r\n\r\n", {400}),
    ("17 KiB of header", GET + b"Host: localhost\r\nX-A: " + b"a" * (17 << 10) + b"\r\n\r\n",
     {400, 431}),
    ("101 fields", GET + b"Host: localhost\r\n" + b"".join(b"X-%d: a\r\n" % i
                                                           for i in range(100)) + b"\r\n",
     {400, 431}),
    ("9 KiB of path", b"GET /" + b"a" * (9 << 10) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
     {400, 414, 431}),
    ("5 MiB of body", POST + b"Content-Length: %d\r\n\r\n" % (5 << 20), {413}),
    ("5 MiB of chunks",
     chunked(b"100000\r\n" + b" " * (1 << 20) + b"\r\n" + (b"100000\r\n" + b" " *
                                                           (1 << 20) + b"\r\n") * 4), {413}),
    ("control byte in the path", b"GET /ver\x01sion HTTP/1.1\r\nHost: localhost\r\n\r\n", {400}),
]


def setUpModule():
    global server
    server = unittest.enterModuleContext(GatedServer())


class GateTest(unittest.TestCase):
    def tearDown(self):
        self.assertEqual(server.get("/livez").status, 200)

    def test_ambiguous_requests_are_refused_and_the_connection_closed(self):
        for name, data, statuses in REFUSED:
            with self.subTest(name):
                answer = exchange(server.port, data)
                self.assertIn(answer.status, statuses)
                self.assertTrue(answer.closed, "the connection stays open")
                if answer.status != 505:
                    self.assertEqual(set(json.loads(answer.body)["error"]),
                                     {"message", "type", "param", "code"})

    def test_plain_framings_are_served(self):
        for name, data in (("length", POST + LENGTH + b"\r\n" + BODY),
                           ("chunks",
                            chunked(b"5\r\n" + BODY[:5] + b"\r\n18\r\n" + BODY[5:] +
                                    b"\r\n0\r\n\r\n")),
                           ("chunk extensions",
                            chunked(b'5;a=b\r\n' + BODY[:5] + b'\r\n18 ;c="d;"\r\n' + BODY[5:] +
                                    b"\r\n0;e\r\n\r\n")),
                           ("a URL as the target",
                            (POST + LENGTH + b"\r\n" + BODY).replace(
                                b" /", b" http://localhost/", 1)),
                           ("HTTP/1.0",
                            (POST + LENGTH + b"\r\n" + BODY).replace(b"HTTP/1.1", b"HTTP/1.0")),
                           ("Host with port",
                            request_bytes("POST", "/v1/completions", BODY, host="[::1]:8000"))):
            with self.subTest(name):
                answer = exchange(server.port, data)
                self.assertEqual(answer.status, 200, answer.body)

    def test_checks_of_load_balancers_are_answered(self):
        for name, data, status in (
            ("HAProxy", b"OPTIONS / HTTP/1.0\r\n\r\n", 204),
            ("without Host", b"GET /readyz HTTP/1.0\r\n\r\n", 200),
            ("empty Host", b"GET /health HTTP/1.1\r\nHost: \r\nConnection: Close\r\n\r\n", 200),
            ("HEAD", b"HEAD /livez HTTP/1.0\r\n\r\n", 200),
            ("the whole server", b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", 204),
            ("another path", b"GET /v1/models HTTP/1.0\r\n\r\n", 421),
            ("another host", b"GET http://evil/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 421)):
            with self.subTest(name):
                self.assertEqual(exchange(server.port, data).status, status)

    def test_connection_serves_one_request_after_another(self):
        with socket.create_connection(("127.0.0.1", server.port), 10) as connection:
            for _ in range(3):
                connection.sendall(request_bytes("GET", "/livez"))
                self.assertTrue(connection.recv(65536).startswith(b"HTTP/1.1 200"))

    def test_body_limit_is_the_last_byte_that_passes(self):
        limit = 4 << 20
        frame = b'{"prompt":"x","max_tokens":1,"user":""}'
        fits = frame[:-2] + b"u" * (limit - len(frame)) + frame[-2:]
        self.assertEqual(
            exchange(server.port, request_bytes("POST", "/v1/completions", fits)).status, 200)
        too_long = frame[:-2] + b"u" * (limit - len(frame) + 1) + frame[-2:]
        self.assertEqual(
            exchange(server.port, request_bytes("POST", "/v1/completions", too_long)).status, 413)

    def test_client_that_goes_away_costs_nothing(self):
        body = json.dumps(
            {"prompt": "gone", "max_tokens": 8000, "stream": True, "ignore_eos": True}).encode()
        data = request_bytes("POST", "/v1/completions", body)
        cancelled = server.metric("diffserve_requests_finished_total", reason="cancelled")
        self.addCleanup(server.open_gate)
        for reset in (False, True):
            server.allow(5)
            with self.subTest(reset=reset), socket.create_connection(("127.0.0.1", server.port),
                                                                     10) as connection:
                connection.sendall(data)
                self.assertTrue(connection.recv(65536).startswith(b"HTTP/1.1 200"))
                if reset:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            server.wait_until_left()
            server.open_gate()
            server.wait_until_idle()
        self.assertEqual(server.metric("diffserve_requests_finished_total", reason="cancelled"),
                         cancelled + 2)

    def test_client_that_does_not_read_is_cut(self):
        body = {
            "prompt": "deaf", "max_tokens": 8000, "stream": True, "ignore_eos": True, "logprobs": 20
        }
        data = request_bytes("POST", "/v1/completions", json.dumps(body).encode())
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect(("127.0.0.1", server.port))
            server.allow(5)
            self.addCleanup(server.open_gate)
            connection.sendall(data)
            eventually(lambda: server.pages_used() > 0, "the request runs")
            server.open_gate()
            self.assertEqual(server.post("/v1/completions", json.loads(BODY)).status, 200)
            eventually(lambda: server.pages_used() == 0, "the request was given up", 120)
        self.assertLess(server.metric("process_resident_memory_bytes"),
                        500 << 20 if DEVICE == "cpu" else 4 << 30)

    def test_half_a_request_delays_no_other_client(self):
        sockets = [socket.create_connection(("127.0.0.1", server.port), 10) for _ in range(50)]
        try:
            for connection in sockets:
                connection.sendall(POST + LENGTH + b"\r\n" + BODY[:5])
            self.assertEqual(server.post("/v1/completions", json.loads(BODY)).status, 200)
        finally:
            for connection in sockets:
                connection.close()
