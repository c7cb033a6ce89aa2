# SPDX-License-Identifier: Apache-2.0
"""deploy/haproxy.cfg: gRPC and HTTP through one TLS port, and hostile clients."""

import http.client
import json
import re
import socket
import ssl
import statistics
import subprocess
import sys
import threading
import time
import unittest
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from fleet import (COMPLETIONS, DEMO_MODEL, GatedReplica, Replica, Router, Stream, eventually,
                   figure, requests_taken)
from grpc_client import channel, collect, generate_request, pb_grpc

FLOOD = 100_000
UNANSWERED = 2000  # deploy/haproxy.cfg's default
GROWTH = 64 << 20  # bytes that a flood may cost a process
QUIET_CALLS = 300


def secure(router: Router) -> grpc.Channel:
    return grpc.secure_channel(f"localhost:{router.port}",
                               grpc.ssl_channel_credentials(router.pem.read_bytes()))


def requests_begun(replica: Replica) -> float:
    return sum(v for name, v in replica.metrics().items()
               if name.startswith("diffserve_grpc_requests_total{") and "Generate" in name)


def peak_bytes(process: subprocess.Popen) -> int:
    return 1024 * int(
        re.search(r"VmHWM:\s+(\d+)",
                  Path(f"/proc/{process.pid}/status").read_text())[1])


class ProtocolTest(unittest.TestCase):
    def test_grpc_is_what_a_replica_answers(self):
        with Replica() as first, Replica() as second, Router("haproxy", [first, second]) as router:
            with secure(router) as through, channel(first) as straight:
                health = health_pb2_grpc.HealthStub(through).Check(health_pb2.HealthCheckRequest())
                self.assertEqual(health.status, health_pb2.HealthCheckResponse.SERVING)
                ask = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
                listed = list(
                    reflection_pb2_grpc.ServerReflectionStub(through).ServerReflectionInfo(ask))
                self.assertIn("diffserve.v1.Inference",
                              [s.name for s in listed[0].list_services_response.service])
                for seed in range(8):
                    request = generate_request([5, 6, 7 + seed], 20, logprobs=2)
                    self.assertEqual(*(collect(pb_grpc.InferenceStub(c).Generate(request)).exact()
                                       for c in (through, straight)))
                for connection in (through, straight):
                    with self.assertRaises(grpc.RpcError) as caught:
                        collect(
                            pb_grpc.InferenceStub(connection).Generate(generate_request([5],
                                                                                        10**9)))
                    self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
            asked = [
                replica.metric("diffserve_grpc_requests_total", method="Generate", code="0")
                for replica in (first, second)
            ]
            self.assertGreater(min(asked), 0, "a replica was never asked")

    def test_grpc_calls_survive_a_rolling_restart(self):
        with Replica() as first, Replica() as second, Router(
                "haproxy", [first, second]) as router, secure(router) as connection:
            stub, ended, failures, counted = pb_grpc.InferenceStub(
                connection), threading.Event(), [], []

            def client():
                while not ended.is_set():
                    try:
                        counted.append(
                            len(collect(stub.Generate(generate_request([5, 6], 16))).ids[0]))
                    except grpc.RpcError as error:
                        failures.append(error)

            clients = [threading.Thread(target=client) for _ in range(4)]
            for thread in clients:
                thread.start()
            for replica in (first, second):
                router.take_out(replica)
                replica.terminate()
                self.assertEqual(replica.wait(), 0)
                replica.start()
                router.put_back(replica)
                eventually(lambda: requests_begun(replica) > 0, "the replica is used again")
            ended.set()
            for thread in clients:
                thread.join(60)
            self.assertEqual(failures, [])
            self.assertEqual(set(counted), {16})
        figure("haproxy: rolling restart (taken out, then SIGTERM) under 4 gRPC clients",
               f"0 of {len(counted)} calls failed")

    def test_http_2_and_1_are_offered_only_over_tls(self):
        with Replica() as replica, Router("haproxy", [replica]) as router:
            for protocol in ("h2", "http/1.1"):
                context = ssl.create_default_context(cafile=router.pem)
                context.set_alpn_protocols([protocol])
                with socket.create_connection(("127.0.0.1", router.port)) as plain:
                    with context.wrap_socket(plain, server_hostname="localhost") as secured:
                        self.assertEqual(secured.selected_alpn_protocol(), protocol)
            clear = http.client.HTTPConnection("127.0.0.1", router.port, timeout=10)
            with self.assertRaises((OSError, http.client.HTTPException)):
                clear.request("GET", "/readyz")
                clear.getresponse()

    def test_stream_over_http_2(self):
        with Replica() as replica, Router("haproxy", [replica]) as router:
            body = {
                "model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 5, "ignore_eos": True,
                "stream": True
            }
            curl = subprocess.run([
                "curl", "--silent", "--no-buffer", "--http2", "--cacert", router.pem, "--data",
                json.dumps(body), "--header", "Content-Type: application/json", "--write-out",
                "HTTP/%{http_version} %{http_code}", f"https://localhost:{router.port}{COMPLETIONS}"
            ], capture_output=True, text=True, timeout=60)
            self.assertTrue(curl.stdout.endswith("data: [DONE]\n\nHTTP/2 200"), curl)

    def test_tokens_pass_through_as_they_come(self):
        with GatedReplica() as replica, Router("haproxy",
                                               [replica]) as router, secure(router) as connection:
            replica.allow(4)
            stream = Stream(router, 64)
            eventually(lambda: stream.tokens, "the first tokens of an SSE stream")
            replica.open_gate()
            stream.join(60)
            self.assertTrue(stream.complete, stream.problem)
            replica.allow(4)
            call = pb_grpc.InferenceStub(connection).Generate(generate_request([5], 64))
            self.assertTrue(any(event.WhichOneof("event") == "delta" for event in call),
                            "no token of a gRPC stream")
            replica.open_gate()
            collect(call)

    def test_client_that_leaves_stops_its_work(self):
        with GatedReplica() as replica, Router("haproxy",
                                               [replica]) as router, secure(router) as connection:
            replica.allow(4)
            sse = router.connect()
            body = {
                "model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 1000, "stream": True,
                "ignore_eos": True
            }
            sse.request("POST", COMPLETIONS, json.dumps(body), {"Content-Type": "application/json"})
            sse.getresponse().readline()
            call = pb_grpc.InferenceStub(connection).Generate(generate_request([5], 1000))
            replica.wait_for_waiting(1)
            replica.allow(4)
            next(iter(call))
            self.assertGreater(replica.pages_used(), 0)
            sse.close()
            call.cancel()
            for _ in range(
                    200
            ):  # the engine hears of it between two steps; in 400 neither request could have ended
                if replica.pages_used() == 0:
                    break
                replica.allow(2)
                time.sleep(0.05)
            self.assertEqual(replica.pages_used(), 0, "their pages are free")

    def test_headers_have_limits(self):
        with Replica() as replica, Router("haproxy", [replica]) as router:
            self.assertEqual(
                router.request("GET", "/v1/models", headers={"X-Big": "a" * 12_000}).status, 200)
            before = requests_taken(replica)
            for headers in ({"X-Big": "a" * 20_000}, {f"X-{i}": "a" for i in range(120)}):
                self.assertIn(
                    router.request("POST", COMPLETIONS, b"{}", headers).status, (400, 431))
            self.assertEqual(requests_taken(replica), before)

    def test_excess_requests_wait_in_the_proxy(self):
        flags = ("--max-num-seqs", 1, "--max-waiting-requests", 1)
        with GatedReplica(*flags) as first, GatedReplica(*flags) as second:
            with Router("haproxy", [first, second], REPLICA_MAXCONN=1) as router:
                for replica in (first, second):
                    replica.close_gate()
                streams = [Stream(router, 8) for _ in range(20)]
                for replica in (first, second):
                    replica.wait_for_waiting(1)
                    replica.open_gate()
                for stream in streams:
                    stream.join(60)
                self.assertEqual([stream.status for stream in streams if not stream.complete], [])
            for replica in (first, second):
                self.assertEqual(replica.metric("diffserve_requests_refused_total"), 0)


