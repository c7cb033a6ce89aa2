# SPDX-License-Identifier: Apache-2.0
"""The engine view shows the figures of /metrics and requests them only while it is visible."""

import unittest

from browser import Browser
from pictures import keep_state
from server_process import DEMO_MODEL, GatedServer, ServerProcess

LAMBDAS = [0.252, 0.620, 0.692]  # of the bundled model's layers, as in its README


class EngineTest(unittest.TestCase):
    def test_engine_view_shows_work_in_progress(self):
        with GatedServer(model=DEMO_MODEL) as server, Browser(server.url) as page:
            page.ask("Who are you?")
            page.answered()
            server.close_gate()
            page.ask("Tell me a story about a fox.")
            server.wait_for_waiting(1)
            page.open("#engine")
            page.until_text("#cards", "waiting 1")
            server.allow(2)
            page.until_text("#cards", "running 1")
            page.until_text("#pages", f"{server.pages_used():.0f} used")
            server.open_gate()
            page.until_text("#cards", "running 0")
            server.wait_until_idle()
            page.until_text("#pages", "0 used")
            state = {name: server.metric("diffserve_kv_pages", state=name)
                     for name in ("cached", "free")}
            for name, value in state.items():
                page.until_text("#pages", f"{value:.0f} {name}")
            for layer, value in enumerate(LAMBDAS):
                self.assertIn(f"layer {layer}{value:.3f}, initially", page.text("#lambdas"))
            page.until(lambda: "p50 – ms" not in page.text("#cards"), "times between tokens")

    def test_lines_begin_at_the_left_and_have_a_scale(self):
        with ServerProcess(model=DEMO_MODEL) as server, Browser(server.url) as page:
            page.ask("Tell me a story about a fox.")
            page.answered()
            page.open("#engine")
            rows = int(server.metric("diffserve_last_step_rows"))
            page.until_text("#cards .card:nth-child(2) p", f"rows {rows}")
            self.assertEqual(page.text("#cards .card:nth-child(2) .top"), str(rows))
            path = page.run("return document.querySelector('#cards .card:nth-child(2) path')"
                            ".getAttribute('d')")
            self.assertTrue(path.startswith("M0.0 2.0"), f"{path}: the top is the scale's number")
            keep_state(page, "engine")

    def test_engine_view_polls_only_while_shown(self):
        with GatedServer(model=DEMO_MODEL) as server, Browser(server.url) as page:
            def polls():
                return sum(url.endswith("/metrics") for url in page.requests())
            page.until_text("#model", "diff")
            self.assertEqual(polls(), 0)
            page.open("#engine")
            page.until(lambda: polls() >= 2, "it asks again and again")
            page.open("#chat")
            page.ask("Who are you?")
            page.answered()
            seen = polls()
            page.until(lambda: page.run("return performance.now() - (window.since ??= "
                                        "performance.now())") > 2500, "two periods pass")
            self.assertEqual(polls(), seen)


if __name__ == "__main__":
    unittest.main()
