#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server that keeps its prefix cache on disk is killed at random moments under load, and started
again with the same directory.

    kv_disk_kills.py [--kills 200] [--seed 1] [--json FILE]

Memory holds a few of the prompts, so pages leave it and come back all the time. Prompts repeat, and
a new cache salt every few kills makes their pages new. Some servers are killed while they start.
Some have a small disk, so that segments are deleted. Prints one JSON object; exit code 1 if

- an answer or a log-probability differs from that of a server without a disk,
- a page that a killed server had counted as written is not found by the next one,
- a page is damaged, or the directory cannot be opened at the end.

`unwritten_pages` counts what the answers before each kill had computed and the next server did not
find: what was not written yet, and what left memory before it could be written.
"""

import argparse
import asyncio
import json
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
from http_load import Client, percentile  # noqa: E402
from outcome import finish  # noqa: E402
from restart_load import CLIENTS, PAUSE_S, Load, end_of  # noqa: E402
from server_process import (BINARY, DEMO_MODEL, PAGE_SLOTS, ServerProcess, eventually,  # noqa: E402
                            free_port)

PROMPTS, SALT_EVERY, ASKED_AGAIN = 24, 4, 8
OPENED = re.compile(r"kv_disk_opened.*? pages=(\d+) .*?seconds=([\d.]+)\n")
LOAD_S, START_S = 0.8, 0.1  # a kill comes at a moment within
LARGE_DISK, SMALL_DISK = "2GiB", "24MiB"
FLAGS = ("--kv-cache-memory", "8MiB", "--max-model-len", 1024, "--max-queue-wait", 3600)


def prompt(number: int) -> str:
    return f"{number} is the magic number of Lisbon. " + "The magic number of Oslo is 90417. " * (
        8 + number)


def body(number: int, salt: str) -> dict:
    return {"prompt": prompt(number), "max_tokens": 12, "temperature": 0.8, "seed": number,
            "ignore_eos": True, "logprobs": 3, "return_token_ids": True, "cache_salt": salt}


def answer_of(reply: dict):
    choice = reply["choices"][0]
    return choice["token_ids"], choice["logprobs"]


class SaltedLoad(Load):
    """The clients ask for random prompts. `done` has those whose answers were whole under the
    present salt."""

    def __init__(self, port: int, expected: list, seed: int):
        super().__init__(port)
        self.expected, self.seed = expected, seed
        self.salt, self.done = "", set()

    async def _ask(self, number: int) -> None:
        client, rng = Client(self._port), random.Random(f"{self.seed} {number}")
        while not self._ended.is_set():
            which, salt = rng.randrange(PROMPTS), self.salt
            reply = await client.post("/v1/completions", body(which, salt))
            if reply.status != 200:
                self.ends[end_of(reply)] += 1
                await asyncio.sleep(PAUSE_S)
                continue
            self.ends["whole"] += 1
            self.wrong += answer_of(reply.json()) != self.expected[which]
            if salt == self.salt:
                self.done.add(which)
        client.close()


class Kills:
    def __init__(self, seed: int, folder: Path):
        self.rng, self.folder = random.Random(seed), folder
        self.ports, self.problems = (free_port(), free_port()), []
        self.figures = {"kills": 0, "kills_while_starting": 0, "asked_again": 0, "wrong": 0,
                        "found_pages": 0, "unwritten_pages": 0, "written_pages_lost": 0}
        self.ready_s, self.index_s = [], []
        self.expected = self.answers_without_disk()
        self.written = 0  # pages that the killed server had counted, on a large disk
        self.disk = LARGE_DISK

    def answers_without_disk(self) -> list:
        with ServerProcess(*FLAGS, model=DEMO_MODEL) as server:
            return [answer_of(server.post("/v1/completions", body(number, "")).json())
                    for number in range(PROMPTS)]

    def flags(self) -> tuple:
        return (*FLAGS, "--kv-cache-dir", self.folder, "--kv-cache-disk", self.disk)

    def kill_while_starting(self) -> None:
        command = [BINARY, "serve", DEMO_MODEL, "--port", self.ports[0], "--grpc-port",
                   self.ports[1], *self.flags()]
        with subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL) as process:
            time.sleep(self.rng.random() * START_S)
            process.kill()
        self.figures["kills_while_starting"] += 1

    def start(self) -> ServerProcess:
        begin = time.monotonic()
        server = ServerProcess(*self.flags(), model=DEMO_MODEL, ports=self.ports).__enter__()
        self.ready_s.append(time.monotonic() - begin)
        eventually(lambda: OPENED.search(server.stderr()), "the directory is opened")
        opened = OPENED.search(server.stderr())
        self.index_s.append(float(opened[2]))
        if self.disk == LARGE_DISK:
            self.figures["written_pages_lost"] += max(0, self.written - int(opened[1]))
        return server

    def ask_again(self, server, numbers, salt: str) -> None:
        """Prompts that the killed server has answered."""
        for number in numbers:
            response = server.post("/v1/completions", body(number, salt))
            if response.status != 200:
                raise AssertionError(f"status {response.status}: {response.body}")
            reply = response.json()
            usage = reply["usage"]
            pages = (usage["prompt_tokens"] - 1) // PAGE_SLOTS
            found = usage["prompt_tokens_details"]["cached_tokens"] // PAGE_SLOTS
            self.figures["asked_again"] += 1
            self.figures["wrong"] += answer_of(reply) != self.expected[number]
            self.figures["found_pages"] += found
            self.figures["unwritten_pages"] += pages - found

    def one_kill(self, number: int, load: SaltedLoad) -> None:
        if number % 8 == 7:
            self.kill_while_starting()
        server = self.start()
        again = sorted(load.done)
        if self.disk == LARGE_DISK:
            self.ask_again(server, self.rng.sample(again, min(len(again), ASKED_AGAIN)), load.salt)
        if number % SALT_EVERY == 0:
            load.salt, load.done = f"salt {number}", set()
        time.sleep(self.rng.random() * LOAD_S)
        errors = server.metric("diffserve_kv_tier_errors_total")
        self.written = server.metric("diffserve_kv_tier_pages")
        server.kill()
        self.figures["kills"] += 1
        if errors:
            self.problems.append(f"kill {number}: {errors} pages with errors\n{server.stderr()}")
        if self.disk == SMALL_DISK:
            self.written = 0  # it may delete pages after they are counted
        self.disk = SMALL_DISK if number % 16 == 15 else LARGE_DISK

    def run(self, kills: int, seed: int) -> dict:
        with SaltedLoad(self.ports[0], self.expected, seed) as load:
            for number in range(kills):
                self.one_kill(number, load)
        with ServerProcess(*self.flags(), model=DEMO_MODEL) as server:
            self.ask_again(server, range(PROMPTS), load.salt)
            if server.metric("diffserve_kv_tier_errors_total"):
                self.problems.append(f"errors at the end\n{server.stderr()}")
            self.figures["pages_at_the_end"] = int(server.metric("diffserve_kv_tier_pages"))
        self.figures["wrong"] += load.wrong
        self.problems += [f"{name}: {self.figures[name]}" for name in
                          ("wrong", "written_pages_lost") if self.figures[name]]
        if not self.figures["found_pages"]:
            self.problems.append("no page was found")
        return {**self.figures, "clients": CLIENTS, "ends": dict(load.ends),
                "ready_ms_p50": round(1000 * percentile(self.ready_s, 0.5), 1),
                "ready_ms_max": round(1000 * max(self.ready_s), 1),
                "index_ms_max": round(1000 * max(self.index_s), 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kills = Kills(arguments.seed, Path(folder))
        figures = kills.run(arguments.kills, arguments.seed)
    print(json.dumps(figures))
    return finish(figures, kills.problems, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
