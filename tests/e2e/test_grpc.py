# SPDX-License-Identifier: Apache-2.0
"""The gRPC service with generated stubs and through reflection."""

import threading
import unittest

import grpc
from google.protobuf import descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

from grpc_client import channel, collect, generate_request, pb, pb_grpc
from server_process import PAGE_SLOTS, GatedServer, eventually
from tiny_model import BOS_ID, EOS_ID, MAX_MODEL_LEN, VOCAB_SIZE, encode

LONG = 8000


def setUpModule():
    global server, stub, connection
    server = unittest.enterModuleContext(GatedServer())
    connection = unittest.enterModuleContext(channel(server))
    stub = pb_grpc.InferenceStub(connection)


class GenerateTest(unittest.TestCase):
    def test_ids_in_and_ids_out(self):
        result = collect(stub.Generate(generate_request([BOS_ID, *encode("ids")], 12, logprobs=3)))
        self.assertEqual(result.prompt_ids, [BOS_ID, *encode("ids")])
        self.assertEqual(len(result.ids[0]), 12)
        self.assertEqual(result.finish[0].reason, pb.FINISH_REASON_LENGTH)
        self.assertEqual((result.usage.prompt_tokens, result.usage.completion_tokens), (4, 12))
        for token, output in zip(result.ids[0], result.logprobs[0], strict=True):
            self.assertEqual((output.chosen.id, output.top[0].id, len(output.top)),
                             (token, token, 3))
            self.assertLessEqual(output.chosen.logprob, 0)
            self.assertEqual(output.chosen.token, output.top[0].token)

    def test_text_ids_and_chat_are_the_same_prompt_as_over_http(self):
        stopping, sampling = pb.StoppingParams(max_tokens=40,
                                               ignore_eos=True), pb.SamplingParams(temperature=0)
        by_text = collect(
            stub.Generate(pb.GenerateRequest(text="same", stopping=stopping, sampling=sampling)))
        by_ids = collect(stub.Generate(generate_request([BOS_ID, *encode("same")], 40)))
        body = {"prompt": "same", "max_tokens": 40, "temperature": 0, "ignore_eos": True}
        http = server.post("/v1/completions", body).json()["choices"][0]
        self.assertEqual((by_text.ids, by_text.text[0]), (by_ids.ids, http["text"]))
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi!")])
        by_chat = collect(
            stub.Generate(pb.GenerateRequest(chat=chat, stopping=stopping, sampling=sampling)))
        self.assertEqual(by_chat.prompt_ids, [BOS_ID, 3, *encode("Hi!"), 1, 4])
        body = {
            "messages": [{"role": "user", "content": "Hi!"}], "max_tokens": 40, "temperature": 0,
            "ignore_eos": True
        }
        http = server.post("/v1/chat/completions", body).json()["choices"][0]
        self.assertEqual(by_chat.text[0], http["message"]["content"])

    def test_log_probabilities_equal_those_over_http(self):
        ids = [BOS_ID, *encode("both ways")]
        by_grpc = collect(stub.Generate(generate_request(ids, 20, logprobs=0)))
        body = {
            "prompt": ids, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "logprobs": 0
        }
        over_http = server.post("/v1/completions",
                                body).json()["choices"][0]["logprobs"]["token_logprobs"]
        self.assertEqual(len(over_http), 20)
        for mine, other in zip((output.chosen.logprob for output in by_grpc.logprobs[0]), over_http,
                               strict=True):
            self.assertAlmostEqual(mine, other, places=5)

    def test_n_seed_and_stop(self):
        def draw(seed):
            request = generate_request(encode("draw"), 16)
            request.sampling.MergeFrom(pb.SamplingParams(temperature=1, n=3, seed=seed))
            return collect(stub.Generate(request))
        first = draw(1)
        self.assertEqual(sorted(first.finish), [0, 1, 2])
        self.assertEqual(first.usage.completion_tokens, 48)
        self.assertEqual(draw(1).ids, first.ids)
        self.assertNotEqual(draw(2).ids, first.ids)
        greedy = collect(stub.Generate(generate_request(encode("halt"), 10)))
        request = generate_request(encode("halt"), 10)
        request.stopping.stop_token_ids.append(greedy.ids[0][3])
        stopped = collect(stub.Generate(request))
        self.assertEqual((stopped.finish[0].reason, stopped.finish[0].stop_token_id),
                         (pb.FINISH_REASON_STOP, greedy.ids[0][3]))
        forced = generate_request(encode("abc"), 10)
        forced.stopping.ignore_eos = False
        forced.sampling.logit_bias[EOS_ID] = 100
        self.assertEqual(collect(stub.Generate(forced)).finish[0].reason, pb.FINISH_REASON_STOP)

    def test_prompt_logprobs_score_every_token_but_the_first(self):
        ids = [BOS_ID, *encode("score me")]
        result = collect(stub.Generate(generate_request(ids, 1, prompt_logprobs=2)))
        self.assertEqual(len(result.prompt_logprobs), len(ids))
        self.assertEqual([entry.chosen.id for entry in result.prompt_logprobs[1:]], ids[1:])
        self.assertTrue(
            all(entry.chosen.logprob <= entry.top[0].logprob
                for entry in result.prompt_logprobs[1:]))

    def test_repeated_prompt_comes_from_the_cache(self):
        request = generate_request(encode("cached over grpc " * 5), 4)
        self.assertEqual(collect(stub.Generate(request)).usage.cached_tokens, 0)
        self.assertEqual(
            collect(stub.Generate(request)).usage.cached_tokens, 80 // PAGE_SLOTS * PAGE_SLOTS)


class OtherCallsTest(unittest.TestCase):
    def test_tokenize_and_detokenize(self):
        ids = stub.Tokenize(pb.TokenizeRequest(text="Grüße")).ids
        self.assertEqual(list(ids), [BOS_ID, *encode("Grüße")])
        plain = stub.Tokenize(pb.TokenizeRequest(text="Grüße", add_special_tokens=False)).ids
        self.assertEqual(stub.Detokenize(pb.DetokenizeRequest(ids=plain)).text, "Grüße")
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="x")])
        self.assertEqual(list(stub.Tokenize(pb.TokenizeRequest(chat=chat)).ids),
                         [BOS_ID, 3, *encode("x"), 1, 4])

    def test_get_model(self):
        model = stub.GetModel(pb.GetModelRequest())
        self.assertEqual((model.name, model.family, model.vocab_size, model.max_model_len,
                          model.num_layers, model.hidden_size),
                         ("tiny", "diffllama", VOCAB_SIZE, MAX_MODEL_LEN, 2, 64))
        self.assertEqual((model.page_size, list(model.eos_token_ids)), (PAGE_SLOTS, [EOS_ID]))
        self.assertEqual(model.num_pages, server.metric("diffserve_kv_pages"))

    def test_health_of_the_server_and_the_service(self):
        health = health_pb2_grpc.HealthStub(connection)
        for service in ("", "diffserve.v1.Inference"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=service))
            self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as caught:
            health.Check(health_pb2.HealthCheckRequest(service="unknown"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_health_service_can_be_called_through_reflection(self):
        pool = descriptor_pool.DescriptorPool(ProtoReflectionDescriptorDatabase(connection))
        method = pool.FindServiceByName("grpc.health.v1.Health").FindMethodByName("Check")
        request, response = (message_factory.GetMessageClass(m)
                             for m in (method.input_type, method.output_type))
        call = connection.unary_unary("/grpc.health.v1.Health/Check",
                                      request_serializer=request.SerializeToString,
                                      response_deserializer=response.FromString)
        self.assertEqual(call(request(service="diffserve.v1.Inference")).status, 1)

    def test_call_that_fails_has_a_line_in_the_log(self):
        with self.assertRaises(grpc.RpcError):
            collect(stub.Generate(generate_request([BOS_ID], 4, request_id="no-such-range",
                                                   model="another")))
        eventually(lambda: "no-such-range" in server.stderr(), "a log line with the request's id")
        line = next(line for line in server.stderr().splitlines() if "no-such-range" in line)
        for part in ("grpc_request", "Generate"):
            self.assertIn(part, line)

    def test_two_million_empty_messages_are_refused_before_they_are_made(self):
        chat = pb.Chat.FromString(b"\x0a\x00" * 2_000_000)
        with self.assertRaises(grpc.RpcError) as raised:
            collect(stub.Generate(pb.GenerateRequest(chat=chat)))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("messages has too many entries; allowed: at most 4096",
                      raised.exception.details())

    def test_client_without_stubs_works_through_reflection(self):
        database = ProtoReflectionDescriptorDatabase(connection)
        self.assertLessEqual({"diffserve.v1.Inference", "grpc.health.v1.Health"},
                             set(database.get_services()))
        pool = descriptor_pool.DescriptorPool(database)
        method = pool.FindServiceByName("diffserve.v1.Inference").FindMethodByName("Tokenize")
        request, response = (message_factory.GetMessageClass(m)
                             for m in (method.input_type, method.output_type))
        call = connection.unary_unary("/diffserve.v1.Inference/Tokenize",
                                      request_serializer=request.SerializeToString,
                                      response_deserializer=response.FromString)
        self.assertEqual(list(call(request(text="abc")).ids), [BOS_ID, *encode("abc")])


class ErrorsTest(unittest.TestCase):
    def expect(self, code, request, *words):
        with self.assertRaises(grpc.RpcError) as caught:
            list(stub.Generate(request, timeout=30))
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        for word in words:
            self.assertIn(word, caught.exception.details())

    def test_bad_requests_are_invalid_arguments(self):
        sampling, stopping = pb.SamplingParams, pb.StoppingParams
        for name, fields in (
            ("prompt", {}),
            ("token_ids", {"token_ids": pb.TokenIds()}),
            ("-1", {"token_ids": pb.TokenIds(ids=[-1])}),
            ("267", {"token_ids": pb.TokenIds(ids=[267])}),
            ("temperature", {"text": "x", "sampling": sampling(temperature=-1)}),
            ("temperature", {"text": "x", "sampling": sampling(temperature=float("nan"))}),
            ("top_p", {"text": "x", "sampling": sampling(top_p=float("inf"))}),
            ("n", {"text": "x", "sampling": sampling(n=-1)}),
            ("n", {"text": "x", "sampling": sampling(n=10_000)}),
            ("logit_bias", {"text": "x", "sampling": sampling(logit_bias={267: 1})}),
            ("logit_bias", {"text": "x", "sampling": sampling(logit_bias={5: float("nan")})}),
            ("max_tokens", {"text": "x", "stopping": stopping(max_tokens=-1)}),
            ("max_tokens", {"text": "x", "stopping": stopping(max_tokens=1 << 30)}),
            ("stop", {"text": "x", "stopping": stopping(stop=["a"] * 17)}),
            ("logprobs", {"text": "x", "logprobs": 21}),
            ("prompt_logprobs", {"text": "x", "prompt_logprobs": -1}),
            ("messages", {"chat": pb.Chat()}),
        ):
            with self.subTest(name=name, fields=str(fields)):
                self.expect(grpc.StatusCode.INVALID_ARGUMENT, pb.GenerateRequest(**fields), name)

    def test_unknown_model_is_not_found(self):
        self.expect(grpc.StatusCode.NOT_FOUND, pb.GenerateRequest(text="x", model="gpt-unknown"),
                    "gpt-unknown")

    def test_bad_bytes_and_large_messages_do_no_harm(self):
        for data in (b"\xff" * 100, b"\x1a\xff\xff\xff\xff\x0f", b"\0" * (5 << 20)):
            call = connection.unary_stream("/diffserve.v1.Inference/Generate",
                                           request_serializer=lambda b: b)
            with self.assertRaises(grpc.RpcError):
                list(call(data, timeout=30))
        self.assertEqual(len(collect(stub.Generate(generate_request([5], 3))).ids[0]), 3)


class CancellationTest(unittest.TestCase):
    def setUp(self):
        self.addCleanup(server.open_gate)

    def start(self, **fields):
        server.allow(5)
        call = stub.Generate(generate_request(encode("long"), LONG, **fields))
        for event in call:
            if event.WhichOneof("event") == "delta":
                break
        self.assertGreater(server.pages_used(), 0)
        return call

    def test_cancelled_call_frees_its_pages(self):
        call = self.start()
        call.cancel()
        server.open_gate()
        server.wait_until_idle()

    def test_cancel_by_id_ends_the_call(self):
        call = self.start(request_id="to-cancel")
        stub.Cancel(pb.CancelRequest(request_id="to-cancel"))
        server.open_gate()
        try:
            reason = collect(call).finish[0].reason
            self.assertEqual(reason, pb.FINISH_REASON_CANCELLED)
        except grpc.RpcError as error:
            self.assertEqual(error.code(), grpc.StatusCode.CANCELLED)
        server.wait_until_idle()
        with self.assertRaises(grpc.RpcError) as caught:
            stub.Cancel(pb.CancelRequest(request_id="to-cancel"))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_deadline_ends_the_call_and_frees_its_pages(self):
        server.close_gate()
        with self.assertRaises(grpc.RpcError) as caught:
            list(stub.Generate(generate_request(encode("late"), LONG), timeout=0.3))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
        server.open_gate()
        server.wait_until_idle()

    def test_reader_that_does_not_read_stops_only_itself(self):
        server.allow(5)
        call = stub.Generate(generate_request(encode("slow reader"), LONG, logprobs=20))
        eventually(lambda: server.metric("diffserve_requests_running") == 1, "the slow call runs")
        server.open_gate()
        for _ in range(5):
            self.assertEqual(len(collect(stub.Generate(generate_request([5], 10))).ids[0]), 10)
        call.cancel()
        server.wait_until_idle()

    def test_many_calls_at_once_are_counted_exactly(self):
        results = {}

        def run(index):
            results[index] = collect(
                stub.Generate(generate_request(encode(f"call {index}"), 5 + index)))
        threads = [threading.Thread(target=run, args=(index,)) for index in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual({i: len(r.ids[0])
                          for i, r in results.items()}, {i: 5 + i
                                                         for i in range(32)})
        server.wait_until_idle()
