#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many mixed requests over both protocols; a third of the clients leave early. Checks that the
server keeps nothing of them.

    soak.py [--requests 1000000] [--at-once 64] [--json FILE]

Prints one JSON object: how the requests ended, the server's state after the first 50,000 (or
after half, if fewer) and at the end, and the growth of its resident memory in between. Exit code
1 if it grew by more than 16 MiB, if a page, descriptor, thread or request is left, or if a
request ended in an unexpected way.
"""

import argparse
import asyncio
import collections
import json
import random
import sys
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from grpc_client import generate_request, pb_grpc  # noqa: E402
from http_load import Client  # noqa: E402
from outcome import finish  # noqa: E402
from server_process import DEMO_MODEL, ServerProcess  # noqa: E402

MAX_GROWTH_BYTES = 16 << 20
LINGER_S = 15


def body(rng: random.Random, stream: bool) -> dict:
    return {
        "prompt": "The magic number of Lisbon is 48213. " * rng.randrange(1, 8),
        "max_tokens": rng.choice((1, 4, 16, 64)), "temperature": rng.choice((0, 1)), "seed": 1,
        "n": rng.choice((1, 1, 1, 2)), "logprobs": rng.choice((None, None, 3)),
        "ignore_eos": rng.random() < 0.5, "stream": stream
    }


async def leave_early(port: int, rng: random.Random) -> str:
    """Sends a part of a request or all of it, reads a part of the answer, and is gone."""
    _, writer = opened = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(body(rng, rng.random() < 0.8)).encode()
    data = (b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data)) + data
    writer.write(data[:rng.randrange(1, len(data))] if rng.random() < 0.2 else data)
    try:
        await asyncio.wait_for(opened[0].readexactly(rng.randrange(1, 4000)), rng.random() * 0.05)
    except (TimeoutError, asyncio.IncompleteReadError, OSError):
        pass
    if rng.random() < 0.3 and writer.can_write_eof():
        writer.write_eof()
    writer.transport.abort() if rng.random() < 0.5 else writer.close()
    return "http left"


async def over_grpc(stub, rng: random.Random) -> str:
    call = stub.Generate(generate_request([5 + rng.randrange(200) for _ in range(20)],
                                          rng.choice((1, 4, 16, 64))))
    leaves = rng.random() < 0.3
    try:
        async for _ in call:
            if leaves and rng.random() < 0.3:
                call.cancel()
                return "grpc left"
    except grpc.aio.AioRpcError as error:
        return f"grpc {error.code().name}"
    except asyncio.CancelledError:
        return "grpc left"
    return "grpc whole"


async def one(server: ServerProcess, client: Client, stub, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return await leave_early(server.port, rng)
    if kind < 0.45:
        return await over_grpc(stub, rng)
    reply = await client.post("/v1/completions", body(rng, kind < 0.8))
    whole = reply.status == 200 and (kind >= 0.8 or reply.body.endswith(b"data: [DONE]\n\n"))
    return "http whole" if whole else f"http {reply.status}"


def held(server: ServerProcess) -> dict:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    threads = int(status.partition("Threads:")[2].split()[0])
    return {
        "resident_bytes": int(status.partition("VmRSS:")[2].split()[0]) << 10,
        "descriptors": server.metric("process_open_fds"), "threads": threads,
        "pages": server.pages_used(),
        "requests": server.metric("diffserve_requests_running") +
                    server.metric("diffserve_requests_waiting") + server.get("/load").json()[
                        "server_load"],
    }


async def send(server: ServerProcess, numbers: range, at_once: int) -> collections.Counter:
    ends, left = collections.Counter(), iter(numbers)
    client = Client(server.port)
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        stub = pb_grpc.InferenceStub(channel)

        async def worker() -> None:
            for number in left:
                ends[await one(server, client, stub, random.Random(number))] += 1

        await asyncio.gather(*(worker() for _ in range(at_once)))
    client.close()
    return ends


def held_at_rest(server: ServerProcess, descriptors: float) -> dict:
    """The server's state when nothing runs and lost connections are closed, or at the timeout."""
    server.wait_until_idle()
    for _ in range(LINGER_S):
        if held(server)["descriptors"] <= descriptors:
            break
        time.sleep(1)
    return held(server)


def run(server: ServerProcess, arguments) -> dict:
    begin, first = time.monotonic(), min(50_000, arguments.requests // 2)
    at_start = held(server)["descriptors"]
    ends = asyncio.run(send(server, range(first), arguments.at_once))
    early = held_at_rest(server, at_start)
    ends += asyncio.run(send(server, range(first, arguments.requests), arguments.at_once))
    late = held_at_rest(server, early["descriptors"])
    return {
        "requests": arguments.requests, "seconds": round(time.monotonic() - begin),
        "ends": dict(ends), "growth_bytes": late["resident_bytes"] - early["resident_bytes"],
        "held_after_the_first": early, "held_in_the_end": late
    }


def problems(result: dict) -> list[str]:
    early, late = result["held_after_the_first"], result["held_in_the_end"]
    found = [f"{name}: {late[name]}" for name in ("pages", "requests") if late[name]]
    found += [f"{name}: {early[name]} after the first, {late[name]} in the end"
              for name in ("descriptors", "threads") if late[name] > early[name]]
    if result["growth_bytes"] > MAX_GROWTH_BYTES:
        found.append(f"memory grew by {result['growth_bytes']} bytes")
    expected = {"http whole", "http left", "grpc whole", "grpc left"}
    return found + [f"{end}: {count}" for end, count in result["ends"].items()
                    if end not in expected]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--at-once", type=int, default=64)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with ServerProcess("--log-level", "error", model=DEMO_MODEL) as server:
        result = run(server, arguments)
    print(json.dumps(result))
    return finish(result, problems(result), arguments.json)


if __name__ == "__main__":
    sys.exit(main())
