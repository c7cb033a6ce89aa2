# SPDX-License-Identifier: Apache-2.0
"""docs/cli.md equals `diffserve --help`, docs/operate/metrics.md equals a server's metrics, and
docs/operate/troubleshooting.md has each log event with its levels; each promise of SECURITY.md has
a test."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import tiny_phi4flash
from grpc_client import channel, collect, generate_request, pb_grpc
from server_process import BINARY, REPOSITORY, ServerProcess

CLI = REPOSITORY / "docs" / "make_cli.py"
TROUBLES = REPOSITORY / "docs" / "operate" / "troubleshooting.md"
METRICS = REPOSITORY / "docs" / "operate" / "metrics.md"
# | `diffserve_kv_pages{state}` | gauge | ...
ROW = re.compile(
    r"\| `([a-z_]+(?::[a-z_0-9]+)?)(?:\{([a-z,]+)\})?` \| (gauge|counter|histogram) \|")
EVENT = re.compile(r"\| `([a-z_]+)` \| ((?:DEBUG|INFO|WARNING|ERROR|, )+) \|")
WRITTEN = re.compile(r'LogLevel::k(\w+)(?:\s*: LogLevel::k(\w+))?,\s*"([a-z_]+)"')
LISTED = ("state", "reason", "stage", "phase", "end", "fate")  # labels whose values the page lists


def exposed(server: ServerProcess) -> str:
    """/metrics after a request over each protocol."""
    server.post("/v1/completions", {"prompt": "x", "max_tokens": 2})
    with channel(server) as opened:
        collect(pb_grpc.InferenceStub(opened).Generate(generate_request([1, 2], max_tokens=2)))
    return server.get("/metrics").body.decode()


class CommandLineTest(unittest.TestCase):
    def test_page_is_what_the_help_says(self):
        ran = subprocess.run([sys.executable, CLI, "--check"], capture_output=True, text=True,
                             env={**os.environ, "DIFFSERVE_BINARY": str(BINARY)})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)


class MetricsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            model = tiny_phi4flash.write(Path(folder) / "phi")  # has states and windows
            with (ServerProcess("--kv-cache-dir", Path(folder) / "cache") as plain,
                  ServerProcess(model=model) as with_states):
                cls.text = exposed(plain) + exposed(with_states)
        cls.types = dict(re.findall(r"^# TYPE (\S+) (\S+)$", cls.text, re.M))
        cls.page = METRICS.read_text()

    def test_names_and_types_are_the_servers(self):
        rows = {name: kind for name, _, kind in ROW.findall(self.page)}
        self.assertGreater(len(rows), 60)
        self.assertEqual(sorted(rows.items()), sorted(self.types.items()))

    def test_labels_and_their_values_are_the_servers(self):
        used = {}
        for name, labels in re.findall(r"^(\w[\w:]*)\{(.*)\} ", self.text, re.M):
            own = re.sub(r"_(bucket|sum|count)$", "", name)
            own = own if own in self.types else name
            for label, value in re.findall(r'(\w+)="([^"]*)"', labels):
                used.setdefault(own, {}).setdefault(label, set()).add(value)
        checked = 0
        for name, labels, kind in ROW.findall(self.page):
            if not name.startswith("diffserve_") or name == "diffserve_build_info":
                continue
            found = used.get(name, {})
            self.assertEqual(sorted(filter(None, labels.split(","))), sorted(set(found) - {"le"}),
                             name)
            for value in (v for label in LISTED for v in found.get(label, ())):
                self.assertIn(f"`{value}`", self.page, name)
                checked += 1
        self.assertGreater(checked, 20)


class LogTest(unittest.TestCase):
    def test_page_has_each_event_of_the_sources_with_its_levels(self):
        found = {}
        for folder in ("kernels", "models", "engine", "server"):
            for path in (REPOSITORY / folder).rglob("*.*"):
                if path.suffix not in (".cc", ".h", ".cu", ".cuh"):
                    continue
                for *levels, event in WRITTEN.findall(path.read_text()):
                    found.setdefault(event, set()).update(
                        level.upper() for level in levels if level)
        self.assertGreater(len(found), 30)
        page = dict(EVENT.findall(TROUBLES.read_text()))
        self.assertEqual({event: set(levels.split(", ")) for event, levels in page.items()}, found)


class SecurityTest(unittest.TestCase):
    def test_each_promise_of_the_page_has_a_test(self):
        done = subprocess.run(
            [sys.executable, REPOSITORY / "tests" / "reliability" / "promises.py"],
            capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
