# SPDX-License-Identifier: Apache-2.0
"""Tools at the bundled model, whose chat template shows none, as every SDK sends them."""

import json
import unittest

import openai

from server_process import DEMO_MODEL, ServerProcess

QUESTION = [{"role": "user", "content": "Who are you?"}]


class GenericToolsTest(unittest.TestCase):
    TOOL = {"type": "function", "function": {
        "name": "get_weather", "description": "The weather of a city.",
        "parameters": {"type": "object", "required": ["city"], "additionalProperties": False,
                       "properties": {"city": {"enum": ["Oslo", "Lisbon"]}}}}}

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess(model=DEMO_MODEL))
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0))

    def create(self, messages, **options):
        options = {"temperature": 0, "max_tokens": 60, "tools": [self.TOOL]} | options
        return self.client.chat.completions.create(model="diff", messages=messages, **options)

    def test_choice_auto_is_accepted_whole_and_streamed(self):
        whole = self.create(QUESTION).choices[0]
        self.assertTrue(whole.message.content or whole.message.tool_calls)
        pieces = [chunk.choices[0].delta.content or ""
                  for chunk in self.create(QUESTION, stream=True) if chunk.choices]
        self.assertEqual("".join(pieces), whole.message.content or "")

    def test_tools_and_history_are_in_the_prompt(self):
        call = self.create(QUESTION, tool_choice="required").choices[0].message
        self.assertIn(json.loads(call.tool_calls[0].function.arguments)["city"],
                      ("Oslo", "Lisbon"))
        messages = [*QUESTION, call.model_dump(exclude_none=True),
                    {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "21"}]
        self.assertEqual(self.create(messages).choices[0].message.role, "assistant")
        body = {"messages": messages, "tools": [self.TOOL]}
        prompt = self.server.post("/v1/chat/completions/render", body).json()["prompt"]
        self.assertIn('<|system|>You can call tools:\n<tools>\n{"name":"get_weather"', prompt)
        self.assertIn('<tool_call>\n{"name":"get_weather","arguments":{', prompt)
        self.assertIn("<|user|><tool_response>\n21\n</tool_response><|end|>", prompt)
        self.assertNotIn("<|tool|>", prompt)

    def test_log_names_the_format(self):
        self.assertIn("tool_call_parser=generic", self.server.stderr())

    def test_other_apis_take_tools_too(self):
        tool = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
        reply = self.server.post("/v1/messages", {"max_tokens": 20, "messages": QUESTION,
                                                  "tools": [tool]})
        self.assertEqual(reply.status, 200, reply.body)
        tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
        reply = self.server.post("/v1/responses", {"max_output_tokens": 20, "input": "Who are you?",
                                                   "tools": [tool]})
        self.assertEqual(reply.status, 200, reply.body)


if __name__ == "__main__":
    unittest.main()
