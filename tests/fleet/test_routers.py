"""What holds behind each router: the answers are the replicas' own, and a replica may be killed, restarted or full."""

import time
import unittest
from collections import Counter

from answers import ANSWERED, NOT_STREAMED, OWN_RULES, REFUSED, streamed, whole
from fleet import (COMPLETIONS, DEMO_MODEL, GatedReplica, Load, Replica, Router, Stream, eventually, figure, requests_taken)

STREAMS = 16
STREAM_TOKENS = 64
FIRST_STEPS = 4  # after them a stream has sent tokens and has many more to send


class RouterCases:
    kind = ""
    even = None  # the policy that takes replicas in turn, None where that is the only one
    own_cases = frozenset()  # what the router refuses or answers by rules of its own
    retries_full = True  # 429 of one replica: asked elsewhere

    def test_answers_are_the_replicas_own(self):
        with Replica() as first, Replica() as second, Router(self.kind, [first, second], self.even) as router:
            before = [requests_taken(replica) for replica in (first, second)]
            for name, (path, body) in {**ANSWERED, **NOT_STREAMED, **REFUSED}.items():
                if name in self.own_cases:
                    continue
                with self.subTest(name):
                    direct = first.post(path, body)
                    self.assertEqual(whole(router.post(path, body)), whole(direct))
                    self.assertEqual(direct.status, 400 if name in REFUSED else 200)
                    if name in ANSWERED:
                        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
                        expected = streamed(first.post(path, body))
                        self.assertTrue(expected[1] and expected[3], "no stream to compare with")
                        self.assertEqual(streamed(router.post(path, body)), expected)
            for replica, taken in zip((first, second), before):
                self.assertGreater(requests_taken(replica), taken, "a replica was never asked")

    def test_what_a_router_refuses_by_its_own_rules_is_refused(self):
        with Replica() as first, Router(self.kind, [first], self.even) as router:
            own = 0
            for name, (path, body) in OWN_RULES.items():
                with self.subTest(name):
                    direct, routed = first.post(path, body), router.post(path, body)
                    self.assertIn(direct.status, (400, 404))
                    self.assertIn(routed.status, (direct.status, 422))
                    own += routed.body != direct.body
        figure(f"{self.kind}: errors worded by the router itself", f"{own} of {len(OWN_RULES)} kinds that it may check")

    def test_a_killed_replica_takes_only_its_own_streams_along(self):
        with GatedReplica() as killed, GatedReplica() as other, Router(self.kind, [killed, other], self.even) as router:
            for replica in (killed, other):
                replica.close_gate()
            streams = [Stream(router, STREAM_TOKENS) for _ in range(STREAMS)]
            eventually(lambda: sum(self.accepted(replica) for replica in (killed, other)) == STREAMS, "all streams are with a replica")
            there = int(self.accepted(killed))
            for replica in (killed, other):
                replica.allow(FIRST_STEPS)
            eventually(lambda: all(stream.tokens for stream in streams), "each stream has sent tokens")
            killed.kill()
            other.open_gate()
            fresh = [Stream(router, STREAM_TOKENS, "after the kill") for _ in range(2 * STREAMS)]
            for stream in streams + fresh:
                stream.join(120)
            killed.code = 0
            self.assertTrue(0 < there < STREAMS, f"{there} of {STREAMS} streams were with the replica that was killed")
            self.assertEqual(sum(not stream.complete for stream in streams), there)
            self.assertFalse([s for s in streams if not s.complete and s.done and s.problem is None], "a cut stream ends without a word")
            self.assertEqual([(s.status, s.tokens, s.problem) for s in fresh if not s.complete], [])
        figure(f"{self.kind}: kill -9 under {STREAMS} streams",
               f"{there} were there and broke off, 0 others; {len(fresh)} new ones, 0 failed")

    @staticmethod
    def accepted(replica) -> float:
        return replica.metric("diffserve_requests_waiting") + replica.metric("diffserve_requests_running")

    def test_a_rolling_restart_fails_no_request(self):
        with Replica() as first, Replica() as second, Router(self.kind, [first, second], self.even) as router:
            with Load(router, 8, 16) as load:
                load.wait_for(50)
                for replica in (first, second):
                    replica.terminate()
                    load.wait_for(50)
                    self.assertEqual(replica.wait(), 0)
                    load.wait_for(50)
                    replica.start()
                    eventually(lambda: requests_taken(replica) > 0, "the replica is used again", 60)
                    load.wait_for(50)
            self.assertEqual(load.failures, [])
        figure(f"{self.kind}: rolling restart under 8 clients", f"0 of {load.completed} requests failed")

    def test_a_full_replica_is_passed_over(self):
        with GatedReplica("--max-num-seqs", 1, "--max-waiting-requests", 1) as full, Replica() as free:
            with Router(self.kind, [full, free], self.even) as router:
                full.allow(FIRST_STEPS)
                held = [Stream(full, STREAM_TOKENS)]
                eventually(lambda: held[0].tokens, "one request runs")
                held.append(Stream(full, STREAM_TOKENS))
                eventually(lambda: full.metric("diffserve_requests_waiting") == 1, "one request waits")
                refused_before = full.metric("diffserve_requests_refused_total", reason="queue_full")
                body = {"model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 1}
                start = time.monotonic()
                statuses = Counter(router.post(COMPLETIONS, body).status for _ in range(20))
                took = time.monotonic() - start
                refused = full.metric("diffserve_requests_refused_total", reason="queue_full") - refused_before
                full.open_gate()
                for stream in held:
                    stream.join(60)
                    self.assertTrue(stream.complete, stream.problem)
            self.assertGreater(refused, 0, "the full replica was never asked")
            self.assertEqual(statuses, {200: 20} if self.retries_full else {200: 20 - refused, 429: refused})
        figure(f"{self.kind}: one of two replicas is full", f"{refused:.0f} of 20 requests refused there, {statuses[429]} clients saw 429, "
               f"{took / 20 * 1000:.0f} ms a request")


class VllmRouterTest(RouterCases, unittest.TestCase):
    kind, even = "vllm-router", "round_robin"


class SmgTest(RouterCases, unittest.TestCase):
    kind, even, own_cases = "smg", "round_robin", frozenset({"token ids"})


class HaproxyTest(RouterCases, unittest.TestCase):
    kind, retries_full = "haproxy", False


if __name__ == "__main__":
    unittest.main()
