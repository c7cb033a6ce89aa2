# SPDX-License-Identifier: Apache-2.0
"""The page as a whole: loaded files, access, keys, and text that looks like markup."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from browser import Browser
from server_process import DEMO_MODEL, ServerProcess

KEY = "sk-canary-0123456789abcdef"
VIEWS = ("", "#chat", "#engine", "#lens")
HOSTILE = {
    "markup": "<img src=x onerror='window.hacked=1'><script>window.hacked=1</script></p>&lt;&#60;",
    "right to left": "\u202eabc\u202c שלום עולם \u2066\u200f!",
    "a line of 10,000 characters": "x" * 10000,
    "control characters": "a\x01\x02\x07\x08\x1b[31m\x7fb\u0085c",
    "surrogates and marks": "\U0001f600e\u0301\u0301\u0301\ufeff",
}


class LoadingTest(unittest.TestCase):
    def test_every_view_loads_without_an_error_or_a_foreign_request(self):
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            self.assertIn(f"page address={server.url}/", server.stderr())
            for view in VIEWS:
                page.open(view)
                page.one(f"section{view}" if view else "#chat")
                page.until_text("#model", "diff")
            page.until_text("#lens_what", "token")
            self.assertEqual(page.text("#notice"), "")
            page.check()
            paint = page.run("return performance.getEntriesByName('first-contentful-paint')"
                             "[0]?.startTime")
            self.assertIsNotNone(paint)
            print(f"\nfirst contentful paint after {paint:.0f} ms", flush=True)

    def test_page_can_be_turned_off(self):
        with ServerProcess("--no-ui") as server:
            for path in ("/", "/ui/main.js", "/ui/style.css"):
                self.assertEqual(server.get(path).status, 404)
            self.assertNotIn("page address=", server.stderr())

    def test_narrow_screen_needs_no_sideways_scrolling(self):
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            page.driver.set_window_size(500, 900)
            for view in VIEWS:
                page.open(view)
                page.until_text("#model", "diff")
                if view == "#lens":
                    page.until_text("#maps_note", "Rows are queries")
                self.assertTrue(page.fits(), view)

    def test_every_control_has_a_name(self):
        nameless = """return [...document.querySelectorAll("button, input, textarea, [role]")]
            .filter((node) => node.checkVisibility() && !(node.ariaLabel || node.labels?.length ||
              node.textContent.trim() || node.getAttribute("aria-labelledby")))
            .map((node) => node.outerHTML)"""
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            for view in VIEWS:
                page.open(view)
                if view == "#lens":
                    page.until_text("#maps_note", "Rows are queries")
                self.assertEqual([node for node in page.run(nameless)
                                  if 'role="status"' not in node], [], view)


class KeyTest(unittest.TestCase):
    def test_key_is_kept_only_in_memory(self):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            path.write_text(KEY + "\n")
            with (ServerProcess("--api-key-file", path, model=DEMO_MODEL) as server,
                  Browser(server.url, expected_errors=["status of 401"]) as page):
                page.fill("#key", "wrong")
                page.press("Use it")
                page.until(lambda: page.one("#key_wrong").is_displayed(), "the key is refused")
                self.assertEqual(page.text("#model"), "")
                page.fill("#key", KEY)
                page.press("Use it")
                page.until_text("#model", "diff")
                page.ask("Who are you?")
                self.assertIn("diffserve demo model", page.answered())
                page.press("curl")
                self.assertNotIn(KEY, page.text("#code"))
                kept = page.run("return [document.cookie, localStorage.length,"
                                "sessionStorage.length, location.href, document.body.innerHTML,"
                                "document.querySelector('#key').value]")
                self.assertEqual(kept[:3], ["", 0, 0])
                for text in kept[3:]:
                    self.assertNotIn(KEY, text)
                self.assertFalse([url for url in page.requests() if KEY in url])
                page.driver.refresh()
                page.one("#key")  # is asked again
                self.assertEqual(page.text("#model"), "")


class HostileTextTest(unittest.TestCase):
    def check_nothing_ran(self, page):
        self.assertIsNone(page.run("return window.hacked ?? null"))
        self.assertEqual(page.all("main img, main script, header b + b"), [])
        self.assertTrue(page.fits())

    def test_questions_and_answers_are_text(self):
        # The tiny model answers with random bytes, or refuses what is too long for it.
        with (ServerProcess("--served-model-name", "<b>name</b>") as server,
              Browser(server.url, expected_errors=["status of 400"]) as page):
            page.until_text("#model", "<b>name</b>")
            for count, (name, text) in enumerate(HOSTILE.items(), 1):
                with self.subTest(name):
                    page.ask(text)
                    page.answered(count)
                    shown = page.run("return [...document.querySelectorAll('.user .text')].at(-1)"
                                     ".textContent")
                    self.assertEqual(shown, text)
                    self.check_nothing_ran(page)

    def test_scripts_that_are_copied_keep_the_text(self):
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            text = "It's \"$(touch hacked)\" `id` \\ 'Who are you?'\n<b>"
            page.ask(text)
            page.answered()
            with tempfile.TemporaryDirectory() as folder:
                page.press("curl")
                done = subprocess.run(["bash", "-c", page.text("#code")], cwd=folder,
                                      capture_output=True, text=True, timeout=60)
                self.assertIn("data: [DONE]", done.stdout, done.stderr)
                self.assertEqual(os.listdir(folder), [])

    def test_lens_shows_text(self):
        with (ServerProcess(model=DEMO_MODEL) as server,
              Browser(server.url, expected_errors=["status of 400"]) as page):
            for name, text in HOSTILE.items():
                with self.subTest(name):
                    page.open("#lens")
                    page.fill("#lens_text", text)
                    page.fill("#lens_answer", "")
                    page.fill("#lens_matter", "<img")
                    page.press("Look")
                    page.until(lambda: page.one("#lens").get_attribute("aria-busy") == "false",
                               "the look is over")
                    self.check_nothing_ran(page)


if __name__ == "__main__":
    unittest.main()
