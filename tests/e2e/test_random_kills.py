# SPDX-License-Identifier: Apache-2.0
"""Clients that leave at a random byte, in every way that a client can, leave nothing in the
server."""

import asyncio
import json
import random
import unittest

from server_process import ServerProcess, eventually

CLIENTS = 80
SEED = 1


class RandomKillsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(
            ServerProcess("--max-model-len", 1024, "--kv-cache-memory", "2MiB", "--max-num-seqs",
                          24))

    async def client(self, rng: random.Random) -> str:
        """What became of one client: "left", or the end of its answer."""
        await asyncio.sleep(rng.random() * 2)
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        body = json.dumps({
            "prompt": f"{rng.randrange(7)} and so on " * rng.randrange(1, 40),
            "max_tokens": rng.choice((3, 30, 300)), "stream": rng.random() < 0.8,
            "ignore_eos": True, "logprobs": rng.choice((None, 3)), "n": rng.choice((1, 2))
        })
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
            b"application/json\r\nConnection: close\r\n"
        )
        request = f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        leaves = rng.random() < 0.5
        writer.write(
            request[:rng.randrange(len(request))] if leaves and rng.random() < 0.2 else request)
        try:
            if not leaves:
                answer = await asyncio.wait_for(reader.read(-1), 60)
                return "whole" if answer.startswith(b"HTTP/1.1 200") and answer.rstrip(
                    b"\r\n0").endswith((b"[DONE]", b"}")) else "cut"
            try:
                await asyncio.wait_for(reader.readexactly(rng.randrange(1, 20_000)), rng.random())
            except (TimeoutError, asyncio.IncompleteReadError):
                pass
            if rng.random() < 0.3:
                writer.write_eof()
            return "left"
        finally:
            writer.transport.abort() if rng.random() < 0.5 else writer.close()

    async def all_clients(self, seed: int) -> list[str]:
        rng = random.Random(seed)
        return await asyncio.gather(*(self.client(random.Random(rng.random()))
                                      for _ in range(CLIENTS)))

    def open_files(self) -> float:
        return self.server.metric("process_open_fds")

    def test_nothing_is_left_behind(self):
        ends = asyncio.run(self.all_clients(SEED))
        memory, files = self.server.metric("process_resident_memory_bytes"), self.open_files()
        ends += asyncio.run(self.all_clients(SEED + 1))
        self.assertEqual(set(ends), {"left", "whole"})
        self.server.wait_until_idle()
        for name in ("diffserve_requests_running", "diffserve_requests_waiting",
                     "diffserve_waiting_tokens"):
            self.assertEqual(self.server.metric(name), 0, name)
        self.assertEqual(self.server.get("/load").json()["server_load"], 0)
        self.assertEqual(self.server.metric("diffserve_requests_finished_total", reason="error"), 0)
        # A connection lingers while its peer has not taken the last reply.
        eventually(lambda: self.open_files() <= files, f"no more than {files} open files")
        self.assertLess(self.server.metric("process_resident_memory_bytes") - memory, 16 << 20)
