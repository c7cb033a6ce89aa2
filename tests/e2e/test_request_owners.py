# SPDX-License-Identifier: Apache-2.0
"""Without keys, a request and a stored response belong to the address that made them."""

import http.client
import json
import unittest

import grpc

from grpc_client import channel, pb, pb_grpc
from server_process import GatedServer

BODY = {"max_tokens": 400, "ignore_eos": True, "stream": True, "prompt": "a"}


def setUpModule():
    global server, stub
    server = unittest.enterModuleContext(GatedServer())
    stub = pb_grpc.InferenceStub(unittest.enterModuleContext(channel(server)))


def from_address(address: str, method: str, path: str, body=None, headers=()):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60,
                                            source_address=(address, 0))
    connection.request(method, path, None if body is None else json.dumps(body),
                       {"Content-Type": "application/json", **dict(headers)})
    return connection.getresponse()


class AddressTest(unittest.TestCase):
    def setUp(self):
        server.allow(2)
        self.addCleanup(server.open_gate)

    def cancel(self, request_id: str) -> grpc.StatusCode:
        """What Cancel from 127.0.0.1 ends with."""
        try:
            stub.Cancel(pb.CancelRequest(request_id=request_id))
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def test_request_of_another_address_is_unknown(self):
        reply = from_address("127.0.0.2", "POST", "/v1/completions", BODY,
                             {"X-Request-Id": "chosen"})
        self.assertEqual(self.cancel("chosen"), grpc.StatusCode.NOT_FOUND)
        server.open_gate()
        self.assertIn('"finish_reason":"length"', reply.read().decode())

    def test_request_of_the_own_address_is_cancelled_over_grpc(self):
        reply = from_address("127.0.0.1", "POST", "/v1/completions", BODY,
                             {"X-Request-Id": "chosen"})
        self.assertEqual(self.cancel("chosen"), grpc.StatusCode.OK)
        self.assertIn("cancelled", reply.read().decode())

    def test_stored_response_of_another_address_is_unknown(self):
        server.open_gate()
        made = from_address("127.0.0.2", "POST", "/v1/responses",
                            {"input": "a", "max_output_tokens": 2})
        path = "/v1/responses/" + json.loads(made.read())["id"]
        for method, after in [("GET", ""), ("DELETE", ""), ("POST", "/cancel"),
                              ("GET", "/input_items")]:
            with self.subTest(method=method, after=after):
                self.assertEqual(from_address("127.0.0.1", method, path + after).status, 404)
        self.assertEqual(from_address("127.0.0.2", "GET", path).status, 200)


if __name__ == "__main__":
    unittest.main()
