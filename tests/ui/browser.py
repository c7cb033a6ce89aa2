# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium on a server's page, with its requests, console and saved files."""

import json
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

WAIT_S = 60
WIDTH, HEIGHT = 1100, 900


class Browser:
    """`with Browser(server.url) as page:`; leaving the block ends the browser. It expects that
    the page sent requests only to its server and that its console has no errors except
    `expected_errors` (parts of their texts)."""

    def __init__(self, url: str, expected_errors=(), dark=False):
        self.url, self.expected_errors = url, tuple(expected_errors)
        self._folder = tempfile.TemporaryDirectory(prefix="diffserve-browser-")
        self.downloads = Path(self._folder.name)
        options = webdriver.ChromeOptions()
        options.binary_location = "/usr/bin/chromium"
        for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                         "--disable-dev-shm-usage", "--disable-background-networking",
                         "--force-device-scale-factor=1", f"--window-size={WIDTH},{HEIGHT}",
                         *(["--force-dark-mode"] if dark else [])):
            options.add_argument(argument)
        options.add_experimental_option("prefs", {
            "download.default_directory": str(self.downloads), "download.prompt_for_download": False
        })
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self._options, self._requests, self._console = options, [], []

    def __enter__(self):
        self.driver = webdriver.Chrome(options=self._options,
                                       service=webdriver.ChromeService("/usr/bin/chromedriver"))
        self.open("")
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.check()
        finally:
            self.driver.quit()
            self._folder.cleanup()

    def open(self, fragment: str) -> None:
        self.driver.get(f"{self.url}/{fragment}")

    def requests(self) -> list[str]:
        """The addresses requested so far."""
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])
        return self._requests

    def console_errors(self) -> list[str]:
        self._console += self.driver.get_log("browser")
        return [entry["message"] for entry in self._console if entry["level"] == "SEVERE"]

    def check(self) -> None:
        outside = [url for url in self.requests()
                   if not url.startswith((self.url, "data:", f"blob:{self.url}"))]
        if outside:
            raise AssertionError(f"requests to other places: {outside}")
        errors = [text for text in self.console_errors()
                  if not any(part in text for part in self.expected_errors)]
        if errors:
            raise AssertionError(f"errors in the console: {errors}")

    def all(self, selector: str):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        """The element that `selector` selects, once exactly one is visible."""
        def shown():
            return [found for found in self.all(selector) if found.is_displayed()]
        self.until(lambda: len(shown()) == 1, f"one {selector} is shown")
        return shown()[0]

    def text(self, selector: str) -> str:
        """The text of all selected elements, shown or hidden."""
        return self.run("return [...document.querySelectorAll(arguments[0])]"
                        ".map((node) => node.textContent).join('\\n')", selector)

    def run(self, script: str, *arguments):
        return self.driver.execute_script(script, *arguments)

    def fits(self) -> bool:
        """Whether nothing is wider than the window."""
        return self.run("const root = document.documentElement;"
                        "return root.scrollWidth <= root.clientWidth")

    def until(self, condition, what: str) -> None:
        end = time.monotonic() + WAIT_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {WAIT_S} s: {what}; the page says "
                                     f"{self.text('#notice, main > :not([hidden])')[:3000]!r}, "
                                     f"its console {self.console_errors()}")
            time.sleep(0.02)

    def until_text(self, selector: str, part: str) -> None:
        self.until(lambda: part in self.text(selector), f"{part!r} in {selector}")

    def press(self, name: str, within: str = "body") -> None:
        """Clicks the button with this text."""
        def found():
            return [node for node in self.all(f"{within} button")
                    if node.is_displayed() and node.text == name and node.is_enabled()]
        self.until(found, f"a button {name!r} in {within}")
        found()[-1].click()

    def fill(self, selector: str, text: str) -> None:
        """Enters a text at once, as a paste does."""
        self.run("arguments[0].value = arguments[1];"
                 "arguments[0].dispatchEvent(new Event('input', {bubbles: true}));",
                 self.one(selector), text)

    def keys(self, *keys: str) -> None:
        """Types into the focused element."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def shift_click(self, element) -> None:
        (ActionChains(self.driver).key_down(Keys.SHIFT).click(element).key_up(Keys.SHIFT).perform())

    def hover(self, element) -> None:
        ActionChains(self.driver).move_to_element(element).perform()

    def saved(self, name: str) -> bytes:
        """A file that the page saved."""
        path = self.downloads / name
        self.until(lambda: path.is_file() and path.stat().st_size > 0, f"{name} is saved")
        return path.read_bytes()

    def ask(self, question: str) -> None:
        self.fill("#prompt", question)
        self.press("Send")

    def answered(self, count: int = 1) -> str:
        """The last answer, once `count` are complete."""
        self.until(lambda: len(self.all(".assistant .figures")) == count, f"{count} answers")
        return self.run("return [...document.querySelectorAll('.assistant .text')].at(-1)"
                        ".textContent")
