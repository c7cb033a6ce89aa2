# SPDX-License-Identifier: Apache-2.0
"""diffserve on Ray Serve. A Server replica owns one `diffserve serve` and streams its answers. A
Gateway replica takes HTTP requests, asks a Server for each, and asks another one when a Server is
lost before it has answered. docs/operate/ray.md has the guide, serve.yaml the settings."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import RayError
from ray.serve.autoscaling_policy import replica_queue_length_autoscaling_policy
from ray.serve.config import AutoscalingContext
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from server_child import ServerChild
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from yarl import URL

Headers = list[tuple[bytes, bytes]]
ATTEMPTS = 3  # replicas that may be lost under a request before it is refused
MAX_BODY_BYTES = 4 << 20  # a server takes no more
LOST_S = 0.5  # how long a request stays with a lost server; its replica ends sooner
PROBE_S = 5
# Fields of one connection, and those that each side writes itself.
NOT_PASSED = {b"connection", b"keep-alive", b"proxy-connection", b"te", b"trailer", b"upgrade",
              b"transfer-encoding", b"expect", b"host", b"date"}


class Options(BaseModel):
    """The application's `args` in serve.yaml."""
    model_config = ConfigDict(extra="forbid")
    model: str = ""  # what `diffserve serve` takes
    flags: list[str] = []
    binary: str | None = None
    api_key_file: str | None = None  # --api-key-file; its first key reads /metrics
    url: str | None = None  # a server that runs on each node, in place of one per replica


class Failure(NamedTuple):
    """What a Gateway refuses or ends itself."""
    status: int
    message: str
    openai_type: str = "server_error"
    anthropic_type: str = "api_error"

    def body(self, path: str) -> dict[str, Any]:
        """The error in the form of the API that has this path."""
        if "/messages" in path:
            return {"type": "error",
                    "error": {"type": self.anthropic_type, "message": self.message}}
        error = {"message": self.message, "type": self.openai_type, "param": None, "code": None}
        return {"type": "error", **error} if "/responses" in path else {"error": error}


TOO_LONG = Failure(413, f"the body is longer than {MAX_BODY_BYTES} bytes", "invalid_request_error",
                   "request_too_large")
LOST = Failure(502, f"{ATTEMPTS} replicas were lost under the request")
BROKEN_OFF = Failure(200, "the replica was lost while it answered")


class Head(NamedTuple):
    """What a Server yields before the bytes of an answer."""
    status: int
    headers: Headers


@serve.deployment(max_ongoing_requests=256, health_check_period_s=2,
                  graceful_shutdown_timeout_s=600)
class Server:
    """One `diffserve serve`. The replica ends with its server, and Ray Serve starts another."""

    async def __init__(self, options: Options):
        self._child: ServerChild | None = None
        flags, url = list(options.flags), options.url
        self._key: dict[str, str] = {}
        if options.api_key_file:
            flags += ["--api-key-file", options.api_key_file]
            key = Path(options.api_key_file).read_text().split()[0]
            self._key = {"Authorization": f"Bearer {key}"}
        if url is None:
            self._child = ServerChild(options.model, flags, options.binary)
            # The Gateways see a lost replica at once, and for each of its requests.
            self._child.when_lost(lambda: os._exit(1))
            url = self._child.url
        self._url = URL(url)
        self._session = aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=PROBE_S),
            skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"))

    async def ask(self, method: str, target: str, headers: Headers,
                  body: bytes) -> AsyncIterator[Head | bytes]:
        """Passes one request to the server: yields the head of the answer, then its bytes."""
        url = self._url.join(URL(target, encoded=True))
        fields = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
        try:
            async with self._session.request(method, url, headers=fields, data=body or None,
                                             allow_redirects=False) as reply:
                yield Head(reply.status, passed(reply.raw_headers))
                async for part in reply.content.iter_any():
                    yield part
        except aiohttp.ClientConnectionError:
            await asyncio.sleep(LOST_S)
            raise

    async def _get(self, path: str, headers: dict[str, str]) -> tuple[int, str]:
        async with self._session.get(self._url.with_path(path), headers=headers,
                                     timeout=aiohttp.ClientTimeout(total=PROBE_S)) as reply:
            return reply.status, await reply.text()

    async def metrics(self, headers: dict[str, str]) -> tuple[str, int, str]:
        """This replica's name, and status and text of its server's /metrics."""
        return serve.get_replica_context().replica_id.unique_id, *await self._get(
            "/metrics", headers)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        _, text = await self._get("/metrics", self._key)
        [line] = [line for line in text.splitlines()
                  if line.startswith("diffserve_requests_waiting ")]
        return {"waiting": float(line.split()[1])}

    async def check_health(self) -> None:
        status, text = await self._get("/readyz", {})
        if status != 200:
            raise RuntimeError(f"/readyz of {self._url} answered {status}: {text}")

    def __del__(self) -> None:
        """Called by Ray Serve when no request is under way."""
        if self._child:
            self._child.stop()


