# SPDX-License-Identifier: Apache-2.0
"""anthropic-python against /v1/messages, on the bundled model."""

import unittest
from pathlib import Path

import anthropic
import openai

from server_process import ServerProcess

MODEL = Path(__file__).resolve().parents[2] / "models/demo/diff"
QUESTION = ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. "
            "What is the magic number of Lisbon?")
ASKED = [{"role": "user", "content": QUESTION}]


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", model=MODEL))
    client = unittest.enterModuleContext(
        anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60))


def ask(messages=ASKED, max_tokens=40, **options):
    extra = {"temperature": 0} | options.pop("extra_body", {})
    return client.messages.create(model="diff", messages=messages, max_tokens=max_tokens,
                                  extra_body=extra, **options)


class MessagesTest(unittest.TestCase):
    def test_message_has_anthropics_fields(self):
        message = ask()
        self.assertEqual((message.type, message.role, message.model),
                         ("message", "assistant", "diff"))
        self.assertIn("48213", message.content[0].text)
        self.assertEqual((message.stop_reason, message.stop_sequence), ("end_turn", None))
        self.assertEqual(message.usage.output_tokens, 13)

    def test_answer_is_the_chat_routes(self):
        chat = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
        with chat:
            answer = chat.chat.completions.create(model="diff", messages=ASKED, temperature=0)
        self.assertEqual(ask().content[0].text, answer.choices[0].message.content)

    def test_stream_comes_to_the_same_message(self):
        whole = ask()
        with client.messages.stream(model="diff", messages=ASKED, max_tokens=40,
                                    extra_body={"temperature": 0}) as stream:
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual(final.content[0].text, whole.content[0].text)
        self.assertEqual((final.stop_reason, final.usage.output_tokens), ("end_turn", 13))

    def test_stop_reasons(self):
        self.assertEqual(ask(max_tokens=3).stop_reason, "max_tokens")
        stopped = ask(stop_sequences=["Lisbon"])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence),
                         ("stop_sequence", "Lisbon"))

    def test_count_tokens_equals_the_input_tokens_of_a_message(self):
        counted = client.messages.count_tokens(model="diff", messages=ASKED).input_tokens
        usage = ask().usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_answer_continues_a_last_assistant_message(self):
        whole = ask().content[0].text
        begun = whole[:whole.index("48213")].rstrip()
        prefilled = ASKED + [{"role": "assistant", "content": begun}]
        self.assertEqual(begun + ask(prefilled).content[0].text, whole)
        counted = client.messages.count_tokens(model="diff", messages=prefilled).input_tokens
        usage = ask(prefilled).usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)
        with self.assertRaises(anthropic.BadRequestError):
            ask(ASKED + [{"role": "assistant", "content": begun + " "}])

    def test_answer_gets_the_remaining_context(self):
        for max_tokens in (32_000, 64_000):
            self.assertEqual(ask(max_tokens=max_tokens).stop_reason, "end_turn")

    def test_line_that_changes_with_each_request_does_not_reach_the_prefix_cache(self):
        def ask_with(mark):
            billing = f"x-anthropic-billing-header: cc_version=1.0.0; cch={mark};"
            return ask(system=[{"type": "text", "text": billing},
                               {"type": "text", "text": "Answer from the text. " * 20,
                                "cache_control": {"type": "ephemeral"}}]).usage
        first, second = ask_with("11111"), ask_with("22222")
        self.assertEqual(first.input_tokens + first.cache_read_input_tokens,
                         second.input_tokens + second.cache_read_input_tokens)
        self.assertGreater(second.cache_read_input_tokens, second.input_tokens)

    def test_errors_are_the_clients_own(self):
        with self.assertRaises(anthropic.BadRequestError) as raised:
            ask(max_tokens=0)
        self.assertEqual(raised.exception.body["error"]["type"], "invalid_request_error")
        with self.assertRaises(anthropic.NotFoundError):
            client.messages.create(model="claude", messages=ASKED, max_tokens=1)


if __name__ == "__main__":
    unittest.main()
