# SPDX-License-Identifier: Apache-2.0
"""The page offers what the model can do: chat, continue a text, or neither. It follows the model
that is chosen among several."""

import json
import shutil
import tempfile
import unittest
from pathlib import Path

from selenium.webdriver.support.ui import Select

from browser import Browser
from models_server import ModelsServer
from pictures import keep_state
from server_process import DEMO_MODEL, ServerProcess

TWIN = DEMO_MODEL.parent / "twin"
TEXT = ("The magic number of Lisbon is 48213. The magic number of Oslo is 90417. "
        "The magic number of Lisbon is")
LAYERS, TWIN_HEADS = 3, 8


def write_model_without_template(folder: Path) -> Path:
    model = folder / "base"
    shutil.copytree(DEMO_MODEL, model)
    path = model / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["chat_template"]
    path.write_text(json.dumps(config))
    return model


def wait_for_lens(page) -> None:
    page.until(lambda: page.all("#maps canvas") and
               page.one("#lens").get_attribute("aria-busy") == "false", "the maps")


class WithoutTemplateTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model = write_model_without_template(folder)
        cls.server = cls.enterClassContext(ServerProcess(model=model))

    def setUp(self):
        self.page = self.enterContext(Browser(self.server.url))
        self.page.until_text("#model", "base")

    def test_text_is_continued_and_again_from_there(self):
        page = self.page
        self.assertEqual(page.text("nav [aria-current] span:not([hidden])"), "Continue")
        self.assertIn("continues a text", page.one("#intro .of_text").text)
        self.assertEqual([node for node in page.all("#examples, #system")
                          if node.is_displayed()], [])
        keep_state(page, "continue")
        page.one("#colour").click()
        page.fill("#prompt", TEXT)
        page.press("Continue")
        written = page.answered()
        self.assertTrue(written.startswith(" 48213"), written)
        self.assertEqual(page.run("return document.querySelector('#prompt').value"), TEXT + written)
        token = page.all(".assistant .token")[1]
        self.assertEqual(token.get_attribute("data-tip").count("%"), 6)
        keep_state(page, "continued")
        page.press("curl")
        self.assertIn("/v1/completions", page.text("#code"))
        page.press("Close", "dialog")
        page.press("Python")
        self.assertIn("client.completions.create(", page.text("#code"))
        self.assertIn("chunk.choices[0].text", page.text("#code"))
        page.press("Close", "dialog")
        page.fill("#prompt", "The magic number of Oslo is 90417. The magic number of Oslo is")
        page.press("Continue")
        page.until(lambda: page.answered().startswith(" 90417"), "the other text is continued")
        self.assertEqual(len(page.all("article.user")), 1)
        page.press("New text")
        self.assertEqual(page.text("#messages"), "")

    def test_lens_takes_texts_only(self):
        page = self.page
        page.open("#lens")
        for name in ("#lens_chat", "#lens_answer", "#lens_goes_on"):
            self.assertFalse(page.one(name).is_enabled(), name)
        self.assertFalse(page.one("#lens_chat").is_selected())
        self.assertFalse(page.all("#lens_examples")[0].is_displayed())
        keep_state(page, "lens_of_texts")
        page.fill("#lens_text", TEXT)
        page.fill("#lens_matter", "48213")
        page.press("Look")
        wait_for_lens(page)
        self.assertIn("What “ is”", page.text("#lens_what"))
        self.assertEqual(page.text("#context .matters bdi").split(), list("48213"))
        page.open("#lens?chat=Hello&answer=Hi")  # a link from a model that chats
        page.until_text("#lens_what", "read in")
        self.assertFalse(page.one("#lens_chat").is_selected())
        self.assertEqual(page.text("#notice"), "")

    def test_pressed_token_opens_the_lens(self):
        page = self.page
        page.fill("#prompt", TEXT)
        page.press("Continue")
        page.answered()
        page.all(".assistant .token")[0].click()
        wait_for_lens(page)
        self.assertIn("the next token is “ 4”", page.text("#lens_what"))
        self.assertEqual(page.text("#context .matters bdi"), " 4")


class WithoutTokenizerTest(unittest.TestCase):
    def test_page_says_which_routes_take_ids(self):
        model = Path(self.enterContext(tempfile.TemporaryDirectory())) / "ids"
        shutil.copytree(DEMO_MODEL, model, ignore=shutil.ignore_patterns("tokenizer.json"))
        with ServerProcess(model=model) as server, Browser(
                server.url, expected_errors=["tokenizer_info"]) as page:
            for view in ("#chat", "#lens"):
                page.open(view)
                said = page.one("#ids_only").text
                self.assertIn("POST /inference/v1/generate", said)
                self.assertIn("tokenizer.json", said)
                controls = page.all("main textarea, main button, main input")
                self.assertEqual([node for node in controls if node.is_displayed()], [])
            keep_state(page, "ids_only")
            self.assertEqual(page.text("#notice"), "")
            page.open("#engine")
            page.until_text("#pages", "free")
            self.assertFalse(page.all("#ids_only")[0].is_displayed())


class SeveralModelsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        models = {"diff": DEMO_MODEL, "twin": TWIN, "base": write_model_without_template(folder)}
        cls.server = cls.enterClassContext(ModelsServer(
            {name: {"model": str(path)} for name, path in models.items()}))

    def setUp(self):
        self.page = self.enterContext(Browser(self.server.url))
        self.page.until(lambda: self.chosen() == "diff", "the first model is chosen")

    def chosen(self) -> str:
        return self.page.run("return document.querySelector('#model_choice').value")

    def choose(self, name: str) -> None:
        Select(self.page.one("#model_choice")).select_by_visible_text(name)

    def test_answers_are_the_chosen_models(self):
        page = self.page
        page.press("Find a number")
        page.answered()
        self.assertTrue(page.text(".figures").startswith("diff: "))
        self.choose("twin")
        page.until(lambda: "model=twin" in page.run("return location.hash"), "the address follows")
        page.until(lambda: self.chosen() == "twin", "the twin is chosen")
        page.press("Retry")
        page.until_text(".figures", "twin: ")
        page.press("Lens")
        wait_for_lens(page)
        self.assertIn("This model has one map", page.text("#lens_what"))
        self.choose("base")
        page.until_text("nav", "Continue")
        page.until(lambda: page.one("#lens_chat").get_attribute("disabled"), "only texts")
        page.all("nav a")[0].click()
        page.until(lambda: page.one("#send").text == "Continue", "a text is continued")
        self.assertEqual(page.text("#messages"), "", "a chat is no text")
        keep_state(page, "several_models")

    def test_lens_and_engine_follow_the_address(self):
        page = self.page
        page.open("#lens?model=twin")
        wait_for_lens(page)
        self.assertEqual(self.chosen(), "twin")
        self.assertEqual(len(page.all("#heads button")), LAYERS * TWIN_HEADS)
        self.choose("diff")
        page.until_text("#lens_what", "layer 1, head 3")
        wait_for_lens(page)
        self.assertIn("A₂ off what matters", page.text("#figures"))
        page.driver.back()
        page.until_text("#lens_what", "This model has one map")
        page.open("#engine?model=diff")
        page.until_text("#lambdas", "layer 2")
        page.open("#engine?model=twin")
        page.until_text("#lambdas", "No layer has a constant λ")
        page.open("#chat?model=other")
        page.until_text("#notice", "there is no model other here, but diff,twin,base")


if __name__ == "__main__":
    unittest.main()
