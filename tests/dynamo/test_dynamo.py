# SPDX-License-Identifier: Apache-2.0
"""deploy/dynamo: two workers behind Dynamo's frontend answer as a server does, cancel, survive a
kill and drain; the engine alone keeps what Dynamo's conformance kit asks of an engine."""

import asyncio
import os
import sys
import unittest

import psutil
from frontend import (ANSWERED, COMPLETIONS, FIRST_STEPS, GREEDY, LONG, MODEL, PLANES,
                      PREFIX_TOKENS, PROMPT, Frontend, Process, answer, cached_tokens, streamed)
from server_process import DEMO_MODEL, GATED_BINARY, REPOSITORY, GatedServer, eventually
from servers import Child, accepted, is_alive, under_way

BACKEND = REPOSITORY / "deploy/dynamo/diffserve_backend.py"


class Worker(Process):
    def children(self) -> list[Child]:
        """Its servers that are ready."""
        return [Child(p) for p in psutil.Process(self.process.pid).children()
                if p.exe() == str(GATED_BINARY) and is_alive(p)]


class Deployment(Frontend):
    """A frontend and two workers."""

    def __init__(self, flags: str = ""):
        super().__init__()
        self.flags = f"--flags=--threads 1 {flags}"

    def __enter__(self) -> "Deployment":
        super().__enter__()
        self.environment |= {"DIFFSERVE_GATE": str(self.gate),
                             "DIFFSERVE_BINARY": str(GATED_BINARY)}
        self.workers: list[Worker] = []
        for _ in range(2):
            self.start_worker()
        eventually(self.answers, "the frontend answers", 90)
        return self

    def __exit__(self, *_):
        self.open_gate()
        for process in self.workers:
            process.stop()
        super().__exit__()

    def start_worker(self) -> None:
        self.workers.append(Worker(
            self.folder, f"worker{len(self.workers)}", BACKEND, "--model", DEMO_MODEL,
            self.flags, *PLANES,
            **self.environment))

    def children(self) -> list[Child]:
        return [child for worker in self.workers if worker.process.poll() is None
                for child in worker.children()]

    def answers(self) -> bool:
        try:
            return len(self.children()) == 2 and self.post(
                COMPLETIONS, {**GREEDY, "prompt": "x"}).status == 200
        except (OSError, AssertionError, psutil.NoSuchProcess):
            return False


class FrontendTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dynamo = cls.enterClassContext(Deployment())

    def setUp(self):
        self.addCleanup(self.dynamo.open_gate)

    def test_answers_are_the_servers_own(self):
        with GatedServer(model=DEMO_MODEL) as direct:
            for name, (path, body) in ANSWERED.items():
                with self.subTest(name):
                    expected = answer(direct.post(path, body))
                    self.assertEqual(answer(self.dynamo.post(path, body)), expected)
                    stream = self.dynamo.post(path, {**body, "stream": True})
                    self.assertEqual(streamed(stream.body, path), expected["text"])

    def test_refusals_keep_the_servers_words(self):
        body = {**GREEDY, "prompt": "word " * 4000}
        response = self.dynamo.post(COMPLETIONS, body)
        self.assertEqual(response.status, 400)
        self.assertIn("prompt is too long", response.json()["message"])

    def test_repeated_prefix_goes_to_the_worker_that_has_it(self):
        children = self.dynamo.children()
        for tokens in self.dynamo.cached_tokens_of_repeats(children, "Prefix"):
            self.assertGreater(tokens, PREFIX_TOKENS)
        self.assertTrue(all(cached_tokens([child]) for child in children), "one had them all")

    def test_server_sees_that_a_client_has_left(self):
        self.dynamo.close_gate()
        connection = self.dynamo.begin_stream({**GREEDY, "prompt": "x"})
        eventually(lambda: any(map(accepted, self.dynamo.children())), "the request is there")
        [child] = [c for c in self.dynamo.children() if accepted(c)]
        before = child.metric("diffserve_requests_finished_total", reason="cancelled")
        connection.close()
        eventually(lambda: under_way(child) == 0, "the server knows that it has left")
        self.dynamo.allow(FIRST_STEPS)
        eventually(lambda: child.metric("diffserve_requests_finished_total",
                                        reason="cancelled") == before + 1, "it is cancelled")

    def test_stream_of_a_killed_server_goes_on_at_the_other_worker(self):
        body = {**GREEDY, "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True, "stream": True}
        expected = streamed(self.dynamo.post(COMPLETIONS, body).body, COMPLETIONS)
        self.dynamo.close_gate()
        connection = self.dynamo.begin_stream(body)
        eventually(lambda: any(map(accepted, self.dynamo.children())), "the request is there")
        [child] = [c for c in self.dynamo.children() if accepted(c)]
        self.dynamo.allow(FIRST_STEPS)
        reply = connection.getresponse()
        first = reply.readline()
        self.assertIn(b"text", first)
        child.kill()
        self.dynamo.open_gate()
        self.assertEqual(streamed(first + reply.read(), COMPLETIONS), expected)
        eventually(lambda: sum(w.process.poll() is None for w in self.dynamo.workers) == 1,
                   "the worker has ended with its server")
        self.dynamo.start_worker()
        eventually(self.dynamo.answers, "two workers answer", 60)

    def test_worker_ends_its_server_on_sigterm(self):
        worker = next(w for w in self.dynamo.workers if w.process.poll() is None)
        [child] = worker.children()
        self.assertEqual(worker.stop(), 0)
        self.assertFalse(child.alive)
        self.dynamo.start_worker()
        eventually(self.dynamo.answers, "two workers answer", 60)


class OverloadTest(unittest.TestCase):
    def test_full_servers_refuse_with_429(self):
        with Deployment("--max-num-seqs 1 --max-waiting-requests 1") as dynamo:
            statuses = dynamo.statuses_of_overload()
        self.assertEqual(statuses, {200, 429})


class ContractTest(unittest.IsolatedAsyncioTestCase):
    """The checks of Dynamo's conformance kit, which is Rust and takes engines in Rust."""

    async def asyncSetUp(self):
        sys.path.insert(0, str(BACKEND.parent))
        from diffserve_backend import DiffserveEngine
        os.environ["DIFFSERVE_BINARY"] = str(GATED_BINARY)
        flags = ["--threads", "1", "--log-level", "error"]
        self.new_engine = lambda: DiffserveEngine(str(DEMO_MODEL), flags)

    async def test_engine_keeps_the_contract(self):
        from dynamo._core import Context
        engine = self.new_engine()
        config = await engine.start(0)
        self.assertEqual((config.model, config.served_model_name), (str(DEMO_MODEL), MODEL))

        async def chunks(context, **stop) -> list[dict]:
            request = {"token_ids": [1, 2, 3], "stop_conditions": stop}
            return [chunk async for chunk in engine.generate(request, context)]

        one = await chunks(Context(), max_tokens=5)
        self.assertEqual(["finish_reason" in chunk for chunk in one],
                         [False] * (len(one) - 1) + [True])
        self.assertEqual(one[-1]["completion_usage"]["prompt_tokens"], 3)
        together = await asyncio.gather(*(chunks(Context(), max_tokens=5) for _ in range(8)))
        self.assertTrue(all(answer[-1]["finish_reason"] for answer in together))
        context = Context()
        context.stop_generating()
        stopped = await asyncio.wait_for(chunks(context, max_tokens=1000, ignore_eos=True), 2)
        self.assertEqual(stopped[-1]["finish_reason"], "cancelled")
        self.assertEqual(await engine.kv_event_sources(), await engine.kv_event_sources())
        await engine.cleanup()
        await engine.cleanup()
        await self.new_engine().cleanup()  # was never started


if __name__ == "__main__":
    unittest.main()
