# SPDX-License-Identifier: Apache-2.0
"""openai-python against /v1/responses, on the bundled model."""

import unittest
from pathlib import Path

import openai

from server_process import ServerProcess

MODEL = Path(__file__).resolve().parents[2] / "models/demo/diff"
QUESTION = ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. "
            "What is the magic number of Lisbon?")


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", model=MODEL))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


def ask(text=QUESTION, **options):
    return client.responses.create(model="diff", input=text, temperature=0, **options)


class ResponsesTest(unittest.TestCase):
    def test_response_has_openais_fields(self):
        response = ask(metadata={"k": "v"})
        self.assertIn("48213", response.output_text)
        self.assertEqual((response.object, response.status, response.model, response.metadata),
                         ("response", "completed", "diff", {"k": "v"}))
        self.assertEqual((response.usage.input_tokens, response.usage.output_tokens), (36, 13))
        self.assertEqual(type(response).model_validate(response.model_dump()).id, response.id)

    def test_stream_has_numbered_events_and_ends_with_the_whole(self):
        events = list(ask(stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        self.assertEqual((events[0].type, events[-1].type),
                         ("response.created", "response.completed"))
        text = "".join(event.delta for event in events
                       if event.type == "response.output_text.delta")
        self.assertEqual(text, events[-1].response.output_text)
        self.assertEqual(text, ask().output_text)

    def test_stream_helper_comes_to_the_same_response(self):
        with client.responses.stream(model="diff", input=QUESTION, temperature=0) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_text, ask().output_text)

    def test_cut_answer_is_incomplete(self):
        response = ask(max_output_tokens=3)
        self.assertEqual((response.status, response.incomplete_details.reason),
                         ("incomplete", "max_output_tokens"))

    def test_response_is_stored_continued_and_listed(self):
        first = ask()
        self.assertEqual(client.responses.retrieve(first.id).output_text, first.output_text)
        items = client.responses.input_items.list(first.id)
        self.assertEqual(items.data[0].content[0].text, QUESTION)
        again = client.responses.create(model="diff", temperature=0, max_output_tokens=8,
                                        input="And of Oslo?", previous_response_id=first.id)
        self.assertGreater(again.usage.input_tokens, first.usage.total_tokens)
        with self.assertRaises(openai.BadRequestError):
            client.responses.cancel(first.id)
        client.responses.delete(first.id)
        with self.assertRaises(openai.NotFoundError):
            client.responses.retrieve(first.id)

    def test_unsupported_features_are_refused_by_name(self):
        with self.assertRaises(openai.BadRequestError) as raised:
            ask(background=True)
        self.assertEqual(raised.exception.param, "background")


if __name__ == "__main__":
    unittest.main()
