# SPDX-License-Identifier: Apache-2.0
"""outlines with its vLLM-like backend: the answer has the requested Python type."""

import re
import unittest
from datetime import date
from typing import Literal

import openai
import outlines
from outlines.types import CFG, Regex
from pydantic import BaseModel, ConfigDict, Field

from server_process import DEMO_MODEL, ServerProcess

QUESTION = "The magic number of Lisbon is 48213. What is the magic number of Lisbon?"


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=10)
    age: int = Field(ge=0, le=150)
    born: date
    pets: list[Literal["cat", "dog"]] = Field(max_length=3)


def setUpModule():
    global model
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", model=DEMO_MODEL))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))
    model = outlines.from_vllm(client, "diff")


class OutlinesTest(unittest.TestCase):
    def ask(self, output_type, **options):
        return model(QUESTION, output_type, **{"max_tokens": 900, "temperature": 0} | options)

    def test_pydantic_model(self):
        for seed in range(4):
            text = self.ask(Person, temperature=1.5, seed=seed)
            self.assertLessEqual(len(Person.model_validate_json(text).pets), 3)

    def test_choice(self):
        self.assertIn(self.ask(Literal["warm", "cold"]), ("warm", "cold"))

    def test_integer_an_expression_and_a_grammar(self):
        self.assertGreaterEqual(int(self.ask(Regex("[1-9][0-9]{1,4}"))), 10)
        date.fromisoformat(self.ask(date))
        grammar = 'start: "<" WORD ">"\nWORD: /[a-z]{2,5}/\n'
        self.assertTrue(re.fullmatch("<[a-z]{2,5}>", self.ask(CFG(grammar))))

    def test_stream_comes_to_the_same_text(self):
        options = {"max_tokens": 900, "temperature": 0}
        pieces = list(model.stream(QUESTION, Person, **options))
        self.assertGreater(len(pieces), 3)
        self.assertEqual("".join(pieces), self.ask(Person))


if __name__ == "__main__":
    unittest.main()
