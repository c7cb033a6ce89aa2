# SPDX-License-Identifier: Apache-2.0
"""Monitoring files in deploy/: Prometheus' alerts fire exactly when they must, every panel of the
dashboards shows data, and the compose file is complete and hardened."""

import math
import re
import subprocess
import tempfile
import time
import unittest
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import compose_spec

import dashboards
import prometheus_process
from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import (BINARY, KV_BYTES, PAGE_SLOTS, REPOSITORY, GatedServer, ServerProcess,
                            eventually)

DEPLOY = REPOSITORY / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
RANGE = "1h"  # of Grafana's $__rate_interval and $__range: the whole test, on any machine
WITHIN_S, SCRAPES = 600, 20
NOT_INSTALLED = "prometheus (Debian package prometheus) is not installed"
# Three sequences run, four wait, and the pages are enough for one and a half.
SMALL = ("--max-num-seqs", 3, "--max-waiting-requests", 4, "--max-model-len", 160,
         "--kv-cache-memory", 192 // PAGE_SLOTS * 2 * PAGE_SLOTS * 64 * KV_BYTES,
         "--kv-events-endpoint", "tcp://127.0.0.1:*")
# Panels that show 0 in a healthy system.
CALM = {"Alerts firing", "Replicas differ by", "KV events dropped"}


def promtool(*arguments) -> str:
    """promtool's output if it failed, else nothing."""
    ran = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True,
                         timeout=60)
    return (ran.stdout + ran.stderr).strip() if ran.returncode else ""


@unittest.skipUnless(prometheus_process.PROGRAM, NOT_INSTALLED)
class RulesTest(unittest.TestCase):
    def test_promtool_accepts_rules_and_configuration(self):
        self.assertEqual(promtool("check", "rules", "--lint=all", "--lint-fatal", RULES), "")
        self.assertEqual(
            promtool("check", "config", "--lint=all", "--lint-fatal",
                     RULES.with_name("prometheus.yml")), "")

    def test_each_alert_fires_when_it_must_and_only_then(self):
        self.assertEqual(promtool("test", "rules", RULES.with_name("rules_test.yml")), "")
        text = RULES.read_text()
        alerts = re.findall(r"- alert: (\w+)\n +expr: (.+)\n", text)
        self.assertEqual(len(alerts), text.count("alert:"))
        self.assertGreater(len(alerts), 5)
        with tempfile.TemporaryDirectory() as folder:
            tests = Path(folder) / "rules_test.yml"
            tests.write_text(RULES.with_name("rules_test.yml").read_text())
            for name, expression in alerts:
                never = f"({expression}) and on () vector(1) < 0"
                everywhere = (f'({expression}) or on (instance) count by (instance) '
                              f'({{instance!=""}})')
                for mutant in (never, everywhere):
                    mutated = text.replace(f"alert: {name}\n        expr: {expression}\n",
                                           f"alert: {name}\n        expr: {mutant}\n")
                    self.assertNotEqual(mutated, text)
                    (Path(folder) / "rules.yml").write_text(mutated)
                    self.assertIn(name, promtool("test", "rules", tests),
                                  f"no test notices {mutant}")

    def test_each_alert_has_severity_and_advice(self):
        with ServerProcess() as server, prometheus_process.PrometheusProcess(server,
                                                                             RULES) as scraper:
            alerts = scraper.get("rules", type="alert")["groups"][0]["rules"]
        self.assertGreater(len(alerts), 5)
        for alert in alerts:
            with self.subTest(alert["name"]):
                self.assertIn(alert["labels"]["severity"], ("critical", "warning"))
                self.assertEqual(set(alert["annotations"]), {"summary", "runbook"})
                self.assertRegex(alert["annotations"]["runbook"], r"^[A-Z][^\n]{60,}\.$")


class Situations:
    """Brings a server whose steps can be held into every state that a dashboard has a panel for,
    each for certain, however slow the machine is. The server has SMALL's limits."""
    PROMPT = "a beginning that fills a page and that all prompts have in common: "  # and one more

    def __init__(self, server):
        self.server = server
        self.clients = ThreadPoolExecutor()

    def ask(self, **fields):
        body = {"prompt": self.PROMPT, "max_tokens": 4, "ignore_eos": True, **fields}
        return self.server.post("/v1/completions", body, timeout_s=WITHIN_S)

    def find_prefix(self):
        """The second prompt finds the pages of the first in memory, later ones find them on disk.
        """
        self.ask()
        cached = self.ask().json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached == 0:
            raise AssertionError("the second of two equal prompts found no page")
        saved = "diffserve_kv_tier_saved_seconds_total"
        before = self.server.metric(saved)

        def found_on_disk():
            self.server.post("/reset_prefix_cache?reset_external=false", b"")
            self.ask()
            return self.server.metric(saved) > before
        eventually(found_on_disk, "a prompt's pages are read from disk", WITHIN_S)

    def ask_over_grpc(self):
        with channel(self.server) as connection:
            collect(pb_grpc.InferenceStub(connection).Generate(generate_request([5, 6, 7], 4)))

    def fill_queue(self):
        """As many continuations as may wait, and a request that is refused. The first step of them
        is held."""
        self.server.close_gate()
        self.answer = self.clients.submit(self.ask, n=4, max_tokens=85)
        self.server.wait_for_waiting(4)
        if (refused := self.ask()).status != 429:
            raise AssertionError(f"the queue is full, yet a request has status {refused.status}")

    def run_until_preempted(self):
        """Some continuations run, one waits that ran before. The next step is held."""
        preempted = "diffserve_preemptions_total"
        before = self.server.metric(preempted)

        def is_preempted():
            self.server.allow(1)
            return self.server.metric(preempted) > before
        eventually(is_preempted, "a continuation is preempted", WITHIN_S)

    def finish(self):
        self.server.open_gate()
        if (answer := self.answer.result()).status != 200:
            raise AssertionError(f"status {answer.status}, {answer.body}")


