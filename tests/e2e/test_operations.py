# SPDX-License-Identifier: Apache-2.0
"""An operator's view: the process's name, ports in use, large lists of inputs, and
a reset of the prefix cache."""

import contextlib
import json
import socket
import subprocess
import unittest
from pathlib import Path

import tiny_model
from raw_http import request_bytes
from server_process import (BINARY, DEVICE, DEVICE_FLAGS, PAGE_SLOTS, GatedServer, ServerProcess,
                            eventually)
from tiny_model import encode

RESET = "/reset_prefix_cache"

THREADS = {"engine", "output", "http", "http-accept", "text"}


class ProcessTest(unittest.TestCase):
    def test_process_has_the_programs_name_and_its_threads_their_own(self):
        with ServerProcess() as server:
            tasks = Path(f"/proc/{server.process.pid}/task")

            def names() -> dict[int, str]:
                return {int(task.name): (task / "comm").read_text().strip()
                        for task in tasks.iterdir()}

            # A thread names itself when it begins, possibly after the ready line.
            eventually(lambda: THREADS <= set(names().values()), "the threads' names")
            self.assertEqual(names()[server.process.pid], BINARY.resolve().name[:15])
            found = subprocess.run(["pgrep", "-x", BINARY.resolve().name[:15]], capture_output=True,
                                   text=True).stdout
            self.assertIn(str(server.process.pid), found.split())

    def test_port_in_use_is_one_line(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = str(taken.getsockname()[1])
            for flag in ("--port", "--grpc-port", "--health-port"):
                ports = {"--port": "0", "--grpc-port": "0"} | {flag: port}
                command = [BINARY, "serve", tiny_model.directory(), *DEVICE_FLAGS, "--log-level",
                           "warning"]
                with self.subTest(flag=flag):
                    done = subprocess.run([*command, *(word for pair in ports.items()
                                                       for word in pair)],
                                          capture_output=True, text=True, timeout=60)
                    self.assertEqual((done.returncode, done.stdout), (1, ""))
                    self.assertRegex(done.stderr, rf"\Adiffserve: .*:{port}: .*in use.*\n\Z")
                    done = subprocess.run([*command[:-2], *(word for pair in ports.items()
                                                            for word in pair)],
                                          capture_output=True, text=True, timeout=60)
                    self.assertNotIn("drain", done.stderr)


class ManyInputsTest(unittest.TestCase):
    def test_2048_inputs_are_embedded_each_as_if_alone(self):
        texts = [f"text {i}" for i in range(2048)]
        with ServerProcess() as server:
            response = server.post("/v1/embeddings", {"input": texts}, timeout_s=300)
            self.assertEqual(response.status, 200, response.body[:300])
            data = response.json()["data"]
            self.assertEqual([item["index"] for item in data], list(range(2048)))
            for i in (0, 1000, 2047):
                alone = server.post("/v1/embeddings", {"input": texts[i]}).json()["data"][0]
                self.assertEqual(data[i]["embedding"], alone["embedding"])
            refused = server.post("/v1/embeddings", {"input": [*texts, "one more"]})
            self.assertEqual(refused.status, 400)
            self.assertIn("2049 entries; allowed: at most 2048", refused.error["message"])


class ResetTest(unittest.TestCase):
    PROMPT = encode("what several requests begin with " * 4)

    def cached(self, server, prompt=None) -> int:
        body = {"prompt": prompt or self.PROMPT, "max_tokens": 1, "temperature": 0}
        usage = server.post("/v1/completions", body).json()["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    def test_nothing_that_was_cached_is_found_after_it(self):
        with ServerProcess() as server:
            self.assertEqual(self.cached(server), 0)
            self.assertGreaterEqual(self.cached(server), PAGE_SLOTS)
            for query in ("", "?reset_running_requests=false", "?reset_external=true"):
                response = server.request("POST", RESET + query)
                self.assertEqual((response.status, response.json()), (200, {"success": True}))
                self.assertEqual(self.cached(server), 0)
                self.assertGreaterEqual(self.cached(server), PAGE_SLOTS, "it fills again")
            self.assertEqual(server.get(RESET).status, 405)
            for parameter, value in (("reset_running_requests", "true"),
                                     ("reset_external", "maybe"), ("reset_local", "false")):
                refused = server.request("POST", f"{RESET}?{parameter}={value}")
                self.assertEqual((refused.status, refused.error["param"]), (400, parameter))

    def test_running_request_continues_unchanged(self):
        body = {"prompt": self.PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True}
        with ServerProcess() as server:
            expected = server.post("/v1/completions", body).json()["choices"]
        with GatedServer() as server:
            server.allow(2)
            with contextlib.closing(socket.create_connection(("127.0.0.1", server.port))) as client:
                client.settimeout(60)
                client.sendall(request_bytes("POST", "/v1/completions", json.dumps(body).encode(),
                                             ("Connection: close", )))
                eventually(lambda: server.metric("diffserve_requests_running") == 1, "it runs")
                self.assertEqual(server.request("POST", RESET).status, 200)
                server.open_gate()
                received = b""
                while part := client.recv(65536):
                    received += part
            answer = json.loads(received.partition(b"\r\n\r\n")[2])
            self.assertEqual(answer["choices"], expected)
