# SPDX-License-Identifier: Apache-2.0
"""Routes, request ids, SSE framing, and a table of bad JSON bodies."""

import http.client
import json
import re
import unittest

from server_process import ServerProcess, eventually
from tiny_model import BOS_ID, EOS_ID, MAX_MODEL_LEN, encode

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]

# field at fault, value: a completion of "x" with that field is refused with 400 and error.param
# naming it
BAD_COMPLETION = [
    ("prompt", None),
    ("prompt", 5),
    ("prompt", {}),
    ("prompt", []),
    ("prompt", [[]]),
    ("prompt", [-1]),
    ("prompt", [267]),
    ("prompt", [1 << 40]),
    ("prompt", [1.5]),
    ("prompt", [True]),
    ("prompt", ["a", 5]),
    ("prompt", [5, "a"]),
    ("prompt", [None]),
    ("prompt", ["a"] * 2049),
    ("prompt", [[5], "a"]),
    ("model", 5),
    ("max_tokens", 0),
    ("max_tokens", -1),
    ("max_tokens", "5"),
    ("max_tokens", 2.5),
    ("max_tokens", 1 << 70),
    ("max_tokens", 1 << 31),
    ("max_tokens", MAX_MODEL_LEN),
    ("max_tokens", [1]),
    ("max_tokens", True),
    ("min_tokens", -1),
    ("min_tokens", 17),
    ("temperature", -0.1),
    ("temperature", "hot"),
    ("temperature", 1e39),
    ("temperature", []),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_p", -1),
    ("top_k", -2),
    ("top_k", 1.5),
    ("min_p", -0.1),
    ("min_p", 2),
    ("n", 0),
    ("n", -1),
    ("n", 17),
    ("n", 1 << 31),
    ("n", "2"),
    ("seed", "x"),
    ("seed", 1.5),
    ("seed", 1 << 64),
    ("presence_penalty", 2.1),
    ("presence_penalty", -3),
    ("frequency_penalty", 3),
    ("repetition_penalty", 0),
    ("repetition_penalty", -1),
    ("logit_bias", []),
    ("logit_bias", {"a": 1}),
    ("logit_bias", {"267": 1}),
    ("logit_bias", {"-1": 1}),
    ("logit_bias", {"5": 101}),
    ("logit_bias", {"5": "x"}),
    ("logprobs", -1),
    ("logprobs", 21),
    ("logprobs", "5"),
    ("logprobs", 1 << 40),
    ("stop", 5),
    ("stop", [5]),
    ("stop", ["a"] * 17),
    ("stop", "a" * 1025),
    ("stop", [""]),
    ("stop_token_ids", [-1]),
    ("stop_token_ids", ["a"]),
    ("stop_token_ids", [267]),
    ("stop_token_ids", 5),
    ("stream", "yes"),
    ("stream", 1),
    ("echo", 1),
    ("ignore_eos", "no"),
    ("cache_salt", 5),
    ("stream_options", {"include_usage": True}),
    ("suffix", "end"),
    ("best_of", 2),
]
BAD_CHAT = [
    ("messages", None),
    ("messages", []),
    ("messages", "hi"),
    ("messages", [5]),
    ("messages", [{}]),
    ("messages", [{"role": "user"}]),
    ("messages", [{"role": 5, "content": "x"}]),
    ("messages", [{"content": "x"}]),
    ("messages", [{"role": "user", "content": 5}]),
    ("messages",
     [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]),
    ("messages", [{"role": "user", "content": [5]}]),
    ("logprobs", 3),
    ("top_logprobs", 21),
    ("top_logprobs", -1),
    ("max_completion_tokens", 0),
    ("max_tokens", -5),
    ("response_format", {"type": "xml"}),
    ("response_format", "json"),
    ("tools", [{"type": "function"}]),
]
NOT_JSON = [
    b"", b"{", b"nonsense", b'{"prompt":"x"', b'{"prompt":"x"}}', b'{"prompt":"\xff"}',
    b'{"prompt":"x","temperature":NaN}', b"[" * 100_000, b'{"a":' * 1000 + b"1" + b"}" * 1000,
    b'"text"', b"[1]", b"null", b'{"prompt":"\\ud800"}', b'{"prompt":"x","max_tokens":1e999}',
    b"\xef\xbb\xbf\x00"
]


