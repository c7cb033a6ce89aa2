# SPDX-License-Identifier: Apache-2.0
"""Properties of each router: answers equal the replicas' own, and a replica may be killed,
restarted or full."""

import time
import unittest
from collections import Counter
from contextlib import ExitStack, contextmanager

from answers import ANSWERED, NOT_STREAMED, OWN_RULES, REFUSED, streamed, whole
from fleet import (COMPLETIONS, DEMO_MODEL, FIRST_STEPS, SOON_FULL, STREAM_TOKENS, GatedReplica,
                   Load, Replica, Router, Stream, event_ports, events_flags, eventually, figure,
                   fill, refused_when_full, requests_taken)

STREAMS, CLIENTS = 16, 8


class RouterCases:
    kind = ""
    policy = None  # one that spreads requests
    in_turn = True  # each replica gets every other request
    own_cases = frozenset()  # requests that the router refuses or answers by its own rules
    retries_full = True  # a 429 of one replica is retried on another
    takes_out = False  # whether a replica is taken out of the router before it is stopped

    @property
    def name(self) -> str:
        return f"{self.kind} {self.policy}" if self.policy else self.kind

    @contextmanager
    def fleet(self, first=Replica, second=Replica, first_flags=()):
        with ExitStack() as stack:
            ports = [event_ports(), event_ports()] if self.policy == "kv_aware" else None
            flags = [events_flags(pair) for pair in ports] if ports else [(), ()]
            replicas = [
                stack.enter_context(kind(*more))
                for kind, more in ((first, (*flags[0], *first_flags)), (second, flags[1]))
            ]
            yield *replicas, stack.enter_context(
                Router(self.kind, replicas, self.policy, events=ports))

    def test_answers_are_the_replicas_own(self):
        with self.fleet() as (first, second, router):
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
            asked = [
                requests_taken(replica) - taken for replica, taken in zip((first, second), before)
            ]
            self.assertGreater(
                min(asked) if self.in_turn else max(asked), 0, "a replica was never asked")

    def test_requests_against_a_routers_own_rules_are_refused(self):
        with self.fleet() as (first, _, router):
            own = 0
            for name, (path, body) in OWN_RULES.items():
                with self.subTest(name):
                    direct, routed = first.post(path, body), router.post(path, body)
                    self.assertIn(direct.status, (400, 404))
                    self.assertIn(routed.status, (direct.status, 422))
                    own += routed.body != direct.body
        figure(f"{self.name}: errors worded by the router itself",
               f"{own} of {len(OWN_RULES)} kinds that it may check")

    def test_killed_replica_ends_only_its_own_streams(self):
        with self.fleet(GatedReplica, GatedReplica) as (killed, other, router):
            for replica in (killed, other):
                replica.close_gate()
            streams = [Stream(router, STREAM_TOKENS) for _ in range(STREAMS)]
            eventually(
                lambda: sum(self.accepted(replica) for replica in (killed, other)) == STREAMS,
                "all streams are with a replica")
            there = int(self.accepted(killed))
            for replica in (killed, other):
                replica.allow(FIRST_STEPS)
            eventually(lambda: all(stream.tokens for stream in streams),
                       "each stream has sent tokens")
            killed.kill()
            other.open_gate()
            fresh = [Stream(router, STREAM_TOKENS, "after the kill") for _ in range(2 * STREAMS)]
            for stream in streams + fresh:
                stream.join(120)
            self.assertTrue(0 < there < STREAMS,
                            f"{there} of {STREAMS} streams were with the replica that was killed")
            self.assertEqual(sum(not stream.complete for stream in streams), there)
            self.assertFalse(
                [s for s in streams if not s.complete and s.done and s.problem is None],
                "a cut stream ends without a word")
            self.assertEqual([(s.status, s.tokens, s.problem) for s in fresh if not s.complete], [])
        figure(f"{self.name}: kill -9 under {STREAMS} streams",
               f"{there} were there and broke off, 0 others; {len(fresh)} new ones, 0 failed")

    @staticmethod
    def accepted(replica) -> float:
        return replica.metric("diffserve_requests_waiting") + replica.metric(
            "diffserve_requests_running")

    def rolling_restart(self, take_out: bool) -> Load:
        """Each replica in turn gets SIGTERM under load and restarts; returns the results of the
        load."""
        with self.fleet() as (first, second, router), Load(router, CLIENTS, 16) as load:
            load.wait_for(50)
            for replica in (first, second):
                if take_out:
                    router.take_out(replica)
                replica.terminate()
                load.wait_for(50)
                self.assertEqual(replica.wait(), 0)
                load.wait_for(50)
                replica.start()
                if take_out:
                    router.put_back(replica)
                eventually(lambda: requests_taken(replica) > 0, "the replica is used again", 60)
                load.wait_for(50)
        return load

    def test_rolling_restart_fails_no_request(self):
        load = self.rolling_restart(self.takes_out)
        self.assertEqual(load.failures, [])
        how = "taken out, then SIGTERM" if self.takes_out else "SIGTERM"
        figure(f"{self.name}: rolling restart ({how}) under {CLIENTS} clients",
               f"0 of {load.completed} requests failed")

    def test_full_replica_is_passed_over(self):
        with self.fleet(GatedReplica, Replica, SOON_FULL) as (full, _, router):
            held = fill(full)
            refused_before = refused_when_full(full)
            body = {"model": DEMO_MODEL.name, "prompt": "x", "max_tokens": 1}
            start = time.monotonic()
            statuses = Counter(router.post(COMPLETIONS, body).status for _ in range(20))
            took = time.monotonic() - start
            refused = refused_when_full(full) - refused_before
            full.open_gate()
            for stream in held:
                stream.join(60)
                self.assertTrue(stream.complete, stream.problem)
            self.assertGreater(refused, 0, "the full replica was never asked")
            self.assertEqual(statuses,
                             {200: 20} if self.retries_full else {200: 20 - refused, 429: refused})
        figure(
            f"{self.name}: one of two replicas is full",
            f"{refused:.0f} of 20 requests refused there, {statuses[429]} clients saw 429, "
            f"{took / 20 * 1000:.0f} ms a request")


class VllmRouterTest(RouterCases, unittest.TestCase):
    kind, policy = "vllm-router", "round_robin"


class VllmRouterByEventsTest(RouterCases, unittest.TestCase):
    kind, policy, in_turn = "vllm-router", "kv_aware", False
    # tested in test_prefixes, with a cached prefix
    test_full_replica_is_passed_over = None


class SmgTest(RouterCases, unittest.TestCase):
    kind, policy, own_cases = "smg", "round_robin", frozenset({"token ids"})


class HaproxyTest(RouterCases, unittest.TestCase):
    kind, retries_full, takes_out = "haproxy", False, True

    def test_replica_that_is_stopped_without_notice_is_passed_over(self):
        load = self.rolling_restart(take_out=False)
        self.assertLessEqual(len(load.failures), 2 * CLIENTS,
                             "more than what was under way when a replica closed its sockets")
        figure(
            f"{self.name}: rolling restart (SIGTERM alone) under {CLIENTS} clients",
            f"{len(load.failures)} of {load.completed + len(load.failures)} requests met closing "
            f"sockets"
        )


if __name__ == "__main__":
    unittest.main()
