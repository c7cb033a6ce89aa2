# SPDX-License-Identifier: Apache-2.0
"""Reasoning and tool calls in models' formats, read over HTTP, whole and streamed: the prompt's end
says where reasoning begins, a call that a limit cuts is never content, and four call formats have
parsers."""

import json
import unittest

import openai

import parrot_model
from server_process import ServerProcess

CALLS = {  # format: what a model writes
    "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    "llama3_json": '{"name": "weather", "parameters": {"city": "Oslo"}}',
    "mistral": '[TOOL_CALLS]weather{"city": "Oslo"}',
    "qwen_xml": "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n"
                "</function>\n</tool_call>",
}
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def client_of(test: unittest.TestCase, answers: list[str], *flags, **model):
    server = test.enterContext(ServerProcess("--served-model-name", "m", *flags,
                                             model=parrot_model.directory(answers, **model)))
    return test.enterContext(openai.OpenAI(base_url=server.url + "/v1", api_key="x",
                                           max_retries=0, timeout=60))


def ask(client, **options):
    """(content, reasoning, calls as name and arguments, finish reason), whole and streamed."""
    request = dict(model="m", messages=[{"role": "user", "content": "#0#"}], temperature=0,
                   **{"max_tokens": 100} | options)
    choice = client.chat.completions.create(**request).choices[0]
    plain = (choice.message.content or "", getattr(choice.message, "reasoning_content", None) or "",
             [(call.function.name, call.function.arguments)
              for call in choice.message.tool_calls or []], choice.finish_reason)
    content, reasoning, calls, reason = "", "", [], None
    for chunk in client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or []:
                if call.function.name:
                    calls.append(["", ""])
                calls[-1][0] += call.function.name or ""
                calls[-1][1] += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return plain, (content, reasoning, [tuple(call) for call in calls], reason)


class FormsTest(unittest.TestCase):
    def test_each_format_of_calls(self):
        for form, text in CALLS.items():
            with self.subTest(form=form):
                client = client_of(self, [text], "--tool-call-parser", form)
                for content, _, calls, reason in ask(client, tools=TOOLS):
                    self.assertEqual((content, reason), ("", "tool_calls"))
                    (name, arguments), = calls
                    self.assertEqual((name, json.loads(arguments)), ("weather", {"city": "Oslo"}))

    def test_end_of_the_prompt_shows_whether_an_answer_begins_in_reasoning(self):
        for end, answer, expected in (
                ("<think>", "I think</think>It rains.", ("It rains.", "I think")),
                ("<think></think>", "It rains.", ("It rains.", "")),
                ("<|user|>", "It rains.", ("It rains.", "")),
                ("<|user|>", "<think>I think</think>It rains.", ("It rains.", "I think"))):
            with self.subTest(end=end, answer=answer):
                template = "{{ messages[-1].content }}->" + end.replace("|>", ">")
                client = client_of(self, [answer], "--reasoning-parser", "think",
                                   template=template, prompt_end=">")
                for content, reasoning, _, _ in ask(client):
                    self.assertEqual((content, reasoning), expected)

    def test_required_call_that_a_limit_cuts_is_a_cut_call_or_nothing(self):
        client = client_of(self, ["anything"], "--tool-call-parser", "hermes")
        named = {"type": "function", "function": {"name": "weather"}}
        for choice in ("required", named):
            for limit in range(1, 12):
                with self.subTest(choice=choice, limit=limit):
                    for content, _, calls, reason in ask(client, tools=TOOLS, tool_choice=choice,
                                                         max_tokens=limit):
                        self.assertEqual((content, reason), ("", "length"))
                        for name, arguments in calls:
                            self.assertEqual(name, "weather")
                            self.assertTrue(arguments == "" or arguments.startswith("{"))


if __name__ == "__main__":
    unittest.main()