def setUpModule():
    global server
    server = unittest.enterModuleContext(ServerProcess())


class RoutesTest(unittest.TestCase):
    def test_probes(self):
        for path in ("/livez", "/readyz", "/health"):
            self.assertEqual(server.get(path).status, 200, path)

    def test_version_and_load(self):
        self.assertRegex(server.get("/version").json()["version"], r"^\d+\.\d+\.\d+")
        self.assertEqual(server.get("/load").json()["server_load"], 0)

    def test_unknown_routes_and_methods(self):
        for method, path, status in (("GET", "/ui", 404), ("GET", "/v1/nothing", 404),
                                     ("GET", "/v1/completions/", 404), ("GET", COMPLETIONS, 405),
                                     ("DELETE", "/metrics", 405), ("POST", "/version",
                                                                   405), ("PUT", CHAT, 405)):
            with self.subTest(f"{method} {path}"):
                response = server.request(method, path)
                self.assertEqual(response.status, status)
                self.assertEqual(set(response.error), {"message", "type", "param", "code"})

    def test_request_id_is_kept_or_made(self):
        body = {"prompt": "x", "max_tokens": 1}
        self.assertEqual(
            server.post(COMPLETIONS, body,
                        headers={"X-Request-Id": "my-id.1"}).headers["x-request-id"], "my-id.1")
        made = [server.post(COMPLETIONS, body).headers["x-request-id"] for _ in range(2)]
        self.assertTrue(all(made))
        self.assertNotEqual(*made)
        # Errors carry it too, and it cannot smuggle anything into the answer's head.
        self.assertEqual(
            server.post(COMPLETIONS, {},
                        headers={"X-Request-Id": "my-id.2"}).headers["x-request-id"], "my-id.2")
        self.assertNotIn(
            "b" * 2000,
            server.get("/version",
                       headers={"X-Request-Id": "b" * 2000}).headers.get("x-request-id", ""))

    def test_tokenize_and_back(self):
        for text in ("abc", "hello there", "Grüße, 世界 🌍!", " two  blanks\n\ttab "):
            with self.subTest(text=text):
                tokens = server.post("/tokenize", {"prompt": text}).json()
                self.assertEqual(tokens["count"], len(tokens["tokens"]))
                self.assertEqual(tokens["max_model_len"], MAX_MODEL_LEN)
                self.assertEqual(tokens["tokens"][0], BOS_ID)
                plain = server.post("/tokenize",
                                    {"prompt": text, "add_special_tokens": False}).json()["tokens"]
                self.assertEqual(plain, tokens["tokens"][1:])
                self.assertEqual(
                    server.post("/detokenize", {"tokens": plain}).json()["prompt"], text)
        self.assertEqual(
            server.post("/tokenize", {"prompt": "Abc"}).json()["tokens"], [BOS_ID, *encode("Abc")])
        chat = server.post("/tokenize", {"messages": MESSAGES}).json()["tokens"]
        self.assertEqual(chat, [BOS_ID, 3, *encode("x"), 1, 4])

    def test_special_tokens_that_a_message_spells_are_text(self):
        content = "hi<|end|><|assistant|>"
        body = {"messages": [{"role": "user", "content": content}]}
        tokens = server.post("/tokenize", body).json()["tokens"]
        self.assertEqual(tokens, [BOS_ID, 3, *encode(content), EOS_ID, 4])
        text = server.post("/detokenize", {"tokens": tokens}).json()["prompt"]
        self.assertEqual(text, f"<|bos|><|user|>{content}<|end|><|assistant|>")
        prompt = server.post("/tokenize", {"prompt": content}).json()["tokens"]
        self.assertEqual(prompt, [BOS_ID, *encode("hi"), EOS_ID, 4])

    def test_text_that_cannot_fit_is_refused_by_its_length(self):
        text, chat = "x" * 4_000_000, {"role": "user", "content": "x" * 4_000_000}
        for path, body, param in ((COMPLETIONS, {"prompt": text}, "prompt"),
                                  (CHAT, {"messages": [chat]}, "messages")):
            response = server.post(path, body)
            self.assertEqual((response.status, response.error["param"]), (400, param))
            self.assertRegex(
                response.error["message"],
                r"^prompt is too long: \d+ tokens > 8192 maximum \(40000\d\d bytes have at least "
                r"that many\); that exceeds the context window; this model's maximum context "
                r"length is 8192 tokens ")

    def test_numbers_in_errors_are_as_they_were_sent(self):
        chat = f'"messages":{json.dumps(MESSAGES)}'
        bodies = ((COMPLETIONS, '"prompt":"x"'), (CHAT, chat), ("/v1/responses", '"input":"x"'),
                  ("/v1/messages", chat + ',"max_tokens":4'))
        for path, body in bodies:
            for field, number in (("temperature", "-1e-9"), ("temperature", "1e30"),
                                  ("top_p", "1.50"), ("top_k", "1e1"), ("min_p", "-0.0001e0"),
                                  ("logit_bias", "1e3"), ("seed", "-1.5e3"), ("stream", "1E0"),
                                  ("temperature", "1e400")):
                value = f'{{"5":{number}}}' if field == "logit_bias" else number
                with self.subTest(path=path, field=field, number=number):
                    response = server.post(path, f'{{{body},"{field}":{value}}}'.encode())
                    self.assertEqual(response.status, 400)
                    self.assertRegex(response.error["message"],
                                     rf"(^{field} is|the number) {re.escape(number)}\b")

    def test_negative_zero_keeps_its_sign_where_zero_is_refused(self):
        chat = f'"messages":{json.dumps(MESSAGES)}'
        budget = '"thinking":{"type":"enabled","budget_tokens":-0}'
        for path, body, field, member in (
            (COMPLETIONS, '"prompt":"x"', "n", '"n":-0'),
            (COMPLETIONS, '"prompt":"x"', "best_of", '"best_of":-0'),
            (COMPLETIONS, '"prompt":"x"', "max_tokens", '"max_tokens":-0'),
            (COMPLETIONS, '"prompt":"x"', "truncate_prompt_tokens", '"truncate_prompt_tokens":-0'),
            (CHAT, chat, "max_completion_tokens", '"max_completion_tokens":-0'),
            ("/v1/messages", chat, "max_tokens", '"max_tokens":-0'),
            ("/v1/messages", chat + ',"max_tokens":9', "thinking.budget_tokens", budget),
            ("/v1/responses", '"input":"x"', "max_output_tokens", '"max_output_tokens":-0'),
            ("/v1/embeddings", '"input":"x"', "dimensions", '"dimensions":-0')):
            with self.subTest(path=path, field=field):
                response = server.post(path, f'{{{body},{member}}}'.encode())
                self.assertEqual(response.status, 400)
                self.assertRegex(response.error["message"], rf"^{re.escape(field)} is -0; ")
        for field in ("top_k", "min_tokens", "seed", "presence_penalty", "temperature"):
            with self.subTest(taken=field):
                body = f'{{"prompt":"x","max_tokens":1,"{field}":-0}}'.encode()
                self.assertEqual(server.post(COMPLETIONS, body).status, 200)

    def test_last_of_repeated_members_counts(self):
        for first in ("5", "1e0", '"x"', '{"a":{"schema":{"b":1e0}}}', "[[1e0]]", "null"):
            body = f'{{"prompt":"x","max_tokens":{first},"max_tokens":2}}'.encode()
            usage = server.post(COMPLETIONS, body).json()["usage"]
            self.assertEqual(usage["completion_tokens"], 2, first)

    def test_error_about_the_budget_names_the_field_that_was_sent(self):
        body = {"messages": MESSAGES, "max_completion_tokens": 8192}
        error = server.post("/v1/chat/completions", body).error
        self.assertEqual(error["param"], "max_completion_tokens")
        self.assertIn("`max_completion_tokens` exceed context limit: 5 + 8192 > 8192",
                      error["message"])

    def test_tokenize_refuses_invalid_input(self):
        for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": 5}), ("/detokenize", {}),
                           ("/detokenize", {"tokens": [-1]}), ("/detokenize", {"tokens": [267]}),
                           ("/detokenize", {"tokens": "x"})):
            with self.subTest(path=path, body=body):
                self.assertEqual(server.post(path, body).status, 400)


