# SPDX-License-Identifier: Apache-2.0
"""openai-python against /v1/chat/completions."""

import math
import unittest

import openai

from server_process import ServerProcess
from tiny_model import BOS_ID, encode

HELLO = [{"role": "user", "content": "Say something."}]


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(ServerProcess("--served-model-name", "my-model"))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


def chat(messages=HELLO, max_tokens=16, **options):
    extra = {"ignore_eos": True} | options.pop("extra_body", {})
    options = {"temperature": 0, "max_tokens": max_tokens} | options
    return client.chat.completions.create(model="my-model", messages=messages, extra_body=extra,
                                          **options)


class ChatTest(unittest.TestCase):
    def test_answer_has_openais_fields(self):
        response = chat(max_tokens=9)
        self.assertEqual((response.object, response.model), ("chat.completion", "my-model"))
        choice = response.choices[0]
        self.assertEqual((choice.index, choice.message.role, choice.finish_reason),
                         (0, "assistant", "length"))
        # <|bos|><|user|>Say something.<|end|><|assistant|>
        self.assertEqual(response.usage.prompt_tokens,
                         4 + len("Say something.") - 1)  # "th" is one token
        self.assertEqual(response.usage.completion_tokens, 9)
        self.assertEqual(response.usage.total_tokens, response.usage.prompt_tokens + 9)

    def test_template_is_the_models_own(self):
        rendered = [BOS_ID, 3, *encode("Hi!"), 1, 4]
        by_ids = client.completions.create(model="my-model", prompt=rendered, max_tokens=16,
                                           temperature=0, extra_body={"ignore_eos": True})
        self.assertEqual(
            chat([{"role": "user", "content": "Hi!"}]).choices[0].message.content,
            by_ids.choices[0].text)

    def test_answer_continues_the_last_message(self):
        rendered = [BOS_ID, 3, *encode("Hi!"), 1, 4, *encode("I am")]
        by_ids = client.completions.create(model="my-model", prompt=rendered, max_tokens=16,
                                           temperature=0, extra_body={"ignore_eos": True})
        begun = [{"role": "user", "content": "Hi!"}, {"role": "assistant", "content": "I am"}]
        goes_on = {"continue_final_message": True, "add_generation_prompt": False}
        answer = chat(begun, extra_body=goes_on)
        self.assertEqual(answer.choices[0].message.content, by_ids.choices[0].text)
        self.assertEqual(answer.usage.prompt_tokens, len(rendered))
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(begun, extra_body={"continue_final_message": True})
        self.assertEqual(caught.exception.param, "continue_final_message")

    def test_stream_opens_with_the_role_and_ends_with_the_reason(self):
        chunks = [chunk for chunk in chat(max_tokens=50, stream=True)]
        self.assertTrue(
            all(chunk.object == "chat.completion.chunk" and len(chunk.choices) == 1
                for chunk in chunks))
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([chunk.choices[0].finish_reason for chunk in chunks],
                         [None] * (len(chunks) - 1) + ["length"])
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        self.assertEqual(text, chat(max_tokens=50).choices[0].message.content)

    def test_include_usage(self):
        *chunks, last = chat(max_tokens=5, stream=True, stream_options={"include_usage": True})
        self.assertTrue(all(chunk.choices for chunk in chunks))
        self.assertEqual((last.choices, last.usage.completion_tokens), ([], 5))

    def test_logprobs_carry_the_bytes_of_each_token(self):
        response = chat(max_tokens=40, logprobs=True, top_logprobs=5)
        content = response.choices[0].logprobs.content
        self.assertEqual(len(content), 40)
        special = 0
        for entry in content:
            self.assertAlmostEqual(entry.logprob, entry.top_logprobs[0].logprob, places=6)
            self.assertEqual(entry.bytes, entry.top_logprobs[0].bytes)
            self.assertEqual(len(entry.top_logprobs), 5)
            self.assertEqual(sorted((t.logprob for t in entry.top_logprobs), reverse=True),
                             [t.logprob for t in entry.top_logprobs])
            self.assertLessEqual(sum(math.exp(t.logprob) for t in entry.top_logprobs), 1 + 1e-4)
            special += entry.token.startswith("<|")
        # Special tokens are not part of the text; everything else is there byte for byte.
        shown = b"".join(
            bytes(entry.bytes) for entry in content if not entry.token.startswith("<|"))
        self.assertEqual(shown.decode(errors="replace"), response.choices[0].message.content)
        self.assertLess(special, 20)

    def test_logprobs_without_top_list(self):
        content = chat(max_tokens=4, logprobs=True).choices[0].logprobs.content
        self.assertEqual([entry.top_logprobs for entry in content], [[]] * 4)

    def test_streamed_logprobs_equal_those_of_the_whole(self):
        whole = chat(max_tokens=30, logprobs=True, top_logprobs=2).choices[0].logprobs.content
        chunks = chat(max_tokens=30, logprobs=True, top_logprobs=2, stream=True)
        streamed = [
            entry for chunk in chunks if chunk.choices[0].logprobs
            for entry in chunk.choices[0].logprobs.content
        ]
        self.assertEqual(streamed, whole)

    def test_max_completion_tokens_and_n(self):
        response = chat(max_tokens=openai.omit, max_completion_tokens=6, n=2, temperature=1.0,
                        seed=5)
        self.assertEqual(response.usage.completion_tokens, 12)
        self.assertEqual([choice.index for choice in response.choices], [0, 1])

    def test_conversation_with_system_and_content_parts(self):
        parts = [{"role": "system", "content": "Be brief."},
                 {"role": "user", "content": [{"type": "text", "text": "Hi!"}]}]
        plain = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi!"}]
        self.assertEqual(
            chat(parts).choices[0].message.content,
            chat(plain).choices[0].message.content)

    def test_cached_tokens_of_a_growing_conversation(self):
        messages = [{
            "role": "user",
            "content": "A question of some length, so that it fills several pages. " * 2
        }]
        answer = chat(messages, max_tokens=20).choices[0].message.content
        messages += [{"role": "assistant", "content": answer},
                     {"role": "user", "content": "Go on."}]
        usage = chat(messages).usage
        self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 48)

    def test_harmless_fields_are_accepted(self):
        self.assertTrue(
            chat(user="somebody", metadata={"a": "b"}, store=False, service_tier="auto",
                 response_format={"type": "text"}, extra_body={"a_field_of_tomorrow": 1}).choices)

    def test_unsupported_features_are_refused_by_name(self):
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        for field, value, param in (
            ("response_format", {"type": "xml"}, "response_format"),
            ("functions", [tool["function"]], "functions"),
            ("modalities", ["text", "audio"], "modalities")):
            with self.subTest(field=field), self.assertRaises(openai.BadRequestError) as caught:
                chat(**{field: value})
            self.assertEqual(caught.exception.param.split(".")[0], param)

    def test_errors_before_a_stream_are_plain_errors(self):
        with self.assertRaises(openai.BadRequestError) as caught:
            chat(top_p=2, stream=True)
        self.assertEqual(caught.exception.param, "top_p")
        with self.assertRaises(openai.NotFoundError):
            client.chat.completions.create(model="tiny", messages=HELLO)
