# SPDX-License-Identifier: Apache-2.0
"""Dynamo's frontend on this machine, without etcd and NATS, and what tests send to it."""

import http.client
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from server_process import DEMO_MODEL, Gate, Response, ServerProcess, eventually, free_port

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

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(60)
        finally:
            self.process.kill()


class Frontend(Gate):
    """The frontend. Servers behind it share the gate."""

    def __enter__(self) -> "Frontend":
        self._temporary = tempfile.TemporaryDirectory(prefix="diffserve-dynamo-")
        self.folder, self.port = Path(self._temporary.name), free_port()
        self.environment = {"DYN_FILE_KV": str(self.folder / "discovery"), "HF_HUB_OFFLINE": "1"}
        self.frontend = Process(self.folder, "frontend", "-m", "dynamo.frontend", *PLANES,
                                "--http-host", "127.0.0.1", "--http-port", self.port,
                                "--router-mode", "kv", "--migration-limit", 3, **self.environment)
        return self

    def __exit__(self, *_):
        self.frontend.stop()
        self._temporary.cleanup()

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

    def statuses_of_overload(self) -> set[int]:
        """How more requests are answered than the servers take while their steps are held."""
        self.close_gate()
        with ThreadPoolExecutor(REQUESTS) as threads:
            answers = [threads.submit(self.post, COMPLETIONS, {**GREEDY, "prompt": "x"})
                       for _ in range(REQUESTS)]
            eventually(lambda: any(a.done() for a in answers), "one is refused")
            self.open_gate()
        return {answer.result().status for answer in answers}

    def cached_tokens_of_repeats(self, servers: Iterable[ServerProcess], word: str) -> list[int]:
        """For each of some prompts that begin with `word`, how much of it comes from a cache when
        it is sent again."""
        prompts = [f"{word} number {i} " + "and so on " * 40 for i in range(PREFIXES)]
        before = self.stored_events()
        for prompt in prompts:
            self.post(COMPLETIONS, {**GREEDY, "prompt": prompt})
        eventually(lambda: self.stored_events() >= before + PREFIXES, "the router knows the pages")
        found, cached = [], cached_tokens(servers)
        for prompt in prompts:
            self.post(COMPLETIONS, {**GREEDY, "prompt": prompt})
            found.append(cached_tokens(servers) - cached)
            cached += found[-1]
        return found

    def begin_stream(self, body: dict) -> http.client.HTTPConnection:
        """The connection of a completion that is streamed."""
        connection = self.connect()
        connection.request("POST", COMPLETIONS, json.dumps({**body, "stream": True}),
                           {"Content-Type": "application/json"})
        return connection


def cached_tokens(servers: Iterable[ServerProcess]) -> int:
    return sum(int(server.metric("diffserve_prompt_tokens_cached_total")) for server in servers)


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
