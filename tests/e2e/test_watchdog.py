# SPDX-License-Identifier: Apache-2.0
"""A step that takes long, and a server with only corrupted answers: probes and log."""

import tempfile
import threading
import unittest
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from grpc_client import channel
from server_process import GatedServer, ServerProcess, eventually
from test_corrupted import poisoned_model
from tiny_model import encode

PROMPT = {"prompt": "a secret prompt", "max_tokens": 4}


def grpc_is_serving(stub) -> bool:
    status = stub.Check(health_pb2.HealthCheckRequest()).status
    return status == health_pb2.HealthCheckResponse.SERVING


class StallTest(unittest.TestCase):
    def start_request(self, server) -> threading.Thread:
        client = threading.Thread(target=self.post, args=(server, ))
        client.start()
        self.addCleanup(client.join)
        return client

    @staticmethod
    def post(server) -> None:
        try:
            server.post("/v1/completions", PROMPT)
        except (ConnectionError, OSError):
            pass  # the server may end before its reply

    def test_stalled_step_is_not_ready_until_it_ends(self):
        with GatedServer() as server, channel(server) as connection:
            health = health_pb2_grpc.HealthStub(connection)
            server.close_gate()
            self.start_request(server)
            eventually(lambda: "not_ready" in server.stderr(), "the stall is logged")
            self.assertEqual(server.get("/livez").status, 200)
            response = server.get("/readyz")
            self.assertEqual(response.status, 503)
            self.assertIn("has finished no step for", response.body.decode())
            eventually(lambda: not grpc_is_serving(health), "gRPC says so too")
            server.open_gate()
            eventually(lambda: server.get("/readyz").status == 200, "ready again")
            eventually(lambda: grpc_is_serving(health), "gRPC says so too")
            eventually(lambda: "ready_again" in server.stderr(), "the end is logged")
            self.assertNotIn("secret", server.stderr())


class CorruptedServerTest(unittest.TestCase):
    def test_eight_corrupted_answers_in_a_row_are_not_ready_until_a_good_one(self):
        poison = encode("~")[0]
        with tempfile.TemporaryDirectory() as parent, \
                ServerProcess(model=poisoned_model(Path(parent), poison)) as server:
            bad, good = {"prompt": [poison], "max_tokens": 1}, {"prompt": [100], "max_tokens": 1}
            for _ in range(7):
                self.assertEqual(server.post("/v1/completions", bad).status, 500)
            self.assertEqual(server.get("/readyz").status, 200)
            self.assertEqual(server.post("/v1/completions", bad).status, 500)
            response = server.get("/readyz")
            self.assertEqual(response.status, 503)
            self.assertIn("last 8 answers ended because their logits were not finite",
                          response.body.decode())
            eventually(lambda: "not_ready reason=" in server.stderr(), "the reason is logged")
            self.assertEqual(server.post("/v1/completions", good).status, 200)
            self.assertEqual(server.get("/readyz").status, 200)
            eventually(lambda: "ready_again" in server.stderr(), "readiness is logged")
            self.assertEqual(server.stderr().count("not_ready"), 1)


if __name__ == "__main__":
    unittest.main()
