# SPDX-License-Identifier: Apache-2.0
"""openai-python, gRPC (stubs, reflection, grpcurl if it is installed), curl and Prometheus on one
server at the same time."""

import json
import shutil
import subprocess
import unittest
from concurrent.futures import ThreadPoolExecutor

import openai
from google.protobuf import descriptor_pool, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

import prometheus_process
from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import GatedServer, ServerProcess, eventually
from tiny_model import BOS_ID, encode

GRPCURL = shutil.which("grpcurl")
SERVICE = "diffserve.v1.Inference"
TOKENS = 400  # of each answer: long enough that answers of several clients overlap
HELLO = [{"role": "user", "content": "Say something."}]


def grpcurl(server, *arguments, data=None) -> str:
    options = ["-plaintext", "-max-time", "60"
               ] + (["-d", json.dumps(data)] if data is not None else [])
    command = [GRPCURL, *options, server.grpc_address, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=90)
    if ran.returncode != 0:
        raise AssertionError(f"grpcurl: {ran.stderr}")
    return ran.stdout


def messages(text: str) -> list[dict]:
    """The JSON objects that grpcurl prints one after another."""
    found, decoder = [], json.JSONDecoder()
    while text := text.lstrip():
        value, end = decoder.raw_decode(text)
        found.append(value)
        text = text[end:]
    return found


class Clients:
    """One method per kind of client: asks once and returns (answer, completion tokens)."""

    def __init__(self, server):
        self.server = server

    def openai_python(self):
        with openai.OpenAI(base_url=self.server.url + "/v1", api_key="unused", max_retries=0,
                           timeout=60) as client:
            *chunks, last = client.chat.completions.create(
                model="tiny", messages=HELLO, max_tokens=TOKENS, temperature=0, stream=True,
                stream_options={"include_usage": True}, extra_body={"ignore_eos": True})
        return "".join(chunk.choices[0].delta.content or ""
                       for chunk in chunks), last.usage.completion_tokens

    def grpc_stubs(self):
        with channel(self.server) as connection:
            result = collect(
                pb_grpc.InferenceStub(connection).Generate(
                    generate_request([BOS_ID, *encode("stubs")], TOKENS)))
        return result.ids[0], result.usage.completion_tokens

    def grpc_reflection(self):
        with channel(self.server) as connection:
            pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(connection))
            method = pool.FindServiceByName(SERVICE).FindMethodByName("Generate")
            request, response = (message_factory.GetMessageClass(m)
                                 for m in (method.input_type, method.output_type))
            call = connection.unary_stream(f"/{SERVICE}/Generate",
                                           request_serializer=request.SerializeToString,
                                           response_deserializer=response.FromString)
            fields = {
                "text": "reflected", "sampling": {"temperature": 0},
                "stopping": {"max_tokens": TOKENS, "ignore_eos": True}
            }
            result = collect(call(request(**fields)))
        return result.ids[0], result.usage.completion_tokens

    def curl(self):
        body = {
            "prompt": "curl", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}
        }
        command = [
            "curl", "-sSN", "--fail", "--max-time", "60", self.server.url + "/v1/completions", "-H",
            "Content-Type: application/json", "-d",
            json.dumps(body)
        ]
        ran = subprocess.run(command, capture_output=True, timeout=90)
        if ran.returncode != 0:
            raise AssertionError(f"curl: {ran.stderr}")
        *data, done = [
            line.removeprefix("data: ") for line in ran.stdout.decode().split("\n\n") if line
        ]
        if done != "[DONE]":
            raise AssertionError(f"the stream ended with {done!r}")
        *chunks, last = map(json.loads, data)
        return "".join(chunk["choices"][0]["text"]
                       for chunk in chunks), last["usage"]["completion_tokens"]

    def grpcurl(self):
        data = {
            "text": "grpcurl", "sampling": {"temperature": 0},
            "stopping": {"max_tokens": TOKENS, "ignore_eos": True}
        }
        events = messages(grpcurl(self.server, f"{SERVICE}/Generate", data=data))
        text = "".join(event["delta"].get("text", "") for event in events if "delta" in event)
        return text, int(events[-1]["usage"]["completion_tokens"])


