# SPDX-License-Identifier: Apache-2.0
"""Where prompts with a cached prefix are routed, by router and policy."""

import random
import re
import threading
import unittest
from concurrent.futures import ThreadPoolExecutor

import msgspec
import zmq

from fleet import (CHAT, COMPLETIONS, DEMO_MODEL, SOON_FULL, GatedReplica, Replica, Router,
                   event_ports, events_flags, eventually, figure, fill, refused_when_full)

GROUPS, PREFIX_TOKENS, PAGE = 40, 512, 16
ENOUGH = 0.9
WORDS = ("magic number Lisbon Oslo river green stone window seven market quiet train letter winter "
         "garden silver").split(
)


class Events(threading.Thread):
    """A replica's KV events: the number of stored pages and the number of its last batch."""

    def __init__(self, port: int):
        super().__init__(daemon=True)
        self.stored, self.sequence, self._ends = 0, -1, threading.Event()
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.connect(f"tcp://127.0.0.1:{port}")
        self._socket.subscribe(b"")
        self.start()

    def run(self):
        while not self._ends.is_set():
            if self._socket.poll(50):
                _, sequence, payload = self._socket.recv_multipart()
                self.stored += sum(
                    len(e["block_hashes"]) for e in msgspec.msgpack.decode(payload)[1]
                    if e["type"] == "BlockStored")
                self.sequence = int.from_bytes(sequence, "big")
        self._socket.close(0)

    def stop(self) -> None:
        self._ends.set()
        self.join()


def prefixes(replica: Replica) -> list[str]:
    """For each group, a text of PREFIX_TOKENS tokens or a little more; no two begin alike."""
    draw, texts = random.Random(1), []
    for group in range(GROUPS):
        text = f"Group {group}:"
        while (missing :=
               PREFIX_TOKENS - replica.post("/tokenize", {"prompt": text}).json()["count"]) > 0:
            text += "".join(" " + draw.choice(WORDS) for _ in range(max(1, missing // 4)))
        texts.append(text)
    return texts


def ask(target, group: int, text: str, tail: str) -> int:
    """The number of cached tokens. Half of the groups are completions, half are chats."""
    content = f"{text} {tail}"
    path, prompt = (CHAT, {"messages": [{"role": "user", "content": content}]
                           }) if group % 4 > 1 else (COMPLETIONS, {"prompt": content})
    response = target.post(path,
                           {"model": DEMO_MODEL.name, "max_tokens": 1, "temperature": 0, **prompt})
    if response.status != 200:
        raise AssertionError(response.body)
    return response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def found(target, texts: list[str], tail: str) -> int:
    """How many prompts, in shuffled order, find all pages of their prefix where they are routed."""
    order = random.Random(2).sample(list(enumerate(texts)), len(texts))
    return sum(ask(target, group, text, tail) >= PREFIX_TOKENS - PAGE for group, text in order)


class PrefixTest(unittest.TestCase):
    def fleet(self, kind: str, policy: str | None, run, of=Replica, flags=()) -> None:
        """`run(replicas, router, events)` on two fresh replicas that publish events; the first is
        an `of` with `flags`."""
        ports = [event_ports(), event_ports()]
        with of(*events_flags(ports[0]),
                *flags) as first, Replica(*events_flags(ports[1])) as second:
            events = [Events(pub) for pub, _ in ports]
            told = ("--log-level", "debug") if policy == "kv_aware" else ()
            with Router(kind, [first, second], policy, told,
                        ports if policy == "kv_aware" else None) as router:
                run((first, second), router, events)
            for subscriber in events:
                subscriber.stop()

    def wait_for_events(self, replicas, router, events, groups: int = GROUPS) -> None:
        """Waits until the router has processed the prefixes of `groups` groups and all other
        events."""
        pages = groups * (PREFIX_TOKENS // PAGE)
        eventually(lambda: sum(e.stored for e in events) >= pages,
                   "every page of the prefixes is announced")
        for replica, subscriber in zip(replicas, events):
            if subscriber.sequence < 0:
                continue
            wanted = (rf"live sequence advanced source=\S*:{replica.port}\b.* "
                      rf"seq={subscriber.sequence}\b")
            eventually(lambda: re.search(wanted, re.sub(r"\x1b\[[0-9;]*m", "", router.log())),
                       "the router has read them")

    def placed(self, kind: str, policy: str | None) -> float:
        """Puts each prefix on one replica without using the router. Returns the share of repeats
        that are routed there."""
        shares = []

        def run(replicas, router, events):
            texts = prefixes(replicas[0])
            for group, text in enumerate(texts):
                ask(replicas[group % 2], group, text, "first")
            if policy == "kv_aware":
                self.wait_for_events(replicas, router, events)
            shares.append(found(router, texts, "again") / GROUPS)

        self.fleet(kind, policy, run)
        figure(f"{kind} {policy or 'leastconn'}: prefix put on one replica by others",
               f"{shares[0]:.0%} of {GROUPS} repeats land there")
        return shares[0]

    def routed(self, kind: str, policy: str | None) -> float:
        """Routes the first request of each group too, eight at a time. Returns the share of repeats
        that find the prefix."""
        shares = []

        def run(replicas, router, events):
            texts = prefixes(replicas[0])
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda item: ask(router, *item, "first"), enumerate(texts)))
            if policy == "kv_aware":
                self.wait_for_events(replicas, router, events)
            parts = [replica.metric("diffserve_prompt_tokens_total") for replica in replicas]
            shares.append(found(router, texts, "again") / GROUPS)
            figure(
                f"{kind} {policy or 'leastconn'}: prefix routed before",
                f"{shares[0]:.0%} of {GROUPS} repeats find it; {min(parts) / sum(parts):.0%} of "
                f"the prompts' work on the lesser replica"
            )

        self.fleet(kind, policy, run)
        return shares[0]

    def test_kv_events_lead_prompts_to_their_prefix(self):
        self.assertGreaterEqual(self.placed("vllm-router", "kv_aware"), ENOUGH)
        self.assertGreaterEqual(self.routed("vllm-router", "kv_aware"), ENOUGH)

    def test_full_replica_is_passed_over_though_it_has_the_prefix(self):
        def run(replicas, router, events):
            full, groups = replicas[0], range(8)
            texts = prefixes(full)
            for group in groups:
                ask(full, group, texts[group], "first")
            self.wait_for_events(replicas, router, events, len(groups))
            held, before = fill(full), refused_when_full(full)
            self.assertEqual([ask(router, group, texts[group], "again") < PAGE for group in groups],
                             [True] * len(groups))
            figure("vllm-router kv_aware: the replica with the prefixes is full",
                   f"{len(groups)} of {len(groups)} requests answered by the other one, "
                   f"{refused_when_full(full) - before:.0f} of them refused by it first")
            full.open_gate()
            for stream in held:
                stream.join(60)

        self.fleet("vllm-router", "kv_aware", run, GatedReplica, SOON_FULL)

    def test_without_events_placed_prefixes_are_found_by_chance(self):
        for kind, policy in (("vllm-router", "random"), ("vllm-router", "cache_aware"),
                             ("smg", "cache_aware"), ("haproxy", None)):
            with self.subTest(kind=kind, policy=policy):
                self.assertLess(self.placed(kind, policy), ENOUGH)

    def test_tree_of_texts_learns_from_what_it_routed(self):
        for kind in ("vllm-router", "smg"):
            with self.subTest(kind):
                self.assertGreater(self.routed(kind, "cache_aware"), self.routed(kind, "random"))


if __name__ == "__main__":
    unittest.main()
