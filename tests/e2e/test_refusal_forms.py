# SPDX-License-Identifier: Apache-2.0
"""Refusals before a route runs have the format of the path's API and are readable by web pages of
allowed origins."""

import gzip
import json
import tempfile
import unittest

import anthropic
import openai
from raw_http import exchange
from server_process import DEVICE, ServerProcess

PAGES = ("https://chat.example.com", "http://localhost:3000")
OTHER = "https://evil.example.com"
KEY = "sk-key"
MESSAGES, CHAT = "/v1/messages", "/v1/chat/completions"
LIMIT = 4 << 20
ORIGIN = "access-control-allow-origin"

# What is asked, the status, the type in Anthropic's form and in OpenAI's. In the bytes PATH and
# ORIGIN are the test's; a head of its own line end is what each one has.
HEAD = b"POST PATH HTTP/1.1\r\nHost: localhost\r\nOrigin: ORIGIN\r\n"
KEYED = HEAD + b"X-Api-Key: " + KEY.encode() + b"\r\n"
JSON = KEYED + b"Content-Type: application/json\r\n"
WRONG = "invalid_request_error"
BOMB = gzip.compress(bytes(LIMIT + 1))
REFUSALS = (
    ("no key", HEAD + b"Content-Length: 2\r\n\r\n{}", 401, "authentication_error",
     "authentication_error"),
    ("method", KEYED.replace(b"POST", b"PUT") + b"\r\n", 405, WRONG, WRONG),
    ("type", KEYED + b"Content-Type: text/plain\r\nContent-Length: 1\r\n\r\nx", 415, WRONG, WRONG),
    ("coding", JSON + b"Content-Encoding: br\r\nContent-Length: 1\r\n\r\nx", 415, WRONG, WRONG),
    ("length", JSON + b"Content-Length: 5000000\r\n\r\n", 413, "request_too_large", WRONG),
    ("chunks", JSON + b"Transfer-Encoding: chunked\r\n\r\n4c4b40\r\n", 413, "request_too_large",
     WRONG),
    ("bomb", JSON + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(BOMB) + BOMB, 413,
     "request_too_large", WRONG),
    ("chunk", JSON + b"Transfer-Encoding: chunked\r\n\r\nxy\r\n", 400, WRONG, WRONG),
    ("target", JSON.replace(b"PATH", b"PATH?" + b"a" * 8192) + b"\r\n", 414, WRONG, WRONG),
    ("fields", JSON + b"X-A: b\r\n" * 100 + b"\r\n", 431, WRONG, WRONG),
    ("expectation", JSON + b"Expect: tea\r\n\r\n", 417, WRONG, WRONG),
    ("coding of transfer", JSON + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501, WRONG, WRONG),
    ("last coding of transfer", JSON + b"Transfer-Encoding: gzip\r\n\r\n", 400, WRONG, WRONG),
    ("version", JSON.replace(b"HTTP/1.1", b"HTTP/1.2") + b"\r\n", 505, WRONG, WRONG),
    ("two lengths", JSON + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\n", 400, WRONG, WRONG),
    ("no colon", JSON + b"nonsense\r\n\r\n", 400, WRONG, WRONG),
    ("NUL", JSON + b"X-A: \0\r\n\r\n", 400, WRONG, WRONG),
    ("bare LF", JSON + b"X-A: b\nX-C: d\r\n\r\n", 400, WRONG, WRONG),
    ("folded", JSON + b"X-A: b\r\n c\r\n\r\n", 400, WRONG, WRONG),
    ("size of the head", JSON + b"X-A: " + b"a" * (17 << 10) + b"\r\n\r\n", 431, WRONG, WRONG),
)


class RefusalFormsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.NamedTemporaryFile("w") as keys:
            keys.write(KEY + "\n")
            keys.flush()
            cls.server = ServerProcess("--device", DEVICE, "--api-key-file", keys.name,
                                       "--cors-origin", PAGES[0], "--cors-origin", PAGES[1])
            cls.server.__enter__()
        cls.addClassCleanup(cls.server.__exit__, None, None, None)

    def ask(self, request: bytes, path: str, origin: str):
        request = request.replace(b"PATH", path.encode()).replace(b"ORIGIN", origin.encode())
        return exchange(self.server.port, request)

    def check_form(self, answer, kind: str, anthropic_form: bool):
        body = json.loads(answer.body)
        self.assertEqual(body["error"]["type"], kind)
        self.assertEqual(body.get("type"), "error" if anthropic_form else None)
        self.assertEqual("param" in body["error"], not anthropic_form)

    def test_refusal_has_the_form_of_the_api(self):
        for name, request, status, of_messages, of_openai in REFUSALS:
            for path in (MESSAGES, MESSAGES + "/count_tokens", CHAT, "/v1/responses"):
                with self.subTest(name, path=path):
                    answer = self.ask(request, path, PAGES[0])
                    self.assertEqual(answer.status, status, answer.body)
                    is_messages = path.startswith(MESSAGES)
                    self.check_form(answer, of_messages if is_messages else of_openai, is_messages)

    def test_unknown_path_is_refused_in_its_apis_form(self):
        for path, is_messages in ((MESSAGES + "/batches", True), (MESSAGES + "/", True),
                                  ("/v1/messagesx", False), ("/v1/threads", False)):
            with self.subTest(path=path):
                answer = self.ask(KEYED + b"\r\n", path, PAGES[0])
                self.assertEqual(answer.status, 404)
                self.check_form(answer, "not_found_error", is_messages)

    def test_listed_page_can_read_each_refusal_and_no_other_page_can(self):
        for name, request, status, *_ in REFUSALS:
            for origin, allowed in ((PAGES[0], PAGES[0]), (PAGES[1], PAGES[1]), (OTHER, None)):
                with self.subTest(name, origin=origin):
                    answer = self.ask(request, CHAT, origin)
                    self.assertEqual(answer.status, status)
                    self.assertEqual(answer.headers.get(ORIGIN), allowed)
                    self.assertEqual(answer.headers.get("vary"), "Origin")

    def test_sdks_know_what_was_refused(self):
        url = f"http://127.0.0.1:{self.server.port}"
        turn = [{"role": "user", "content": "x" * (LIMIT + 1)}]
        claude = anthropic.Anthropic(base_url=url, api_key=KEY, max_retries=0)
        with self.assertRaises(anthropic.APIStatusError) as raised:
            claude.messages.create(model="tiny", max_tokens=1, messages=turn)
        self.assertEqual(raised.exception.status_code, 413)
        self.assertEqual(raised.exception.body["error"]["type"], "request_too_large")
        with self.assertRaises(anthropic.NotFoundError) as raised:
            claude.messages.batches.list()
        self.assertEqual(raised.exception.body["error"]["type"], "not_found_error")
        stranger = anthropic.Anthropic(base_url=url, api_key="sk-other", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError) as raised:
            stranger.messages.create(model="tiny", max_tokens=1, messages=turn[:0])
        self.assertEqual(raised.exception.body["error"]["type"], "authentication_error")
        gpt = openai.OpenAI(base_url=url + "/v1", api_key=KEY, max_retries=0)
        with self.assertRaises(openai.APIStatusError) as raised:
            gpt.chat.completions.create(model="tiny", messages=turn)
        self.assertEqual((raised.exception.status_code, raised.exception.type), (413, WRONG))


if __name__ == "__main__":
    unittest.main()