@unittest.skipUnless(prometheus_process.PROGRAM, NOT_INSTALLED)
class LiveTest(unittest.TestCase):
    def assert_known(self, scraper, expression: str):
        """Every metric exists with its matchers; ALERTS exists only while an alert fires."""
        found = dashboards.selectors(expression)
        self.assertTrue(found, expression)
        for selector in found:
            if not selector.startswith("ALERTS{"):
                self.assertTrue(scraper.series(f"last_over_time({selector}[{RANGE}])"),
                                f"nothing is called {selector} (in {expression})")

    def shows(self, scraper, target) -> bool:
        """Whether at least one sample is a number, and not 0 unless 0 is the healthy value."""
        samples = scraper.series(dashboards.expand(target.expression, RANGE, RANGE))
        for labels, _ in samples:
            self.assertLessEqual(set(re.findall(r"\{\{(\w+)\}\}", target.legend)), set(labels),
                                 str(target))
        return any(
            math.isfinite(value) and (value != 0 or target.panel in CALM) for _, value in samples)

    def await_scrape(self, scraper):
        """Waits until Prometheus has everything that has happened at the server so far."""
        now = time.time()
        scraped = "timestamp(diffserve_build_info)"  # nothing after a scrape that failed
        eventually(lambda: (scraper.value(scraped) or 0) > now, "a scrape", WITHIN_S)

    def assert_shown(self, scraper, targets):
        """Each shows something after one of the next scrapes: the one that a query meets may fail,
        and rules are evaluated later."""
        blank = set(targets)
        for _ in range(SCRAPES):
            self.await_scrape(scraper)
            blank -= {target for target in blank if self.shows(scraper, target)}
            if not blank:
                return
        self.fail("\n".join(["these show nothing:", *sorted(map(str, blank))]))

    def test_under_load_every_expression_shows_something(self):
        boards = dashboards.boards()
        every = sorted({
            target
            for name, board in boards.items()
            for panel in board["panels"]
            for target in dashboards.targets(name, panel)
        }, key=str)
        self.assertGreater(len(every), 40)
        folder = self.enterContext(tempfile.TemporaryDirectory())
        server = self.enterContext(GatedServer(*SMALL, "--kv-cache-dir", folder))
        scraper = self.enterContext(prometheus_process.PrometheusProcess(server, RULES))
        # A server whose steps are held is soon not ready.
        of_ready = [target for target in every if "diffserve:ready" in target.expression]
        self.assertTrue(of_ready)
        self.assert_shown(scraper, of_ready)
        situations = Situations(server)
        self.addCleanup(server.open_gate)
        # A rate needs a sample of each counter before it grows.
        for is_last in (False, True):
            situations.find_prefix()
            situations.ask_over_grpc()
            situations.fill_queue()
            situations.run_until_preempted()
            if is_last:
                self.assert_shown(scraper, [target for target in every if target not in of_ready])
            situations.finish()
            self.await_scrape(scraper)
        rules = [rule for group in scraper.get("rules")["groups"] for rule in group["rules"]]
        self.assertEqual([rule["lastError"] for rule in rules if rule["health"] != "ok"], [])
        for expression in [rule["query"] for rule in rules
                           ] + [dashboards.expand(t.expression, RANGE, RANGE) for t in every]:
            self.assert_known(scraper, expression)
        for rule in (rule for rule in rules if rule["type"] == "recording"):
            values = [value for _, value in scraper.series(rule["name"])]
            self.assertTrue(values and all(map(math.isfinite, values)), (rule["name"], values))
        for board in boards.values():
            self.check_variables(scraper, board)

    def check_variables(self, scraper, board):
        for variable in (v for v in board["templating"]["list"] if v["type"] == "query"):
            selector, label = re.fullmatch(r"label_values\((.+), (\w+)\)",
                                           variable["query"]["query"]).groups()
            series = scraper.series(dashboards.expand(selector, RANGE, RANGE))
            self.assertTrue(series and all(labels[label] for labels, _ in series), variable)

    def test_server_that_drains_or_is_gone_is_not_ready(self):
        with GatedServer("--drain-timeout", WITHIN_S) as server, \
                prometheus_process.PrometheusProcess(server, RULES) as scraper:
            eventually(lambda: scraper.value("diffserve:ready") == 1, "it is ready", WITHIN_S)
            with channel(server) as connection:
                call = pb_grpc.InferenceStub(connection).Generate(generate_request([5, 6, 7], 8000))
                next(iter(call))
                server.close_gate()
                server.terminate()
                eventually(
                    lambda: scraper.value("diffserve_draining * diffserve:ready") == 0 and scraper.
                    value("up") == 1, "it drains and is not ready", WITHIN_S)
                call.cancel()
                server.open_gate()
            server.wait()
            eventually(lambda: scraper.value("up + diffserve:ready") == 0,
                       "it is gone and not ready", WITHIN_S)
            alert = 'ALERTS{alertname="DiffserveNotReady"}'
            eventually(
                lambda: [labels["alertstate"]
                         for labels, _ in scraper.series(alert)] == ["pending"],
                "its alert is pending", WITHIN_S)


