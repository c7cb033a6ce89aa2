# SPDX-License-Identifier: Apache-2.0
"""vLLM's engine service with stubs generated from our proto file, as llm-d's router and vLLM's own
gRPC clients call it."""

import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase)

from grpc_client import channel, vllm_pb, vllm_pb_grpc
from server_process import GatedServer, eventually
from tiny_model import BOS_ID, EOS_ID, MAX_MODEL_LEN, VOCAB_SIZE, encode

SERVICE = "vllm.grpc.engine.VllmEngine"


def setUpModule():
    global server, connection, stub
    server = unittest.enterModuleContext(GatedServer())
    connection = unittest.enterModuleContext(channel(server))
    stub = vllm_pb_grpc.VllmEngineStub(connection)


def request(ids, max_tokens, stream=False, request_id="", **params):
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": max_tokens} | params
    return vllm_pb.GenerateRequest(tokenized=vllm_pb.TokenizedInput(input_ids=ids), stream=stream,
                                   request_id=request_id,
                                   sampling_params=vllm_pb.SamplingParams(**params))


def whole(message):
    return [response.complete for response in stub.Generate(message)]


class GenerateTest(unittest.TestCase):
    def test_tokens_of_http_whole_and_streamed(self):
        ids = [BOS_ID, *encode("engine")]
        expected = server.post("/inference/v1/generate", {
            "token_ids": ids,
            "sampling_params": {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
        }).json()["choices"][0]["token_ids"]
        answer, = whole(request(ids, 30))
        self.assertEqual(list(answer.output_ids), expected)
        self.assertEqual((answer.finish_reason, answer.prompt_tokens, answer.completion_tokens),
                         ("length", len(ids), 30))
        *chunks, last = stub.Generate(request(ids, 30, stream=True))
        self.assertEqual([token for one in chunks for token in one.chunk.token_ids], expected)
        self.assertEqual(sum(one.chunk.completion_tokens for one in chunks), 30)
        self.assertEqual((last.complete.finish_reason, last.complete.completion_tokens),
                         ("length", 30))

    def test_text_n_seed_and_stop(self):
        def draw(seed, **params):
            return whole(vllm_pb.GenerateRequest(
                text="draw", sampling_params=vllm_pb.SamplingParams(
                    n=3, seed=seed, max_tokens=16, **params)))
        first = draw(1, ignore_eos=True)
        self.assertEqual([one.index for one in first], [0, 1, 2])
        self.assertEqual([one.prompt_tokens for one in first], [1 + len(encode("draw"))] * 3)
        self.assertEqual([one.output_ids for one in draw(1, ignore_eos=True)],
                         [one.output_ids for one in first])
        self.assertNotEqual([one.output_ids for one in draw(2, ignore_eos=True)],
                            [one.output_ids for one in first])
        stop = first[0].output_ids[3]
        ended = draw(1, ignore_eos=True, stop_token_ids=[stop])[0]
        self.assertEqual((ended.finish_reason, ended.matched_token_id), ("stop", stop))

    def test_logprobs_of_prompt_and_output(self):
        ids = [BOS_ID, *encode("scores")]
        answer, = whole(request(ids, 5, logprobs=2, prompt_logprobs=1))
        self.assertEqual(answer.output_logprobs.token_ids, answer.output_ids)
        for token, top in zip(answer.output_ids, answer.output_logprobs.top_logprobs, strict=True):
            self.assertEqual((top.token_ids[0], len(top.values)), (token, 2))
        self.assertEqual(list(answer.input_logprobs.token_ids), ids)
        self.assertFalse(answer.input_logprobs.token_logprobs[0].HasField("value"))
        self.assertTrue(all(one.value <= 0 for one in answer.input_logprobs.token_logprobs[1:]))

    def test_repeated_prompt_comes_from_the_cache(self):
        ids = encode("cached " * 20)
        whole(request(ids, 1))
        self.assertGreater(whole(request(ids, 1))[0].cached_tokens, 0)

    def test_answer_has_the_requested_form(self):
        regex = "[0-9]{3}-[a-f]{2}"
        answer, = whole(request(encode("a number"), 40, ignore_eos=False, regex=regex))
        ids = [token for token in answer.output_ids if token != EOS_ID]
        text = server.post("/detokenize", {"tokens": ids}).json()["prompt"]
        self.assertRegex(text, f"^{regex}$")
        self.assertEqual(answer.finish_reason, "stop")

    def test_abort_ends_the_call(self):
        server.allow(3)
        self.addCleanup(server.open_gate)
        call = stub.Generate(request(encode("long"), 4000, stream=True, request_id="mine"))
        next(call)
        stub.Abort(vllm_pb.AbortRequest(request_ids=["mine", "unknown"]))
        with self.assertRaises(grpc.RpcError) as caught:
            for _ in call:
                pass
        self.assertEqual(caught.exception.code(), grpc.StatusCode.CANCELLED)
        server.open_gate()
        server.wait_until_idle()

    def test_client_that_leaves_frees_its_pages(self):
        server.close_gate()
        self.addCleanup(server.open_gate)
        call = stub.Generate(request(encode("long"), 4000))
        eventually(lambda: server.metric("diffserve_requests_waiting") +
                   server.metric("diffserve_requests_running") == 1, "the request has come")
        call.cancel()
        server.open_gate()
        server.wait_until_idle()


class RefusalTest(unittest.TestCase):
    def expect(self, code, word, message):
        with self.assertRaises(grpc.RpcError) as caught:
            list(stub.Generate(message))
        self.assertEqual(caught.exception.code(), code, caught.exception.details())
        self.assertIn(word, caught.exception.details())

    def test_errors_name_the_field(self):
        invalid = grpc.StatusCode.INVALID_ARGUMENT
        for word, message in (
            ("input", vllm_pb.GenerateRequest()),
            ("tokenized", request([], 1)),
            ("has the token id", request([VOCAB_SIZE], 1)),
            ("max_tokens", request([5], MAX_MODEL_LEN + 1)),
            ("temperature", request([5], 1, temperature=-1)),
            ("logprobs", request([5], 1, logprobs=-1)),
            ("regex", request([5], 1, regex="(")),
            ("data_parallel_rank", vllm_pb.GenerateRequest(text="x", data_parallel_rank=1)),
        ):
            with self.subTest(word=word):
                self.expect(invalid, word, message)

    def test_missing_methods_are_unimplemented(self):
        unimplemented = grpc.StatusCode.UNIMPLEMENTED
        self.expect(unimplemented, "mm_inputs",
                    vllm_pb.GenerateRequest(text="x", mm_inputs=vllm_pb.MultimodalInputs()))
        self.expect(unimplemented, "kv_transfer_params",
                    vllm_pb.GenerateRequest(text="x",
                                            kv_transfer_params=vllm_pb.KvTransferParams()))


class OtherCallsTest(unittest.TestCase):
    def test_model_server_and_loads_are_described(self):
        model = stub.GetModelInfo(vllm_pb.GetModelInfoRequest())
        self.assertEqual((model.served_model_name, model.model_type, model.vocab_size,
                          model.max_context_length, list(model.eos_token_ids)),
                         ("tiny", "diffllama", VOCAB_SIZE, MAX_MODEL_LEN, [EOS_ID]))
        self.assertTrue(model.is_generation)
        self.assertEqual(model.model_path, server.get("/v1/models").json()["data"][0]["root"])
        info = stub.GetServerInfo(vllm_pb.GetServerInfoRequest())
        self.assertEqual((info.server_type, info.data_parallel_size), ("diffserve", 1))
        load, = stub.GetLoads(vllm_pb.GetLoadsRequest()).loads
        self.assertEqual(load.num_total_reqs, 0)
        self.assertTrue(stub.HealthCheck(vllm_pb.HealthCheckRequest()).healthy)

    def test_health_and_reflection_know_the_service(self):
        health = health_pb2_grpc.HealthStub(connection)
        answer = health.Check(health_pb2.HealthCheckRequest(service=SERVICE))
        self.assertEqual(answer.status, health_pb2.HealthCheckResponse.SERVING)
        database = ProtoReflectionDescriptorDatabase(connection)
        self.assertIn(SERVICE, database.get_services())

    def test_embed_gives_the_vector_of_http(self):
        ids = encode("a vector")
        expected = server.post("/v1/embeddings", {"input": ids}).json()["data"][0]["embedding"]
        answer = stub.Embed(vllm_pb.EmbedRequest(tokenized=vllm_pb.TokenizedInput(input_ids=ids)))
        self.assertEqual((answer.prompt_tokens, answer.embedding_dim), (len(ids), len(expected)))
        for mine, other in zip(answer.embedding, expected, strict=True):
            self.assertAlmostEqual(mine, other, places=6)


if __name__ == "__main__":
    unittest.main()
