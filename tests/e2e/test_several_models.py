# SPDX-License-Identifier: Apache-2.0
"""`serve --models`: requests reach the model that they name, unchanged; processes come and go."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

import tiny_model
from grpc_client import channel, collect, generate_request, pb, pb_grpc
from hub_stub import HubStub
from models_server import NEEDED, ModelsServer
from raw_http import exchange
from server_process import BINARY, DEMO_MODEL, REPOSITORY, ServerProcess, eventually

sys.path.insert(0, str(REPOSITORY / "deploy" / "python"))
import diffserve

GREEDY = {"prompt": "hello there", "max_tokens": 24, "temperature": 0, "ignore_eos": True}


def tiny(**members) -> dict:
    return {"model": str(tiny_model.directory()), **members}


class Stream:
    """A streamed completion, read line by line."""

    def __init__(self, server, **members):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        body = json.dumps({**GREEDY, "stream": True, **members})
        self.connection.request("POST", "/v1/completions", body,
                                {"Content-Type": "application/json"})

    def response(self):
        return self.connection.getresponse()

    def close(self):
        self.connection.close()


def without_times(body: bytes) -> bytes:
    """Nor with the random identifiers of /v1/responses."""
    body = re.sub(rb'"(created|created_at)":\d+', b'"created":0', body)
    return re.sub(rb'"(resp|msg)_[0-9a-f]{32}', b'"id', body)


class RoutingTest(unittest.TestCase):
    """One server of two models, and one that serves the first of them alone."""

    @classmethod
    def setUpClass(cls):
        models = {"first": tiny(aliases=["one"]), "second": {"model": str(DEMO_MODEL)}}
        flags = ("--speculative", "off")  # the pieces of a stream would depend on measured speed
        cls.server = cls.enterClassContext(
            ModelsServer(models, "--api-key-file", cls.keys(), *flags))
        cls.direct = cls.enterClassContext(
            ServerProcess(*NEEDED, *flags, "--served-model-name", "first", "--served-model-name",
                          "one"))

    @classmethod
    def keys(cls) -> str:
        cls.key_file = Path(tiny_model.directory()).parent / "router-keys"
        cls.key_file.write_text("secret\n")
        return str(cls.key_file)

    def ask(self, server, path, body, **headers):
        headers = {"Authorization": "Bearer secret", "X-Request-Id": "same", **headers}
        return server.post(path, body, headers=headers)

    def test_streams_and_bodies_equal_those_of_a_direct_server(self):
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 16,
                "temperature": 0}
        for path, body in [("/v1/completions", GREEDY),
                           ("/v1/completions", {**GREEDY, "stream": True}),
                           ("/v1/chat/completions", {**chat, "stream": True}),
                           ("/v1/messages", {**chat, "stream": True}),
                           ("/v1/responses", {"input": "hello", "max_output_tokens": 8,
                                              "temperature": 0}),
                           ("/tokenize", {"prompt": "hello"}),
                           ("/v1/completions", {**GREEDY, "max_tokens": -1})]:
            with self.subTest(path=path, body=body):
                body = {"model": "one", **body}
                routed, direct = (self.ask(s, path, body) for s in (self.server, self.direct))
                self.assertEqual(routed.status, direct.status)
                self.assertEqual(without_times(routed.body), without_times(direct.body))
                self.assertEqual(*({k: v for k, v in answer.headers.items() if k != "date"}
                                   for answer in (routed, direct)))

    def test_two_models_answer_at_once_each_by_its_name(self):
        for name in ("first", "second", "first"):
            answer = self.ask(self.server, "/v1/completions", {**GREEDY, "model": name})
            self.assertEqual(answer.json()["model"], name)
        self.assertEqual(set(self.server_states().values()), {"loaded"})

    def server_states(self) -> dict:
        data = self.server.get("/models", headers={"X-Api-Key": "secret"}).json()["data"]
        return {model["id"]: model["status"]["value"] for model in data}

    def test_first_model_answers_where_none_is_named(self):
        self.assertEqual(self.ask(self.server, "/v1/completions", GREEDY).json()["model"], "first")

    def test_query_names_the_model_of_a_request_without_body(self):
        for name, expected in (("first", 200), ("none", 404)):
            answer = self.server.get(f"/load?model={name}", headers={"X-Api-Key": "secret"})
            self.assertEqual(answer.status, expected)

    def test_unknown_model_is_refused_in_the_form_of_the_api(self):
        body = {"model": "none", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
        openai = self.ask(self.server, "/v1/chat/completions", body)
        self.assertEqual((openai.status, openai.error["code"]), (404, "model_not_found"))
        self.assertIn("'none' is not served here", openai.error["message"])
        anthropic = self.ask(self.server, "/v1/messages", body)
        self.assertEqual((anthropic.status, anthropic.json()["type"]), (404, "error"))

    def test_list_describes_each_model(self):
        self.assertEqual(self.server.get("/v1/models").status, 401)
        answer = self.server.get("/v1/models/first", headers={"X-Api-Key": "secret"}).json()
        self.assertEqual((answer["id"], answer["object"], answer["aliases"]),
                         ("first", "model", ["one"]))

    def test_front_door_is_that_of_a_direct_server(self):
        fields = b"Host: localhost\r\nX-Api-Key: secret\r\n"
        requests = [b"%s HTTP/1.1\r\n%s\r\n" % (line, fields) for line in (
            b"HEAD /health", b"OPTIONS *", b"OPTIONS http://localhost", b"BREW /v1/models",
            b"PUT /v1/models", b"HEAD /version", b"GET http://localhost/version", b"BREW /version",
            b"HEAD /v1/completions", b"HEAD /nowhere", b"CONNECT a:1")]
        for data in (b"OPTIONS / HTTP/1.0\r\n\r\n", b"GET /readyz HTTP/1.0\r\n\r\n", *requests):
            with self.subTest(data):
                routed, direct = (exchange(s.port, data) for s in (self.server, self.direct))
                self.assertEqual(routed.status, direct.status)
                for field in ("allow", "content-length", "connection"):
                    self.assertEqual(routed.headers.get(field), direct.headers.get(field), field)

    def test_fields_of_one_connection_are_not_passed_on(self):
        data = (b"GET /version HTTP/1.1\r\nHost: a\r\nX-Api-Key: secret\r\nX-Request-Id: mine\r\n"
                b"Connection: keep-alive, x-REQUEST-id\r\n\r\n")
        self.assertNotEqual(exchange(self.server.port, data).headers["x-request-id"], "mine")

    def test_metrics_are_one_text_with_a_label_for_the_model(self):
        for name in ("first", "second"):
            self.ask(self.server, "/v1/completions", {**GREEDY, "model": name})
        self.assertEqual(self.server.get("/metrics").status, 401)
        text = self.server.get("/metrics", headers={"X-Api-Key": "secret"}).body.decode()
        types = re.findall(r"^# TYPE (\S+)", text, re.M)
        self.assertEqual(len(types), len(set(types)))
        for name in ("first", "second"):
            self.assertIn(f'diffserve_model_loaded{{model="{name}"}} 1\n', text)
            self.assertIn(f'diffserve_requests_running{{model="{name}"}} 0\n', text)
            self.assertIn(f'vllm:num_requests_running{{model="{name}",', text)

    def test_requests_without_a_key_reach_no_model(self):
        answer = self.server.post("/v1/completions", GREEDY)
        self.assertEqual((answer.status, answer.error["code"]), (401, "invalid_api_key"))
        for path in ("/readyz", "/", "/openapi.json"):
            self.assertEqual(self.server.get(path).status, 200)
        self.assertEqual(self.ask(self.server, "/no/such/path", {}).status, 404)

    def test_grpc_calls_reach_the_model_that_they_name(self):
        metadata = (("x-api-key", "secret"),)
        with channel(self.server) as routed, channel(self.direct) as direct:
            stub = pb_grpc.InferenceStub(routed)
            request = generate_request([7, 8, 9, 30], 24, logprobs=2, model="one")
            answers = [collect(pb_grpc.InferenceStub(c).Generate(request, metadata=metadata))
                       for c in (routed, direct)]
            self.assertEqual(*(answer.exact() for answer in answers))
            named = (*metadata, ("model", "second"))
            self.assertEqual(stub.GetModel(pb.GetModelRequest(), metadata=named).name, "second")
            self.assertEqual(stub.GetModel(pb.GetModelRequest(), metadata=metadata).name, "first")
            request.model = "none"
            for given, code in ((metadata, grpc.StatusCode.NOT_FOUND),
                                ((), grpc.StatusCode.UNAUTHENTICATED)):
                with self.assertRaises(grpc.RpcError) as caught:
                    collect(stub.Generate(request, metadata=given))
                self.assertEqual(caught.exception.code(), code)
            request.model, request.sampling.temperature = "first", -1
            errors = []
            for connection in (routed, direct):
                with self.assertRaises(grpc.RpcError) as caught:
                    collect(pb_grpc.InferenceStub(connection).Generate(request, metadata=metadata))
                error = caught.exception
                errors.append((error.code(), error.details(), error.trailing_metadata()))
            self.assertEqual(*errors)

    def test_kserve_calls_reach_the_model_that_they_name(self):
        import tritonclient.grpc as triton

        with triton.InferenceServerClient(self.server.grpc_address) as client:
            headers = {"x-api-key": "secret"}
            self.assertTrue(client.is_model_ready("second", headers=headers))
            self.assertEqual(client.get_model_metadata("second", headers=headers).name, "second")

    def test_parent_answers_health_and_reflection(self):
        with channel(self.server) as connection:
            health = health_pb2_grpc.HealthStub(connection)
            answer = health.Check(health_pb2.HealthCheckRequest(service="diffserve.v1.Inference"))
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        with ModelsServer({"m": tiny()}) as server, channel(server) as connection:
            for data, status in ((b"OPTIONS / HTTP/1.0\r\n\r\n", 204),
                                 (b"GET /readyz HTTP/1.0\r\n\r\n", 200),
                                 (b"GET /v1/models HTTP/1.0\r\n\r\n", 421),
                                 (b"GET http://a/livez HTTP/1.1\r\nHost: localhost\r\n\r\n", 421)):
                self.assertEqual(exchange(server.port, data).status, status, data)
            services = ProtoReflectionDescriptorDatabase(connection).get_services()
            self.assertIn("inference.GRPCInferenceService", services)
            self.assertEqual(server.states(), {"m": "unloaded"})


class ResidencyTest(unittest.TestCase):
    def test_least_recently_used_model_makes_room(self):
        models = {name: tiny() for name in "abc"}
        with ModelsServer(models, "--max-loaded", 2) as server:
            for name in "abac":
                self.assertEqual(server.post("/v1/completions", {**GREEDY, "model": name}).status,
                                 200)
                eventually(lambda: server.metric("diffserve_model_requests_in_flight",
                                                 model=name) == 0, "the end of the request")
            self.assertEqual(server.states(), {"a": "loaded", "b": "unloaded", "c": "loaded"})
            self.assertEqual(server.metric("diffserve_model_stops_total", model="b",
                                           reason="room"), 1)

    def test_busy_model_is_not_stopped_and_the_wait_ends(self):
        models = {"a": tiny(), "b": tiny()}
        with ModelsServer(models, "--max-loaded", 1, "--load-wait", 1) as server:
            server.close_gate()
            stream = Stream(server, model="a")
            eventually(lambda: server.metric("diffserve_model_requests_in_flight", model="a") == 1,
                       "the stream is under way")
            refused = server.post("/v1/completions", {**GREEDY, "model": "b"})
            self.assertEqual(refused.status, 503)
            self.assertIn("other models are busy", refused.error["message"])
            self.assertGreater(int(refused.headers["retry-after"]), 0)
            server.open_gate()
            self.assertIn(b"[DONE]", stream.response().read())
            stream.close()
            eventually(
                lambda: server.post("/v1/completions", {**GREEDY, "model": "b"}).status == 200,
                "the other model is loaded, however long that takes")
            self.assertEqual(server.states(), {"a": "unloaded", "b": "loaded"})

    def test_idle_model_is_stopped(self):
        with ModelsServer({"a": tiny()}, "--idle-timeout", 1) as server:
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
            server.wait_for_state("a", "unloaded")
            self.assertEqual(server.metric("diffserve_model_stops_total", reason="idle"), 1)

    def test_models_are_loaded_and_unloaded_by_command(self):
        with ModelsServer({"a": tiny(), "b": tiny(pinned=True)}) as server:
            eventually(lambda: server.get("/readyz").status == 200, "the pinned model is loaded")
            self.assertEqual(server.states(), {"a": "unloaded", "b": "loaded"})
            self.assertEqual(server.post("/models/load", {"model": "a"}).json(), {"success": True})
            server.wait_for_state("a", "loaded")
            self.assertEqual(server.post("/models/unload", {"model": "a"}).status, 200)
            server.wait_for_state("a", "unloaded")
            self.assertEqual(server.post("/models/load", {"model": "x"}).status, 404)
            self.assertEqual(server.post("/models/load", {}).status, 400)

    def test_models_that_take_turns_find_their_pages_in_one_directory(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = {"kv-cache-dir": folder, "kv-cache-disk": "64MiB"}
            models = {"a": tiny(flags=flags), "b": {"model": str(DEMO_MODEL), "flags": flags}}
            with ModelsServer(models, "--max-loaded", 1) as server:
                cached = []
                for name in "abab":
                    answer = server.post("/v1/completions", {"model": name, "prompt": "hello " * 60,
                                                             "max_tokens": 1}).json()
                    cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])
                self.assertEqual(server.metric("diffserve_model_stops_total", model="a",
                                               reason="room"), 2)
            self.assertEqual(cached[:2], [0, 0])
            self.assertGreater(min(cached[2:]), 0)
            self.assertEqual(len(list(Path(folder).glob("*-0/lock"))), 2)

    def test_memory_limit_counts_what_inspect_says(self):
        report = subprocess.run([BINARY, "inspect", tiny_model.directory(), *NEEDED, "--json"],
                                capture_output=True, check=True, timeout=60)
        need = int(json.loads(report.stdout)["memory"]["total_bytes"])
        models = {"a": tiny(), "b": tiny()}
        with ModelsServer(models, "--models-memory", f"{need * 1.5 / 1e6}M") as server:
            for name in "ab":
                self.assertEqual(server.post("/v1/completions", {**GREEDY, "model": name}).status,
                                 200)
            self.assertEqual(server.states(), {"a": "unloaded", "b": "loaded"})
            self.assertAlmostEqual(server.metric("diffserve_model_memory_bytes", model="a"), need,
                                   delta=1)


class FailureTest(unittest.TestCase):
    def test_client_that_leaves_ends_the_work_at_the_model(self):
        with ModelsServer({"a": tiny()}) as server, channel(server) as connection:
            server.close_gate()
            stream = Stream(server)
            call = pb_grpc.InferenceStub(connection).Generate(generate_request([7, 8], 8))
            # gRPC's calls are no part of /load, so the queue shows both.
            eventually(lambda: waiting(server) == 2, "both requests wait at the gate")
            stream.close()
            call.cancel()
            eventually(lambda: server.metric("diffserve_model_requests_in_flight") == 0,
                       "the parent has let both go")
            self.assertEqual(server.get("/load").json()["server_load"], 0)
            server.open_gate()
            eventually(lambda: waiting(server) == 0, "the model has dropped both")
            self.assertLessEqual(server.metric("diffserve_generation_tokens_total"), 2,
                                 "only the step that the gate held may still end")

    def test_killed_process_cuts_its_streams_and_is_started_again(self):
        with ModelsServer({"a": tiny()}) as server, channel(server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
            server.close_gate()
            server.allow(3)
            stream = Stream(server)
            response = stream.response()
            self.assertTrue(response.readline().startswith(b"data: "))
            whole = Stream(server, stream=False)
            call = stub.Generate(generate_request([7, 8], 8))
            eventually(lambda: server.metric("diffserve_model_requests_in_flight") == 3,
                       "three requests are under way")
            os.kill(server.children()["a"], signal.SIGKILL)
            with self.assertRaises((http.client.IncompleteRead, ConnectionResetError)):
                response.read()
            failed = whole.response()
            self.assertEqual(failed.status, 503)
            error = json.loads(failed.read())["error"]
            self.assertIn("the process of model a ended before it answered", error["message"])
            with self.assertRaises(grpc.RpcError) as caught:
                collect(call)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)
            self.assertIn("the process of model a ended", caught.exception.details())
            server.open_gate()
            eventually(lambda: server.metric("diffserve_model_failures_total") == 1,
                       "the parent has noticed the end")
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
            self.assertEqual(collect(stub.Generate(generate_request([7, 8], 8))).usage
                             .completion_tokens, 8)
            self.assertEqual(server.metric("diffserve_http_replies_cut_total", end="reset"), 1)

    def test_killed_parent_leaves_no_process(self):
        with ModelsServer({"a": tiny(pinned=True), "b": tiny(pinned=True)}) as server:
            eventually(lambda: server.get("/readyz").status == 200, "both are loaded")
            children = server.children()
            self.assertEqual(set(children), {"a", "b"})
            server.kill()
            eventually(lambda: not any(is_running(pid) for pid in children.values()),
                       "the children have ended")

    def test_running_answers_end_before_the_server_does(self):
        with ModelsServer({"a": tiny()}) as server:
            server.close_gate()
            server.allow(3)
            stream = Stream(server)
            response = stream.response()
            self.assertTrue(response.readline().startswith(b"data: "))
            server.terminate()
            eventually(lambda: server.get("/readyz").status == 503, "the parent drains")
            self.assertEqual(server.post("/v1/completions", GREEDY).status, 503)
            server.open_gate()
            self.assertTrue(response.read().endswith(b"data: [DONE]\n\n"))
            self.assertEqual(server.wait(), 0)


class CommandLineTest(unittest.TestCase):
    def refusal(self, *arguments) -> str:
        run = subprocess.run([BINARY, "serve", *map(str, arguments)], capture_output=True,
                             text=True, timeout=60)
        self.assertEqual(run.returncode, 2, run.stderr)
        return run.stderr

    def test_wrong_use_is_refused_at_the_start(self):
        served = ModelsServer({"a": tiny()})
        good = served.file
        self.assertIn("MODEL_DIR and --models are set; allowed: one of them",
                      self.refusal("some_dir", "--models", good))
        self.assertIn("--idle-timeout is set; allowed: only with --models",
                      self.refusal("d", "--idle-timeout", 1))
        self.assertIn("--served-model-name is set with --models; allowed: in its file only",
                      self.refusal("--models", good, "--served-model-name", "x"))
        self.assertIn("--models-memory", self.refusal("--models", good, "--models-memory", "1M"))
        for models, message in [({"a": tiny(flags={"prot": 1})}, "a: --prot is not a flag"),
                                ({"a": tiny(adapters={})},
                                 "a.adapters is set; allowed: only in a build"),
                                ({"a": tiny(flags={"port": 1})},
                                 "has --port; allowed: on the command line only"),
                                ({"a": tiny(flags={"log_format": "json"})},
                                 "has --log-format; allowed: on the command line only")]:
            server = ModelsServer(models)
            self.assertIn(message, self.refusal("--models", server.file))

    def test_models_inherit_flags_and_set_their_own(self):
        models = {"a": tiny(), "b": tiny(flags={"max-model-len": 50})}
        with ModelsServer(models, "--max-model-len", 40) as server, channel(server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            lengths = [stub.GetModel(pb.GetModelRequest(), metadata=(("model", name),))
                       .max_model_len for name in "ab"]
            self.assertEqual(lengths, [40, 50])

    def test_model_by_name_is_fetched_when_it_is_first_needed(self):
        files = {path.name: path.read_bytes() for path in tiny_model.directory().iterdir()}
        for flags, fetched_at_start in (((), False), (("--models-memory", "1G"), True)):
            with (self.subTest(flags=flags), tempfile.TemporaryDirectory() as home,
                  HubStub({"acme/tiny": files}) as hub):
                environment = {"HF_HOME": home, "HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0",
                               "SSL_CERT_FILE": str(hub.certificate), "no_proxy": "*"}
                models = {"a": {"model": "hf:acme/tiny"}}
                with ModelsServer(models, *flags, environment=environment) as server:
                    self.assertEqual(bool(hub.asked("model.safetensors")), fetched_at_start)
                    self.assertEqual(server.post("/v1/completions", GREEDY).status, 200)
                    self.assertEqual(len(hub.asked("model.safetensors")), 1)

    def test_variables_of_the_parent_reach_no_model(self):
        served = ModelsServer({"a": tiny()})
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "s"
            variables = {"MODELS": served.file, "UNIX_SOCKET": path,
                         "GRPC": 0, "STOP_WITH_STDIN": 1, "KV_CACHE_MEMORY": "32MiB"}
            environment = {f"DIFFSERVE_{name}": str(value) for name, value in variables.items()}
            with subprocess.Popen([BINARY, "serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, env={**os.environ, **environment},
                                  text=True) as process:
                self.assertEqual(process.stdout.readline(), f"ready http=unix:{path} model=a\n")
                self.assertTrue(diffserve.connect(f"unix:{path}").tokenize("hello"))
                process.stdin.close()
                self.assertEqual(process.wait(30), 0)


def waiting(server) -> float:
    """Requests that wait in the queues of all loaded models."""
    return sum(value for sample, value in server.metrics().items()
               if sample.startswith("diffserve_requests_waiting{"))


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
