#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws what the overview dashboard shows of a real run: the bundled model under a rising and
falling load, scraped by Prometheus.

    overview.py [--minutes 4] [--output deploy/grafana/overview.svg]

Needs a built server and what `deploy/install_deps.sh --test --browser` installs; run it with
.venv/bin/python on a machine without other work.
"""

import argparse
import asyncio
import json
import math
import platform
import random
import re
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
import dashboards
from line_charts import Chart, Ticks, minutes, svg
from prometheus_process import PrometheusProcess
from server_process import DEMO_MODEL, REPOSITORY, ServerProcess

# One thread for the server, the other core for clients and Prometheus; pages for 11 of 16 sequences
# at their longest.
FLAGS = ("--threads", 1, "--max-num-seqs", 16, "--max-waiting-requests", 32, "--kv-cache-memory",
         "12MiB")
CLIENTS = (2, 8, 20, 40, 64, 40, 12, 4)  # open connections, each for an equal share of the time
DOCUMENTS, DOCUMENT_TOKENS, QUESTION_TOKENS, ANSWER_TOKENS = 12, 512, 32, (32, 192)
POINTS = 120
SCRAPE_S = 1


class Load:
    def __init__(self, port: int, seconds: float):
        self.port, self.begin, self.seconds = port, time.monotonic(), seconds
        self.draw = random.Random(1)
        self.documents = [self.tokens(DOCUMENT_TOKENS) for _ in range(DOCUMENTS)]

    def tokens(self, count: int) -> list[int]:
        return [self.draw.randrange(300, 1700) for _ in range(count)]

    def share(self) -> float:
        return (time.monotonic() - self.begin) / self.seconds

    async def ask(self) -> int:
        """One request about one of the documents; the status of its answer."""
        prompt = self.draw.choice(self.documents) + self.tokens(QUESTION_TOKENS)
        body = json.dumps(
            {"prompt": prompt, "max_tokens": self.draw.randint(*ANSWER_TOKENS),
             "ignore_eos": True}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(
                b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
                b"application/json\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n" % len(body) + body)
            return int((await reader.read()).split(maxsplit=2)[1])
        finally:
            writer.close()

    async def client(self, number: int) -> None:
        while (share := self.share()) < 1:
            if number < CLIENTS[int(share * len(CLIENTS))]:
                status = await self.ask()
                if status not in (200, 429):
                    raise RuntimeError(f"status {status}")
                await asyncio.sleep(self.draw.expovariate(20) if status == 200 else 0.5)
            else:
                await asyncio.sleep(0.2)

    async def run(self) -> None:
        await asyncio.gather(*(self.client(number) for number in range(max(CLIENTS))))


def label_of(target: dashboards.Target, labels: dict[str, str]) -> str:
    """There is one replica, and its port says nothing."""
    legend = target.legend.replace(" {{instance}}", "").replace("{{instance}}", "replica")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels[match[1]], legend)


def charts(scraper: PrometheusProcess, begin: float, end: float, ticks: Ticks) -> list[Chart]:
    step = (end - begin) / POINTS
    result = []
    board = dashboards.boards()["overview.json"]
    for panel in (panel for panel in board["panels"] if panel["type"] == "timeseries"):
        settings = panel["fieldConfig"]["defaults"]
        chart = Chart(panel["title"], settings["unit"], "stacking" in settings["custom"],
                      settings.get("max"), ticks)
        for target in dashboards.targets("overview.json", panel):
            expression = dashboards.expand(target.expression, f"{8 * SCRAPE_S}s",
                                           f"{round(end - begin)}s")
            for series in scraper.get("query_range", query=expression, start=begin, end=end,
                                      step=step)["result"]:
                values = {
                    round((moment - begin) / step): float(value)
                    for moment, value in series["values"]
                }
                line = [values.get(i, math.nan) for i in range(POINTS + 1)]
                if any(value > 0 for value in line):
                    chart.lines[label_of(target, series["metric"])] = line
        if not chart.lines:
            raise RuntimeError(f"the panel {panel['title']} is empty")
        result.append(chart)
    return result


def processor() -> str:
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found[1] if found else platform.machine()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--output", type=Path, default=dashboards.GRAFANA / "overview.svg")
    arguments = parser.parse_args()
    rules = REPOSITORY / "deploy" / "prometheus" / "rules.yml"
    with ServerProcess(*FLAGS,
                       model=DEMO_MODEL) as server, PrometheusProcess(server, rules,
                                                                      f"{SCRAPE_S}s") as scraper:
        begin = time.time()
        asyncio.run(Load(server.port, arguments.minutes * 60).run())
        drawn = charts(scraper, begin, time.time(), minutes(arguments.minutes))
        metrics = server.metrics()
    caption = (
        f"The bundled model on one core of an {processor()}: {min(CLIENTS)} to {max(CLIENTS)} "
        f"clients over {arguments.minutes:g} "
        f"min, prompts of {DOCUMENT_TOKENS + QUESTION_TOKENS} tokens, "
        f"{metrics['diffserve_generation_tokens_total']:,.0f} generated"
    )
    arguments.output.write_text(svg(drawn, caption))
    print(f"{arguments.output}: {arguments.output.stat().st_size} bytes; {caption}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