class FloodTest(unittest.TestCase):
    def flood(self, how: str) -> tuple[dict, dict]:
        """A normal client's calls, without load and while streams are opened and reset. Returns the
        flood's results and the measurements."""
        with Replica() as first, Replica() as second, Router(
                "haproxy", [first, second]) as router, secure(router) as connection:
            stub = pb_grpc.InferenceStub(connection)
            for _ in range(50):
                self.call(stub)
            quiet = [self.call(stub) for _ in range(QUIET_CALLS)]
            processes = [router.process, first.process, second.process]
            peaks = [peak_bytes(process) for process in processes]
            # A real attacker has its own machine, so here its own computation has low priority.
            flood = subprocess.Popen([
                "nice", "-n", "19", sys.executable,
                Path(__file__).with_name("reset_flood.py"),
                str(router.port), router.pem,
                str(FLOOD), how
            ], stdout=subprocess.PIPE)
            reader = threading.Thread(target=lambda: seen.append(json.loads(flood.stdout.read())))
            seen, start = [], time.monotonic()
            reader.start()
            loaded = []
            while reader.is_alive():
                loaded.append(self.call(stub))
            took = time.monotonic() - start
            self.assertEqual(flood.wait(), 0)
            flood.stdout.close()
            for process, peak in zip(processes, peaks):
                self.assertLess(peak_bytes(process) - peak, GROWTH)
            self.assertTrue(all(self.call(stub) for _ in range(20)))
        ratio = statistics.median(loaded) / statistics.median(quiet)
        figure(
            f"haproxy: {seen[0]['streams']} streams reset {how.replace('_', ' ')}",
            f"in {took:.1f} s; a normal client's median call {statistics.median(quiet) * 1000:.1f} "
            f"ms quiet, "
            f"{statistics.median(loaded) * 1000:.1f} ms meanwhile ({ratio:.1f}x, {len(loaded)} "
            f"calls)"
        )
        return seen[0]

    def call(self, stub) -> float:
        """Seconds of one call that must succeed."""
        start = time.perf_counter()
        self.assertEqual(len(collect(stub.Generate(generate_request([5, 6, 7], 8))).ids[0]), 8)
        return time.perf_counter() - start

    def test_streams_reset_at_once_cost_little(self):
        seen = self.flood("at_once")
        self.assertEqual(seen["streams"], FLOOD)

    def test_streams_that_the_proxy_is_made_to_reset_cost_little(self):
        seen = self.flood("provoked")
        self.assertEqual(seen["streams"], FLOOD)

    def test_client_that_resets_begun_streams_is_blocked(self):
        seen = self.flood("once_begun")
        self.assertLessEqual(seen["streams"], 2 * UNANSWERED)
        self.assertEqual(seen["connections"], 1)
        self.assertGreater(seen["refused"], 1)


if __name__ == "__main__":
    unittest.main()
