# SPDX-License-Identifier: Apache-2.0
"""openai-python against /v1/embeddings: vectors equal a double-precision computation from the
checkpoint and are bitwise independent of other requests, in both encodings."""

import base64
import http.client
import json
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai

from grpc_client import channel, pb, pb_grpc
from server_process import DEMO_MODEL, DEVICE, REPOSITORY, GatedServer, ServerProcess
from tiny_model import MAX_MODEL_LEN, VOCAB_SIZE, encode

sys.path.insert(0, str(REPOSITORY / "tests" / "experiments"))
import numpy_model

PATH = "/v1/embeddings"
TEXTS = ["The magic number of Lisbon is 48213.", "Who are you?", "The magic number of Oslo is 9."]
FEW_BYTES = 60 * 8192  # of KV pages: the requests below need four times as many
LONG = [encode(f"a prompt of some pages, number {i} " * (4 + 3 * i)) for i in range(5)]

# invalid member, its value
BAD = [
    ("input", {}),
    ("input", {"input": []}),
    ("input", {"input": [[]]}),
    ("input", {"input": 5}),
    ("input", {"input": [VOCAB_SIZE]}),
    ("input", {"input": [1] * (MAX_MODEL_LEN + 1)}),
    ("input", {"input": "x" * 100_000}),
    ("input", {"input": ["a"] * 2049}),
    ("model", {"input": "a", "model": 5}),
    ("dimensions", {"input": "a", "dimensions": 0}),
    ("dimensions", {"input": "a", "dimensions": 1 << 20}),
    ("encoding_format", {"input": "a", "encoding_format": "float64"}),
    ("pooling", {"input": "a", "pooling": "max"}),
    ("normalize", {"input": "a", "normalize": False}),
]


def client_of(server) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def embed(client, given, **options) -> np.ndarray:
    """Vectors [inputs, dimensions]; sent as base64 unless options say otherwise."""
    response = client.embeddings.create(model=client.models.list().data[0].id, input=given,
                                        **options)
    assert [item.index for item in response.data] == list(range(len(response.data)))
    if options.get("encoding_format") == "base64":  # the format in the request stays unchanged
        return np.array([np.frombuffer(base64.b64decode(item.embedding), "<f4")
                         for item in response.data])
    return np.array([item.embedding for item in response.data], np.float32)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.sqrt((vector * vector).sum(-1, keepdims=True))


@unittest.skipIf(DEVICE == "cuda", "a GPU has no float32; step_observer_test.cc compares both")
class DefinitionTest(unittest.TestCase):
    """Compares the bundled models with the forward pass of tests/experiments/numpy_model.py."""

    def check(self, name: str) -> None:
        model = numpy_model.Model(name)
        model.weights = {key: value.astype(float) for key, value in model.weights.items()}
        with ServerProcess("--dtype", "float32", model=DEMO_MODEL.with_name(name)) as server:
            client = client_of(server)
            mean = embed(client, TEXTS)
            last = embed(client, TEXTS, extra_body={"pooling": "last"})
            short = embed(client, TEXTS, dimensions=10)
            tokens = [server.post("/tokenize", {"prompt": text}).json()["tokens"]
                      for text in TEXTS]
        for i, ids in enumerate(tokens):
            states = model.forward(np.array(ids))[0]
            for found, expected in ((mean[i], states.mean(0)), (last[i], states[-1]),
                                    (short[i], states.mean(0)[:10])):
                np.testing.assert_allclose(found, unit(expected), rtol=0, atol=1e-5)

    def test_diff_transformer(self):
        self.check("diff")

    def test_transformer_twin(self):
        self.check("twin")


class EmbeddingsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(GatedServer(model=DEMO_MODEL))
        cls.client = cls.enterClassContext(client_of(cls.server))

    def test_answer_has_openais_fields(self):
        response = self.client.embeddings.create(model="diff", input=TEXTS)
        self.assertEqual((response.object, response.model), ("list", "diff"))
        self.assertEqual([item.object for item in response.data], ["embedding"] * len(TEXTS))
        tokens = sum(self.server.post("/tokenize", {"prompt": text}).json()["count"]
                     for text in TEXTS)
        self.assertEqual((response.usage.prompt_tokens, response.usage.total_tokens),
                         (tokens, tokens))

    def test_numbers_and_base64_are_the_same_bits(self):
        np.testing.assert_array_equal(embed(self.client, TEXTS, encoding_format="float"),
                                      embed(self.client, TEXTS, encoding_format="base64"))

    def test_vectors_are_of_unit_length_and_the_nearest_text_is_itself(self):
        for options in ({}, {"dimensions": 16}, {"extra_body": {"pooling": "last"}}):
            vectors = embed(self.client, TEXTS, **options).astype(float)
            cosines = vectors @ embed(self.client, TEXTS, **options).astype(float).T
            np.testing.assert_allclose(np.diag(cosines), 1, atol=1e-6)
            self.assertLess((cosines - 2 * np.eye(len(TEXTS))).max(), 0.9999)

    def test_dimensions_are_the_first_at_unit_length(self):
        whole = embed(self.client, TEXTS)
        few = embed(self.client, TEXTS, dimensions=12)
        self.assertEqual(few.shape, (len(TEXTS), 12))
        np.testing.assert_allclose(few, unit(whole[:, :12]), atol=1e-6)

    def test_each_input_form_equals_its_tokens(self):
        ids = [self.server.post("/tokenize", {"prompt": text}).json()["tokens"] for text in TEXTS]
        vectors = embed(self.client, TEXTS)
        np.testing.assert_array_equal(embed(self.client, ids), vectors)
        np.testing.assert_array_equal(embed(self.client, ids[0]), vectors[:1])
        np.testing.assert_array_equal(embed(self.client, TEXTS[0]), vectors[:1])
        bare = embed(self.client, TEXTS[0], extra_body={"add_special_tokens": False})
        without = self.server.post("/tokenize", {"prompt": TEXTS[0], "add_special_tokens": False})
        np.testing.assert_array_equal(bare, embed(self.client, without.json()["tokens"]))

    def test_grpc_gives_the_same_bits(self):
        stub = pb_grpc.InferenceStub(self.enterContext(channel(self.server)))
        inputs = [pb.EmbedInput(text=text) for text in TEXTS]
        for pooling, name in ((pb.POOLING_MEAN, "mean"), (pb.POOLING_LAST, "last")):
            response = stub.Embed(pb.EmbedRequest(inputs=inputs, pooling=pooling, dimensions=12))
            np.testing.assert_array_equal(
                np.array([one.values for one in response.embeddings], np.float32),
                embed(self.client, TEXTS, dimensions=12, extra_body={"pooling": name}))

    def test_many_vectors_come_whole_in_pieces(self):
        response = self.server.post(PATH, {"input": TEXTS * 40})
        self.assertEqual(response.headers.get("transfer-encoding"), "chunked")
        data = response.json()["data"]
        self.assertEqual(len(data), 120)
        for i, item in enumerate(data):
            self.assertEqual(item["index"], i)
            self.assertEqual(item["embedding"], data[i % len(TEXTS)]["embedding"])


class RefusalTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(GatedServer())

    def test_bad_input_is_refused_by_name(self):
        for param, body in BAD:
            with self.subTest(param=param, body=str(body)[:80]):
                response = self.server.post(PATH, body)
                self.assertEqual(response.status, 400, response.body)
                self.assertEqual(response.error["param"], param)
        self.assertEqual(self.server.post(PATH, {"input": "a", "model": "other"}).status, 404)
        self.server.wait_until_idle()

    def test_client_that_leaves_ends_it(self):
        self.server.close_gate()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        connection.request("POST", PATH, json.dumps({"input": LONG}),
                           {"Content-Type": "application/json"})
        self.server.wait_for_waiting(len(LONG))
        connection.close()
        self.server.wait_until_left()
        self.server.open_gate()
        self.server.wait_until_idle()


class ExactnessTest(unittest.TestCase):
    """The tiny model, whose states depend on every token."""

    @classmethod
    def setUpClass(cls):
        cls.expected = {}
        with ServerProcess() as server:
            client = client_of(server)
            for pooling in ("mean", "last"):
                cls.expected[pooling] = np.concatenate(
                    [embed(client, ids, extra_body={"pooling": pooling}) for ids in LONG])

    def check(self, client) -> None:
        for pooling, expected in self.expected.items():
            found = embed(client, LONG, extra_body={"pooling": pooling})
            np.testing.assert_array_equal(found, expected, pooling)

    def test_batch_gives_the_bits_of_single_requests(self):
        with ServerProcess() as server:
            self.check(client_of(server))

    def test_chunks_and_page_sizes_change_no_bit(self):
        with ServerProcess("--max-num-batched-tokens", 16,
                           "--page-size", 64 if DEVICE == "cuda" else 32) as server:
            self.check(client_of(server))

    def test_prefix_cache_changes_no_bit(self):
        with ServerProcess() as server:
            for ids in LONG:
                server.post("/v1/completions", {"prompt": ids, "max_tokens": 3})
            client = client_of(server)
            self.check(client)
            for pooling, has_hits in (("mean", False), ("last", True)):
                response = server.post(PATH, {"input": LONG[-1], "pooling": pooling}).json()
                cached = response["usage"]["prompt_tokens_details"]["cached_tokens"]
                self.assertEqual(cached > 0, has_hits)

    def test_preemptions_and_other_requests_change_no_bit(self):
        completion = {"prompt": LONG[0], "max_tokens": 400, "temperature": 0, "ignore_eos": True}
        with GatedServer("--kv-cache-memory", FEW_BYTES, "--max-model-len", 700,
                         "--max-num-batched-tokens", 64, "--no-enable-prefix-caching") as server:
            alone = server.post("/v1/completions", completion).json()["choices"]
            server.close_gate()
            with ThreadPoolExecutor() as pool:
                answers = [pool.submit(server.post, "/v1/completions", completion)
                           for _ in range(4)]
                vectors = pool.submit(embed, client_of(server), LONG)
                server.wait_for_waiting(4 + len(LONG))
                server.open_gate()
                for answer in answers:
                    self.assertEqual(answer.result().json()["choices"], alone)
                np.testing.assert_array_equal(vectors.result(), self.expected["mean"])
            self.assertGreater(server.metric("diffserve_preemptions_total"), 0)


if __name__ == "__main__":
    unittest.main()
