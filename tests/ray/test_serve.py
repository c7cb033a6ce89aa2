# SPDX-License-Identifier: Apache-2.0
"""deploy/ray on a Ray cluster: answers equal a server's own, a server may be killed, clients may
leave, and replicas follow the queue."""

import json
import unittest
from concurrent.futures import ThreadPoolExecutor

from answers import ANSWERED, NOT_STREAMED, OWN_RULES, PROMPT, REFUSED, streamed, stripped, whole
from cluster import Application, Cluster, seconds_until
from fleet import (COMPLETIONS, DEMO_MODEL, FIRST_STEPS, STREAM_TOKENS, GatedReplica, Stream,
                   eventually, figure)
from prometheus_client.parser import text_string_to_metric_families
from servers import accepted, under_way

STREAMS, RUNNING, WHOLE, FRESH = 16, 2, 4, 16
KEPT_FIELDS = ("content-type", "retry-after", "allow", "www-authenticate")
MODEL = DEMO_MODEL.name
GREEDY = {"model": MODEL, "max_tokens": STREAM_TOKENS, "ignore_eos": True, "temperature": 0}
MESSAGE = {"model": MODEL, "max_tokens": 8, "temperature": 0,
           "messages": [{"role": "user", "content": "Hello"}]}
OTHER_ROUTES = {
    "models": ("GET", "/v1/models", None),
    "model with an escaped name": ("GET", "/v1/models/no%2Fmodel", None),
    "load": ("GET", "/load", None),
    "messages": ("POST", "/v1/messages", MESSAGE),
    "messages that are refused": ("POST", "/v1/messages", {"model": MODEL}),
    "embeddings": ("POST", "/v1/embeddings", {"model": MODEL, "input": PROMPT}),
    "tokens": ("POST", "/tokenize", {"model": MODEL, "prompt": PROMPT}),
    "page": ("GET", "/", None),
    "no such path": ("GET", "/v1/nothing?x=1", None),
    "wrong method": ("DELETE", COMPLETIONS, None),
    "no JSON": ("POST", COMPLETIONS, b"{"),
}


def setUpModule():
    global cluster
    cluster = unittest.enterModuleContext(Cluster())


def same_body(body: bytes):
    try:
        value = json.loads(body)
    except ValueError:
        return body
    return {k: v for k, v in stripped(value).items() if k not in ("data", "request_id")
            } if isinstance(value, dict) else value


class TwoReplicasTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cluster.open_gate()
        flags = ["--threads", "1", "--max-num-seqs", str(RUNNING)]
        cls.app = cls.enterClassContext(
            Application(cluster, {"flags": flags}, {"min_replicas": 2, "max_replicas": 2}))

    def setUp(self):
        eventually(lambda: len(self.app.replicas()) == 2, "the gateway knows two replicas")
        self.addCleanup(cluster.open_gate)

    def test_answers_are_the_servers_own(self):
        with GatedReplica("--max-num-seqs", RUNNING) as direct:
            for name, (path, body) in {**ANSWERED, **NOT_STREAMED, **REFUSED, **OWN_RULES}.items():
                with self.subTest(name):
                    expected = direct.post(path, body)
                    self.assertEqual(whole(self.app.post(path, body)), whole(expected))
                    if name in ANSWERED:
                        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
                        expected = streamed(direct.post(path, body))
                        self.assertTrue(expected[1] and expected[3], "no stream to compare with")
                        self.assertEqual(streamed(self.app.post(path, body)), expected)

    def test_other_routes_are_the_servers_own(self):
        with GatedReplica("--max-num-seqs", RUNNING) as direct:
            for name, (method, path, body) in OTHER_ROUTES.items():
                with self.subTest(name):
                    json_type = {"Content-Type": "application/json"}
                    expected = direct.request(method, path, body, json_type)
                    answer = self.app.request(method, path, body)
                    self.assertEqual(answer.status, expected.status)
                    for field in KEPT_FIELDS:
                        self.assertEqual(answer.headers.get(field), expected.headers.get(field))
                    self.assertEqual(same_body(answer.body), same_body(expected.body))

    def test_body_that_is_too_long_is_refused(self):
        for path in (COMPLETIONS, "/v1/messages"):
            response = self.app.request("POST", path, b" " * (4 << 20) + b"{}")
            self.assertEqual(response.status, 413)
            self.assertIn("longer than 4194304 bytes", response.json()["error"]["message"])

    def test_wrong_key_is_refused_by_the_server(self):
        for path in ("/v1/models", "/metrics"):
            response = self.app.request("GET", path, headers={"Authorization": "Bearer wrong"})
            self.assertEqual(response.status, 401, path)
            self.assertIn("key", response.body.decode())

    def test_metrics_are_those_of_all_servers(self):
        children = cluster.children()
        direct = [child.get("/metrics").body.decode() for child in children]
        text = self.app.request("GET", "/metrics").body.decode()
        self.assertEqual(*([family.name for family in text_string_to_metric_families(t)]
                           for t in (text, direct[0])))
        self.assertEqual(len(text.splitlines()),
                         sum(len(t.splitlines()) for t in direct) -
                         sum(line.startswith("#") for line in direct[0].splitlines()))
        name = "process_start_time_seconds"
        self.assertEqual({line.split()[1] for line in text.splitlines() if line.startswith(name)},
                         {line.split()[1] for t in direct for line in t.splitlines()
                          if line.startswith(name)})

    def test_killed_server_ends_only_the_streams_that_it_had_begun(self):
        with GatedReplica() as direct:
            expected = direct.post(COMPLETIONS, {**GREEDY, "prompt": "whole"}).json()["choices"]
        cluster.close_gate()
        killed, other = cluster.children()
        streams = [Stream(self.app, STREAM_TOKENS) for _ in range(STREAMS)]
        eventually(lambda: accepted(killed) + accepted(other) == STREAMS, "all streams are there")
        with ThreadPoolExecutor(WHOLE) as threads:
            answers = [threads.submit(self.app.post, COMPLETIONS, {**GREEDY, "prompt": "whole"})
                       for _ in range(WHOLE)]
            eventually(lambda: accepted(killed) + accepted(other) == STREAMS + WHOLE,
                       "all requests are there")
            there = accepted(killed)
            cluster.allow(FIRST_STEPS)
            eventually(lambda: sum(s.tokens > 0 for s in streams) == 2 * RUNNING,
                       "each running stream has sent tokens")
            killed.kill()
            cluster.open_gate()
            fresh = [Stream(self.app, STREAM_TOKENS, "after the kill") for _ in range(FRESH)]
            back_s = seconds_until(
                lambda: len(cluster.children()) == 2 and killed.process not in
                [c.process for c in cluster.children()], "another server has its place")
            for stream in streams + fresh:
                stream.join(60)
            answers = [answer.result() for answer in answers]
        broken = [s for s in streams if not s.complete]
        self.assertGreater(there, RUNNING, "some requests had not begun")
        self.assertEqual([(s.status, s.done, s.problem["message"]) for s in broken],
                         [(200, False, "the replica was lost while it answered")] * RUNNING)
        self.assertEqual([(s.status, s.tokens, s.problem) for s in fresh if not s.complete], [])
        self.assertEqual([(a.status, a.json()["choices"]) for a in answers],
                         [(200, expected)] * WHOLE)
        figure("ray: kill -9 of one of two servers",
               f"{there} requests there: {RUNNING} streams that had begun ended with an error, "
               f"{there - RUNNING} requests went on elsewhere")
        figure("ray: a killed server is replaced", f"after {back_s:.1f} s")

    def test_request_under_which_servers_are_lost_is_refused_in_the_end(self):
        cluster.close_gate()
        for path, body in ((COMPLETIONS, {**GREEDY, "prompt": "x"}), ("/v1/messages", MESSAGE)):
            with self.subTest(path), ThreadPoolExecutor(1) as threads:
                answer = threads.submit(self.app.post, path, body)
                for _ in range(3):
                    eventually(lambda: any(accepted(c) for c in cluster.children()), "it is there")
                    for child in cluster.children():
                        if accepted(child):
                            child.kill()
                            child.process.wait()
                self.assertEqual(answer.result().status, 502)
                self.assertIn("3 replicas were lost", answer.result().json()["error"]["message"])

    def test_server_sees_that_a_client_has_left(self):
        cluster.close_gate()
        before = {child.port: child.metric("diffserve_requests_finished_total", reason="cancelled")
                  for child in cluster.children()}
        body = {**GREEDY, "prompt": "x", "stream": True}
        for begun in (False, True):
            with self.subTest(begun=begun):
                connection = self.app.connect()
                connection.request("POST", COMPLETIONS, json.dumps(body),
                                   {"Content-Type": "application/json"})
                eventually(lambda: any(map(accepted, cluster.children())), "the request is there")
                child = next(c for c in cluster.children() if accepted(c))
                if begun:
                    cluster.allow(FIRST_STEPS)
                    response = connection.getresponse()
                    self.assertTrue(response.readline().startswith(b"data: "))
                    response.close()
                connection.close()
                eventually(lambda: under_way(child) == 0, "the server knows that it has left")
                cluster.allow(1)
                eventually(lambda: child.metric("diffserve_requests_finished_total",
                                                reason="cancelled") == before[child.port] + 1,
                           "the request counts as cancelled")
                before[child.port] += 1

    def test_server_ends_with_its_replica(self):
        child = cluster.children()[0]
        actor = child.process.parent()
        self.assertIn("Server", actor.name() + " ".join(actor.cmdline()))
        actor.kill()
        eventually(lambda: not child.alive, "the server has ended", 10)


