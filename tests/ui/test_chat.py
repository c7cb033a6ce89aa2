# SPDX-License-Identifier: Apache-2.0
"""The chat: streaming, stop, retry, edit, settings, probabilities, scripts to copy, keyboard."""

import json
import re
import subprocess
import sys
import unittest

from selenium.webdriver.common.keys import Keys

from browser import Browser
from pictures import keep_picture
from server_process import DEMO_MODEL, GatedServer, ServerProcess

WHO, WHO_ANSWER = "Who are you?", "I am the diffserve demo model, a very small Diff Transformer."
WEEK, WEEK_ANSWER = "How many days are in a week?", "A week has seven days."
STORY = "Tell me a story about a fox."
CHAT = "/v1/chat/completions"


class StreamTest(unittest.TestCase):
    def test_answer_is_shown_as_it_comes_and_can_be_stopped(self):
        with GatedServer(model=DEMO_MODEL) as server, Browser(server.url) as page:
            server.close_gate()
            page.ask(WHO)
            server.wait_for_waiting(1)
            self.assertEqual(page.text(".assistant .text"), "")
            server.allow(3)
            page.until_text(".assistant .text", "I am the")
            self.assertEqual(page.text(".assistant .text"), "I am the")
            self.assertFalse(page.one("#send").is_enabled())
            page.press("Stop")
            page.until_text(".figures", "stopped")
            server.wait_until_left()
            server.open_gate()
            server.wait_until_idle()
            self.assertLess(server.metric("diffserve_generation_tokens_total"), 6)
            self.assertEqual(page.text(".assistant .text"), "I am the")
            page.ask(WEEK)
            self.assertEqual(page.answered(2), WEEK_ANSWER)

    def test_escape_stops_and_a_new_chat_forgets(self):
        with GatedServer(model=DEMO_MODEL) as server, Browser(server.url) as page:
            server.close_gate()
            page.ask(WHO)
            server.wait_for_waiting(1)
            server.allow(2)
            page.until_text(".assistant .text", "I am")
            page.one("#prompt").send_keys(Keys.ESCAPE)
            page.until_text(".figures", "stopped")
            server.wait_until_left()
            page.ask(WHO)
            page.press("New chat")
            self.assertEqual(page.text("#messages"), "")
            server.wait_until_left()
            server.open_gate()
            page.ask(WHO)
            self.assertEqual(page.answered(), WHO_ANSWER)

    def test_lost_server_is_reported(self):
        server = GatedServer(model=DEMO_MODEL)
        with server, Browser(server.url, expected_errors=["net::ERR"]) as page:
            server.close_gate()
            page.ask(WHO)
            server.wait_for_waiting(1)
            server.allow(2)
            page.until_text(".assistant .text", "I am")
            server.process.kill()
            server.process.wait()
            server.code = 0
            page.answered()
            self.assertNotEqual(page.text(".assistant .error"), "")


class TimesTest(unittest.TestCase):
    def test_times_of_an_answer_are_the_servers(self):
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            page.ask(STORY)
            page.answered()
            shown = re.fullmatch(r"prompt \d+, 0 cached, in ([\d.]+) ms · (\d+) tokens · "
                                 r"(\d+) tokens/s", page.text(".figures"))
            prompt_s, decode_s = (server.metric(f"diffserve_{name}_sum") for name in
                                  ("prefill_seconds", "decode_seconds"))
            self.assertEqual(shown[1], f"{1000 * prompt_s:.1f}")
            self.assertEqual(int(shown[3]), round((int(shown[2]) - 1) / decode_s))


class ConversationTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess(model=DEMO_MODEL))

    def setUp(self):
        self.page = self.enterContext(Browser(self.server.url))

    def asked(self) -> float:
        return self.server.metric("diffserve_http_requests_total", route=CHAT, code="200")

    def body(self) -> dict:
        """The body of the last answer's request, from its curl command."""
        self.page.press("curl")
        body = re.search(r"-d '(.*)'$", self.page.text("#code"), re.S)[1]
        self.page.press("Close", "dialog")
        return json.loads(body)

    def test_retry_asks_again_and_edit_drops_what_came_after(self):
        page = self.page
        page.ask(WHO)
        self.assertEqual(page.answered(), WHO_ANSWER)
        page.ask(WEEK)
        self.assertEqual(page.answered(2), WEEK_ANSWER)
        before = self.asked()
        page.press("Retry")
        page.until(lambda: self.asked() == before + 1, "it is asked again")
        self.assertEqual(page.answered(2), WEEK_ANSWER)
        page.all(".user button")[0].click()
        page.fill(".edit textarea", WEEK)
        page.press("Ask again")
        page.until(lambda: self.asked() == before + 2, "the edited question is asked")
        self.assertEqual(page.answered(1), WEEK_ANSWER)
        self.assertEqual(page.text(".user .text"), WEEK)

    def test_settings_and_the_system_prompt_are_sent(self):
        page = self.page
        page.run("document.querySelector('#settings').open = true")
        for name, value in (("system", "Be brief."), ("temperature", "0.5"), ("top_p", "0.9"),
                            ("top_k", "7"), ("max_tokens", "3"), ("seed", "11")):
            page.fill(f"#{name}", value)
        page.ask(WHO)
        page.answered()
        page.until_text(".figures", "stopped at the token limit")
        body = self.body()
        self.assertEqual(body["messages"], [{"role": "system", "content": "Be brief."},
                                            {"role": "user", "content": WHO}])
        settings = {"temperature": 0.5, "top_p": 0.9, "top_k": 7, "max_tokens": 3, "seed": 11}
        self.assertEqual({name: body[name] for name in settings}, settings)
        page.fill("#temperature", "-1")
        before = self.asked()
        page.ask(WHO)
        page.until_text("#notice", "temperature")
        self.assertEqual(self.asked(), before)

    def test_each_answer_shows_its_speed_and_cached_tokens(self):
        page = self.page
        page.press("Four needles in a text")
        page.answered()
        page.press("Retry")
        page.until_text(".figures", "prompt 172, 160 cached, in")  # ten full pages
        self.assertRegex(page.text(".figures"),
                         r"^prompt 172, 160 cached, in [\d.]+ ms · 13 tokens · \d+ tokens/s$")

    def test_scripts_to_copy_give_the_same_answer(self):
        page = self.page
        page.ask(WHO)
        page.answered()
        page.press("curl")
        curl = subprocess.run(["bash", "-c", page.text("#code")], capture_output=True, text=True,
                              timeout=60)
        data = [json.loads(line[6:]) for line in curl.stdout.splitlines()
                if line.startswith("data: {")]
        self.assertEqual("".join(choice["delta"].get("content") or "" for event in data
                                 for choice in event["choices"]), WHO_ANSWER)
        page.press("Close", "dialog")
        page.press("Python")
        python = subprocess.run([sys.executable, "-c", page.text("#code")], capture_output=True,
                                text=True, timeout=60)
        self.assertEqual(python.stdout, WHO_ANSWER + "\n", python.stderr)

    def test_tokens_show_how_sure_the_model_was(self):
        page = self.page
        page.one("#colour").click()
        page.ask(STORY)
        page.answered()
        self.assertTrue(page.all(".coloured .p0"), "the story's parts are drawn from several")
        token = page.all(".assistant .p0")[0]
        shown = "return getComputedStyle(arguments[0], '::after').content"
        self.assertEqual(page.run(shown, token), "none")
        page.hover(token)
        page.until(lambda: page.run(shown, token).count("%") == 6, "its probability and five more")
        page.hover(page.one("#model"))
        token.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
        self.assertEqual(page.driver.switch_to.active_element, token)
        page.until(lambda: page.run(shown, token).count("%") == 6, "they are shown on focus")
        keep_picture(page, "chat")
        for one in page.all(".assistant .token")[::4]:
            page.hover(one)
            self.assertTrue(page.fits(), one.text)

    def test_keyboard_can_ask_read_and_open_the_lens(self):
        page = self.page
        page.until_text("#model", "diff")
        page.keys(WHO, Keys.ENTER)
        self.assertEqual(page.answered(), WHO_ANSWER)
        page.run("document.querySelector('#prompt').focus()")
        focused = "return document.activeElement.className.split(' ')[0]"
        for _ in range(10):
            page.driver.switch_to.active_element.send_keys(Keys.SHIFT, Keys.TAB)
            if page.run(focused) == "token":
                break
        self.assertEqual(page.run("return document.activeElement.textContent"), "I")
        page.keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT, Keys.ARROW_LEFT)
        self.assertEqual(page.run("return document.activeElement.textContent"), " the")
        page.keys(Keys.ENTER)
        page.until_text("#lens_what", "the next token is “ the”")
        self.assertIn("What “ am” (token 9 of 22)", page.text("#lens_what"))

    def test_complete_answer_is_announced_to_screen_readers(self):
        page = self.page
        page.ask(WHO)
        page.answered()
        page.until_text("#status", f"Answer: {WHO_ANSWER}")
        self.assertEqual(page.one("#messages").get_attribute("aria-live"), "off")


if __name__ == "__main__":
    unittest.main()
