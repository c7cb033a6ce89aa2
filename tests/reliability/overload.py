#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Goodput under overload: the peak of a closed loop, then an open loop at multiples of it.

    overload.py [--seconds 40] [--factors 1,2,5,10,50] [--max-queue-wait 10] [--json FILE]
    overload.py --bundled --factors 1,10 --max-queue-wait 4

The server has one core and the client another. With --bundled a small model answers many requests
per second on all cores, and the client takes its time from them. An answer is good if it is
complete and took at most --max-queue-wait plus twice the time of an answer in a full batch. A
refusal is late after 50 ms. Prints a table; exit code 1 if a reply was neither complete nor a
refusal with Retry-After, or if the server was not idle in the end.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import slow_model
from http_load import Client, Reply, percentile

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
from server_process import BINARY, DEMO_MODEL, ServerProcess  # noqa: E402

PROMPT = 64  # tokens
PROBES_PER_S = 20


@dataclass(frozen=True)
class Setting:
    """A server and its requests."""
    sequences: int  # that run at once
    output: int  # tokens
    flags: tuple


SLOW = Setting(16, 32, ("--load-format", "dummy", "--threads", 1, "--dtype", "bfloat16"))
BUNDLED = Setting(256, 256, ())


def body(number: int, output: int) -> dict:
    tokens = [5 + (number * 31 + i * 7) % 1700 for i in range(PROMPT)]
    return {"prompt": tokens, "max_tokens": output, "temperature": 0, "ignore_eos": True}


async def closed_loop(client: Client, setting: Setting, seconds: float) -> list[Reply]:
    """As many clients as run at once, each with one request at a time."""
    end, replies = time.monotonic() + seconds, []

    async def one(number: int) -> None:
        while time.monotonic() < end:
            request = body(number + len(replies), setting.output)
            replies.append(await client.post("/v1/completions", request))

    await asyncio.gather(*(one(1000 * i) for i in range(setting.sequences)))
    return replies


async def open_loop(client: Client, setting: Setting, rate: float, seconds: float) -> list[Reply]:
    """Requests come at random times, whatever becomes of those before."""
    begin, tasks, at = time.monotonic(), [], 0.0
    rng = random.Random(1)
    while at < seconds:
        await asyncio.sleep(max(0.0, begin + at - time.monotonic()))
        request = body(len(tasks), setting.output)
        tasks.append(asyncio.create_task(client.post("/v1/completions", request)))
        at += rng.expovariate(rate)
    return await asyncio.gather(*tasks)


async def probe(client: Client, replies: list[Reply]) -> None:
    while True:
        replies.append(await client.get("/readyz"))
        await asyncio.sleep(1 / PROBES_PER_S)


def summary(replies: list[Reply], probes: list[Reply], seconds: float, good_within: float) -> dict:
    whole = [reply for reply in replies if reply.status == 200]
    refusals = [reply.seconds for reply in replies if reply.status == 429]
    good = sum(reply.seconds <= good_within for reply in whole)
    return {
        "requests": len(replies), "good_per_s": round(good / seconds, 2), "whole": len(whole),
        "refused": len(refusals), "refused_late": sum(seconds > 0.05 for seconds in refusals),
        "refusal_ms_p50": round(1000 * percentile(refusals, 0.5), 2),
        "refusal_ms_p99": round(1000 * percentile(refusals, 0.99), 2),
        "answer_s_p50": round(percentile([reply.seconds for reply in whole], 0.5), 3),
        "answer_s_p99": round(percentile([reply.seconds for reply in whole], 0.99), 3),
        "readyz_ms_p99": round(1000 * percentile([reply.seconds for reply in probes], 0.99), 2),
        "unexpected": sum(reply.status not in (200, 429) or
                          (reply.status == 429 and int(reply.headers.get("retry-after", 0)) < 1)
                          for reply in replies),
    }


async def level(server: ServerProcess, seconds: float, good_within: float, load) -> dict:
    """`load(client)` beside the probes; what came after its time counts as well, and so does the
    time that it took."""
    client, prober, probes = Client(server.port), Client(server.port), []
    probing = asyncio.create_task(probe(prober, probes))
    begin = time.monotonic()
    replies = await load(client)
    elapsed = max(seconds, time.monotonic() - begin)
    probing.cancel()
    client.close()
    prober.close()
    return summary(replies, probes, elapsed, good_within)


async def run(server: ServerProcess, setting: Setting, arguments) -> dict:
    # memory and tables of the first use, and step times
    await closed_loop(Client(server.port), setting, 2)
    peak = await level(server, arguments.seconds, float("inf"),
                       lambda client: closed_loop(client, setting, arguments.seconds))
    result = {"peak": peak}
    good_within = arguments.max_queue_wait + 2 * peak["answer_s_p50"]
    for factor in arguments.factors:
        rate = factor * peak["good_per_s"]
        row = await level(server, arguments.seconds, good_within,
                          lambda client: open_loop(client, setting, rate, arguments.seconds))
        row["of_peak"] = round(row["good_per_s"] / peak["good_per_s"], 3)
        result[f"{factor:g}x"] = row
        server.wait_until_idle()
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--factors", type=lambda text: [float(x) for x in text.split(",")],
                        default=[1, 2, 5, 10, 50])
    parser.add_argument("--max-queue-wait", type=float, default=10)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--bundled", action="store_true", help="serve the bundled model instead")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    setting = BUNDLED if arguments.bundled else SLOW
    with tempfile.TemporaryDirectory() as directory:
        model = DEMO_MODEL if arguments.bundled else slow_model.make(
            Path(directory), arguments.layers)
        with ServerProcess("--max-num-seqs", setting.sequences, "--max-queue-wait",
                           arguments.max_queue_wait, "--log-level", "error", *setting.flags,
                           model=model, binary=BINARY) as server:
            result = asyncio.run(run(server, setting, arguments))
    for name, row in result.items():
        print(name, json.dumps(row))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if any(row["unexpected"] for row in result.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