class AutoscalingTest(unittest.TestCase):
    """One request runs at a time, and Serve's own target is never reached: what waits decides."""

    @classmethod
    def setUpClass(cls):
        cluster.open_gate()
        cls.app = cls.enterClassContext(Application(
            cluster, {"flags": ["--threads", "1", "--max-num-seqs", "1"]},
            {"min_replicas": 1, "max_replicas": 2, "target_ongoing_requests": 1000,
             "upscale_delay_s": 0, "downscale_delay_s": 1, "look_back_period_s": 2},
            health_check_period_s=30))

    def test_replicas_follow_the_queue_and_are_drained(self):
        [first] = cluster.wait_for_children(1)
        cluster.close_gate()
        streams = [Stream(self.app, STREAM_TOKENS)]
        eventually(lambda: accepted(first) == 1, "a stream is there")
        waiting = [self.app.connect() for _ in range(2)]
        for connection in waiting:
            connection.request("POST", COMPLETIONS, json.dumps({**GREEDY, "prompt": "x"}),
                               {"Content-Type": "application/json"})
        up_s = seconds_until(lambda: len(self.app.replicas()) == 2, "a second replica is used")
        second = cluster.children()[1]
        streams.append(Stream(self.app, STREAM_TOKENS))
        eventually(lambda: accepted(second) == 1, "the second replica has a stream")
        for connection in waiting:
            connection.close()
        eventually(lambda: under_way(first) + under_way(second) == len(streams), "they have left")
        cluster.allow(FIRST_STEPS)
        eventually(lambda: accepted(first) == 1, "nothing waits any more")
        eventually(lambda: "Removing 1 replica" in self.app.log(), "one replica is to go")
        self.assertTrue(first.alive and second.alive)
        cluster.open_gate()
        for stream in streams:
            stream.join(60)
            self.assertTrue(stream.complete, stream.problem)
        down_s = seconds_until(lambda: first.alive + second.alive == 1, "one server is left")
        figure("ray: a second replica for a queue", f"after {up_s:.1f} s")
        figure("ray: a drained replica has gone",
               f"{down_s:.1f} s after the last of its streams, none cut")


class GivenServerTest(unittest.TestCase):
    def test_replica_uses_a_server_that_runs(self):
        with GatedReplica() as server, Application(
                cluster, {"model": "", "api_key_file": None, "url": server.url}, {}) as app:
            body = {**GREEDY, "prompt": "x"}
            self.assertEqual(whole(app.post(COMPLETIONS, body)),
                             whole(server.post(COMPLETIONS, body)))
            self.assertEqual(cluster.children(), [])

    def test_reason_of_a_server_that_does_not_start_is_shown(self):
        with Application(cluster, {"model": "/no/such/model"},
                         {}).that_logs("serve /no/such/model ended with code 1") as app:
            self.assertIn("/no/such/model: is not a directory", app.log())


if __name__ == "__main__":
    unittest.main()
