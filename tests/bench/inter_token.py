#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what prompts that arrive cost the streams that run: `diffserve serve` decodes many
streams, and long prompts arrive one after another.

    inter_token.py PROGRAM MODEL_DIR [--streams 32] [--prompts 4] [--prompt-tokens 4096]
                   [--limits 0,50,...] [--flag=FLAG ...]

Each limit is a server of its own with `--max-step-ms`. Prints one JSON object per limit: the time
between two tokens of a stream from the first prompt's arrival to the last one's first token, and
the time to the first token of the prompts. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time

from streams import percentile_ms


async def stream(port: int, prompt: list[int], tokens: int, times: list[float]) -> None:
    """Appends the time of each event with a token."""
    body = json.dumps({"prompt": prompt, "max_tokens": tokens, "temperature": 0,
                       "ignore_eos": True, "return_token_ids": True, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                     b"Content-Type: application/json\r\nConnection: close\r\n"
                     b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while line := await reader.readline():
            if line.startswith(b"data: {"):
                times.append(time.monotonic())
    finally:
        writer.close()


def prompt_of(number: int, tokens: int) -> list[int]:
    return [5 + (number * 7919 + i * 31) % 200 for i in range(tokens)]


async def measure(port: int, arguments) -> dict:
    """No prompt begins as another does, so that none is found in the prefix cache."""
    running: list[list[float]] = [[] for _ in range(arguments.streams)]
    streams = [asyncio.create_task(stream(port, prompt_of(i, 32), arguments.tokens, times))
               for i, times in enumerate(running)]
    while min(len(times) for times in running) < 8:
        await asyncio.sleep(0.01)
    first_token, begin = [], time.monotonic()
    for number in range(arguments.prompts):
        times: list[float] = []
        sent = time.monotonic()
        await stream(port, prompt_of(1000 + number, arguments.prompt_tokens), 1, times)
        first_token.append(times[0] - sent)
    end = time.monotonic()
    whole = all(not task.done() for task in streams)
    for task in streams:
        task.cancel()
    await asyncio.gather(*streams, return_exceptions=True)
    gaps = [after - before for times in running for before, after in zip(times, times[1:])
            if after > begin and before < end]
    return {"streams_ran_on": whole, "gaps": len(gaps),
            "inter_token_ms_p50": percentile_ms(gaps, 0.5),
            "inter_token_ms_p99": percentile_ms(gaps, 0.99),
            "inter_token_ms_max": percentile_ms(gaps, 1),
            "prompt_ttft_ms_mean": round(1e3 * sum(first_token) / len(first_token), 1)}


def serve(arguments, limit: str) -> dict:
    command = [arguments.program, "serve", arguments.model, "--port", "0", "--no-grpc",
               "--max-step-ms", limit,
               *(part for flag in arguments.flag for part in flag.split("=", 1))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = re.match(r"ready http=127\.0\.0\.1:(\d+)", server.stdout.readline())
            if not ready:
                raise SystemExit("the server did not get ready")
            return asyncio.run(asyncio.wait_for(
                measure(int(ready[1]), arguments), arguments.seconds))
        finally:
            server.terminate()
            server.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=3500, help="of each stream, at most")
    parser.add_argument("--limits", default="0,50", help="of --max-step-ms, separated by commas")
    parser.add_argument("--seconds", type=float, default=300, help="for one measurement")
    parser.add_argument("--flag", action="append", default=[],
                        help="of diffserve serve: --flag=--device=cuda")
    arguments = parser.parse_args()
    for limit in arguments.limits.split(","):
        print(json.dumps({"max_step_ms": float(limit), **serve(arguments, limit)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
