# SPDX-License-Identifier: Apache-2.0
"""The lens shows the answers of POST /v1/attention for the bundled model and can be used by mouse,
keyboard, address and file."""

import json
import struct
import sys
import unittest
from urllib.parse import urlencode

from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

from browser import Browser
from pictures import keep_picture
from server_process import DEMO_MODEL, ServerProcess

sys.path.insert(0, str(DEMO_MODEL.parent))
import needle_samples

TWIN = DEMO_MODEL.parent / "twin"
QUESTION = ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. "
            "What is the magic number of Lisbon?")
ANSWER = "The magic number of Lisbon is 48213."
# Slot of the needle's first digit, and slot before the answer's first digit, when QUESTION and
# ANSWER are in the bundled model's chat template; TOKENS: their number of tokens.
NEEDLE_DIGIT, BEFORE_DIGITS = 8, 41
TOKENS = 49
SOURCE = {"chat": QUESTION, "answer": ANSWER, "matter": "48213"}
MESSAGES = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": ANSWER}]


def address(**state) -> str:
    return "#lens?" + urlencode(SOURCE | state)


class LensTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess(model=DEMO_MODEL))

    def setUp(self):
        self.page = self.enterContext(Browser(self.server.url))

    def attention(self, **request) -> dict:
        return self.server.post("/v1/attention", {"messages": MESSAGES,
                                                  "add_generation_prompt": False} | request).json()

    def look(self, **state) -> None:
        self.page.open(address(**state))
        self.wait()

    def wait(self) -> None:
        self.page.until(lambda: self.page.all("#maps canvas") and
                        self.page.one("#lens").get_attribute("aria-busy") == "false", "the maps")

    def kept(self) -> list[int]:
        """Slots under "what stays", the strongest first."""
        return [int(one.get_attribute("data-slot")) for one in self.page.all("#kept .kept li")]

    def test_lisbon_finds_its_needle(self):
        # Two heads that keep the number's first digit, seen from the token before it, by a
        # distance that no instruction set's rounding bridges.
        query, slot = BEFORE_DIGITS, NEEDLE_DIGIT
        for layer, head in ((1, 1), (2, 2)):
            with self.subTest(layer=layer):
                told = self.attention(layers=[layer], heads=[head], positions=[query])
                (row,) = told["data"]
                kept = [p - row["lambda"] * q for p, q in zip(row["map1"], row["map2"])]
                self.assertEqual(kept.index(max(kept)), slot)
                self.assertEqual((told["token_texts"][query], told["token_texts"][slot]),
                                 (" is", " 4"))
                self.look(layer=layer, head=head, position=query)
                self.assertEqual(self.kept()[0], slot)
                heights = self.page.run("""return [...document.querySelectorAll("#context .slot")]
                    .map((node) => node.querySelector(".bd:not(.negative)"))
                    .map((bar) => (bar ? parseFloat(bar.style.height) : -1))""")
                self.assertEqual(len(heights), TOKENS)
                self.assertEqual(heights.index(max(heights)), slot)

    def test_figures_and_the_list_of_heads_are_the_servers(self):
        self.look(layer=1, head=3)
        told = self.attention(positions=[BEFORE_DIGITS], top_k=0, span=[8, 13])["data"]
        (row,) = [one for one in told if (one["layer"], one["head"]) == (1, 3)]
        figures = self.page.text("#figures")
        self.assertIn(f"λ{row['lambda']:.3f}", figures)
        self.assertIn(f"cancelled of map 1{100 * row['cancelled']:.0f} %", figures)
        self.assertIn(f"entropy of A₁, nats{row['entropy1']:.2f}", figures)
        self.assertIn(f"entropy of A₂, nats{row['entropy2']:.2f}", figures)
        self.assertIn(f"A₁ off what matters{100 * (1 - row['on_span']['map1']):.1f} %", figures)
        off = 100 * (1 - row["on_span"]["difference"])
        self.assertIn(f"|A₁ − λ A₂| off what matters, negative too{off:.0f} %", figures)
        ranked = sorted(told, key=lambda one: -one["cancelled"])
        names = [button.text for button in self.page.all("#ranking button")]
        self.assertEqual(names, [f"layer {one['layer']}, head {one['head']}" for one in ranked])

    def test_lens_opens_on_the_needles_with_the_papers_figures(self):
        self.page.open("#lens")
        self.wait()
        self.assertIn("What “ is”", self.page.text("#lens_what"))
        self.assertIn("the next token is “ 2”", self.page.text("#lens_what"))
        self.assertEqual(self.page.text("#context .matters bdi").split(), list("22160"))
        self.assertIn("Diff to the answer0.270.300.310.320.40", self.page.text("#paper"))

    def test_lens_is_pictured(self):
        self.page.driver.set_window_size(1100, 1180)
        self.page.open("#lens")
        self.wait()
        self.page.run("document.querySelector('#lens_what').scrollIntoView()")
        keep_picture(self.page, "lens")

    def test_token_of_an_answer_opens_where_it_was_written(self):
        self.page.open("")
        self.page.press("Find a number")
        self.assertEqual(self.page.answered(), ANSWER)
        (token,) = [node for node in self.page.all(".assistant .token") if node.text.strip() == "4"]
        token.click()
        self.wait()
        self.assertEqual(self.page.text("#lens_what"), "What “ is” (token 41 of 49) read in layer "
                         "1, head 3; the next token is “ 4”.")
        self.assertEqual(self.page.text("#context .matters bdi"), " 4")
        self.assertIn("94 %", self.page.text(f"#kept .map1 li[data-slot='{NEEDLE_DIGIT}']"))
        self.page.driver.back()
        self.assertEqual(self.page.answered(), ANSWER)

    def test_text_ends_where_the_model_writes(self):
        for state, last, says in (
            ({"answer": ""}, "<|assistant|>", "not generated yet"),
            ({"answer": "The magic number of Lisbon is", "goes_on": "1"}, " is",
             "not generated yet"),
            ({"answer": ANSWER}, "<|end|>", "the next token is “ 4”")):
            with self.subTest(last):
                self.page.open("#chat")
                self.look(**state)
                self.assertEqual(self.page.all("#context bdi")[-1].text.strip(), last.strip())
                self.assertIn(says, self.page.text("#lens_what"))
        goes_on = self.page.one("#lens_goes_on")
        self.assertFalse(goes_on.is_selected())
        goes_on.click()
        self.page.fill("#lens_answer", "The magic number of")
        self.page.press("Look")
        self.page.until_text("#lens_what", "What “ of”")
        self.page.fill("#lens_answer", "")
        self.assertFalse(goes_on.is_enabled(), "nothing goes on")
        self.page.one("#lens_chat").click()
        self.assertFalse(self.page.one("#lens_answer").is_enabled(), "a text has no answer")

    def test_keyboard_moves_token_and_head(self):
        self.look(layer=1, head=0)
        self.page.one("#context").send_keys(*3 * [Keys.ARROW_LEFT])  # faster than the answers
        self.page.until_text("#lens_what", "What “ number” (token 38")
        self.wait()
        self.page.one("#context").send_keys(Keys.HOME)
        self.page.until_text("#lens_what", "token 0")
        self.wait()
        self.assertEqual(self.page.one("#context").get_attribute("aria-activedescendant"),
                         "context_0")
        self.page.one("#heads [aria-checked=true]").send_keys(Keys.ARROW_RIGHT)
        self.page.until_text("#lens_what", "layer 1, head 1")
        self.wait()
        self.page.keys(Keys.ARROW_DOWN)  # the focus went with the choice
        self.page.until_text("#lens_what", "layer 2, head 1")
        self.wait()
        what = self.page.text("#lens_what")
        self.page.driver.refresh()
        self.wait()
        self.assertEqual(self.page.text("#lens_what"), what)

    def test_span_is_marked_by_two_clicks_or_by_its_text(self):
        self.look()
        slots = self.page.all("#context .slot")
        self.page.shift_click(slots[20])
        self.page.shift_click(slots[18])
        self.page.until(lambda: len(self.page.all("#context .matters")) == 3, "three are marked")
        self.wait()
        self.page.fill("#lens_matter", "Oslo")
        self.page.press("Look")
        self.page.until(lambda: len(self.page.all("#context .matters")) == 1, "Oslo is marked")
        self.wait()
        self.page.fill("#lens_matter", "Rome")
        self.page.press("Look")
        self.page.until_text("#lens_what", "“Rome” is not in the text")
        self.wait()
        self.page.all("#context .slot")[30].click()
        self.page.until_text("#lens_what", "(token 30 of 49)")

    def test_heat_maps_show_the_cell_under_the_pointer(self):
        self.look(layer=1, head=1)
        self.assertEqual(len(self.page.all("#maps canvas")), 3)
        canvas = self.page.all("#maps canvas")[2]
        size = canvas.size
        x, y = (round((place + 0.5) / TOKENS * length - length / 2) for place, length in
                ((NEEDLE_DIGIT, size["width"]), (BEFORE_DIGITS, size["height"])))
        self.page.run("arguments[0].scrollIntoView({block: 'center'})", canvas)
        ActionChains(self.page.driver).move_to_element_with_offset(canvas, x, y).perform()
        (row,) = self.attention(layers=[1], heads=[1], positions=[BEFORE_DIGITS])["data"]
        kept = row["map1"][NEEDLE_DIGIT] - row["lambda"] * row["map2"][NEEDLE_DIGIT]
        self.page.until_text("#pointed", f"“ is” (41) to “ 4” (8): A₁ − λ A₂ {100 * kept:.0f} %")

    def test_long_text_shows_its_last_queries(self):
        sample = needle_samples.evaluation_sample(0, 4)
        self.page.open("#lens?" + urlencode({"chat": sample.messages[0]["content"],
                                             "answer": sample.answer,
                                             "matter": sample.numbers[0]}))
        self.wait()
        self.page.until_text("#maps_note", "The last 384 of 1")
        self.assertEqual(self.page.text("#notice"), "")

    def test_lens_saves_a_picture_and_a_state_to_compare_with(self):
        with ServerProcess(model=TWIN) as twin, Browser(twin.url) as other:
            other.open(address(layer=1, head=1))
            other.until_text("#lens_what", "This model has one map: nothing is subtracted.")
            other.until(lambda: len(other.all("#maps canvas")) == 1, "one map")
            self.assertEqual([node for node in other.all("#lens_body .second")
                              if node.is_displayed()], [])
            other.press("Save as JSON")
            saved = other.saved("lens.json")
            path = self.page.downloads / "twin.json"
            path.write_bytes(saved)
        state = json.loads(saved)
        self.assertEqual((state["model"], state["maps"], state["position"], state["span"]),
                         ("twin", 1, BEFORE_DIGITS, [8, 13]))
        self.look(layer=1, head=1)
        self.page.all("#open_json")[0].send_keys(str(path))
        self.page.until_text("#compared", "Saved: twin, layer 1, head 1")
        self.assertEqual(len(self.page.all("#compared_context .slot")), TOKENS)
        self.page.press("Save as PNG")
        picture = self.page.saved("lens.png")
        self.assertEqual(struct.unpack(">II", picture[16:24]), (1200, 760))
        for text, error in (("{", "not JSON"), ("{}", '"format"'),
                            (json.dumps(state | {"position": 99}), '"position" must be 0 to 48'),
                            (json.dumps(state | {"row": {}}), '"row" must have')):
            path.write_text(text)
            self.page.all("#open_json")[0].send_keys(str(path))
            self.page.until_text("#notice", error)

    def test_invalid_state_is_reported(self):
        cases = (({"layer": "x"}, "layer in the address"), ({"span": "5-2"}, "the span"),
                 ({"ids": "1,x"}, "an invalid token id"))
        for wrong, error in cases:
            self.page.open("#chat")
            self.page.open(address(**wrong))
            self.page.until_text("#notice", error)


class RefusedTest(unittest.TestCase):
    def test_error_of_the_server_is_shown(self):
        with (ServerProcess(model=DEMO_MODEL) as server,
              Browser(server.url, expected_errors=["status of 400"]) as page):
            page.open(address(layer=7, head=0))
            page.until_text("#notice", "layers")


if __name__ == "__main__":
    unittest.main()
