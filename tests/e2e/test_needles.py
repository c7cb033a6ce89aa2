# SPDX-License-Identifier: Apache-2.0
"""The bundled model finds its needles through the server in its full context, as the model card
promises."""

import asyncio
import re
import sys
import unittest

import openai

from server_process import DEMO_MODEL, ServerProcess

sys.path.insert(0, str(DEMO_MODEL.parent))
import needle_samples

REQUIRED = {(1, 1): 0.98, (4, 1): 0.95}  # (needles, asked): accuracy over all digits of all numbers
# Settings without a required accuracy are measured to be printed. Near its limit an accuracy needs
# many samples: 200 know it to about 0.015.
SAMPLES = {(1, 1): 100, (4, 1): 200, (6, 1): 20, (4, 2): 20}
CONCURRENT = 16


async def answer(client, limit, sample, asked) -> tuple[bool, int]:
    async with limit:
        response = await client.chat.completions.create(model="diff", messages=sample.messages,
                                                        temperature=0, max_tokens=16 * asked)
    found = re.findall(r"\d+", response.choices[0].message.content)
    return found == sample.numbers, response.usage.prompt_tokens


async def measure(url, needles, asked, samples) -> tuple[float, int, int]:
    limit = asyncio.Semaphore(CONCURRENT)
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="unused", max_retries=0,
                                  timeout=300) as client:
        results = await asyncio.gather(*(answer(
            client, limit, needle_samples.evaluation_sample(index, needles, asked=asked), asked)
                                         for index in range(samples)))
    lengths = [length for _, length in results]
    return sum(right for right, _ in results) / samples, min(lengths), max(lengths)


class NeedlesTest(unittest.TestCase):
    def test_multi_needle_retrieval_in_the_full_context(self):
        self.assertTrue((DEMO_MODEL / "model.safetensors").is_file(), f"{DEMO_MODEL} is missing")
        accuracy = {}
        with ServerProcess(model=DEMO_MODEL) as server:
            print("\nneedles asked  accuracy  samples  prompt tokens")
            for (needles, asked), samples in SAMPLES.items():
                accuracy[needles, asked], shortest, longest = asyncio.run(
                    measure(server.url, needles, asked, samples))
                print(
                    f"{needles:7d} {asked:5d} {accuracy[needles, asked]:9.3f} {samples:8d}  "
                    f"{shortest}..{longest}",
                    flush=True)
                self.assertGreaterEqual(shortest, 1024)
        for setting, least in REQUIRED.items():
            with self.subTest(needles=setting[0], asked=setting[1]):
                self.assertGreaterEqual(accuracy[setting], least)


class ChatTest(unittest.TestCase):
    def test_it_answers_in_fluent_english(self):
        self.assertTrue((DEMO_MODEL / "model.safetensors").is_file(), f"{DEMO_MODEL} is missing")
        with ServerProcess(model=DEMO_MODEL) as server:
            for question, answer_text in (
                ("What is the capital of France?", "The capital of France is Paris."),
                ("How many days are in a week?", "A week has seven days."),
                ("Who are you?", "I am the diffserve demo model, a very small Diff Transformer."),
                ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. What is "
                 "the magic number of Lisbon?",
                 "The magic number of Lisbon is 48213."),
            ):
                with self.subTest(question):
                    body = {
                        "messages": [{"role": "user", "content": question}], "temperature": 0,
                        "max_tokens": 60
                    }
                    choice = server.post("/v1/chat/completions", body).json()["choices"][0]
                    self.assertEqual((choice["message"]["content"], choice["finish_reason"]),
                                     (answer_text, "stop"))
