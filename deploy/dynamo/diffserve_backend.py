# SPDX-License-Identifier: Apache-2.0
"""A worker for NVIDIA Dynamo's unified backend: it owns one `diffserve serve`, takes token ids from
Dynamo's frontend and gives token ids back. docs/operate/dynamo.md has the guide."""

import argparse
import asyncio
import contextlib
import json
import os
import shlex
import tempfile
import urllib.request
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import aiohttp
from dynamo._core import Context
from dynamo.common.backend.engine import (EngineConfig, GenerateChunk, GenerateRequest, LLMEngine,
                                          LlmRegistration)
from dynamo.common.backend.health_check import build_health_check_payload
from dynamo.common.backend.publisher import KvEventSource, ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.configuration.groups.runtime_args import (DynamoRuntimeArgGroup,
                                                             DynamoRuntimeConfig)
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm.exceptions import HttpError, InvalidArgument, StreamIncomplete
from server_child import ServerChild

CLIENT_ERRORS = range(400, 429)


class DiffserveEngine(LLMEngine):
    """Dynamo's engine over the HTTP API of a server of its own."""

    def __init__(self, model: str, flags: list[str]):
        self._model, self._flags = model, flags
        # KV events hold the tokens of prompts: they pass a socket that only this user can open.
        self._folder = tempfile.TemporaryDirectory(prefix="diffserve-")
        self._events_endpoint = f"ipc://{self._folder.name}/kv-events"
        self._server: ServerChild | None = None
        self._session: aiohttp.ClientSession | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None
                        ) -> tuple["DiffserveEngine", WorkerConfig]:
        parser = argparse.ArgumentParser(description=__doc__)
        DynamoRuntimeArgGroup().add_arguments(parser)
        parser.add_argument("--model", required=True, help="a directory that the frontend can read")
        parser.add_argument("--flags", type=shlex.split, default=[],
                            help="of `diffserve serve`, in one word: --flags='--threads 4'")
        arguments = parser.parse_args(argv)
        runtime = DynamoRuntimeConfig.from_cli_args(arguments)
        return cls(arguments.model, arguments.flags), WorkerConfig.from_runtime_config(
            runtime, model_name=arguments.model)

    async def start(self, worker_id: int) -> EngineConfig:
        self._server = ServerChild(
            self._model, ["--kv-events-endpoint", self._events_endpoint, *self._flags])
        self._server.when_lost(lambda: os._exit(1))  # discovery forgets the worker
        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0),
                                              timeout=aiohttp.ClientTimeout(total=None))
        metrics = self._metrics()
        pages = sum(value for name, value in metrics.items()
                    if name.startswith("diffserve_kv_pages{"))
        return EngineConfig(
            model=self._model, served_model_name=self._server.name, llm=LlmRegistration(
                context_length=int(metrics["diffserve_max_model_len_tokens"]),
                kv_cache_block_size=int(metrics["diffserve_page_slots"]),
                total_kv_blocks=int(pages)))

    def _metrics(self) -> dict[str, float]:
        assert self._server is not None
        with urllib.request.urlopen(self._server.url + "/metrics", timeout=5) as reply:
            lines = reply.read().decode().splitlines()
        samples = (line.rpartition(" ") for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def kv_event_sources(self) -> list[KvEventSource]:
        return [ZmqSource(self._events_endpoint)]

    async def health_check_payload(self) -> dict[str, Any]:
        return build_health_check_payload(bos_token_id=1)

    async def generate(self, request: GenerateRequest, context: Context
                       ) -> AsyncGenerator[GenerateChunk, None]:
        normalize_request_token_ids(request)
        usage = {"prompt_tokens": len(request["token_ids"]), "completion_tokens": 0,
                 "total_tokens": len(request["token_ids"])}
        async with contextlib.aclosing(self._chunks(body_of(request))) as chunks:
            async for chunk in until_stopped(chunks, context):
                usage = chunk.pop("usage", usage)
                if "finish_reason" in chunk:
                    chunk["completion_usage"] = usage
                yield chunk
        if context.is_stopped():
            yield {"token_ids": [], "index": 0, "finish_reason": "cancelled",
                   "completion_usage": usage}

    async def _chunks(self, body: dict[str, Any]) -> AsyncGenerator[dict[str, Any], None]:
        """The chunks of a completion, each with the usage until then."""
        assert self._session is not None and self._server is not None
        try:
            async with self._session.post(self._server.url + "/v1/completions",
                                          json=body) as reply:
                if reply.status != 200:
                    raise refusal(reply.status, await reply.text())
                async for event in events(reply.content):
                    if "error" in event:
                        raise StreamIncomplete(event["error"]["message"])
                    for choice in event["choices"]:
                        if choice.get("token_ids") or choice["finish_reason"]:
                            yield chunk_of(choice) | {"usage": event["usage"]}
        except aiohttp.ClientError as problem:
            raise StreamIncomplete(f"the server was lost: {problem}") from problem

    async def cleanup(self) -> None:
        session, self._session = self._session, None
        server, self._server = self._server, None
        if session:
            await session.close()
        if server:
            await asyncio.to_thread(server.stop)
        self._folder.cleanup()


def body_of(request: GenerateRequest) -> dict[str, Any]:
    """A request to /v1/completions. The server refuses by name what it does not serve."""
    sampling = given(request.get("sampling_options"))
    stop = given(request.get("stop_conditions"))
    output = given(request.get("output_options"))
    body = {
        "prompt": request["token_ids"], "stream": True, "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True}
    }
    guided = given(sampling.pop("guided_decoding", None))
    guided.pop("backend", None)
    if guided:
        body["structured_outputs"] = guided
    ends = {token for name in list(stop) if name.startswith("stop_token_ids")
            for token in stop.pop(name)}
    if ends:
        body["stop_token_ids"] = sorted(ends)
    if "max_thinking_tokens" in stop:
        body["max_reasoning_tokens"] = stop.pop("max_thinking_tokens")
    if salt := given(request.get("routing")).get("cache_salt"):
        body["cache_salt"] = salt
    if "logprobs" in output:
        body["logprobs"] = output["logprobs"]
    if "prompt_logprobs" in output:
        raise InvalidArgument("prompt_logprobs is not served through Dynamo")
    return body | sampling | stop


def given(options: Any) -> dict[str, Any]:
    return {name: value for name, value in (options or {}).items() if value is not None}


def chunk_of(choice: dict[str, Any]) -> dict[str, Any]:
    chunk = {"token_ids": choice.get("token_ids", []), "index": choice["index"]}
    if choice["finish_reason"]:
        chunk["finish_reason"] = choice["finish_reason"]
    if logprobs := choice["logprobs"]:
        chunk["log_probs"] = logprobs["token_logprobs"]
        chunk["top_logprobs"] = [ranked(top) for top in logprobs["top_logprobs"] or []]
    return chunk


def ranked(top: dict[str, float]) -> list[dict[str, Any]]:
    """Alternatives, best first. The frontend knows their texts."""
    ordered = sorted(top.items(), key=lambda item: -item[1])
    return [{"rank": rank, "token_id": int(name.removeprefix("token_id:")), "token": None,
             "logprob": value} for rank, (name, value) in enumerate(ordered, 1)]


def refusal(status: int, text: str) -> Exception:
    with contextlib.suppress(ValueError, KeyError, TypeError):
        text = json.loads(text)["error"]["message"]
    return InvalidArgument(text) if status in CLIENT_ERRORS else HttpError(status, text)


async def events(content: aiohttp.StreamReader) -> AsyncIterator[dict[str, Any]]:
    """The JSON of each server-sent event."""
    rest = b""
    async for part in content.iter_any():
        *ready, rest = (rest + part).split(b"\n\n")
        for event in ready:
            if event.startswith(b"data: {"):
                yield json.loads(event[6:])


async def until_stopped(chunks: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
    """The chunks until Dynamo stops the request, also while none comes."""
    stopped = asyncio.ensure_future(context.async_killed_or_stopped())
    try:
        while not context.is_stopped():
            chunk = asyncio.ensure_future(anext(chunks, None))
            await asyncio.wait((chunk, stopped), return_when=asyncio.FIRST_COMPLETED)
            if not chunk.done():
                chunk.cancel()
                await asyncio.wait((chunk,))
                return
            if chunk.result() is None:
                return
            yield chunk.result()
    finally:
        stopped.cancel()


if __name__ == "__main__":
    run(DiffserveEngine)
