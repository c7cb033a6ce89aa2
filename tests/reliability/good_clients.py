#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Well-behaved clients in their own process, so that other load generators do not slow them
down. Each sends one request after another over both protocols until standard input ends. Prints
one JSON object: how the requests ended, how many answers differ from the first ones, and how
long they took.

    good_clients.py HTTP_PORT GRPC_PORT [KEY]

Other programs here use the class GoodClients.
"""

import asyncio
import collections
import json
import subprocess
import sys
from pathlib import Path

from http_load import Client, percentile

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))

HTTP_CLIENTS, GRPC_CLIENTS = 3, 1
TOKENS = 12
PAUSE_S = 0.005  # between the requests of a client, so that they leave room on the machine


class GoodClients:
    """`with GoodClients(server) as good:`; leaving the block fills `good.result`."""

    def __init__(self, server, key: str = ""):
        self._command = [
            sys.executable, Path(__file__), str(server.port), str(server.grpc_port), key
        ]

    def __enter__(self):
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE,
                                         stdout=subprocess.PIPE)
        self._process.stdout.readline()  # each client has had an answer
        return self

    def __exit__(self, *_):
        output, _ = self._process.communicate()
        self.result = json.loads(output or '{"failed": {"no result": 1}, "wrong": 0}')


class Asked:
    """Results of the requests so far."""

    def __init__(self):
        self.ended, self.seconds, self.wrong = asyncio.Event(), [], 0
        self.failed, self.first = collections.Counter(), {}

    def take(self, question: str, answer, seconds: float) -> None:
        self.seconds.append(seconds)
        self.wrong += self.first.setdefault(question, answer) != answer

    def result(self) -> dict:
        return {
            "answers": len(self.seconds), "failed": dict(self.failed), "wrong": self.wrong,
            **{f"ms_{name}": round(1000 * percentile(self.seconds, share), 1)
               for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1))}
        }


async def over_http(asked: Asked, port: int, key: str, number: int) -> None:
    client, question = Client(port, key), f"What is the magic number of city {number}?"
    while not asked.ended.is_set():
        for stream in (False, True):
            reply = await client.post("/v1/completions", {
                "prompt": question, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
                "stream": stream
            })
            chunks = [json.loads(line[6:]) for line in reply.body.split(b"\n\n")
                      if line.startswith(b"data: {")] if stream else [reply.json()]
            if reply.status != 200 or stream and not reply.body.endswith(b"data: [DONE]\n\n"):
                asked.failed[f"http {reply.status}"] += 1
            else:
                text = "".join(chunk["choices"][0]["text"] for chunk in chunks if chunk["choices"])
                asked.take(question, text, reply.seconds)
            await asyncio.sleep(PAUSE_S)
    client.close()


async def over_grpc(asked: Asked, port: int, key: str) -> None:
    import grpc
    from grpc_client import generate_request, pb_grpc
    tokens, clock = [5 + i for i in range(20)], asyncio.get_running_loop().time
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = pb_grpc.InferenceStub(channel)
        while not asked.ended.is_set():
            begin, ids = clock(), []
            try:
                async for event in stub.Generate(generate_request(tokens, TOKENS),
                                                 metadata=[("authorization", f"Bearer {key}")]):
                    ids += event.delta.token_ids
                asked.take("grpc", ids, clock() - begin)
            except grpc.aio.AioRpcError as error:
                asked.failed[f"grpc {error.code().name}: {error.details()}"] += 1
            await asyncio.sleep(PAUSE_S)


async def ask(http_port: int, grpc_port: int, key: str) -> dict:
    asked = Asked()
    clients = [asyncio.create_task(over_http(asked, http_port, key, i))
               for i in range(HTTP_CLIENTS)]
    clients += [asyncio.create_task(over_grpc(asked, grpc_port, key)) for _ in range(GRPC_CLIENTS)]
    while len(asked.first) < len(clients) and not asked.failed:
        await asyncio.sleep(0.01)
    print("asking", flush=True)
    asked.seconds.clear()
    await asyncio.to_thread(sys.stdin.read)
    asked.ended.set()
    await asyncio.gather(*clients)
    return asked.result()


if __name__ == "__main__":
    print(json.dumps(asyncio.run(ask(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]))))
