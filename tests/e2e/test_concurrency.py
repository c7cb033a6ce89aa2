# SPDX-License-Identifier: Apache-2.0
"""Many clients at once: exact token counts, refusals under overload, cancelled clients."""

import asyncio
import unittest

import grpc
import openai

from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import GatedServer, ServerProcess

STREAMS = 64


class ManyStreamsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess())

    async def stream(self, client, index: int) -> tuple[int, int, str]:
        """Tokens as counted by log-probabilities and by usage, and the finish reason."""
        options = {
            "model": "tiny", "max_tokens": 5 + index, "stream": True,
            "stream_options": {"include_usage": True}, "temperature": index % 2, "seed": index,
            "extra_body": {"ignore_eos": True}
        }
        counted = used = 0
        reason = None
        if index % 3:
            chunks = await client.completions.create(prompt=f"stream {index}" * (index % 5 + 1),
                                                     logprobs=0, **options)
        else:
            chunks = await client.chat.completions.create(
                messages=[{"role": "user", "content": f"stream {index}"}], logprobs=True, **options)
        async for chunk in chunks:
            if chunk.usage:
                used = chunk.usage.completion_tokens
            for choice in chunk.choices:
                reason = choice.finish_reason or reason
                if choice.logprobs:
                    counted += len(choice.logprobs.token_logprobs if index %
                                   3 else choice.logprobs.content)
        return counted, used, reason

    async def all_streams(self):
        async with openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="unused",
                                      max_retries=0, timeout=120) as client:
            return await asyncio.gather(*(self.stream(client, index) for index in range(STREAMS)))

    def test_64_streams_end_with_exactly_their_tokens(self):
        before = self.server.metric("diffserve_generation_tokens_total")
        results = asyncio.run(self.all_streams())
        self.assertEqual(results, [(5 + index, 5 + index, "length") for index in range(STREAMS)])
        counted = self.server.metric("diffserve_generation_tokens_total") - before
        self.assertEqual(counted, sum(5 + index for index in range(STREAMS)))
        self.server.wait_until_idle()


class OverloadTest(unittest.TestCase):
    """Two requests wait; the third gets a refusal with a retry delay."""

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            GatedServer("--max-num-seqs", 1, "--max-waiting-requests", 2))
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.server.url + "/v1", api_key="x", max_retries=0, timeout=60))

    def setUp(self):
        self.server.close_gate()
        waiting = channel(self.server)
        self.addCleanup(waiting.close)
        self.addCleanup(self.server.wait_until_idle)
        stub = pb_grpc.InferenceStub(waiting)
        self.waiting = [stub.Generate(generate_request([5, 6, 7], 20)) for _ in range(2)]
        self.addCleanup(self.server.open_gate)
        self.server.wait_for_waiting(2)

    def test_http_answers_429_with_retry_after(self):
        for stream in (False, True):
            with self.assertRaises(openai.RateLimitError) as caught:
                self.client.completions.create(model="tiny", prompt="one more", stream=stream)
            self.assertEqual(caught.exception.type, "rate_limit_error")
            self.assertGreater(int(caught.exception.response.headers["retry-after"]), 0)

    def test_grpc_answers_resource_exhausted(self):
        with channel(self.server) as other, self.assertRaises(grpc.RpcError) as caught:
            list(pb_grpc.InferenceStub(other).Generate(generate_request([5], 5)))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_refusal_is_counted_and_waiting_requests_are_served(self):
        refused = self.server.metric("diffserve_requests_refused_total", reason="queue_full")
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "x"}).status, 429)
        self.assertEqual(
            self.server.metric("diffserve_requests_refused_total", reason="queue_full"),
            refused + 1)
        self.server.open_gate()
        for call in self.waiting:
            self.assertEqual(len(collect(call).ids[0]), 20)
        self.server.wait_until_idle()
        self.assertEqual(self.server.post("/v1/completions", {"prompt": "x"}).status, 200)
