# SPDX-License-Identifier: Apache-2.0
"""deploy/dynamo: two workers behind Dynamo's frontend answer as a server does, cancel, survive a
kill and drain; the engine alone keeps what Dynamo's conformance kit asks of an engine."""

import asyncio
import http.client
import json
import os
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from server_process import (DEMO_MODEL, GATED_BINARY, REPOSITORY, Gate, GatedServer, Response,
                            eventually, free_port)
from servers import Child, accepted, is_alive, under_way

BACKEND = REPOSITORY / "deploy/dynamo/diffserve_backend.py"
PLANES = "--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MODEL = DEMO_MODEL.name
PROMPT = "The magic number of Lisbon is 48213. What is the magic number of Lisbon?"
GREEDY = {"model": MODEL, "temperature": 0, "max_tokens": 16}
CHAT_BODY = {**GREEDY, "messages": [{"role": "user", "content": "Who are you?"}]}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer", "maximum": 99}},
          "required": ["a"], "additionalProperties": False}
LONG, FIRST_STEPS = 64, 4
PREFIXES, PREFIX_TOKENS = 16, 96
REQUESTS = 10  # more than two servers take that run one and let one wait
ANSWERED = {
    "text": (COMPLETIONS, {**GREEDY, "prompt": PROMPT}),
    "token ids": (COMPLETIONS, {**GREEDY, "prompt": [5, 6, 7, 8]}),
    "seeded": (COMPLETIONS, {**GREEDY, "prompt": PROMPT, "temperature": 0.5, "seed": 7,
                             "ignore_eos": True, "top_p": 0.75, "top_k": 40,
                             "repetition_penalty": 1.125}),
    "stop string": (CHAT, {**CHAT_BODY, "stop": ["mo m"]}),
    "beyond the end": (COMPLETIONS, {**GREEDY, "prompt": PROMPT, "ignore_eos": True}),
    "chat": (CHAT, {**CHAT_BODY, "max_tokens": 40}),
    "schema": (CHAT, {**CHAT_BODY, "response_format": {
        "type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}}),
    "log-probabilities": (CHAT, {**CHAT_BODY, "max_tokens": 8, "logprobs": True,
                                 "top_logprobs": 2}),
}


class Process:
    """A process of Dynamo, with its log."""

    def __init__(self, folder: Path, name: str, *command, **environment):
        self.log = folder / f"{name}.log"
        with self.log.open("wb") as sink:
            self.process = subprocess.Popen([sys.executable, *map(str, command)],
                                            stdin=subprocess.DEVNULL, stdout=sink,
                                            stderr=subprocess.STDOUT,
                                            env={"DYN_LOG": "warn", **os.environ, **environment})

    def children(self) -> list[Child]:
        """Its servers that are ready."""
        return [Child(p) for p in psutil.Process(self.process.pid).children()
                if p.exe() == str(GATED_BINARY) and is_alive(p)]

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


class Deployment(Gate):
    """A frontend and two workers without etcd and NATS. The servers share a gate."""

    def __init__(self, flags: str = ""):
        super().__init__()
        self.flags = f"--flags=--threads 1 {flags}"

    def __enter__(self) -> "Deployment":
        self._temporary = tempfile.TemporaryDirectory(prefix="diffserve-dynamo-")
        self.folder, self.port = Path(self._temporary.name), free_port()
        self.environment = {
            "DYN_FILE_KV": str(self.folder / "discovery"), "DIFFSERVE_GATE": str(self.gate),
            "DIFFSERVE_BINARY": str(GATED_BINARY), "HF_HUB_OFFLINE": "1"}
        self.workers: list[Process] = []
        self.frontend = Process(self.folder, "frontend", "-m", "dynamo.frontend", *PLANES,
                                "--http-host", "127.0.0.1", "--http-port", self.port,
                                "--router-mode", "kv", "--migration-limit", 3, **self.environment)
        for _ in range(2):
            self.start_worker()
        eventually(self.answers, "the frontend answers", 90)
        return self

    def __exit__(self, *_):
        self.open_gate()
        for process in (*self.workers, self.frontend):
            process.stop()
        self._temporary.cleanup()

    def start_worker(self) -> None:
        self.workers.append(Process(
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

    def stored_events(self) -> int:
        """KV events of stored pages that the router has applied."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(int(line.split()[-1]) for line in lines
                   if line.startswith("dynamo_component_kv_cache_events_applied{")
                   and 'event_type="stored"' in line and 'status="ok"' in line)

    def connect(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def post(self, path: str, body: dict) -> Response:
        connection = self.connect()
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            reply = connection.getresponse()
            return Response(reply.status, dict(reply.getheaders()), reply.read())
        finally:
            connection.close()


def answer(response: Response) -> dict:
    """Text, finish, log-probabilities and usage of a whole answer."""
    body = response.json()
    choice = body["choices"][0]
    logprobs = (choice.get("logprobs") or {}).get("content") or []
    return {"status": response.status, "finish": choice["finish_reason"],
            "text": choice["text"] if "text" in choice else choice["message"]["content"],
            "logprobs": [(e["token"], round(e["logprob"], 4),
                          [(t["token"], round(t["logprob"], 4)) for t in e["top_logprobs"]])
                         for e in logprobs],
            "usage": [body["usage"][name] for name in ("prompt_tokens", "completion_tokens")]}


def streamed(body: bytes, path: str) -> str:
    chunks = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for chunk in chunks for choice in chunk.get("choices", ())]
    return "".join(c.get("text") or "" if path == COMPLETIONS else c["delta"].get("content") or ""
                   for c in choices)


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
        prompts = [f"Prefix number {i} " + "and so on " * 40 for i in range(PREFIXES)]
        before = self.dynamo.stored_events()
        for prompt in prompts:
            self.dynamo.post(COMPLETIONS, {**GREEDY, "prompt": prompt})
        eventually(lambda: self.dynamo.stored_events() >= before + PREFIXES,
                   "the router knows the pages")
        children, name = self.dynamo.children(), "diffserve_prompt_tokens_cached_total"
        for prompt in prompts:
            cached = sum(child.metric(name) for child in children)
            self.dynamo.post(COMPLETIONS, {**GREEDY, "prompt": prompt})
            self.assertGreater(sum(child.metric(name) for child in children) - cached,
                               PREFIX_TOKENS)
        self.assertTrue(all(child.metric(name) for child in children), "one worker had them all")

    def test_server_sees_that_a_client_has_left(self):
        self.dynamo.close_gate()
        connection = self.dynamo.connect()
        connection.request("POST", COMPLETIONS, json.dumps(
            {**GREEDY, "prompt": "x", "stream": True}), {"Content-Type": "application/json"})
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
        connection = self.dynamo.connect()
        connection.request("POST", COMPLETIONS, json.dumps(body),
                           {"Content-Type": "application/json"})
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
            dynamo.close_gate()
            with ThreadPoolExecutor(REQUESTS) as threads:
                answers = [threads.submit(dynamo.post, COMPLETIONS, {**GREEDY, "prompt": "x"})
                           for _ in range(REQUESTS)]
                eventually(lambda: any(a.done() for a in answers), "one is refused")
                dynamo.open_gate()
            statuses = {answer.result().status for answer in answers}
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
