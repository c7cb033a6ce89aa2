#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attacks by one tenant on another, each against a server and a parent of several models. Every
promise of SECURITY.md is held by a test here or elsewhere: promises.py says which.

    tenants.py [unittest's arguments]
"""

import json
import os
import re
import socket
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import grpc  # noqa: E402
from google.protobuf import descriptor_pool  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (  # noqa: E402
    ProtoReflectionDescriptorDatabase)
from grpc_client import channel, collect, generate_request, pb_grpc  # noqa: E402
from models_server import NEEDED, ModelsServer  # noqa: E402
from server_process import REPOSITORY, ServerProcess  # noqa: E402
import parrot_model  # noqa: E402
import tiny_model  # noqa: E402

SENT, NEVER_SENT = "sk-sent-0123456789", "sk-never-sent-9876543210"
OPEN_PATHS = {"/livez", "/readyz", "/health", "/openapi.json", "/", "/ui/{file}"}
OPEN_METHODS = re.compile(r"/grpc\.health\.v1\.Health/|/inference\.GRPCInferenceService/Server"
                          r"(Live|Ready)$|/vllm\.grpc\.engine\.VllmEngine/HealthCheck$")
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}
SECRET_PROMPT = list(range(5, 205))


def key_file(folder: str, mode: int = 0o600) -> Path:
    path = Path(folder) / "keys"
    path.write_text(f"{SENT}\n{NEVER_SENT}\n")
    path.chmod(mode)
    return path


def bearer(key: str) -> dict:
    return {"Authorization": f"Bearer {key}"}


def each_server(*flags):
    """A server and a parent of several models."""
    models = {"tiny": {"model": str(tiny_model.directory()), "pinned": True}}
    yield "one model", ServerProcess(*NEEDED, *flags)
    yield "several models", ModelsServer(models, *flags)


def memory_of(pid: int):
    """The readable memory of a process, in pieces."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        begin, end, access = re.match(r"([0-9a-f]+)-([0-9a-f]+) (\S+)", line).groups()
        if access.startswith("r") and "[v" not in line:  # the kernel's own pages
            with open(f"/proc/{pid}/mem", "rb") as memory:
                memory.seek(int(begin, 16))
                yield memory.read(int(end, 16) - int(begin, 16))


def sockets_of(pid: int) -> list[tuple[int, int]]:
    """Local and remote port of each TCP connection of a process."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if found := re.fullmatch(r"socket:\[(\d+)\]", os.readlink(entry)):
            inodes.add(found[1])
    ports = []
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[9] in inodes:
                ports.append(tuple(int(fields[i].rpartition(":")[2], 16) for i in (1, 2)))
    return ports


class DoorTest(unittest.TestCase):
    def test_both_ports_are_closed_on_other_addresses(self):
        for name, process in each_server():
            with self.subTest(name), process as server:
                for port in (server.port, server.grpc_port):
                    with self.assertRaises(ConnectionRefusedError):
                        socket.create_connection(("127.0.0.2", port), 5)

    def test_every_route_and_method_but_health_needs_a_key(self):
        routes = re.findall(r"^  (/\S*):\n((?:^   .*\n)+)",
                            (REPOSITORY / "docs" / "openapi.yaml").read_text(), re.M)
        self.assertGreater(len(routes), 20)
        with tempfile.TemporaryDirectory() as folder:
            for name, process in each_server("--api-key-file", key_file(folder)):
                with process as server:
                    for path, text in routes:
                        for method in re.findall(r"^    (get|post|delete):", text, re.M):
                            with self.subTest(name, path=path, method=method):
                                self.check_route(server, method.upper(), path)
                    self.check_methods(name, server)

    def check_route(self, server, method: str, path: str):
        body = {} if method == "POST" else None
        answer = server.request(method, re.sub(r"\{.*\}", "x", path), body)
        self.assertEqual(answer.status == 401, path not in OPEN_PATHS)

    def check_methods(self, name: str, server):
        with channel(server) as connection:
            key = (("authorization", f"Bearer {SENT}"),)
            for method in methods_of(server, key):
                with self.subTest(name, method=method):
                    call = connection.stream_stream(method)(iter([b""]), timeout=10)
                    try:
                        list(call)
                    except grpc.RpcError as error:
                        self.assertEqual(error.code() == grpc.StatusCode.UNAUTHENTICATED,
                                         not OPEN_METHODS.match(method), error.details())
                    else:
                        self.assertTrue(OPEN_METHODS.match(method))

    def test_memory_holds_the_digest_of_a_key_only(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, process in each_server("--api-key-file", key_file(folder)):
                with self.subTest(name), process as server:
                    server.get("/v1/models", headers=bearer(SENT))
                    for piece in memory_of(server.process.pid):
                        self.assertNotIn(NEVER_SENT.encode(), piece)

    def test_key_file_that_everyone_can_read_is_logged(self):
        with tempfile.TemporaryDirectory() as folder:
            for mode in (0o600, 0o644):
                for name, process in each_server("--api-key-file", key_file(folder, mode)):
                    with self.subTest(name, mode=mode), process as server:
                        self.assertEqual("api_key_file_world_readable" in server.stderr(),
                                         mode == 0o644)


def methods_of(server, metadata) -> list[str]:
    """All methods that reflection lists, as "/SERVICE/METHOD"."""

    class Authorized(grpc.StreamStreamClientInterceptor):
        def intercept_stream_stream(self, continuation, details, requests):
            return continuation(details._replace(metadata=metadata), requests)

    with channel(server) as plain:
        database = ProtoReflectionDescriptorDatabase(grpc.intercept_channel(plain, Authorized()))
        pool = descriptor_pool.DescriptorPool(database)
        services = [pool.FindServiceByName(name) for name in database.get_services()
                    if "reflection" not in name]
        methods = [f"/{service.full_name}/{method.name}" for service in services
                   for method in service.methods]
    return methods


class TenantTest(unittest.TestCase):
    def test_salts_share_no_prefix_over_any_api(self):
        for name, process in each_server():
            with process as server, channel(server) as connection:
                stub = pb_grpc.InferenceStub(connection)

                def over_http(salt):
                    members = {"cache_salt": salt} if salt else {}
                    body = {"prompt": SECRET_PROMPT, "max_tokens": 1, **members}
                    usage = server.post("/v1/completions", body).json()["usage"]
                    return usage["prompt_tokens_details"]["cached_tokens"]

                def over_grpc(salt):
                    members = {"cache_salt": salt} if salt else {}
                    request = generate_request(SECRET_PROMPT, 1, **members)
                    return collect(stub.Generate(request)).usage.cached_tokens

                for ask, other in ((over_http, over_grpc), (over_grpc, over_http)):
                    with self.subTest(name, first=ask.__name__):
                        mine, yours = f"mine of {ask.__name__}", f"yours of {ask.__name__}"
                        self.assertEqual(ask(mine), 0)
                        self.assertGreater(other(mine), 0, "the same tenant's other API")
                        self.assertEqual((ask(yours), other(yours + "2")), (0, 0))
                with self.subTest(name, salt=None):
                    self.assertEqual(over_http(None), 0)

    def test_no_request_brings_a_template_or_an_adapter(self):
        for name, process in each_server():
            with process as server:
                for path, body in (("/v1/chat/completions", CHAT), ("/tokenize", CHAT),
                                   ("/v1/completions", {"prompt": "x", "max_tokens": 1}),
                                   ("/v1/embeddings", {"input": "x"}), ("/pooling", CHAT)):
                    members = {"chat_template": "{{ 1 }}"}
                    if "completions" in path:
                        members |= {"lora_request": {"name": "x"}, "logits_processors": ["os"]}
                    for member, value in members.items():
                        with self.subTest(name, path=path, member=member):
                            answer = server.post(path, {**body, member: value})
                            self.assertEqual((answer.status, answer.error["param"]), (400, member))

    def test_a_call_starts_no_process_and_no_connection(self):
        arguments = {"command": "curl http://127.0.0.1:9"}
        call = json.dumps({"name": "run", "arguments": arguments})
        model = parrot_model.directory([f"<tool_call>\n{call}\n</tool_call>"])
        tool = {"type": "function", "function": {"name": "run"}}
        with ServerProcess(*NEEDED, "--tool-call-parser", "hermes", model=model) as server:
            answer = server.post("/v1/chat/completions", {
                **CHAT, "max_tokens": 100, "tools": [tool], "temperature": 0}).json()
            called = answer["choices"][0]["message"]["tool_calls"][0]["function"]
            self.assertEqual(json.loads(called["arguments"]), arguments)
            pid = server.process.pid
            children = [(task / "children").read_text()
                        for task in Path(f"/proc/{pid}/task").iterdir()]
            self.assertEqual("".join(children), "")
            own = {server.port, server.grpc_port}
            self.assertEqual([ports for ports in sockets_of(pid) if ports[0] not in own], [])

    def test_stored_responses_of_one_client_evict_none_of_another(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, process in each_server("--api-key-file", key_file(folder)):
                with self.subTest(name), process as server:
                    body = {"input": "x", "max_output_tokens": 1}
                    path = "/v1/responses"
                    mine = server.post(path, body, headers=bearer(SENT)).json()["id"]
                    for _ in range(1100):
                        server.post(path, body, headers=bearer(NEVER_SENT))
                    answer = server.get(f"{path}/{mine}", headers=bearer(SENT))
                    self.assertEqual(answer.status, 200)
                    stranger = server.get(f"{path}/{mine}", headers=bearer(NEVER_SENT))
                    unknown = server.get(f"{path}/resp_0", headers=bearer(NEVER_SENT))
                    self.assertEqual((stranger.status, unknown.status), (404, 404))


if __name__ == "__main__":
    unittest.main()
