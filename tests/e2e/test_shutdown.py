# SPDX-License-Identifier: Apache-2.0
"""SIGTERM under load, ports in use, and a second SIGTERM."""

import http.client
import json
import signal
import socket
import subprocess
import threading
import time
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_client import channel, generate_request, pb_grpc
from server_process import BINARY, GatedServer, ServerProcess, eventually

STREAMS = 6


class Client(threading.Thread):
    """One SSE stream, read to its end; counts text chunks and records error event and [DONE]."""

    def __init__(self, server, max_tokens):
        super().__init__(daemon=True)
        self.started, self.error, self.failure = threading.Event(), None, None
        self.tokens, self.done = 0, False
        self.body = json.dumps({
            "prompt": "load", "max_tokens": max_tokens, "stream": True, "ignore_eos": True,
            "logprobs": 0
        })
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self.start()

    def run(self):
        try:
            self.connection.request("POST", "/v1/completions", self.body,
                                    {"Content-Type": "application/json"})
            for line in self.connection.getresponse():
                if line == b"data: [DONE]\n":
                    self.done = True
                elif line.startswith(b"data: "):
                    self.take(json.loads(line[6:]))
        except Exception as failure:  # a cut connection is what the test looks for
            self.failure = failure
        finally:
            self.started.set()
            self.connection.close()

    def take(self, chunk):
        self.error = chunk.get("error", self.error)
        for choice in chunk.get("choices", ()):
            if choice["logprobs"]:
                self.tokens += len(choice["logprobs"]["token_logprobs"])
                self.started.set()


def start_clients(server, max_tokens) -> list[Client]:
    """Starts streams that have their first tokens and wait at the gate."""
    server.close_gate()
    clients = [Client(server, max_tokens) for _ in range(STREAMS)]
    server.wait_for_waiting(STREAMS)
    server.allow(5)
    for client in clients:
        client.started.wait(60)
    return clients


class SigtermTest(unittest.TestCase):
    def test_running_streams_end_while_new_work_is_refused(self):
        with GatedServer("--drain-timeout", 600) as server, channel(server) as connection:
            health = health_pb2_grpc.HealthStub(connection)
            health.Check(health_pb2.HealthCheckRequest())
            clients = start_clients(server, 300)
            server.terminate()
            eventually(lambda: server.get("/readyz").status == 503, "not ready")
            self.assertEqual(server.get("/livez").status, 200)
            refused = server.post("/v1/completions", {"prompt": "x"})
            self.assertEqual(refused.status, 503)
            self.assertIn("retry-after", refused.headers)
            with self.assertRaises(grpc.RpcError) as caught:
                list(pb_grpc.InferenceStub(connection).Generate(generate_request([5], 1)))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertEqual(
                health.Check(health_pb2.HealthCheckRequest()).status,
                health_pb2.HealthCheckResponse.NOT_SERVING)
            server.open_gate()
            for client in clients:
                client.join(60)
            self.assertEqual([(c.tokens, c.done, c.error, c.failure) for c in clients],
                             [(300, True, None, None)] * STREAMS)
            self.assertEqual(server.wait(), 0)

    def expect_error_events(self, clients):
        for client in clients:
            client.join(60)
            self.assertIsNone(client.failure, "the stream was cut without a word")
            self.assertIsNotNone(client.error)
            self.assertEqual(set(client.error), {"message", "type", "param", "code"})
            self.assertLess(client.tokens, 8000)

    def test_at_the_drain_limit_streams_end_with_an_error_event(self):
        with GatedServer("--drain-timeout", 1) as server:
            clients = start_clients(server, 8000)
            server.terminate()
            eventually(lambda: server.get("/readyz").status == 503, "not ready")
            time.sleep(1.2)  # the limit is over; the held requests still have 8,000 tokens to go
            server.open_gate()
            self.assertEqual(server.wait(), 0)
            self.expect_error_events(clients)

    def test_stalled_step_does_not_block_the_drain_limit(self):
        with GatedServer("--drain-timeout", 0) as server:
            clients = start_clients(server, 8000)
            server.terminate()
            self.expect_error_events(clients)
            server.open_gate()
            self.assertEqual(server.wait(), 0)

    def test_second_sigterm_ends_it_at_once(self):
        with GatedServer("--drain-timeout", 600) as server:
            clients = start_clients(server, 8000)
            server.terminate()
            eventually(lambda: server.get("/readyz").status == 503, "not ready")
            server.terminate()
            self.assertEqual(server.wait(), -signal.SIGTERM)
            for client in clients:
                client.join(60)
                self.assertLess(client.tokens, 8000)
            server.code = 0  # the end by the second signal is intended

    def test_idle_and_with_open_connections_it_ends_at_once(self):
        with ServerProcess() as server, channel(server) as connection:
            health_pb2_grpc.HealthStub(connection).Check(health_pb2.HealthCheckRequest())
            with socket.create_connection(("127.0.0.1", server.port)):
                server.terminate()
                self.assertEqual(server.wait(), 0)


class TakenPortTest(unittest.TestCase):
    def test_port_in_use_is_one_clear_line(self):
        with ServerProcess() as server:
            for flags in (("--port", server.port, "--grpc-port", 0), ("--port", 0, "--grpc-port",
                                                                      server.grpc_port)):
                with self.subTest(flags=flags):
                    second = subprocess.run([BINARY, "serve", server.model, *map(str, flags)],
                                            capture_output=True, text=True, timeout=30)
                    self.assertEqual(second.returncode, 1, second.stderr)
                    self.assertEqual(second.stdout, "")
                    taken = str(server.port if flags[1] else server.grpc_port)
                    self.assertIn(taken, second.stderr.strip().splitlines()[-1])
            self.assertEqual(server.get("/livez").status, 200)
