# SPDX-License-Identifier: Apache-2.0
"""A server without work uses no CPU, also after work and while clients stay connected."""

import socket
import time
import unittest

from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import ServerProcess

IDLE_S = 2
ALLOWED_CPU_S = 0.1


class IdleTest(unittest.TestCase):
    def test_idle_server_uses_no_cpu(self):
        with ServerProcess() as server, channel(server) as connection:
            collect(pb_grpc.InferenceStub(connection).Generate(generate_request([5], 20)))
            self.assertEqual(server.post("/v1/completions", {"prompt": "x"}).status, 200)
            with socket.create_connection(("127.0.0.1", server.port)):
                time.sleep(0.2)
                before = server.cpu_seconds()
                time.sleep(IDLE_S)
                self.assertLess(server.cpu_seconds() - before, ALLOWED_CPU_S)
