# SPDX-License-Identifier: Apache-2.0
"""Answers that are constrained to a schema and may be tool calls instead, on every API that has
both."""

import json
import unittest

import openai

import parrot_model
from server_process import ServerProcess

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWERS = ['{"degrees": 7}', CALL, "<tool_call>"]
FORM = {"type": "object", "properties": {"degrees": {"type": "integer", "maximum": 99}},
        "required": ["degrees"], "additionalProperties": False}
ARGUMENTS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
             "additionalProperties": False}


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "m", "--tool-call-parser", "hermes",
                      model=parrot_model.directory(ANSWERS)))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=60))


def chat(number: int, strict: bool, **options):
    tool = {"name": "weather", "parameters": ARGUMENTS, "strict": strict}
    return client.chat.completions.create(
        model="m", messages=[{"role": "user", "content": f"#{number}#"}], temperature=0,
        max_tokens=100, tools=[{"type": "function", "function": tool}],
        response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}},
        **options).choices[0]


class FormBesideToolsTest(unittest.TestCase):
    def test_model_writes_what_has_the_form_or_calls(self):
        for strict in (False, True):
            with self.subTest(strict=strict):
                self.assertEqual(chat(0, strict).message.content, '{"degrees": 7}')
                called = chat(1, strict)
                self.assertEqual(called.finish_reason, "tool_calls")
                self.assertIsNone(called.message.content)
                call, = called.message.tool_calls
                self.assertEqual(json.loads(call.function.arguments), {"city": "Oslo"})

    def test_call_that_was_begun_is_completed(self):
        for strict in (False, True):
            with self.subTest(strict=strict):
                called = chat(2, strict, seed=1)
                self.assertIn(called.finish_reason, ("tool_calls", "length"))
                self.assertIsNone(called.message.content)

    def test_request_without_tools_cannot_call(self):
        answer = client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "#1#"}], temperature=0, max_tokens=100,
            response_format={"type": "json_schema", "json_schema": {"name": "f", "schema": FORM}})
        self.assertLessEqual(json.loads(answer.choices[0].message.content)["degrees"], 99)

    def test_responses_has_both(self):
        kinds = []
        for number in (0, 1):
            answer = client.responses.create(
                model="m", input=f"#{number}#", temperature=0, max_output_tokens=100,
                tools=[{"type": "function", "name": "weather", "parameters": ARGUMENTS,
                        "strict": False}],
                text={"format": {"type": "json_schema", "name": "f", "schema": FORM}})
            kinds.append([item.type for item in answer.output])
        self.assertEqual(kinds, [["message"], ["function_call"]])


if __name__ == "__main__":
    unittest.main()
