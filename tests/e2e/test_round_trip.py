# SPDX-License-Identifier: Apache-2.0
"""The server accepts its own answers back: each answer, cut anywhere, is appended to its
conversation as the SDKs' users do it, and the conversation continues."""

import itertools
import unittest

import anthropic
import openai

import parrot_model
from server_process import ServerProcess

# The model opens the reasoning.
ANSWERS = [
    "<think></think>Fine, then",
    "<think>a long line without any end",
    "<think>hm, well...</think>It rains.",
    '<think>or so?</think><tool_call>\n'
    '{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    '<think>ok</think>Let me see:'
    '<tool_call>{"name": "weather", "arguments":{"days":[1, 2]}}</tool_call>'
    '\n<tool_call>{"name":"now", "arguments": {}}\n\n</tool_call>',
    "",
    "<think>I see</think>",
    "<think></think><tool_call>not a call at all",
]
CUTS = [1, 2, 3, 5, 8, 11, 14, 17, 20, 23, 200]  # of max_tokens
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
NAMES = ("weather", "now")
CHAT_TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}}
              for name in NAMES]
RESPONSES_TOOLS = [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False}
                   for name in NAMES]
MESSAGES_TOOLS = [{"name": name, "input_schema": SCHEMA} for name in NAMES]


def setUpModule():
    global server, client, claude
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "m", "--tool-call-parser", "hermes",
                      "--reasoning-parser", "think",
                      model=parrot_model.directory(ANSWERS)))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=60))
    claude = unittest.enterModuleContext(
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=60))


def asked(number: int) -> dict:
    return {"role": "user", "content": f"#{number}#"}


NEXT = {"role": "user", "content": "#0# and now?"}


EACH = list(itertools.product(range(len(ANSWERS)), CUTS))


class RoundTripTest(unittest.TestCase):
    def test_chat_answer_is_accepted_back(self):
        kinds = set()
        for number, cut in EACH:
            ask = {"model": "m", "temperature": 0, "tools": CHAT_TOOLS}
            plain = client.chat.completions.create(messages=[asked(number)], max_tokens=cut, **ask)
            with client.chat.completions.stream(messages=[asked(number)], max_tokens=cut,
                                                **ask) as stream:
                events = list(stream)
            streamed = [event for event in events if event.type == "chunk"][-1].snapshot
            for message in (plain.choices[0].message, streamed.choices[0].message):
                results = [{"role": "tool", "tool_call_id": call.id, "content": "done"}
                           for call in message.tool_calls or []]
                kinds.add((bool(message.content), bool(results)))
                for form in (message, message.model_dump(), message.model_dump(exclude_none=True),
                             message.to_dict()):
                    answer = client.chat.completions.create(
                        messages=[asked(number), form, *results, NEXT], **ask)
                    self.assertEqual(answer.choices[0].message.content, "Fine, then")
        self.assertEqual(len(kinds), 4)

    def test_messages_answer_is_accepted_back(self):
        kinds = set()
        for number, cut in EACH:
            ask = {"model": "m", "extra_body": {"temperature": 0}, "tools": MESSAGES_TOOLS}
            plain = claude.messages.create(messages=[asked(number)], max_tokens=cut, **ask)
            with claude.messages.stream(messages=[asked(number)], max_tokens=cut, **ask) as stream:
                streamed = stream.get_final_message()
            for message in (plain, streamed):
                results = [{"type": "tool_result", "tool_use_id": block.id, "content": "done"}
                           for block in message.content if block.type == "tool_use"]
                kinds |= {block.type for block in message.content} or {"nothing"}
                for content in (message.content, message.model_dump()["content"],
                                message.to_dict()["content"]):
                    conversation = [asked(number), {"role": "assistant", "content": content},
                                    {"role": "user", "content": [*results, {
                                        "type": "text", "text": NEXT["content"]}]}]
                    answer = claude.messages.create(messages=conversation, max_tokens=20, **ask)
                    self.assertEqual(answer.content[-1].text, "Fine, then")
                    claude.messages.count_tokens(model="m", messages=conversation)
        self.assertEqual(kinds, {"text", "thinking", "tool_use", "nothing"})

    def test_responses_answer_is_accepted_back(self):
        kinds = set()
        for number, cut in EACH:
            ask = {"model": "m", "temperature": 0, "tools": RESPONSES_TOOLS}
            plain = client.responses.create(input=[asked(number)], max_output_tokens=cut, **ask)
            with client.responses.stream(input=[asked(number)], max_output_tokens=cut,
                                         **ask) as stream:
                for event in stream:
                    last = event
            for response in (plain, last.response):
                results = [{"type": "function_call_output", "call_id": item.call_id,
                            "output": "done"}
                           for item in response.output if item.type == "function_call"]
                kinds |= {item.type for item in response.output}
                forms = (response.output, response.model_dump()["output"],
                         [item.to_dict() for item in response.output],
                         [{"type": "item_reference", "id": item.id} for item in response.output])
                for output in forms:
                    answer = client.responses.create(
                        input=[asked(number), *output, *results, NEXT], **ask)
                    self.assertEqual(answer.output_text, "Fine, then")
                answer = client.responses.create(previous_response_id=response.id,
                                                 input=[*results, NEXT], **ask)
                self.assertEqual(answer.output_text, "Fine, then")
        self.assertEqual(kinds, {"message", "reasoning", "function_call"})


if __name__ == "__main__":
    unittest.main()
