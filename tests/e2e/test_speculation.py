# SPDX-License-Identifier: Apache-2.0
"""--speculative: the bundled model gives the same answers, in fewer steps."""

import random
import re
import subprocess
import sys
import tempfile
import unittest
from concurrent.futures import ThreadPoolExecutor

from server_process import BINARY, DEMO_MODEL, ServerProcess

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


class SpeculationTest(unittest.TestCase):

    def test_answers_are_the_same_in_fewer_steps(self):
        with ServerProcess("--speculative", "off",
                           model=DEMO_MODEL) as server:
            expected = answers(server, at_once=1)
            steps = server.metric("diffserve_steps_total")
            self.assertEqual(
                server.metric("vllm:spec_decode_num_drafts_total"), 0)
        self.assertGreaterEqual(len({str(answer) for answer in expected}), 15)
        with ServerProcess(model=DEMO_MODEL) as server:  # the default: auto
            self.assertEqual(answers(server, at_once=1), expected)
            self.assertLess(server.metric("diffserve_steps_total"), steps)
            accepted = server.metric(
                "vllm:spec_decode_num_accepted_tokens_total")
            proposed = server.metric("vllm:spec_decode_num_draft_tokens_total")
            self.assertGreater(accepted, 0)  # how many depends on the speed
            self.assertGreater(proposed, accepted)
            self.assertEqual(answers(server, at_once=4),
                             expected)  # with prefix hits

    def test_forced_text_of_a_schema_saves_steps_and_changes_nothing(self):
        bodies = [{
            "messages": [{"role": "user", "content": "Who are you?"}],
            "response_format": {"type": "json_schema",
                                "json_schema": {"name": "person", "schema": PERSON}},
            "temperature": temperature,
            "seed": index,
            "n": 2,
            "max_tokens": 60
        } for index, temperature in enumerate((0, 0.7, 1, 1))]

        def ask(server):
            return [server.post("/v1/chat/completions", body).json()["choices"]
                    for body in bodies]

        with ServerProcess("--speculative", "off", model=DEMO_MODEL) as server:
            expected = ask(server)
            steps = server.metric("diffserve_steps_total")
        self.assertIn('"favourite_number":', str(expected))
        with ServerProcess("--speculative", "prompt-lookup",
                           model=DEMO_MODEL) as server:
            self.assertEqual(ask(server), expected)
            self.assertLess(server.metric("diffserve_steps_total"), steps)
            self.assertGreater(
                server.metric("diffserve_accepted_tokens_total",
                              source="grammar"), 10)

    def test_past_answers_are_guesses_for_the_same_key_and_salt_only(self):
        body = {
            "messages": [{"role": "user", "content": "Who are you?"}],
            "temperature": 0,
            "max_tokens": 40
        }
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("one\ntwo\n")
            keys.flush()
            with ServerProcess("--speculative-history", "4MiB",
                               "--api-key-file", keys.name,
                               model=DEMO_MODEL) as server:

                def metric(name):
                    page = server.get("/metrics", headers={"Authorization": "Bearer one"}).body
                    return float(re.search(rf"^{re.escape(name)} (.*)$", page.decode(), re.M)[1])

                accepted_total = 'diffserve_accepted_tokens_total{source="history"}'

                def ask(key, **more):
                    before = metric(accepted_total)
                    answer = server.post("/v1/chat/completions", body | more,
                                         headers={"Authorization": f"Bearer {key}"}).json()
                    return answer["choices"], metric(accepted_total) - before

                expected, accepted = ask("one")
                self.assertEqual(accepted, 0)
                self.assertEqual(ask("two"), (expected, 0))
                self.assertEqual(ask("one", cache_salt="x"), (expected, 0))
                for key in ("one", "two"):
                    choices, accepted = ask(key)
                    self.assertEqual(choices, expected)
                    self.assertGreater(accepted, 2)
                self.assertGreater(metric("diffserve_speculative_history_bytes"), 0)
                self.assertLess(metric("diffserve_speculative_history_bytes"), 4 << 20)
        for flags, message in ((("--speculative-history", "1K"), "allowed: at least 1MiB"),
                               (("--speculative-history", "4MiB", "--speculative", "off"),
                                "without guesses; allowed: only with")):
            refused = subprocess.run([BINARY, "serve", DEMO_MODEL, *flags], capture_output=True,
                                     text=True)
            self.assertEqual(refused.returncode, 2, refused.stderr)
            self.assertIn(message, refused.stderr)

    def test_prediction_saves_steps_and_changes_nothing(self):
        body = requests()[0]
        with ServerProcess("--speculative", "off",
                           model=DEMO_MODEL) as server:
            expected = server.post("/v1/chat/completions", body).json()
            text = expected["choices"][0]["message"]["content"]
            body |= {"prediction": {"type": "content", "content": text}}
            answer = server.post("/v1/chat/completions", body).json()
            self.assertEqual(answer["choices"], expected["choices"])
            self.assertEqual(answer["usage"]["completion_tokens_details"],
                             used(0, 0))
        with ServerProcess("--speculative", "prompt-lookup",
                           model=DEMO_MODEL) as server:
            # An answer that the prompt does not have: only the prediction can be its source.
            body |= {"messages": [{"role": "user", "content": "Who are you?"}]}
            del body["prediction"]
            expected = server.post("/v1/chat/completions", body).json()
            text = expected["choices"][0]["message"]["content"]
            tokens = expected["usage"]["completion_tokens"]
            steps = server.metric("diffserve_steps_total")
            body |= {"prediction": {"type": "content", "content": [
                {"type": "text", "text": text[:9]}, {"type": "text", "text": text[9:]}]}}
            answer = server.post("/v1/chat/completions", body).json()
            self.assertEqual(answer["choices"], expected["choices"])
            details = answer["usage"]["completion_tokens_details"]
            self.assertGreater(details["accepted_prediction_tokens"],
                               tokens // 2)
            self.assertLess(server.metric("diffserve_steps_total") - steps,
                            tokens // 2 + 1)
            self.assertEqual(
                server.metric("diffserve_accepted_tokens_total",
                              source="prediction"),
                details["accepted_prediction_tokens"])
            # Two continuations and log-probabilities go with it; a wrong one is harmless.
            body |= {"n": 2, "logprobs": True, "temperature": 0.8}
            with_it = server.post("/v1/chat/completions", body).json()
            body["prediction"]["content"] = "Something else, " + text
            wrong = server.post("/v1/chat/completions", body).json()
            del body["prediction"]
            plain = server.post("/v1/chat/completions", body).json()
            self.assertEqual(with_it["choices"], plain["choices"])
            self.assertEqual(wrong["choices"], plain["choices"])
            self.assertNotIn("completion_tokens_details", plain["usage"])
            huge = {"type": "content", "content": text * 2000}
            answer = server.post("/v1/chat/completions",
                                 body | {"prediction": huge})
            self.assertEqual(answer.json()["choices"], plain["choices"])


PERSON = {
    "type": "object",
    "properties": {
        "is_a_person": {"type": "boolean"},
        "favourite_number": {"type": "integer", "minimum": 0, "maximum": 99},
        "place_of_birth": {"enum": ["Athens", "Rome"]}
    },
    "required": ["is_a_person", "favourite_number", "place_of_birth"],
    "additionalProperties": False
}


def used(accepted: int, rejected: int) -> dict:
    return {"accepted_prediction_tokens": accepted, "rejected_prediction_tokens": rejected}


if __name__ == "__main__":
    unittest.main()
