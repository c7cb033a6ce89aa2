# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus on a free loopback port that scrapes one server about every second, and its
query API."""

import json
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from server_process import eventually, free_port

PROGRAM = shutil.which("prometheus")
CONFIGURATION = """
global: {{scrape_interval: {interval}, scrape_timeout: {interval}, evaluation_interval: {interval}}}
rule_files: [{rules}]
scrape_configs: [{{job_name: diffserve, static_configs: [{{targets: ["127.0.0.1:{port}"]}}]}}]
"""


class PrometheusProcess:
    """`rules`: a file of rules that it evaluates at each scrape."""

    def __init__(self, server, rules: Path | None = None, interval: str = "1s"):
        self.server, self.rules, self.interval = server, rules or "", interval

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="diffserve-prometheus-")
        folder = Path(self._folder.name)
        (folder / "prometheus.yml").write_text(
            CONFIGURATION.format(port=self.server.port, rules=self.rules, interval=self.interval))
        self.url = f"http://127.0.0.1:{free_port()}"
        command = [
            PROGRAM, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
            "--log.level=warn", f"--web.listen-address={self.url.removeprefix('http://')}",
            "--storage.tsdb.retention.size=64MB"
        ]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=log)
        try:
            eventually(self._has_scraped, "Prometheus has scraped the server", 600)
        except BaseException:
            text = (folder / "log").read_text(errors="replace")[-2000:]
            self.__exit__()
            raise AssertionError(f"Prometheus does not scrape\n{text}") from None
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()

    def _has_scraped(self) -> bool:
        if self.process.poll() is not None:
            raise AssertionError("Prometheus has ended")
        try:
            return self.value("up") == 1
        except OSError:
            return False  # it does not listen yet

    def get(self, path: str, **parameters):
        query = urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{query}",
                                        timeout=20) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code not in (400, 422):
                raise
            raise AssertionError(f"{parameters}: {json.load(error)['error']}") from None

    def series(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each sample of an instant query."""
        result = self.get("query", query=expression)
        samples = [({}, result["result"])] if result["resultType"] == "scalar" else [
            (r["metric"], r["value"]) for r in result["result"]
        ]
        return [(labels, float(value)) for labels, (_, value) in samples]

    def value(self, expression: str) -> float | None:
        """The only sample of an instant query; None if there is none."""
        found = self.series(expression)
        if len(found) > 1:
            raise AssertionError(f"{len(found)} series for {expression}")
        return found[0][1] if found else None
