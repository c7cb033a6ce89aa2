# SPDX-License-Identifier: Apache-2.0
"""A hub that is slow, endless or hostile, and secrets in addresses."""

import json
import threading
import unittest

from hub_case import NAME, HubTest
from hub_stub import content, dribbled, flooded, moved_to, status

ANSWER = b"HTTP/1.1 200 OK\r\n"
ESCAPE = "\x1b]0;owned\x07"


class SlowHubTest(HubTest):
    def setUp(self):
        super().setUp()
        self.end = threading.Event()
        self.addCleanup(self.end.set)

    def test_what_never_ends_is_replaced_by_the_cache(self):
        self.fetched()
        answers = {
            "body": dribbled(ANSWER + b"Content-Length: 9999\r\n\r\n{", self.end),
            "chunks": dribbled(ANSWER + b"Transfer-Encoding: chunked\r\n\r\n1;x", self.end),
            "head": dribbled(ANSWER + b"X-Slow: x", self.end),
            "redirect": dribbled(b"HTTP/1.1 302 Found\r\nLocation: /x\r\n"
                                 b"Content-Length: 9999\r\n\r\nx", self.end),
            "fields": flooded(ANSWER, b"X-More: x\r\n"),
            "hints": flooded(b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
            "whole": flooded(ANSWER + b"\r\n", b"x" * 65536),
            "error": flooded(b"HTTP/1.1 500 Oops\r\n\r\n", b"x" * 65536),
        }
        for name, answer in answers.items():
            with self.subTest(name):
                self.hub.spoil("api", answer)
                done = self.fetched(HF_HUB_ETAG_TIMEOUT="1")
                self.assertIn("hub_unavailable", done.stderr)

    def test_body_of_a_refusal_need_not_end(self):
        refusal = b"HTTP/1.1 404 Not Found\r\nX-Error-Code: RevisionNotFound\r\n\r\n"
        self.hub.spoil("api", flooded(refusal, b"x" * 65536))
        self.refused("has no revision main")

    def test_timeout_that_is_none_is_refused(self):
        for value in ("0", "x", "1.5", "99999"):
            self.refused("HF_HUB_ETAG_TIMEOUT is", value, HF_HUB_ETAG_TIMEOUT=value)


class PrintedTextTest(HubTest):
    def assert_printable(self, text: str):
        self.assertEqual([c for c in text if not c.isprintable() and c != "\n"], [], text)

    def test_escapes_of_an_answer_are_not_printed(self):
        listing = {"sha": ESCAPE, "siblings": [{"rfilename": ESCAPE + ".bin"}]}
        answers = {
            "api": [content(json.dumps(listing).encode()), status(418, ESCAPE, ESCAPE),
                    moved_to("bad" + ESCAPE + "://x/"), content(b'{"sha": "' + b"\x1b[2J")],
            "config.json": [content(b'{"model_type": "\\u001b[31m"}'), content(b"\x1b[31m")] * 2,
        }
        for name, spoiled in answers.items():
            for answer in spoiled:
                self.hub.spoil(name, answer, answer)
                done = self.inspect()
                self.assert_printable(done.stderr)
                self.hub.spoil(name)

    def test_escapes_of_a_directory_are_not_printed(self):
        folder = self.home / f"model{ESCAPE}\x9b31m"
        self.assert_printable(self.inspect(str(folder)).stderr)
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": ESCAPE}))
        self.assert_printable(self.inspect(str(folder)).stderr)

    def test_names_of_the_cache_are_not_printed_raw(self):
        self.fetched()
        (self.cache / f"models--a--{ESCAPE}").mkdir()
        (self.cache / f"models--a--{ESCAPE}" / "snapshots").mkdir()
        (self.cache / f"models--a--{ESCAPE}" / "snapshots" / ("a" * 40)).mkdir()
        done = self.run_command("models")
        self.assert_printable(done.stdout + done.stderr)


class SecretTest(HubTest):
    def setUp(self):
        super().setUp()
        self.secret = self.hub.endpoint.replace("://", "://user:s3%2Fcret@")

    def test_password_of_the_endpoint_is_sent_and_not_printed(self):
        done = self.fetched(HF_ENDPOINT=self.secret)
        self.assertNotIn("s3", done.stdout + done.stderr)
        self.assertEqual(self.hub.asked("api")[0]["Authorization"], "Basic dXNlcjpzMy9jcmV0")
        self.assertNotIn("Authorization", self.hub.asked("model.safetensors")[0],
                         "which is on another host")

    def test_errors_do_not_name_it(self):
        for answer in (status(500), status(404, "RepoNotFound"), status(401, "GatedRepo"),
                       status(429), content(b"<html>"), moved_to("http://x/")):
            self.hub.spoil("api", *[answer] * 6)
            self.assertNotIn("s3", self.inspect(HF_ENDPOINT=self.secret).stderr)
        for endpoint in ("user:s3cret@host", "https://user:s3/cret@host", "ftp://u:s3@h",
                         "https://user:s3?x@host"):
            line = self.refused("HF_ENDPOINT", HF_ENDPOINT=endpoint)
            self.assertNotIn("s3", line)

    def test_password_of_a_proxy_is_not_printed(self):
        for proxy in ("http://user:s3cret@127.0.0.1:port", "odd://user:s3cret@127.0.0.1:1"):
            done = self.inspect(HTTPS_PROXY=proxy)
            self.assertEqual(done.returncode, 1)
            self.assertNotIn("s3cret", done.stderr)


if __name__ == "__main__":
    unittest.main()