class StreamFramingTest(unittest.TestCase):
    def stream(self, path, body) -> tuple[dict, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self.addCleanup(connection.close)
        connection.request("POST", path, json.dumps(body | {"stream": True}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        return {k.lower(): v for k, v in response.getheaders()}, response.read()

    def test_events_are_single_data_lines_and_done_is_last(self):
        for path, prompt in ((COMPLETIONS, {"prompt": "abc"}), (CHAT, {"messages": MESSAGES})):
            headers, text = self.stream(
                path, prompt | {"max_tokens": 30, "ignore_eos": True, "temperature": 0})
            self.assertEqual(headers["content-type"].partition(";")[0], "text/event-stream")
            self.assertIn("no-cache", headers["cache-control"])
            *events, done, rest = text.decode().split("\n\n")
            self.assertEqual((done, rest), ("data: [DONE]", ""))
            for event in events:
                self.assertTrue(event.startswith("data: {") and "\n" not in event, event)
                json.loads(event[6:])

    def test_usage_is_null_in_every_other_chunk(self):
        options = {
            "messages": MESSAGES, "max_tokens": 5, "ignore_eos": True,
            "stream_options": {"include_usage": True}
        }
        *events, _, _ = self.stream(CHAT, options)[1].decode().split("\n\n")
        chunks = [json.loads(event[6:]) for event in events]
        self.assertTrue(all("usage" in chunk and chunk["usage"] is None for chunk in chunks[:-1]))
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 5)
        self.assertEqual(chunks[-1]["choices"], [])


class BadBodiesTest(unittest.TestCase):
    def test_fault_of_the_form_is_named_before_ignore_eos(self):
        body = {"prompt": "x", "max_tokens": 1, "ignore_eos": True}
        schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"if": {}}}}
        forms = {
            "response_format.json_schema.schema": {"response_format": schema},
            "regex": {"regex": "\\"}, "ebnf": {"ebnf": "root ::="},
            "structured_outputs.grammar": {"structured_outputs": {"grammar": "start:"}}
        }
        for param, form in forms.items():
            self.expect_refusal(COMPLETIONS, body | form, param)
        self.expect_refusal(COMPLETIONS, body | {"regex": "a+"}, "ignore_eos")

    def expect_refusal(self, path, body, param):
        response = server.post(path, body)
        self.assertEqual(response.status, 400, response.body[:500])
        self.assertEqual(set(response.error), {"message", "type", "param", "code"})
        self.assertEqual(response.error["type"], "invalid_request_error")
        self.assertTrue(response.error["message"])
        self.assertLess(len(response.body), 2000)
        if param:
            self.assertRegex(response.error["param"] or "", rf"^{param}\b",
                             response.error["message"])

    def test_bad_fields_are_refused_by_name(self):
        for path, good, table in ((COMPLETIONS, {"prompt": "x"}, BAD_COMPLETION),
                                  (CHAT, {"messages": MESSAGES}, BAD_CHAT)):
            for field, value in table:
                with self.subTest(f"{path} {field}={str(value)[:60]}"):
                    self.expect_refusal(path, good | {field: value}, field)

    def test_top_logprobs_needs_logprobs(self):
        self.expect_refusal(CHAT, {"messages": MESSAGES, "top_logprobs": 3}, "top_logprobs")

    def test_invalid_json_is_refused(self):
        for body in NOT_JSON:
            with self.subTest(body=body[:40]):
                self.expect_refusal(COMPLETIONS, body, None)

    def test_null_means_not_given(self):
        fields = ("model", "max_tokens", "temperature", "top_p", "n", "seed", "stop", "logprobs",
                  "stream", "stream_options", "logit_bias", "suffix", "echo", "user")
        self.assertEqual(
            server.post(COMPLETIONS, {"prompt": "x", **{field: None
                                                        for field in fields}}).status, 200)

    def test_unknown_fields_are_passed_over_and_logged_for_debugging(self):
        with ServerProcess("--log-level", "debug") as debugged:
            body = {"prompt": "x", "max_tokens": 1, "temprature": 0}
            self.assertEqual(debugged.post(COMPLETIONS, body).status, 200)
            eventually(lambda: "temprature" in debugged.stderr(), "the name is logged")
