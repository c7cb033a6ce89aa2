#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fairness: one client sends 500 prompts of full length while another chats.

    fairness.py [--prompts 500] [--chats 10] [--json FILE]

Each client has an API key. A chat has a prompt of 64 tokens and 32 generated ones. Its time
without other work is compared with its time while the other client's prompts are served. The
latter should be at most twice the former plus one step. Prints one JSON object; exit code 1 if a
request failed.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from pathlib import Path

import slow_model
from http_load import Client, Reply, percentile

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
from server_process import ServerProcess  # noqa: E402

LENGTH = 1280  # tokens: the model's
GENERATED_BY_PROMPTS = 8


def prompt(number: int, tokens: int) -> list[int]:
    return [5 + (number * 37 + i * 11) % 1700 for i in range(tokens)]


async def chats(client: Client, count: int, first: int) -> list[Reply]:
    return [
        await client.post("/v1/completions", {
            "prompt": prompt(first + i, 64), "max_tokens": 32, "temperature": 0, "ignore_eos": True
        }) for i in range(count)
    ]


async def step_times(client: Client) -> tuple[float, float]:
    """How many steps were executed, and their seconds."""
    text = (await client.get("/metrics")).body.decode()
    return tuple(
        float(re.search(rf'^diffserve_step_phase_seconds_{what}{{phase="execute"}} (\S+)$', text,
                        re.MULTILINE)[1]) for what in ("count", "sum"))


async def run(server: ServerProcess, arguments) -> dict:
    few, many = Client(server.port, "few"), Client(server.port, "many")
    await chats(few, 2, 0)  # memory and tables of the first use
    quiet = await chats(few, arguments.chats, 100)
    pending = [
        asyncio.create_task(many.post("/v1/completions", {
            "prompt": prompt(10_000 + i, LENGTH - GENERATED_BY_PROMPTS),
            "max_tokens": GENERATED_BY_PROMPTS, "temperature": 0, "ignore_eos": True
        })) for i in range(arguments.prompts)
    ]
    steps = await step_times(few)
    while (later := await step_times(few))[0] < steps[0] + 10:
        await asyncio.sleep(0.05)
    step_s = (later[1] - steps[1]) / (later[0] - steps[0])
    beside = await chats(few, arguments.chats, 200)
    still_pending = sum(not task.done() for task in pending)
    others = await asyncio.gather(*pending) if arguments.wait else []
    for task in pending:
        task.cancel()
    quiet_s = percentile([reply.seconds for reply in quiet], 0.5)
    beside_s = percentile([reply.seconds for reply in beside], 0.5)
    return {
        "prompts": arguments.prompts, "prompts_left_after_the_chats": still_pending,
        "quiet_ms_p50": round(1000 * quiet_s, 1), "beside_ms_p50": round(1000 * beside_s, 1),
        "beside_ms_max": round(1000 * max(reply.seconds for reply in beside), 1),
        "step_ms_of_the_prompts": round(1000 * step_s, 1),
        "steps_beyond_twice_quiet": round((beside_s - 2 * quiet_s) / step_s, 2),
        "failed": sum(reply.status != 200 for reply in (*quiet, *beside, *others)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=500)
    parser.add_argument("--chats", type=int, default=10)
    parser.add_argument("--layers", type=int, default=12, help="of the model; 0: the bundled one")
    parser.add_argument("--wait", action="store_true", help="until all prompts are answered")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        keys = Path(directory) / "keys"
        keys.write_text("few\nmany\n")
        flags = ["--api-key-file", keys, "--max-queue-wait", 3600, "--log-level", "error"]
        model = slow_model.DEMO_MODEL
        if arguments.layers > 0:
            model = slow_model.make(Path(directory) / "model", arguments.layers)
            flags += ["--load-format", "dummy", "--dtype", "bfloat16"]
        with ServerProcess(*flags, model=model) as server:
            result = asyncio.run(run(server, arguments))
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
