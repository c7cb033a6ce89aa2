# SPDX-License-Identifier: Apache-2.0
"""Long answers and their limits, and clients that read slowly or leave."""

import http.client
import json
import re
import socket
import unittest

from raw_http import request_bytes
from server_process import DEMO_MODEL, GatedServer, ServerProcess, eventually

BEHIND = 200 << 10  # bytes after a request: more than the server keeps
SCORED = {"prompt": "one two three four five " * 60, "prompt_logprobs": 20, "max_tokens": 1}
LONG = {**SCORED, "n": 16}  # some 7 MB


def post(body: dict) -> bytes:
    return request_bytes("POST", "/v1/completions", json.dumps(body).encode())


def connect(server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), timeout=60)


class LeavingTest(unittest.TestCase):
    def test_client_that_leaves_after_many_bytes_is_noticed(self):
        with GatedServer() as server:

            def cancelled() -> float:
                return server.metric("diffserve_requests_finished_total", reason="cancelled")

            for shut in (True, False):
                before = cancelled()
                server.close_gate()
                with connect(server) as client:
                    client.sendall(post({"prompt": "x", "max_tokens": 50}))
                    server.wait_for_waiting(1)
                    client.sendall(b"x" * BEHIND)
                    if shut:
                        client.shutdown(socket.SHUT_WR)
                        server.wait_until_left()
                server.wait_until_left()
                # The engine is sent this one behind the end of the other, which it may have read
                # together with its request, before any step.
                with connect(server) as later:
                    later.sendall(post({"prompt": "y", "max_tokens": 1}))
                    eventually(lambda before=before: server.metric("diffserve_requests_waiting") +
                               cancelled() - before >= 2, "one waits, the other waits or is ended")
                    server.open_gate()
                    self.assertIn(b" 200 ", later.recv(100))
                server.wait_until_idle()
            self.assertEqual(cancelled(), 2)


class PriceTest(unittest.TestCase):
    def test_answers_have_a_limit_each_and_together(self):
        with GatedServer("--max-answers-memory", "4MiB", model=DEMO_MODEL) as server:
            refused = server.post("/v1/completions", {**SCORED, "prompt": [SCORED["prompt"]] * 16})
            self.assertEqual(refused.status, 400)
            self.assertEqual(refused.error["param"], "prompt_logprobs")
            for part in ("MiB", "16 prompts", "0.5 MiB", "prompt_logprobs 20"):
                self.assertIn(part, refused.error["message"])
            self.assertEqual(server.post("/v1/completions", SCORED).status, 200)
            open_end = server.post("/v1/completions", {"prompt": "x", "logprobs": 20, "n": 2})
            self.assertEqual(open_end.status, 200)

            server.close_gate()
            clients = []

            def refused() -> bool:
                return server.metric("diffserve_requests_refused_total", reason="memory_full") > 0

            def last_is_in_line() -> bool:
                return server.metric("diffserve_requests_waiting") == len(clients)

            # One at a time: of two that are read at once, the first may be refused.
            while not refused():
                self.assertLess(len(clients), 100)
                clients.append(connect(server))
                clients[-1].sendall(post(SCORED))
                eventually(lambda: refused() or last_is_in_line(), "the last is in line or refused")
            self.assertIn(b" 429 ", clients[-1].recv(100))
            server.open_gate()
            for client in clients:
                client.close()
            # The memory of an answer is released when the engine has ended it.
            eventually(lambda: server.post("/v1/completions", SCORED).status == 200,
                       "what the answers took is free again")


class LongAnswerTest(unittest.TestCase):
    def read_head(self, server) -> http.client.HTTPResponse:
        """Requests a long answer and reads only its head; the rest does not fit the buffers."""
        connection = socket.socket()
        connection.settimeout(60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        self.addCleanup(connection.close)
        connection.sendall(post(LONG))
        response = http.client.HTTPResponse(connection)
        response.begin()
        self.addCleanup(response.close)
        self.assertEqual(response.getheader("transfer-encoding"), "chunked")
        return response

    def cuts(self, server) -> tuple[int, int]:
        line = re.search(r"drained replies_ended_by_error_event=(\d+) replies_reset=(\d+)",
                         server.stderr())
        return int(line[1]), int(line[2])

    def test_long_answer_is_whole_and_its_prompt_scored_once(self):
        with ServerProcess(model=DEMO_MODEL) as server:
            one = server.post("/v1/completions", SCORED).json()
            before = server.metric("process_resident_memory_bytes")
            long = server.post("/v1/completions", LONG)
            self.assertGreater(len(long.body), 4 << 20)
            scores = one["choices"][0]["prompt_logprobs"]
            for choice in long.json()["choices"]:
                self.assertEqual(choice["prompt_logprobs"], scores)
            self.assertLess(server.metric("process_resident_memory_bytes") - before, 8 << 20)

    def test_drain_waits_for_the_reader(self):
        with ServerProcess("--drain-timeout", 600, model=DEMO_MODEL) as server:
            response = self.read_head(server)
            server.terminate()
            eventually(lambda: server.get("/readyz").status == 503, "not ready")
            server.wait_until_idle()
            self.assertEqual(len(json.loads(response.read())["choices"]), 16)
            self.assertEqual(server.wait(), 0)
            self.assertEqual(self.cuts(server), (0, 0))

    def test_unread_replies_are_reset_at_the_drain_limit(self):
        with ServerProcess("--drain-timeout", 0, model=DEMO_MODEL) as server:
            response = self.read_head(server)
            server.terminate()
            self.assertEqual(server.wait(), 0)
            with self.assertRaises(ConnectionResetError):
                response.read()
            self.assertEqual(self.cuts(server), (0, 1))
