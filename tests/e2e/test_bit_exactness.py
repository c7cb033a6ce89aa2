# SPDX-License-Identifier: Apache-2.0
"""A request gives the same bits whatever else is in the batch, however it is cut into steps, and
whatever is cached."""

import random
import unittest
from concurrent.futures import ThreadPoolExecutor

from grpc_client import channel, collect, generate_request, pb, pb_grpc
from server_process import DEVICE, KV_BYTES, PAGE_SLOTS, GatedServer, ServerProcess
from tiny_model import BOS_ID, FIRST_BYTE_ID, VOCAB_SIZE

MAX_TOKENS = 56
# layers, slots, elements of K1 | K2 | V of the one group, bytes
PAGE_BYTES = 2 * PAGE_SLOTS * 64 * KV_BYTES
FEW_PAGES = 320 // PAGE_SLOTS * PAGE_BYTES  # of bfloat16 twice as many


def prompts() -> list[list[int]]:
    """16 prompts of 1 to 100 tokens; some share a prefix that ends before, within or after a
    page."""
    rng = random.Random(5)
    shared = [rng.randrange(FIRST_BYTE_ID, VOCAB_SIZE) for _ in range(80)]
    lengths = [0, 14, 15, 16, 30, 47, 48, 63, 64, 80]
    result = [[BOS_ID, *shared[:length],
               rng.randrange(FIRST_BYTE_ID, VOCAB_SIZE)] for length in lengths]
    result += [[rng.randrange(FIRST_BYTE_ID, VOCAB_SIZE) for _ in range(length)]
               for length in (1, 7, 33, 70, 100)]
    return result + [result[9]]


def num_continuations(index: int) -> int:
    return 2 if index % 5 == 4 else 1


def ask(stub, index: int, ids: list[int]):
    """The exact answer to prompt `index`: greedy, except that each fifth is a seeded draw of two
    continuations. Each third is constrained to a form that is longer than its max_tokens."""
    request = generate_request(ids, MAX_TOKENS, logprobs=3,
                               prompt_logprobs=0 if index % 4 == 3 else None)
    if index % 5 == 4:
        request.sampling.MergeFrom(
            pb.SamplingParams(temperature=0.8, top_p=0.9, seed=index, n=num_continuations(index)))
    if index % 3 == 1:
        request.stopping.ignore_eos = False  # the form says where an end may be
        request.grammar.regex = "([a-z]{1,3} [0-9]{2}, ){90}"
    answer = collect(stub.Generate(request))
    return answer.exact(), [(t.chosen.id, t.chosen.logprob) for t in answer.prompt_logprobs]


def run_alone(server) -> list:
    with channel(server) as connection:
        stub = pb_grpc.InferenceStub(connection)
        return [ask(stub, index, ids) for index, ids in enumerate(prompts())]


def run_at_once(server) -> list:
    """Submits all prompts in order before the first step, which decides what is preempted."""
    with channel(server) as connection, ThreadPoolExecutor(16) as pool:
        server.close_gate()
        stub, answers, waiting = pb_grpc.InferenceStub(connection), [], 0
        try:
            for index, ids in enumerate(prompts()):
                answers.append(pool.submit(ask, stub, index, ids))
                waiting += num_continuations(index)
                server.wait_for_waiting(waiting)
        finally:
            server.open_gate()
        return [answer.result() for answer in answers]


class SameAnswers:
    """Compares the answers to all prompts alone with those of other servers of the same model and
    formats."""
    FORMATS = ()
    model = None  # the tiny one

    @classmethod
    def setUpClass(cls):
        with ServerProcess("--no-enable-prefix-caching", "--threads", 1, *cls.FORMATS,
                           model=cls.model) as server:
            cls.expected = run_alone(server)

    def check(self, *flags, at_once=True, rounds=2):
        with GatedServer("--max-queue-wait", 3600, *flags, *self.FORMATS,
                         model=self.model) as server:
            for _ in range(rounds):
                answers = run_at_once(server) if at_once else run_alone(server)
                for index, (mine, expected) in enumerate(zip(answers, self.expected, strict=True)):
                    self.assertEqual(mine, expected, f"prompt {index} with {flags}")
                server.wait_until_idle()
            return server.metrics()

    def test_expectation_is_not_trivial(self):
        self.assertGreaterEqual(len({str(answer) for answer in self.expected}), 15)
        for choices, _ in self.expected:
            for _, ids, _ in choices:
                self.assertEqual(len(ids), MAX_TOKENS)


class Exactness(SameAnswers):
    FEW_BYTES = FEW_PAGES

    def test_at_once_with_prefix_hits(self):
        self.check()

    def test_in_small_chunks(self):
        self.check("--max-num-batched-tokens", 32, "--threads", 2)

    def test_through_preemptions(self):
        metrics = self.check("--max-model-len", 160, "--kv-cache-memory", self.FEW_BYTES,
                             "--no-enable-prefix-caching")
        self.assertGreater(metrics["diffserve_preemptions_total"], 0)
        metrics = self.check("--max-model-len", 160, "--kv-cache-memory", self.FEW_BYTES,
                             "--max-num-batched-tokens", 48)
        self.assertGreater(metrics["diffserve_preemptions_total"], 0)


class BitExactnessTest(Exactness, unittest.TestCase):
    def test_all_at_once(self):
        self.check("--no-enable-prefix-caching")

    def test_alone_with_two_threads_and_prefix_hits(self):
        metrics = self.check("--threads", 2, at_once=False)
        self.assertGreater(metrics["diffserve_prefix_hit_tokens_total"],
                           500 if PAGE_SLOTS == 16 else 300)

    def test_one_sequence_at_a_time(self):
        self.check("--max-num-seqs", 1)

    @unittest.skipIf(DEVICE == "cuda", "its pages have 64 slots anyway")
    def test_with_larger_pages(self):
        self.check("--page-size", 64)


@unittest.skipIf(DEVICE == "cuda", "the default there")
class BFloat16ExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16")


class Int8ExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16", "--quantization", "int8")


class Int4ExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--quantization", "int4")


class Int8PagesExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16", "--kv-cache-dtype", "int8")
    # As many pages on a GPU, whose slots have 64 codes and 4 scales.
    FEW_BYTES = FEW_PAGES // 128 * 80 if DEVICE == "cuda" else FEW_PAGES


@unittest.skipIf(DEVICE != "cuda", "refused there")
class Fp8PagesExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--kv-cache-dtype", "fp8_e4m3")
    FEW_BYTES = FEW_PAGES // 128 * 80


class FourBitPagesExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16", "--kv-cache-dtype", "int4", "--kv-cache-dtype-skip-layers",
               "0")
    # A GPU stores codes in runs of 32, which are half empty with a head_dim of 16: the second layer
    # takes 80 bytes per slot.
    FEW_BYTES = FEW_PAGES // 256 * (128 + 80) if DEVICE == "cuda" else FEW_PAGES


class LogitRowExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--attention-logit-bits", "4")


class LogitTileExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16", "--attention-logit-bits", "6:tile")


class LogitAnchoredExactnessTest(Exactness, unittest.TestCase):
    FORMATS = ("--dtype", "bfloat16", "--attention-logit-bits", "8:anchored")