class AllClientsTest(unittest.TestCase):
    @unittest.skipUnless(prometheus_process.PROGRAM,
                         "prometheus (Debian package prometheus) is not installed")
    def test_answers_are_the_same_as_alone_and_prometheus_counts_each(self):
        # A token per step, so that steps give intervals between tokens.
        server = self.enterContext(GatedServer("--speculative", "off"))
        scraper = self.enterContext(prometheus_process.PrometheusProcess(server))
        clients = Clients(server)
        kinds = [clients.openai_python, clients.grpc_stubs, clients.grpc_reflection, clients.curl]
        if GRPCURL:
            kinds.append(clients.grpcurl)
        alone = [kind() for kind in kinds]
        server.close_gate()
        with ThreadPoolExecutor(len(kinds)) as pool:
            asked = [pool.submit(kind) for kind in kinds]
            try:
                server.wait_for_waiting(len(kinds))
                server.allow(3)
                # Prometheus has counted an answer to each kind of client.
                eventually(lambda: scraper.value("diffserve_requests_running") == len(kinds),
                           "all clients are served at once")
            finally:
                server.open_gate()
        answers = [answer.result() for answer in asked]
        for kind, expected, given in zip(kinds, alone, answers, strict=True):
            self.assertEqual(expected[1], TOKENS)
            self.assertEqual(given, expected, kind.__name__)
        self.check_counters(scraper, {kind.__name__: 2 for kind in kinds})

    def check_counters(self, scraper, asked):
        over_grpc = sum(count for kind, count in asked.items() if kind.startswith("grpc"))
        total = sum(asked.values())
        expected = {
            'diffserve_http_requests_total{route="/v1/chat/completions",code="200"}': asked[
                "openai_python"],
            'diffserve_http_requests_total{route="/v1/completions",code="200"}': asked["curl"],
            'sum(diffserve_http_requests_total{route!="/metrics"})': asked["openai_python"] +
            asked["curl"],
            'diffserve_grpc_requests_total{method="Generate",code="0"}': over_grpc,
            "sum(diffserve_grpc_requests_total)": over_grpc,
            "diffserve_generation_tokens_total": total * TOKENS,
            'diffserve_requests_finished_total{reason="length"}': total,
            "sum(diffserve_requests_finished_total)": total,
            "sum(vllm:request_success_total)": total,
            "diffserve_time_to_first_token_seconds_count": total,
            "diffserve_inter_token_seconds_count": total * (TOKENS - 1),
            "diffserve_requests_running": 0,
            'diffserve_kv_pages{state="used"}': 0,
            "up": 1,
        }
        found = {}

        def all_scraped():
            found.update({expression: scraper.value(expression) for expression in expected})
            return found == expected
        try:
            eventually(all_scraped, "the counters add up")
        except AssertionError:
            self.assertEqual(found, expected)
        scrapes = 'diffserve_http_requests_total{route="/metrics",code="200"}'
        self.assertGreaterEqual(scraper.value(scrapes),
                                scraper.value(f"count_over_time({scrapes}[10m])"))


@unittest.skipUnless(GRPCURL, "grpcurl is not on PATH")
class GrpcurlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess())

    def test_lists_the_services(self):
        services = grpcurl(self.server, "list").split()
        self.assertLessEqual({SERVICE, "grpc.health.v1.Health"}, set(services))
        self.assertIn(f"{SERVICE}.Generate", grpcurl(self.server, "list", SERVICE).split())

    def test_method_and_its_messages_are_described(self):
        method = grpcurl(self.server, "describe", f"{SERVICE}.Generate")
        self.assertIn("returns ( stream .diffserve.v1.GenerateResponse )", method)
        self.assertIn("int32 max_tokens = 1",
                      grpcurl(self.server, "describe", "diffserve.v1.StoppingParams"))

    def test_refusal_has_its_code(self):
        with self.assertRaisesRegex(AssertionError, "InvalidArgument"):
            grpcurl(self.server, f"{SERVICE}/Generate", data={})