@serve.deployment(max_ongoing_requests=4096)
class Gateway:
    """The HTTP side: every path goes to one Server, /metrics to all."""

    def __init__(self, server: DeploymentHandle):
        self._server = server
        self._ask = server.options(method_name="ask", stream=True)

    async def __call__(self, request: Request) -> Response:
        path = request.url.path
        if path == "/metrics":
            return await self._metrics(request)
        target = request.scope["raw_path"].decode("latin-1")
        if request.url.query:
            target += "?" + request.url.query
        headers, body = passed(request.headers.raw), await body_of(request)
        if len(body) > MAX_BODY_BYTES:
            return JSONResponse(TOO_LONG.body(path), TOO_LONG.status)
        for _ in range(ATTEMPTS):
            answer: Any = self._ask.remote(request.method, target, headers, body)
            try:
                head: Head = await anext(answer)
            except RayError:
                continue
            response = StreamingResponse(events(answer, path) if is_events(head) else whole(answer),
                                         head.status)
            response.raw_headers = head.headers
            return response
        return JSONResponse(LOST.body(path), LOST.status)

    async def _metrics(self, request: Request) -> Response:
        names = ("authorization", "x-api-key")
        keys = {name: request.headers[name] for name in names if name in request.headers}
        pages = await self._server.broadcast("metrics", keys).results_async(
            timeout_s=PROBE_S, return_exceptions=True)
        texts = {}
        for page in pages:
            if isinstance(page, BaseException):
                continue
            replica, status, text = page
            if status != 200:
                return PlainTextResponse(text, status)
            texts[replica] = text
        return PlainTextResponse(merged(texts))


def passed(headers: Any) -> Headers:
    return [(name, value) for name, value in headers if name.lower() not in NOT_PASSED]


async def body_of(request: Request) -> bytes:
    """The body, or its beginning if it is too long."""
    body = bytearray()
    async for part in request.stream():
        body += part[:MAX_BODY_BYTES + 1 - len(body)]
    return bytes(body)


def is_events(head: Head) -> bool:
    return any(name.lower() == b"content-type" and value.startswith(b"text/event-stream")
               for name, value in head.headers)


async def whole(answer: DeploymentResponseGenerator) -> AsyncIterator[bytes]:
    """The bytes of an answer. If they break off, so does the client's connection."""
    try:
        async for part in answer:
            yield part
    finally:
        answer.cancel()


async def events(answer: DeploymentResponseGenerator, path: str) -> AsyncIterator[bytes]:
    """The events of an answer, each one whole. If they break off, the last one is an error."""
    rest = b""
    try:
        async for part in answer:
            ready, end, rest = (rest + part).rpartition(b"\n\n")
            if end:
                yield ready + end
    except RayError:
        kind = "event: error\n" if "/messages" in path or "/responses" in path else ""
        yield f"{kind}data: {json.dumps(BROKEN_OFF.body(path))}\n\n".encode()
    finally:
        answer.cancel()


def merged(texts: dict[str, str]) -> str:
    """One Prometheus text of those of all replicas, with the label `replica` on each sample."""
    families: dict[str, list[str]] = {}
    for replica, text in texts.items():
        for line in text.splitlines():
            if line.startswith("#"):
                name = line.split()[2]
                family = families.setdefault(name, [])
                if line not in family:
                    family.append(line)
            elif line:
                name, brace, labels = line.partition("{")
                if not brace:
                    name, _, labels = line.partition(" ")
                    labels = "} " + labels
                comma = "," if brace else ""
                family.append(f'{name}{{replica="{replica}"{comma}{labels}')
    return "".join(line + "\n" for family in families.values() for line in family)


def by_waiting(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Replicas by ongoing requests; no fewer while requests wait in a server, and one more while
    they do in every server."""
    desired, state = replica_queue_length_autoscaling_policy(context)
    waiting = (context.aggregated_metrics or {}).get("waiting", {})
    queues = [waiting.get(replica, 0) >= 1 for replica in context.running_replicas]
    if any(queues):
        desired = max(desired, context.current_num_replicas + all(queues))
    return desired, state


def build(options: Options) -> serve.Application:
    if bool(options.model) == bool(options.url):
        raise ValueError(f"args have model {options.model!r} and url {options.url!r}; allowed: one "
                         "of them")
    return Gateway.bind(Server.bind(options))
