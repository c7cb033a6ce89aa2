# SPDX-License-Identifier: Apache-2.0
"""What the vendors' own libraries read beside the text: signatures of thinking, ids of requests,
allowed tools, log-probabilities of Responses."""

import json
import unittest

import anthropic
import openai

import parrot_model
from server_process import ServerProcess

CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
ANSWERS = ["<think>hm, well...</think>It rains.", CALL, "Grüße, 世界!", "Let me see: " + CALL]
NAMES = ("weather", "now")
# Strict, so that a call ends though the model would go on.
FUNCTIONS = [{"name": name, "strict": True, "parameters": {
    "type": "object", "properties": properties, "required": list(properties),
    "additionalProperties": False}} for name, properties in
    zip(NAMES, ({"city": {"enum": ["Oslo", "Lisbon"]}}, {}))]
CHAT_TOOLS = [{"type": "function", "function": function} for function in FUNCTIONS]
RESPONSES_TOOLS = [{"type": "function"} | function for function in FUNCTIONS]


def setUpModule():
    global server, client, claude
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "m", "--tool-call-parser", "hermes",
                      "--reasoning-parser", "deepseek_r1",
                      model=parrot_model.directory(ANSWERS)))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="x", max_retries=0, timeout=60))
    claude = unittest.enterModuleContext(
        anthropic.Anthropic(base_url=server.url, api_key="x", max_retries=0, timeout=60))


def asked(number: int) -> dict:
    return {"role": "user", "content": f"#{number}#"}


def message(number: int = 0, **options):
    return {"model": "m", "messages": [asked(number)], "max_tokens": 100,
            "extra_body": {"temperature": 0}} | options


class SignatureTest(unittest.TestCase):
    def test_thinking_is_signed_whole_and_streamed(self):
        whole = claude.messages.create(**message())
        self.assertEqual([block.type for block in whole.content], ["thinking", "text"])
        self.assertTrue(whole.content[0].signature)
        with claude.messages.stream(**message()) as stream:
            events = list(stream)
            streamed = stream.get_final_message()
        self.assertEqual(streamed.content[0], whole.content[0])
        signed, = (event for event in events if event.type == "signature")
        self.assertEqual(signed.signature, whole.content[0].signature)
        raw = [event.delta.type for event in events
               if event.type == "content_block_delta" and event.index == 0]
        self.assertEqual(raw[-1], "signature_delta")
        self.assertEqual(set(raw[:-1]), {"thinking_delta"})

    def test_omitted_thinking_leaves_a_signed_block(self):
        thinking = {"type": "adaptive", "display": "omitted"}
        whole = claude.messages.create(**message(thinking=thinking))
        with claude.messages.stream(**message(thinking=thinking)) as stream:
            streamed = stream.get_final_message()
        for got in (whole, streamed):
            block, text = got.content
            self.assertEqual((block.thinking, text.text), ("", "It rains."))
            self.assertTrue(block.signature)

    def test_blocks_of_any_signature_are_accepted_back(self):
        for block in ({"type": "thinking", "thinking": "hm", "signature": "of another server"},
                      {"type": "thinking", "thinking": "", "signature": ""},
                      {"type": "redacted_thinking", "data": "opaque"}):
            said = {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}
            answer = claude.messages.create(**message(messages=[asked(0), said, asked(2)]))
            self.assertEqual(answer.content[0].text, ANSWERS[2])


class RequestIdTest(unittest.TestCase):
    def test_answers_and_errors_have_the_id_that_the_library_reads(self):
        self.assertTrue(claude.messages.create(**message())._request_id)
        with claude.messages.stream(**message()) as stream:
            self.assertTrue(stream.request_id)
        counted = claude.messages.count_tokens(model="m", messages=[asked(0)])
        self.assertTrue(counted._request_id)
        raw = claude.messages.with_raw_response.create(**message())
        self.assertEqual(raw.headers["anthropic-organization-id"], "diffserve")
        for call in (lambda: claude.messages.create(**message(model="gpt")),
                     lambda: claude.messages.create(**message(max_tokens=-1)),
                     lambda: claude.messages.count_tokens(model="gpt", messages=[asked(0)])):
            with self.assertRaises(anthropic.APIStatusError) as refused:
                call()
            self.assertTrue(refused.exception.request_id)
            self.assertEqual(refused.exception.body["request_id"], refused.exception.request_id)

    def test_openais_library_has_its_own(self):
        answer = client.chat.completions.create(model="m", messages=[asked(0)])
        self.assertTrue(answer._request_id)


if __name__ == "__main__":
    unittest.main()
