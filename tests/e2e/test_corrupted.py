# SPDX-License-Identifier: Apache-2.0
"""A request with non-finite logits ends with an error. The bits of others, the cache and later
requests are unaffected."""

import json
import subprocess
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np

import tiny_model
from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import BINARY, ServerProcess
from tiny_model import BOS_ID, encode

SMALL_POOL = ("--max-model-len", 128, "--kv-cache-memory", 24 * 8192, "--max-num-batched-tokens",
              64)
GOOD = [[BOS_ID, *encode("clean prompt %d " % i * (i + 1))] for i in range(6)]


def poisoned_model(parent: Path, token: int | None) -> Path:
    """The tiny model with a hidden feature that is 0 except for one token, for which the first
    layer's queries are infinite. None: for no token."""
    folder = tiny_model.write(parent / ("clean" if token is None else "poisoned"))
    tensors = tiny_model.weights(tiny_model.CONFIG)
    tensors["model.embed_tokens.weight"][:, -1] = 0
    for name, tensor in tensors.items():
        if "o_proj" in name or "down_proj" in name:
            tensor[-1, :] = 0
    tensors["model.layers.0.self_attn.q_proj.weight"][:, -1] = 3e38
    if token is not None:
        tensors["model.embed_tokens.weight"][token, -1] = 1000
    (folder / "model.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
    return folder


class CorruptedRequestTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        parent = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        clean_model = poisoned_model(parent, None)
        with ServerProcess(*SMALL_POOL, model=clean_model) as clean, channel(clean) as connection:
            cls.expected = [cls.answer(pb_grpc.InferenceStub(connection), ids) for ids in GOOD]
        generated = {token for answer in cls.expected for _, ids, _ in answer for token in ids}
        cls.poison = next(token for token in encode("~}|{_^`@") if token not in generated)
        cls.server = cls.enterClassContext(
            ServerProcess(*SMALL_POOL, model=poisoned_model(parent, cls.poison)))
        cls.stub = pb_grpc.InferenceStub(cls.enterClassContext(channel(cls.server)))

    @staticmethod
    def answer(stub, ids):
        return collect(stub.Generate(generate_request(ids, 20, logprobs=2))).exact()

    def expect_error(self, ids, **fields):
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.Generate(generate_request(ids, 20, **fields)))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INTERNAL)

    def test_others_in_the_batch_keep_their_bits(self):
        before = self.server.metric("diffserve_requests_corrupted_total")
        bad = [[*ids, self.poison, *encode("tail")]
               for ids in GOOD] + [[self.poison], [self.poison] * 100]
        with ThreadPoolExecutor(16) as pool:
            errors = [pool.submit(self.expect_error, ids) for ids in bad]
            answers = [pool.submit(self.answer, self.stub, ids) for ids in GOOD * 3]
            for error in errors:
                error.result()
            self.assertEqual([answer.result() for answer in answers], self.expected * 3)
        self.assertEqual(self.server.metric("diffserve_requests_corrupted_total"),
                         before + len(bad))
        self.server.wait_until_idle()

    def test_pages_that_held_it_are_as_good_as_new(self):
        for _ in range(8):  # more than the pool holds
            self.expect_error([self.poison] * 90)
        for ids, expected in zip(GOOD, self.expected):
            self.assertEqual(self.answer(self.stub, ids), expected)

    def test_corrupted_prompt_is_not_cached(self):
        for _ in range(2):
            self.expect_error([*GOOD[5], self.poison, *encode("x" * 10)])
        self.assertEqual(self.answer(self.stub, GOOD[5]), self.expected[5])

    def test_scores_of_its_prompt_are_an_error_too(self):
        self.expect_error([*encode("abc"), self.poison, *encode("abc")], prompt_logprobs=1)

    def test_over_http_it_is_a_server_error(self):
        body = {"prompt": [*encode("abc"), self.poison], "max_tokens": 5}
        response = self.server.post("/v1/completions", body)
        self.assertEqual((response.status, response.error["type"]), (500, "server_error"))
        streamed = self.server.post("/v1/completions", body | {"stream": True})
        # Before the first token there is no stream yet.
        self.assertEqual((streamed.status, streamed.error["type"]), (500, "server_error"))


class CorruptedActivationsTest(unittest.TestCase):
    def test_inspect_names_the_layer_whose_activations_are_not_finite(self):
        with tempfile.TemporaryDirectory() as parent:
            poison = encode("~")[0]
            lines = Path(parent) / "lines.jsonl"
            lines.write_text(json.dumps({"tokens": [BOS_ID, poison, BOS_ID]}))
            result = subprocess.run([BINARY, "inspect", poisoned_model(Path(parent), poison),
                                     "--activations", lines], capture_output=True, text=True,
                                    timeout=60)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertRegex(result.stderr, r"layer 0: [1-9]\d* attention logits and [1-9]\d* hidden "
                                        "states are not finite")
