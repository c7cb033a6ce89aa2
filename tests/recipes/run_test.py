#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run.py notices each way in which a page and its program can differ."""

import contextlib
import io
import tempfile
import unittest
from pathlib import Path

import run

SERVES = """\
<!-- not run: tests/recipes/run.sh serves it -->
```bash
build/diffserve serve models/demo/diff
```
"""
ASKS = """\
```bash
curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \\
  -d '{"model": "diff", "prompt": "Hello", "max_tokens": 2}' | grep -o '"object":"[^"]*"'
```
"""
SHOWS = """
```text
"object":"text_completion"
```
"""
INSTALLS = """\
<!-- not run: tests/recipes/run.sh installs it -->
```bash
npm install -g @openai/codex@{version} cline@3.0.65
```
"""


class PageTest(unittest.TestCase):
    def follow(self, text):
        """(passed, failed, what was printed) of a page with this text."""
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "page.md"
            page.write_text(text)
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                passed, failed = run.follow(page, scripted=None)
        return passed, failed, printed.getvalue()

    def check_failure(self, text, words):
        _, failed, printed = self.follow(text)
        self.assertEqual(failed, 1, printed)
        self.assertIn(words, printed)

    def test_true_page_passes(self):
        self.assertEqual(self.follow(SERVES + ASKS + SHOWS)[:2], (3, 0))
        self.assertEqual(self.follow(SERVES + ASKS + SHOWS.replace("text_", "..."))[:2], (3, 0))
        self.assertEqual(self.follow(SERVES + "```bash\ntrue\n```\n" + ASKS)[:2], (4, 0))

    def test_other_output_fails(self):
        self.check_failure(SERVES + ASKS + SHOWS.replace("text_", "chat."), "page:5 runs: printed")

    def test_failing_command_fails_and_ends_the_page(self):
        self.check_failure(SERVES + "```bash\nfalse | true\n```\n" + ASKS, "exit code 1")

    def test_refused_request_fails(self):
        refused = ASKS.replace('"prompt"', '"suffix": "x", "prompt"').replace("object", "param")
        self.check_failure(SERVES + refused + ASKS, "the server refused requests")

    def test_page_that_asks_for_no_answer_fails(self):
        self.check_failure(SERVES, "the server generated no token")
        self.check_failure("```bash\ntrue\n```\n", "the page starts no server")

    def test_program_that_does_not_listen_fails(self):
        starts = ("<!-- not run: tests/recipes/run.sh starts it -->\n"
                  "```bash\necho no > /dev/stderr # 127.0.0.1:4000\n```\n")
        self.check_failure(SERVES + starts, "the program has ended")

    def test_other_version_fails(self):
        versions = run.installed("codex")
        right = INSTALLS.format(version=versions["@openai/codex"])
        self.assertEqual(self.follow(right + SERVES + ASKS)[:2], (4, 0))
        self.check_failure(INSTALLS.format(version="0.1.0"), "the page says 0.1.0")

    def test_block_that_cannot_run_is_left_out(self):
        skipped = "<!-- not run: needs a container runtime -->\n```bash\nfalse\n```\n"
        self.assertEqual(self.follow(skipped + SERVES + ASKS)[:2], (3, 0))


if __name__ == "__main__":
    unittest.main(warnings="ignore")