class DashboardFilesTest(unittest.TestCase):
    def test_each_panel_has_a_description_a_unit_and_the_chosen_source(self):
        boards = dashboards.boards()
        self.assertEqual(len({board["uid"] for board in boards.values()}), len(boards))
        for name, board in boards.items():
            cells = set()
            self.assertEqual([panel["id"] for panel in board["panels"]],
                             list(range(1,
                                        len(board["panels"]) + 1)))
            for panel in board["panels"]:
                with self.subTest(board=name, panel=panel["title"]):
                    self.assertRegex(panel["description"], r"^[A-Z].{20,}\.$")
                    self.assertEqual(panel["datasource"],
                                     {"type": "prometheus", "uid": "${datasource}"})
                    self.assertTrue(panel["type"] == "table"
                                    or panel["fieldConfig"]["defaults"]["unit"])
                    self.assertEqual([target["refId"] for target in panel["targets"]],
                                     list("ABCDEF"[:len(panel["targets"])]))
                    x, y, w, h = (panel["gridPos"][key] for key in "xywh")
                    mine = {(column, row) for column in range(x, x + w) for row in range(y, y + h)}
                    self.assertTrue(x + w <= 24 and not mine & cells, "overlaps another panel")
                    cells |= mine


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        compose = compose_spec.PyOptions(apply_merge=True).from_yaml(
            (DEPLOY / "compose.yaml").read_text())
        compose.validate()
        compose = compose.to_dict()
        cls.services, cls.volumes = compose["services"], compose["volumes"]

    def test_services_have_no_privileges(self):
        self.assertEqual(set(self.services), {"diffserve", "prometheus", "grafana"})
        for name, service in self.services.items():
            with self.subTest(name):
                self.assertTrue(service["read_only"])
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertTrue(all(port.startswith("127.0.0.1:") for port in service["ports"]))
                # Our image brings its own health check.
                self.assertTrue(
                    "healthcheck" in service and re.search(r":v?\d+\.\d+\.\d+$", service["image"])
                    or "build" in service)

    def test_mounted_files_exist_and_name_each_other(self):
        for service in self.services.values():
            for source, target, *mode in (volume.split(":")
                                          for volume in service.get("volumes", [])):
                if source.startswith("."):
                    self.assertTrue((DEPLOY / source).is_dir(), source)
                    self.assertEqual(mode, ["ro"])
        targets = re.findall(r'targets: \["(\w+):(\d+)"\]',
                             RULES.with_name("prometheus.yml").read_text())
        self.assertEqual(targets, [("diffserve", "8000")])
        source = (DEPLOY / "grafana/provisioning/datasources/prometheus.yml").read_text()
        self.assertIn("url: http://prometheus:9090\n", source)
        folder = re.search(r"path: (/[\w/]+)",
                           (DEPLOY /
                            "grafana/provisioning/dashboards/diffserve.yml").read_text())[1]
        self.assertIn(f"./grafana:{folder}:ro", self.services["grafana"]["volumes"])

    def test_prefix_cache_is_kept_where_the_image_lets_the_server_write(self):
        image = (DEPLOY / "image_root.sh").read_text()
        [(owner, group, folder)] = re.findall(
            r'^install -d -m 700 -o (\d+) -g (\d+) "\$root(/\S+)"$', image, re.M)
        self.assertIn(f"\nUSER {owner}:{group}\n", (DEPLOY / "Dockerfile").read_text())
        self.assertIn(f"prefix-cache:{folder}", self.services["diffserve"]["volumes"])
        self.assertIn("prefix-cache", self.volumes)
        self.assertIn(f"DIFFSERVE_KV_CACHE_DIR={folder} docker compose",
                      (DEPLOY / "compose.yaml").read_text())

    def test_grace_period_covers_the_drain(self):
        text = subprocess.run([BINARY, "--help"], capture_output=True, text=True, timeout=30).stdout
        drain_s = int(re.search(r"--drain-timeout .*\(default (\d+)\)", text)[1])
        self.assertGreaterEqual(
            compose_spec.parse_duration(self.services["diffserve"]["stop_grace_period"]),
            drain_s + 20)
