# SPDX-License-Identifier: Apache-2.0
"""--speculative prompt-lookup: the bundled model gives the same answers, in fewer steps."""

import random
import sys
import unittest
from concurrent.futures import ThreadPoolExecutor

from server_process import DEMO_MODEL, DEVICE, ServerProcess

sys.path.insert(0, str(DEMO_MODEL.parent))
import needle_samples


def requests() -> list[dict]:
    """Questions for two of twenty magic numbers; the answer repeats two sentences of the prompt."""
    asked = []
    for index in range(16):
        rng = random.Random(index)
        cities = rng.sample(needle_samples.CITIES, 20)
        facts = [
            needle_samples.needle_sentence(city,
                                           needle_samples.draw_number(rng))
            for city in cities
        ]
        first, second = rng.sample(cities, 2)
        question = f"What are the magic numbers of {first} and {second}?"
        body = {
            "messages": [{
                "role": "user",
                "content": " ".join([*facts, question])
            }],
            "temperature": 0,
            "max_tokens": 40,
            "seed": index
        }
        body |= ({}, {
            "temperature": 0.7,
            "n": 2
        }, {
            "logprobs": True,
            "top_logprobs": 2
        }, {
            "frequency_penalty": 0.1,
            "repetition_penalty": 1.02
        }, {
            "stop": [f"of {second}"]
        }, {
            "min_tokens": 30
        }, {
            "max_tokens": 9
        }, {
            "logit_bias": {
                "20": -5
            },
            "temperature": 0.4
        })[index % 8]
        asked.append(body)
    return asked


def answers(server, at_once: int) -> list:

    def ask(body):
        answer = server.post("/v1/chat/completions", body).json()
        return answer["choices"], answer["usage"]["completion_tokens"]

    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, requests()))


@unittest.skipIf(DEVICE == "cuda", "refused there")
class SpeculationTest(unittest.TestCase):

    def test_answers_are_the_same_in_fewer_steps(self):
        with ServerProcess(model=DEMO_MODEL) as server:
            expected = answers(server, at_once=1)
            steps = server.metric("diffserve_steps_total")
            self.assertEqual(
                server.metric("vllm:spec_decode_num_drafts_total"), 0)
        self.assertGreaterEqual(len({str(answer) for answer in expected}), 15)
        with ServerProcess("--speculative", "prompt-lookup",
                           model=DEMO_MODEL) as server:
            self.assertEqual(answers(server, at_once=1), expected)
            self.assertLess(server.metric("diffserve_steps_total"),
                            0.75 * steps)
            accepted = server.metric(
                "vllm:spec_decode_num_accepted_tokens_total")
            proposed = server.metric("vllm:spec_decode_num_draft_tokens_total")
            self.assertGreater(accepted, 100)
            self.assertGreater(proposed, accepted)
            self.assertEqual(answers(server, at_once=4),
                             expected)  # with prefix hits


if __name__ == "__main__":
    unittest.main()
