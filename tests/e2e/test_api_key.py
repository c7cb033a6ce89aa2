# SPDX-License-Identifier: Apache-2.0
"""--api-key-file guards every route of both ports except health."""

import os
import tempfile
import unittest

import grpc
import openai
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

from grpc_client import channel, collect, generate_request, pb, pb_grpc
from raw_http import exchange, request_bytes
from server_process import ServerProcess

KEY, OTHER_KEY = "sk-canary-0123456789abcdef", "sk-second"
ROUTES = [("POST", "/v1/completions"), ("POST", "/v1/chat/completions"), ("GET", "/v1/models"),
          ("GET", "/v1/models/tiny"), ("POST", "/v1/attention"), ("POST", "/v1/embeddings"),
          ("POST", "/tokenize"),
          ("POST", "/detokenize"), ("GET", "/version"), ("GET", "/load"), ("GET", "/metrics"),
          ("GET", "/nothing-here"), ("GET", "/v1/completions"), ("OPTIONS", "/metrics"),
          ("HEAD", "/metrics")]
HEALTH = ["/livez", "/readyz", "/health"]
PAGE = ["/", "/ui/main.js", "/ui/style.css"]
DISGUISES = [
    "//metrics", "/metrics/", "/./metrics", "/livez/../metrics", "/%6detrics", "/METRICS",
    "/metrics?x=/livez", "/metrics#/livez", "/livez%2f..%2fmetrics", "http://localhost/metrics",
    "*", "/metrics;/livez", "/health/../v1/models"
]
NO_TARGETS = ("/metrics#/livez", "*")  # of a GET


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def setUpModule():
    global server
    handle, path = tempfile.mkstemp()
    with os.fdopen(handle, "w") as file:
        file.write(f"{KEY}\n{OTHER_KEY}\n")
    unittest.addModuleCleanup(os.unlink, path)
    server = unittest.enterModuleContext(ServerProcess("--api-key-file", path))


class HttpKeyTest(unittest.TestCase):
    def test_every_other_route_needs_a_key(self):
        wrong = ({}, bearer("wrong"), bearer(""), bearer(KEY[:-1]), bearer(KEY + "x"),
                 {"Authorization": KEY}, {"X-Api-Key": "wrong"}, {"Authorization": "Basic " + KEY},
                 bearer(f"{KEY}\n{OTHER_KEY}".replace("\n", " ")))
        for method, path in ROUTES:
            for headers in wrong:
                with self.subTest(f"{method} {path} {headers}"):
                    response = server.request(method, path, headers=headers)
                    self.assertEqual(response.status, 401)
                    if method != "HEAD":
                        self.assertEqual(response.error["type"], "authentication_error")

    def test_health_and_the_page_are_open(self):
        for path in HEALTH + PAGE:
            self.assertEqual(server.get(path).status, 200)

    def test_each_key_opens_by_either_header(self):
        for headers in (bearer(KEY), bearer(OTHER_KEY), {"X-Api-Key": KEY}):
            self.assertEqual(server.get("/v1/models", headers=headers).status, 200)
            self.assertEqual(
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 1},
                            headers=headers).status, 200)

    def test_disguised_paths_need_a_key_too(self):
        for path in DISGUISES:
            with self.subTest(path):
                answer = exchange(server.port, request_bytes("GET", path))
                self.assertEqual(answer.status, 400 if path in NO_TARGETS else 401)
                self.assertNotIn(b"diffserve_", answer.body)

    def test_openai_python_sees_an_authentication_error(self):
        with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", max_retries=0) as client:
            with self.assertRaises(openai.AuthenticationError):
                client.models.list()
        with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, max_retries=0) as client:
            self.assertEqual([model.id for model in client.models.list().data], ["tiny"])

    def test_keys_and_prompts_are_in_no_log_and_no_metric(self):
        canary = "canary-prompt-7d1f"
        server.post("/v1/completions", {"prompt": canary, "max_tokens": 1, "user": canary},
                    headers=bearer(KEY))
        server.post("/v1/completions", {"prompt": canary, "temperature": -1}, headers=bearer(KEY))
        metrics = server.get("/metrics", headers=bearer(KEY)).body.decode()
        for text in (server.stderr(), metrics):
            for secret in (KEY, OTHER_KEY, canary):
                self.assertNotIn(secret, text)


class GrpcKeyTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.connection = cls.enterClassContext(channel(server))
        cls.stub = pb_grpc.InferenceStub(cls.connection)

    def expect_unauthenticated(self, call):
        with self.assertRaises(grpc.RpcError) as caught:
            result = call()
            if not isinstance(result, (pb.TokenizeResponse, pb.DetokenizeResponse,
                                       pb.GetModelResponse, pb.EmbedResponse, pb.CancelResponse)):
                list(result)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def test_every_call_needs_a_key(self):
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", KEY),)):
            calls = {
                "Generate": lambda: self.stub.Generate(generate_request([5], 1), metadata=metadata),
                "Tokenize": lambda: self.stub.Tokenize(pb.TokenizeRequest(text="x"), metadata=
                                                       metadata),
                "Detokenize": lambda: self.stub.Detokenize(pb.DetokenizeRequest(ids=[5]), metadata=
                                                           metadata),
                "GetModel": lambda: self.stub.GetModel(pb.GetModelRequest(), metadata=metadata),
                "Embed": lambda: self.stub.Embed(pb.EmbedRequest(), metadata=metadata),
                "Cancel": lambda: self.stub.Cancel(pb.CancelRequest(request_id="x"), metadata=
                                                   metadata),
            }
            for name, call in calls.items():
                with self.subTest(name=name, metadata=metadata):
                    self.expect_unauthenticated(call)

    def test_reflection_needs_a_key(self):
        with self.assertRaises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(self.connection).get_services()
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAUTHENTICATED)

    def test_key_opens_and_health_is_open(self):
        for metadata in ((("authorization", f"Bearer {KEY}"),), (("x-api-key", OTHER_KEY),)):
            self.assertEqual(
                len(
                    collect(self.stub.Generate(generate_request([5], 3),
                                               metadata=metadata)).ids[0]), 3)
        answer = health_pb2_grpc.HealthStub(self.connection).Check(health_pb2.HealthCheckRequest())
        self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
