# SPDX-License-Identifier: Apache-2.0
"""Clients that keep asking a port while servers there end and start, and record how each reply
ended."""

import asyncio
import collections
import json
import threading

from http_load import Client, Reply

CLIENTS = 6
PAUSE_S = 0.01  # after a connection that broke or a refusal


def end_of(reply: Reply) -> str:
    if reply.status == 0:
        return "cut" if reply.began else "not taken"
    if reply.status == 503:
        return "refused"
    if reply.status != 200:
        return f"status {reply.status}"
    if b'data: {"error"' in reply.body:
        return "error event"
    return "whole" if reply.body.endswith(b"data: [DONE]\n\n") else "no end"


class Load:
    """Runs until the block is left. Each client repeats one request and counts answers that are not
    bitwise equal to the first as wrong."""

    def __init__(self, port: int):
        self._port, self.ends, self.wrong = port, collections.Counter(), 0
        self._ended, self._thread = threading.Event(), threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        async def all_clients() -> None:
            await asyncio.gather(*(self._ask(number) for number in range(CLIENTS)))
        asyncio.run(all_clients())

    async def _ask(self, number: int) -> None:
        client, first = Client(self._port), None
        body = {
            "prompt": f"What is the magic number of city {number}?", "max_tokens": 40 + 60 * number,
            "temperature": 0, "ignore_eos": True, "stream": True, "logprobs": 1
        }
        while not self._ended.is_set():
            reply = await client.post("/v1/completions", body)
            self.ends[end_of(reply)] += 1
            if end_of(reply) == "whole":
                chunks = [json.loads(line[6:])["choices"] for line in reply.body.split(b"\n\n")
                          if line.startswith(b"data: {")]
                logprobs = [logprob for choices in chunks for choice in choices
                            for logprob in choice["logprobs"]["token_logprobs"]]
                first = first or logprobs
                self.wrong += logprobs != first
            else:
                await asyncio.sleep(PAUSE_S)
        client.close()
