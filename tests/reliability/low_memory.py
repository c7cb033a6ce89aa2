#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Requests of every size over both protocols to a server without free memory: its limit of
address space, or of data, is set to slightly more than it uses.

    low_memory.py [--requests 400] [--at-once 16] [--rooms 16 8 4] [--json FILE]

Each limit and room (MiB) gets its own server, which has served some requests before. Prints one
JSON object per server: how the requests under the limit ended, how often memory was short, how
requests ended after the limit was lifted, and how the server ended: with 0, or with the message
that gRPC lost a call. Exit code 1 if a server died, if a request got anything but its whole
answer, an error or the connection's end, or if a later request was not answered or left
something in the server.
"""

import argparse
import asyncio
import collections
import json
import random
import resource
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from grpc_client import generate_request, pb_grpc  # noqa: E402
from http_load import Client  # noqa: E402
from outcome import finish  # noqa: E402
from server_process import DEMO_MODEL, ServerProcess, eventually  # noqa: E402

LIMITS = {"address space": (resource.RLIMIT_AS, "VmSize"), "data": (resource.RLIMIT_DATA, "VmData")}
SENTENCE = "The magic number of Lisbon is 48213. "
PATIENCE_S = 20


def limit(server: ServerProcess, name: str, room_mib: int | None) -> None:
    which, field = LIMITS[name]
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    used = int(status.partition(f"{field}:")[2].split()[0]) << 10
    soft = resource.RLIM_INFINITY if room_mib is None else used + (room_mib << 20)
    resource.prlimit(server.process.pid, which, (soft, resource.RLIM_INFINITY))


def body(rng: random.Random) -> dict:
    stream = rng.random() < 0.5
    return {
        "prompt": SENTENCE * rng.choice((1, 4, 16, 30)), "max_tokens": rng.choice((1, 16, 128)),
        "temperature": 0, "n": rng.choice((1, 1, 4)), "stream": stream,
        "logprobs": rng.choice((None, 5)),
        "prompt_logprobs": None if stream else rng.choice((None, 20))
    }


async def over_http(client: Client, path: str, request: dict) -> str:
    reply = await client.post(path, request)
    if reply.status == 0:
        return "http cut"
    if reply.status != 200:
        return f"http {reply.status}"
    if not request.get("stream"):
        return "http whole" if reply.json() else "http empty"
    if b'"error"' in reply.body:
        return "http error event"
    return "http whole" if reply.body.endswith(b"data: [DONE]\n\n") else "http without end"


async def over_grpc(stub, rng: random.Random) -> str:
    request = generate_request([5 + rng.randrange(200) for _ in range(rng.choice((4, 400)))],
                               rng.choice((1, 16, 64)))
    try:
        async for _ in stub.Generate(request):
            pass
    except grpc.aio.AioRpcError as error:
        return f"grpc {error.code().name}"
    return "grpc whole"


async def one(client: Client, stub, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.3:
        return await over_grpc(stub, rng)
    if kind < 0.4:
        return await over_http(client, "/tokenize", {"prompt": SENTENCE * rng.choice((1, 20_000))})
    return await over_http(client, "/v1/completions", body(rng))


async def send(server: ServerProcess, numbers: range, at_once: int) -> dict:
    ends, left = collections.Counter(), iter(numbers)
    client = Client(server.port)
    async with grpc.aio.insecure_channel(server.grpc_address) as channel:
        stub = pb_grpc.InferenceStub(channel)

        async def worker() -> None:
            for number in left:
                end = one(client, stub, random.Random(number))
                try:
                    ends[await asyncio.wait_for(end, PATIENCE_S)] += 1
                except TimeoutError:
                    ends["forgotten"] += 1

        await asyncio.gather(*(worker() for _ in range(at_once)))
    client.close()
    return dict(sorted(ends.items()))


def run(name: str, room_mib: int, arguments) -> dict:
    def sent(first: int, requests: int) -> dict:
        return asyncio.run(send(server, range(first, first + requests), arguments.at_once))

    few = max(1, arguments.requests // 10)
    # A drain waits for calls that gRPC never ends (docs/operate/limits.md).
    options = ("--log-level", "error", "--drain-timeout", "5")
    with ServerProcess(*options, model=DEMO_MODEL) as server:
        sent(0, few)
        limit(server, name, room_mib)
        result = {"limit": name, "room_mib": room_mib, "ends": sent(few, arguments.requests)}
        if (code := server.process.poll()) is not None:
            print(server.stderr(), file=sys.stderr)
            return result | {"died": code}
        limit(server, name, None)
        eventually(lambda: server.get("/readyz").status == 200, "it is ready again")
        server.wait_until_idle()
        result["ends_afterwards"] = sent(few + arguments.requests, few)
        server.wait_until_idle()
        result["shortages"] = server.metric("diffserve_memory_shortages_total")
        result["pages_left"] = server.pages_used()
        result["requests_left"] = server.get("/load").json()["server_load"]
        code = server.stop()
        lost = code == 1 and "grpc_call_lost" in server.stderr()
        result["end"] = "gRPC lost a call" if lost else code
        server.code = 0  # problems() judges it
    return result


def problems(result: dict) -> list[str]:
    if "died" in result:
        return [f"the server died: {result['died']}"]
    ends = {"http whole", "http 429", "http 500", "http 503", "http cut", "http error event",
            "grpc whole", "grpc RESOURCE_EXHAUSTED", "grpc INTERNAL", "grpc UNAVAILABLE"}
    found = [f"{end}: {count}" for end, count in result["ends"].items() if end not in ends]
    found += [f"afterwards {end}: {count}" for end, count in result["ends_afterwards"].items()
              if not end.endswith("whole")]
    if result["end"] not in (0, "gRPC lost a call"):
        found.append(f"exit code {result['end']}")
    return found + [f"{name}: {result[name]}" for name in ("pages_left", "requests_left")
                    if result[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=400)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--rooms", type=int, nargs="+", default=[16, 8, 4])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    results, found = [], []
    for name in LIMITS:
        for room_mib in arguments.rooms:
            results.append(run(name, room_mib, arguments))
            print(json.dumps(results[-1]), flush=True)
            found += [f"{name}, {room_mib} MiB: {each}" for each in problems(results[-1])]
    return finish(results, found, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
