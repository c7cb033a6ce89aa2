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
                      "--reasoning-parser", "think",
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


class AllowedToolsTest(unittest.TestCase):
    """The model wants to call the weather. Its answers have no reasoning, which a model that is
    held to another call might begin."""

    @classmethod
    def setUpClass(cls):
        plain = cls.enterClassContext(
            ServerProcess("--served-model-name", "m", "--tool-call-parser", "hermes",
                          "--reasoning-parser", "none", model=parrot_model.directory(ANSWERS)))
        cls.client = cls.enterClassContext(
            openai.OpenAI(base_url=plain.url + "/v1", api_key="x", max_retries=0, timeout=60))

    def calls(self, number: int, mode: str, *allowed: str) -> list[list]:
        """Names of the calls in a chat, in its stream, and in a response."""
        entries = [{"type": "function", "function": {"name": name}} for name in allowed]
        chat = {"model": "m", "messages": [asked(number)], "temperature": 0, "max_tokens": 60,
                "tools": CHAT_TOOLS, "parallel_tool_calls": False, "tool_choice": {
                    "type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": entries}}}
        whole = self.client.chat.completions.create(**chat).choices[0].message.tool_calls or []
        deltas = [call for chunk in self.client.chat.completions.create(**chat, stream=True)
                  for call in chunk.choices[0].delta.tool_calls or []]
        response = self.client.responses.create(
            model="m", input=[asked(number)], temperature=0, max_output_tokens=60,
            tools=RESPONSES_TOOLS, parallel_tool_calls=False, tool_choice={
                "type": "allowed_tools", "mode": mode,
                "tools": [{"type": "function", "name": name} for name in allowed]})
        return [[call.function.name for call in whole],
                [call.function.name for call in deltas if call.function.name],
                [item.name for item in response.output if item.type == "function_call"]]

    def test_only_those_that_are_allowed_are_called(self):
        for number in (1, 3):
            with self.subTest(ANSWERS[number]):
                for allowed in (NAMES, ("weather",)):
                    self.assertEqual(self.calls(number, "auto", *allowed), [["weather"]] * 3)
                for mode in ("auto", "required"):  # the model calls on until it is cut
                    names = self.calls(number, mode, "now")
                    self.assertEqual({name for each in names for name in each}, {"now"})
        self.assertEqual(self.calls(2, "auto", "now"), [[]] * 3)

    def test_the_prompt_has_all_tools(self):
        def prompt(**options):
            return self.client.chat.completions.create(
                model="m", messages=[asked(2)], tools=CHAT_TOOLS, **options).usage.prompt_tokens
        self.assertEqual(prompt(tool_choice={"type": "allowed_tools", "allowed_tools": {
            "mode": "auto", "tools": [{"type": "function", "function": {"name": "now"}}]}}),
            prompt())

    def test_an_unknown_name_is_refused_by_name(self):
        for call in (
                lambda: self.client.chat.completions.create(
                    model="m", messages=[asked(1)], tools=CHAT_TOOLS, tool_choice={
                        "type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [
                            {"type": "function", "function": {"name": "other"}}]}}),
                lambda: self.client.responses.create(
                    model="m", input="a", tools=RESPONSES_TOOLS, tool_choice={
                        "type": "allowed_tools", "mode": "auto",
                        "tools": [{"type": "function", "name": "other"}]})):
            with self.assertRaises(openai.BadRequestError) as refused:
                call()
            self.assertIn('"other"', refused.exception.message)


class LogprobsTest(unittest.TestCase):
    def ask(self, number: int, **options):
        return {"model": "m", "input": [asked(number)], "temperature": 0,
                "include": ["message.output_text.logprobs"], "top_logprobs": 3} | options

    def parts(self, response):
        return [part for item in response.output if item.type == "message"
                for part in item.content]

    def test_the_tokens_of_the_text_are_there_whole_and_streamed(self):
        for number in (0, 2, 3):
            with self.subTest(ANSWERS[number]):
                whole = client.responses.create(**self.ask(number))
                part, = self.parts(whole)
                shown = b"".join(bytes(entry.bytes) for entry in part.logprobs)
                self.assertIn(part.text.encode(), shown)
                self.assertNotIn(b"think", shown)
                for entry in part.logprobs:
                    self.assertEqual(len(entry.top_logprobs), 3)
                    self.assertEqual(entry.top_logprobs[0].token, entry.token)
                    self.assertLessEqual(entry.logprob, 0)
                with client.responses.stream(**self.ask(number)) as stream:
                    events = list(stream)
                    final = stream.get_final_response()
                self.assertEqual(self.parts(final)[0].logprobs, part.logprobs)
                deltas = [entry for event in events if event.type == "response.output_text.delta"
                          for entry in event.logprobs]
                done, = (event for event in events if event.type == "response.output_text.done")
                for seen in (deltas, done.logprobs):
                    self.assertEqual([(entry.token, entry.logprob) for entry in seen],
                                     [(entry.token, entry.logprob) for entry in part.logprobs])
                stored = client.responses.retrieve(whole.id)
                self.assertEqual(self.parts(stored)[0].logprobs, part.logprobs)

    def test_they_are_those_of_chat(self):
        chat = client.chat.completions.create(model="m", messages=[asked(2)], temperature=0,
                                              logprobs=True, top_logprobs=2).choices[0].logprobs
        part, = self.parts(client.responses.create(**self.ask(2, top_logprobs=2)))
        ours = [entry.model_dump() for entry in part.logprobs]
        self.assertEqual(ours, [entry.model_dump() for entry in chat.content][:len(ours)])
        self.assertEqual(client.responses.create(**self.ask(2)).top_logprobs, 3)

    def test_without_asking_there_are_none(self):
        part, = self.parts(client.responses.create(**self.ask(2, include=[], top_logprobs=0)))
        self.assertEqual(part.logprobs, [])
        part, = self.parts(client.responses.create(**self.ask(2, top_logprobs=0)))
        self.assertEqual({len(entry.top_logprobs) for entry in part.logprobs}, {0})
        for options in ({"include": []}, {"top_logprobs": 21}, {"top_logprobs": -1}):
            with self.assertRaises(openai.BadRequestError) as refused:
                client.responses.create(**self.ask(2, **options))
            self.assertEqual(refused.exception.param, "top_logprobs")


class ModelListTest(unittest.TestCase):
    def test_the_library_reads_the_list_that_codex_reads(self):
        self.assertEqual([model.id for model in client.models.list()], ["m"])
        listed = json.loads(client.models.with_raw_response.list().text)
        self.assertEqual([model["slug"] for model in listed["models"]], ["m"])
        self.assertEqual(listed["models"][0]["context_window"], listed["data"][0]["max_model_len"])


if __name__ == "__main__":
    unittest.main()
