#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `diffserve serve` under loads of many streams that begin at once: all must end with as many
tokens as were asked for. The model needs no tokenizer.

    streams.py PROGRAM MODEL_DIR [--loads 256x32x128,...] [--flag=FLAG ...]

A load is streams x tokens of a prompt x tokens of an answer. Prints one JSON object: tokens per
second from the first request sent to the last stream's end, milliseconds to the first token, and
those of each token after it. Exit code 1 if a stream failed. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time

WARM_UP = (2, 64, 8)  # what is made at the first use


def percentile_ms(seconds: list[float], share: float) -> float:
    ordered = sorted(seconds)
    return round(1e3 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


async def stream(port: int, prompt: list[int], tokens: int) -> tuple[int, float, float]:
    """The tokens that the server says it sent, 0 if the stream did not end as it should; seconds to
    the first of them and to the last."""
    body = json.dumps({
        "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
        "return_token_ids": True, "stream": True, "stream_options": {"include_usage": True}
    }).encode()
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    first, answer = None, b""
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
            b"application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body)
        while chunk := await reader.read(1 << 16):
            answer += chunk
            if first is None and b"data: " in answer:
                first = time.monotonic() - begin
    finally:
        writer.close()
    usage = re.findall(rb'"completion_tokens": ?(\d+)', answer)
    if first is None or not usage or b"data: [DONE]" not in answer:
        print(f"a stream did not end: {answer[-300:]!r}", file=sys.stderr)
        return 0, 0, 0
    return int(usage[-1]), first, time.monotonic() - begin


async def run_load(port: int, number: int, load: tuple[int, int, int]) -> dict:
    """No prompt begins as another does, so that none is found in the prefix cache."""
    streams, prompt_tokens, tokens = load
    prompts = [[5 + (stream * 7919 + i * 31 + number * 101) % 200 for i in range(prompt_tokens)]
               for stream in range(streams)]
    begin = time.monotonic()
    ended = await asyncio.gather(*(stream(port, prompt, tokens) for prompt in prompts))
    seconds = time.monotonic() - begin
    count = sum(got for got, _, _ in ended)
    first = [first for _, first, _ in ended]
    each = [(last - first) / max(1, got - 1) for got, first, last in ended]
    return {
        "streams": streams, "in": prompt_tokens, "out": tokens,
        "ok": sum(got == tokens for got, _, _ in ended), "seconds": round(seconds, 4),
        "out_tokens_per_s": round(count / seconds, 1),
        "total_tokens_per_s": round((count + streams * prompt_tokens) / seconds, 1),
        "ttft_ms_p50": percentile_ms(first, 0.5), "ttft_ms_p99": percentile_ms(first, 0.99),
        "per_token_ms_p50": percentile_ms(each, 0.5), "per_token_ms_p99": percentile_ms(each, 0.99)
    }


async def run(port: int, arguments, end: float, result: dict) -> None:
    """Adds each load to the result as it ends, and what came in the way."""
    try:
        for number, load in enumerate([WARM_UP, *arguments.loads]):
            found = await asyncio.wait_for(run_load(port, number, load), end - time.monotonic())
            if number > 0:
                result["loads"].append(found)
    except asyncio.TimeoutError:
        result["error"] = f"no time was left after {len(result['loads'])} loads"


def loads(text: str) -> list[tuple[int, int, int]]:
    found = [tuple(int(number) for number in load.split("x")) for load in text.split(",")]
    if any(len(load) != 3 or min(load) < 1 for load in found):
        raise ValueError
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--loads", type=loads, default=loads("256x32x128"))
    parser.add_argument("--seconds", type=float, default=120, help="for the start and all loads")
    parser.add_argument("--flag", action="append", default=[],
                        help="of diffserve serve: --flag=--device=cuda")
    arguments = parser.parse_args()
    command = [arguments.program, "serve", arguments.model, "--port", "0", "--grpc-port", "0",
               *(part for flag in arguments.flag for part in flag.split("=", 1))]
    begin = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = re.match(r"ready http=127\.0\.0\.1:(\d+)", server.stdout.readline())
            if not ready:
                print("the server did not get ready", file=sys.stderr)
                return 1
            result = {"flags": arguments.flag, "start_s": round(time.monotonic() - begin, 1),
                      "loads": []}
            asyncio.run(run(int(ready[1]), arguments, begin + arguments.seconds, result))
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(result))
    whole = all(load["ok"] == load["streams"] for load in result["loads"])
    return 0 if whole and "error" not in result else 1


if __name__ == "__main__":
    sys.exit(main())
