# SPDX-License-Identifier: Apache-2.0
"""Dynamo's sidecar for vLLM before two servers: answers are a server's own, requests go where their
prefix is and are cancelled; servers and sidecars come and go."""

import json
import unittest
import urllib.request

from frontend import (ANSWERED, COMPLETIONS, FIRST_STEPS, GREEDY, LONG, PLANES, PREFIX_TOKENS,
                      PROMPT, Frontend, Process, answer, cached_tokens, streamed)
from server_process import DEMO_MODEL, GATED_BINARY, GatedServer, ServerProcess, eventually
from servers import accepted

SHORT = {**GREEDY, "prompt": "x"}
# The sidecar gives the frontend text, and this then leaves out what belongs to single tokens.
LOST = {"log-probabilities"}
CANCELLED_CALLS = 'diffserve_grpc_requests_total{method="vllm.Inference.GenerateStream",code="1"}'


class Deployment(Frontend):
    """A frontend and two servers with a sidecar each."""

    def __init__(self, *flags):
        super().__init__()
        self.flags = "--threads", 1, *flags

    def __enter__(self) -> "Deployment":
        super().__enter__()
        self.servers = [self.started_server(i) for i in range(2)]
        self.sidecars = [self.started_sidecar(i) for i in range(2)]
        eventually(self.answers, "the frontend answers", 90)
        return self

    def __exit__(self, *_):
        self.open_gate()
        for process in (*self.sidecars, *self.servers):
            process.stop()
        super().__exit__()

    def started_server(self, i: int, ports: tuple[int, int] = (0, 0)) -> ServerProcess:
        return ServerProcess("--kv-events-endpoint", f"ipc://{self.folder}/events{i}", *self.flags,
                             model=DEMO_MODEL, binary=GATED_BINARY, ports=ports,
                             environment={"DIFFSERVE_GATE": str(self.gate)}).__enter__()

    def started_sidecar(self, i: int) -> Process:
        return Process(self.folder, f"sidecar{i}", "-m", "dynamo.vllm.sidecar", *PLANES,
                       "--grpc-endpoint", self.servers[i].grpc_address, **self.environment)

    def restart(self, server: ServerProcess) -> None:
        """Starts another server at the address of one that has ended."""
        i = self.servers.index(server)
        self.servers[i] = self.started_server(i, (server.port, server.grpc_port))

    def answers(self) -> bool:
        try:
            return self.known_sidecars() == 2 and self.post(COMPLETIONS, SHORT).status == 200
        except OSError:
            return False

    def known_sidecars(self) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health") as reply:
            return sum(i["endpoint"] == "generate" for i in json.load(reply)["instances"])

    def busy_server(self) -> ServerProcess:
        eventually(lambda: any(map(accepted, self.servers)), "the request is there")
        [server] = [server for server in self.servers if accepted(server)]
        return server


class SidecarTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.dynamo = cls.enterClassContext(Deployment())

    def setUp(self):
        self.addCleanup(self.dynamo.open_gate)

    def test_answers_are_the_servers_own(self):
        with GatedServer(model=DEMO_MODEL) as direct:
            for name, (path, body) in ANSWERED.items():
                if name in LOST:
                    continue
                with self.subTest(name):
                    expected = answer(direct.post(path, body))
                    self.assertEqual(answer(self.dynamo.post(path, body)), expected)
                    stream = self.dynamo.post(path, {**body, "stream": True})
                    self.assertEqual(streamed(stream.body, path), expected["text"])

    def test_refused_request_is_the_clients_fault(self):
        response = self.dynamo.post(COMPLETIONS, {**GREEDY, "prompt": "word " * 4000})
        self.assertEqual(response.status, 400)
        eventually(lambda: "prompt is too long" in self.dynamo.frontend.log.read_text(),
                   "the frontend has logged the server's words")

    def test_repeated_prefix_goes_to_the_server_that_has_it(self):
        self.expect_prefixes_found("Prefix")

    def test_server_sees_that_a_client_has_left(self):
        def cancelled_calls() -> float:
            return server.metrics().get(CANCELLED_CALLS, 0)
        self.dynamo.close_gate()
        connection = self.dynamo.begin_stream(SHORT)
        server = self.dynamo.busy_server()
        calls = cancelled_calls()
        before = server.metric("diffserve_requests_finished_total", reason="cancelled")
        connection.close()
        eventually(lambda: cancelled_calls() > calls, "the server knows that it has left")
        self.dynamo.allow(FIRST_STEPS)
        eventually(lambda: server.metric("diffserve_requests_finished_total",
                                         reason="cancelled") == before + 1, "it is cancelled")

    def test_others_answer_while_a_killed_server_is_started_again(self):
        self.dynamo.close_gate()
        connection = self.dynamo.begin_stream(
            {**GREEDY, "prompt": PROMPT, "max_tokens": LONG, "ignore_eos": True})
        server = self.dynamo.busy_server()
        self.dynamo.allow(FIRST_STEPS)
        reply = connection.getresponse()
        self.assertIn(b"text", reply.readline())
        server.kill()
        self.dynamo.open_gate()
        self.assertIn(b'data: {"error":', reply.read(), "its stream does not look complete")
        for _ in range(4):
            self.assertEqual(self.dynamo.post(COMPLETIONS, SHORT).status, 200)
        self.dynamo.restart(server)
        self.until_all_answer()

    def test_server_ends_on_sigterm_before_its_sidecar(self):
        server = self.dynamo.servers[0]
        self.assertEqual(server.stop(), 0)
        for _ in range(4):
            self.assertEqual(self.dynamo.post(COMPLETIONS, SHORT).status, 200)
        self.dynamo.restart(server)
        self.until_all_answer()
        self.expect_prefixes_found("Restart")

    def test_sidecar_ends_on_sigterm_before_its_server(self):
        self.assertEqual(self.dynamo.sidecars[0].stop(), 0)
        self.assertEqual(self.dynamo.known_sidecars(), 1)
        self.assertEqual(self.dynamo.post(COMPLETIONS, SHORT).status, 200)
        self.dynamo.sidecars[0] = self.dynamo.started_sidecar(0)
        eventually(self.dynamo.answers, "both are known", 60)

    def expect_prefixes_found(self, word: str) -> None:
        servers = self.dynamo.servers
        before = [cached_tokens([server]) for server in servers]
        for tokens in self.dynamo.cached_tokens_of_repeats(servers, word):
            self.assertGreater(tokens, PREFIX_TOKENS)
        after = [cached_tokens([server]) for server in servers]
        self.assertTrue(all(a > b for a, b in zip(after, before)), "one had them all")

    def until_all_answer(self) -> None:
        """Waits until the frontend has sent a request to each server."""
        def all_have_answered() -> bool:
            self.assertEqual(self.dynamo.post(COMPLETIONS, SHORT).status, 200)
            return all(s.metric("diffserve_requests_finished_total") for s in self.dynamo.servers)
        eventually(all_have_answered, "both servers answer", 60)


class OverloadTest(unittest.TestCase):
    def test_full_servers_refuse_and_recover(self):
        with Deployment("--max-num-seqs", 1, "--max-waiting-requests", 1) as dynamo:
            statuses = dynamo.statuses_of_overload()
            self.assertIn(200, statuses)
            self.assertTrue(statuses - {200} and statuses <= {200, 500, 503}, statuses)
            eventually(dynamo.answers, "the next request is answered")


if __name__ == "__main__":
    unittest.main()
