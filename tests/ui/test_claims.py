# SPDX-License-Identifier: Apache-2.0
"""What the page says about a text is what /v1/attention answers for it, in each state of the lens.
Pictures of the states are left in build/page."""

import unittest
from urllib.parse import parse_qs

from browser import Browser
from pictures import keep_state
from server_process import DEMO_MODEL, ServerProcess

STRONGEST = 5
SCREENS = {"light": {}, "dark": {"dark": True}, "phone": {"width": 500}}


def share(value: float) -> str:
    text = f"{100 * value:.{1 if abs(value) < 0.1 else 0}f}"
    return f"{'0.0' if text == '-0.0' else text.replace('-', '−')} %"


def signed(value: float) -> str:
    return ("+" if value > 0 else "") + share(value)


def off(row: dict, name: str) -> str:
    return share(1 - row["on_span"][name])


class Lens:
    """The lens of a page, and what the server says about what it shows."""

    def __init__(self, server, page):
        self.server, self.page = server, page

    def wait(self) -> None:
        self.page.until(lambda: self.page.all("#maps canvas") and
                        self.page.one("#lens").get_attribute("aria-busy") == "false", "the maps")

    def answer(self) -> tuple[dict, dict]:
        """The state in the address, and the maps of all heads there."""
        query = parse_qs(self.page.run("return location.hash").partition("?")[2])
        state = {name: values[0] for name, values in query.items()}
        request = {"positions": [int(state["position"])]}
        if "ids" in state:
            request["tokens"] = [int(token) for token in state["ids"].split(",")]
        else:
            request |= {"add_generation_prompt": False, "messages": [
                {"role": "user", "content": state["chat"]},
                {"role": "assistant", "content": state["answer"]}]}
        if "span" in state:
            request["span"] = [int(end) for end in state["span"].split("-")]
        return state, self.server.post("/v1/attention", request).json()

    def texts(self, selector: str) -> list[str]:
        return self.page.run("return [...document.querySelectorAll(arguments[0])]"
                             ".map((node) => node.textContent)", selector)


class ClaimsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess(model=DEMO_MODEL))

    def check(self, lens: Lens) -> dict:
        """Compares all that the lens says; returns the row of the head that is shown."""
        state, told = lens.answer()
        rows = told["data"]
        (row,) = (row for row in rows if (row["layer"], row["head"]) ==
                  (int(state["layer"]), int(state["head"])))
        figures = dict(zip(lens.texts("#figures dt"), lens.texts("#figures dd")))
        self.assertEqual(figures, self.figures(row))
        self.check_note(lens, row)
        subtracted = [row["lambda"] * p for p in row["map2"]]
        kept = [p - q for p, q in zip(row["map1"], subtracted)]
        for column, values, written in ((".map1", row["map1"], share), (".map2", subtracted, share),
                                        (".kept", kept, signed)):
            slots = sorted(range(len(values)), key=lambda slot: -abs(values[slot]))[:STRONGEST]
            self.assertEqual(lens.texts(f"#kept {column} li b"),
                             [written(values[slot]) for slot in slots])
            self.assertEqual(lens.texts(f"#kept {column} li small"), [f" {slot}" for slot in slots])
        labels = lens.page.run("return [...document.querySelectorAll('#heads button')]"
                               ".map((node) => node.ariaLabel)")
        self.assertEqual(labels, [f"layer {one['layer']}, head {one['head']}, cancels "
                                  f"{share(one['cancelled'])}" for one in rows])
        return row

    def figures(self, row: dict) -> dict:
        found = {"λ": f"{row['lambda']:.3f}", "cancelled of map 1": share(row["cancelled"]),
                 "entropy of A₁, nats": f"{row['entropy1']:.2f}",
                 "entropy of A₂, nats": f"{row['entropy2']:.2f}"}
        if "on_span" in row:
            found |= {"A₁ off what matters": off(row, "map1"),
                      "A₂ off what matters": off(row, "map2"),
                      "|A₁ − λ A₂| off what matters, negative too": off(row, "difference")}
        return found

    def check_note(self, lens: Lens, row: dict) -> None:
        (note,) = lens.texts("#figures_note")
        if "on_span" not in row:
            self.assertEqual(note, "")
        elif row["on_span"]["difference"] >= row["on_span"]["map1"]:
            self.assertIn(f"from {off(row, 'map1')} to {off(row, 'difference')}.", note)
        else:
            self.assertIn(f"from {off(row, 'map1')} up to {off(row, 'difference')}: it leaves",
                          note)
            self.assertLess(min(p - row["lambda"] * q for p, q in zip(row["map1"], row["map2"])), 0)

    def test_first_example_shows_noise_that_the_subtraction_removes(self):
        for name, screen in SCREENS.items():
            with (self.subTest(name),
                  Browser(self.server.url, dark=screen.get("dark", False)) as page):
                page.driver.set_window_size(screen.get("width", 1100), 1180)
                page.open("#lens")
                lens = Lens(self.server, page)
                lens.wait()
                row = self.check(lens)
                self.assertLess(1 - row["on_span"]["difference"], 1 - row["on_span"]["map1"] - 0.05)
                # Another city's first digit, which both maps look at.
                (noise,) = lens.texts("#kept .map1 li:nth-child(2)")
                self.assertTrue(noise.startswith(" 1 144"), noise)
                self.assertGreater(row["map1"][144], 0.15)
                self.assertLess(row["map1"][144] - row["lambda"] * row["map2"][144], 0.06)
                keep_state(page, f"lens_{name}")
                self.assertTrue(page.fits())

    def test_pressed_token_opens_the_head_that_looked_where_it_stands(self):
        for question, token, place in (("Find a number", " 4", 8),
                                       ("Four needles in a text", " 2", 73)):
            with self.subTest(question), Browser(self.server.url) as page:
                self.assertIn("press a token of the answer to see where each map looked",
                              " ".join(page.text("#intro").split()))
                keep_state(page, "chat_intro")
                page.press(question)
                page.answered()
                keep_state(page, "chat_answered")
                next(node for node in page.all(".assistant .token")
                     if node.get_property("textContent") == token).click()
                lens = Lens(self.server, page)
                lens.wait()
                row = self.check(lens)
                self.assertEqual((row["layer"], row["head"]), (1, 3))
                self.assertEqual(row["map1"].index(max(row["map1"])), place)
                self.assertEqual(lens.texts("#context .matters bdi"), [token])
                keep_state(page, f"lens_pressed_{place}")

    def test_pressed_token_that_is_new_opens_the_head_that_cancels_most(self):
        with Browser(self.server.url) as page:
            page.press("Who are you?")
            page.answered()
            next(node for node in page.all(".assistant .token") if node.text == "I").click()
            lens = Lens(self.server, page)
            lens.wait()
            row = self.check(lens)
            most = max(lens.answer()[1]["data"], key=lambda one: one["cancelled"])
            self.assertEqual((row["layer"], row["head"]), (most["layer"], most["head"]))
            self.assertEqual(lens.texts("#context .matters"), [])

    def test_what_stays_has_large_negative_shares(self):
        with Browser(self.server.url) as page:
            page.open("#lens")
            lens = Lens(self.server, page)
            lens.wait()
            page.press("Two numbers")
            page.until_text("#lens_what", "of 49")
            lens.wait()
            row = self.check(lens)
            kept = [p - row["lambda"] * q for p, q in zip(row["map1"], row["map2"])]
            self.assertLess(min(kept), -0.3)
            self.assertIn(share(min(kept)), lens.texts("#kept .kept li b"))
            keep_state(page, "lens_two_numbers")


if __name__ == "__main__":
    unittest.main()
