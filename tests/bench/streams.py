#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs `diffserve serve` and keeps many streams open at once: all must end with as many tokens as
were asked for.

    streams.py PROGRAM MODEL_DIR [--streams 256] [--tokens 128] [--flag=FLAG ...]

Prints one JSON object with the tokens of all streams per second, from the first request sent to the
last stream's end; exit code 1 if a stream failed. Only the standard library is needed.
"""

import argparse
import asyncio
import json
import re
import subprocess
import sys
import time

TIMEOUT_S = 120


async def stream(port: int, number: int, tokens: int, prompt_tokens: int) -> int:
    """The completion tokens that the server says it sent, 0 if the stream did not end as it
    should."""
    body = json.dumps({
        "prompt": [5 + (number * 31 + i * 7) % 200 for i in range(prompt_tokens)],
        "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
        "stream_options": {"include_usage": True}
    }).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: "
            b"application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n" % len(body) + body)
        answer = (await reader.read()).decode(errors="replace")
    finally:
        writer.close()
    if "data: [DONE]" not in answer:
        print(f"stream {number} did not end: {answer[-300:]!r}", file=sys.stderr)
        return 0
    usage = re.findall(r'"completion_tokens": ?(\d+)', answer)
    return int(usage[-1]) if usage else 0


async def run(port: int, arguments) -> dict:
    await stream(port, 0, 4, arguments.prompt_tokens)  # what is made at the first use
    begin = time.monotonic()
    counts = await asyncio.gather(*(stream(port, i, arguments.tokens, arguments.prompt_tokens)
                                    for i in range(arguments.streams)))
    seconds = time.monotonic() - begin
    return {
        "streams": arguments.streams, "streams_whole": sum(count == arguments.tokens
                                                           for count in counts),
        "prompt_tokens": arguments.prompt_tokens, "completion_tokens": sum(counts),
        "seconds": round(seconds, 4), "tokens_per_s": round(sum(counts) / seconds, 2)
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--flag", action="append", default=[],
                        help="of diffserve serve: --flag=--device=cuda")
    arguments = parser.parse_args()
    command = [arguments.program, "serve", arguments.model, "--port", "0", "--grpc-port", "0",
               *(part for flag in arguments.flag for part in flag.split("=", 1))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            ready = re.match(r"ready http=127\.0\.0\.1:(\d+)", server.stdout.readline())
            if not ready:
                print("the server did not get ready", file=sys.stderr)
                return 1
            result = asyncio.run(asyncio.wait_for(run(int(ready[1]), arguments), TIMEOUT_S))
        finally:
            server.terminate()
            server.wait(TIMEOUT_S)
    print(json.dumps(result))
    return 0 if result["streams_whole"] == arguments.streams else 1


if __name__ == "__main__":
    sys.exit(main())
