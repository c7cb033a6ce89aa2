# SPDX-License-Identifier: Apache-2.0
"""Requests longer than the model's context: how client libraries read the error."""

import json
import re
import unittest

import anthropic
import grpc
import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI

from grpc_client import channel, pb, pb_grpc
from server_process import Response, ServerProcess

CONTEXT = 256
LONG, TOO_MANY_BYTES = "a b c d " * 60, "hello " * 3000
CONTEXT_WORDS = (r"; that exceeds the context window; this model's maximum context length is 256 "
                 r"tokens \(context_length_exceeded\)$")
TOO_LONG = re.compile(r"^prompt is too long: (\d+) tokens > (\d+) maximum\b.*" + CONTEXT_WORDS)
EXCEEDS = re.compile(r"^input length and `(\w+)` exceed context limit: (\d+) \+ (\d+) > (\d+), "
                     r"decrease input length or `(\w+)` and try again" + CONTEXT_WORDS)


def setUpModule():
    global server
    server = unittest.enterModuleContext(ServerProcess("--max-model-len", CONTEXT))


def chat(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


RESPONSES = "/v1/responses"
# name, path, body for a text, name of the answer's limit
OPENAI = [
    ("chat", "/v1/chat/completions", lambda text: {"messages": chat(text)},
     "max_completion_tokens"),
    ("chat of old", "/v1/chat/completions", lambda text: {"messages": chat(text)}, "max_tokens"),
    ("completions", "/v1/completions", lambda text: {"prompt": text}, "max_tokens"),
    ("two prompts", "/v1/completions", lambda text: {"prompt": ["a", text]}, "max_tokens"),
    ("responses", RESPONSES, lambda text: {"input": text}, "max_output_tokens"),
    ("responses of items", RESPONSES,
     lambda text: {"instructions": "be short", "input": chat(text)}, "max_output_tokens"),
]


class RecognisedTest(unittest.TestCase):
    def check(self, response, pattern):
        self.assertEqual(response.status, 400, response.body)
        error = response.error
        self.assertEqual(error["type"], "invalid_request_error")
        self.assertRegex(error["message"], pattern)
        return error

    def failed_stream(self, response) -> Response:
        """OpenAI's stream for a too long input: two events that begin, `error` with the error as
        the member of that name, and `response.failed`. Returns its error as a reply."""
        self.assertEqual(response.status, 200)
        self.assertEqual(response.headers["content-type"], "text/event-stream; charset=utf-8")
        frames = [frame.split("\n") for frame in response.body.decode().strip().split("\n\n")]
        events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
        self.assertEqual([name for name, _ in frames], [f"event: {e['type']}" for e in events])
        self.assertEqual([(e["type"], e["sequence_number"]) for e in events],
                         [("response.created", 0), ("response.in_progress", 1), ("error", 2),
                          ("response.failed", 3)])
        self.assertEqual([e["response"]["status"] for e in events if "response" in e],
                         ["in_progress", "in_progress", "failed"])
        error, failed = events[2]["error"], events[3]["response"]
        self.assertEqual(set(error), {"type", "code", "message", "param"})
        self.assertEqual(failed["error"], {"code": error["code"], "message": error["message"]})
        self.assertEqual(failed["output"], [])
        stored = server.get(f"{RESPONSES}/{failed['id']}").json()
        self.assertEqual((stored["status"], stored["error"]), ("failed", failed["error"]))
        return Response(400, {}, json.dumps({"error": error}).encode())

    def test_other_errors_before_a_stream_are_http_statuses(self):
        for more, status in (({"model": "other"}, 404), ({"temperature": -1}, 400),
                             ({"input": []}, 400), ({"previous_response_id": "resp_0"}, 404)):
            with self.subTest(more=more):
                response = server.post(RESPONSES, {"input": "hi", "stream": True} | more)
                self.assertEqual(response.status, status)
                self.assertEqual(response.headers["content-type"], "application/json")

    def test_every_openai_route_returns_the_code(self):
        for name, path, body, limit in OPENAI:
            for text in (LONG, TOO_MANY_BYTES):
                for stream in (False, True):
                    with self.subTest(route=name, bytes=len(text), stream=stream):
                        response = server.post(path, body(text) | {limit: 16, "stream": stream})
                        if stream and path == RESPONSES:
                            response = self.failed_stream(response)
                        error = self.check(response, TOO_LONG)
                        self.assertEqual(error["code"], "context_length_exceeded")
                        found, allowed = map(int, TOO_LONG.match(error["message"]).groups())
                        self.assertGreater(found, allowed)
                        self.assertEqual(allowed, CONTEXT)
            with self.subTest(route=name, limit=limit):
                error = self.check(server.post(path, body("hi") | {limit: 4096}), EXCEEDS)
                self.assertEqual((error["code"], error["param"]),
                                 ("context_length_exceeded", limit))
                named, length, asked, context, again = EXCEEDS.match(error["message"]).groups()
                self.assertEqual((named, again, asked, context), (limit, limit, "4096", "256"))
                self.assertIn(int(length), range(1, CONTEXT))

    def test_token_ids_embeddings_attention_and_tokens_in_return_it(self):
        ids = [5] * (CONTEXT + 1)
        cases = [("/v1/completions", {"prompt": ids}),
                 ("/inference/v1/generate", {"token_ids": ids, "sampling_params": {}}),
                 ("/v1/embeddings", {"input": ids}), ("/v1/embeddings", {"input": [LONG]}),
                 ("/v1/attention", {"tokens": ids}), ("/v1/attention", {"text": LONG})]
        for path, body in cases:
            with self.subTest(path=path):
                error = self.check(server.post(path, body), TOO_LONG)
                self.assertEqual(error["code"], "context_length_exceeded")

    def test_prompt_that_leaves_no_token_for_the_answer_is_too_long(self):
        error = self.check(server.post("/v1/completions", {"prompt": [5] * CONTEXT}), TOO_LONG)
        self.assertEqual(TOO_LONG.match(error["message"]).groups(), ("256", "255"))
        fits = server.post("/v1/completions", {"prompt": [5] * (CONTEXT - 1)})
        self.assertEqual(fits.json()["usage"]["completion_tokens"], 1)

    def test_other_mistakes_have_no_such_code(self):
        for body in ({"prompt": "a", "max_tokens": -1}, {"prompt": "a", "n": 0},
                     {"prompt": "a", "max_tokens": 1, "min_tokens": 2}):
            error = server.post("/v1/completions", body).error
            self.assertEqual(error["code"], None, error)

    def test_messages_returns_anthropics_form(self):
        for text in (LONG, TOO_MANY_BYTES):
            for stream in (False, True):
                body = {"messages": chat(text), "max_tokens": 5, "stream": stream}
                with self.subTest(bytes=len(text), stream=stream):
                    response = server.post("/v1/messages", body)
                    self.assertEqual(response.json()["type"], "error")
                    error = self.check(response, TOO_LONG)
                    self.assertEqual(set(error), {"type", "message"})

    def test_grpc_returns_the_same_words(self):
        with channel(server) as connection:
            stub = pb_grpc.InferenceStub(connection)
            with self.assertRaises(grpc.RpcError) as raised:
                list(stub.Generate(pb.GenerateRequest(text=LONG)))
        self.assertEqual(raised.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertRegex(raised.exception.details(), TOO_LONG)


class SdkTest(unittest.TestCase):
    def test_langchain_raises_its_own_class(self):
        options = {
            "base_url": server.url + "/v1", "api_key": "unused", "model": server.name,
            "max_retries": 0
        }
        for kind, more in (("chat", {}), ("responses", {"use_responses_api": True})):
            for text in (LONG, TOO_MANY_BYTES):
                model = ChatOpenAI(**options, **more)
                with self.subTest(api=kind, bytes=len(text)):
                    with self.assertRaises(ContextOverflowError):
                        model.invoke(text)
                    with self.assertRaises(ContextOverflowError):
                        list(model.stream(text))
        with self.assertRaises(ContextOverflowError):
            ChatOpenAI(**options, max_tokens=4096).invoke("hi")

    def test_openais_client_gets_the_code(self):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
        for stream in (False, True):
            with self.assertRaises(openai.BadRequestError) as raised:
                client.chat.completions.create(model=server.name, messages=chat(LONG),
                                               stream=stream)
            self.assertEqual(raised.exception.code, "context_length_exceeded")

    def test_openais_client_gets_the_code_of_responses(self):
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)
        for text in (LONG, TOO_MANY_BYTES):
            with self.assertRaises(openai.BadRequestError) as raised:
                client.responses.create(model=server.name, input=text)
            self.assertEqual(raised.exception.code, "context_length_exceeded")
            events = []
            with self.assertRaises(openai.APIError) as raised:
                for event in client.responses.create(model=server.name, input=text, stream=True):
                    events.append(event.type)
            self.assertEqual(raised.exception.code, "context_length_exceeded")
            self.assertRegex(raised.exception.message, TOO_LONG)
            self.assertEqual(events, ["response.created", "response.in_progress"])

    def test_anthropics_client_gets_the_words(self):
        client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0)
        with self.assertRaises(anthropic.BadRequestError) as raised:
            client.messages.create(model=server.name, messages=chat(LONG), max_tokens=5)
        self.assertRegex(raised.exception.body["error"]["message"], TOO_LONG)
