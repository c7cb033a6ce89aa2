# SPDX-License-Identifier: Apache-2.0
"""KV events over ZeroMQ and gRPC: a subscriber, such as a router, knows the prefixes that the
server has cached."""

import contextlib
import re
import socket
import subprocess
import tempfile
import unittest

import grpc
import msgspec
import zmq

from grpc_client import channel, vllm_pb_grpc
from server_process import BINARY, DEVICE_FLAGS, KV_BYTES, PAGE_SLOTS, ServerProcess, eventually
from smg.grpc.router_pb2 import SubscribeKvEventsRequest
from tiny_model import BOS_ID, FIRST_BYTE_ID, directory

TOPIC = "kv@pod@tiny"
# layers, slots, elements of K1 | K2 | V of the one group, bytes
PAGE_BYTES = 2 * PAGE_SLOTS * 64 * KV_BYTES
FLAGS = ("--kv-events-endpoint", "tcp://127.0.0.1:*", "--kv-events-replay-endpoint",
         "tcp://127.0.0.1:*", "--kv-events-topic", TOPIC)


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Follower:
    """A subscriber that requests earlier events, then follows; `pages` maps hash to (parent,
    tokens, keys)."""

    def __init__(self, test, server):
        line = next(line for line in server.stderr().splitlines() if " kv_events " in line)
        self.endpoint, self.replay = re.search(
            r'endpoint="?([^" ]+)"? replay_endpoint="?([^" ]+)', line).groups()
        context = test.enterContext(zmq.Context())
        self.live = test.enterContext(context.socket(zmq.SUB))
        self.live.subscribe("kv@")
        self.live.connect(self.endpoint)
        self.ask = test.enterContext(context.socket(zmq.DEALER))
        self.ask.connect(self.replay)
        self.pages, self.next, self.stored, self.removed, self.cleared = {}, 0, 0, 0, 0

    def take(self, number: int, payload: bytes) -> None:
        if number < self.next:
            return  # known from the replay
        if number != self.next:
            raise AssertionError(f"batch {number} follows {self.next - 1}")
        self.next += 1
        for event in msgspec.msgpack.decode(payload, type=Batch).events:
            if isinstance(event, AllBlocksCleared):
                self.pages, self.cleared = {}, self.cleared + 1
            elif event.medium != "GPU":
                raise AssertionError(f"a page in {event.medium}")
            elif isinstance(event, BlockRemoved):
                for page in event.block_hashes:
                    del self.pages[page]
                    self.removed += 1
            else:
                self.store(event)

    def store(self, event: BlockStored) -> None:
        if event.block_size != PAGE_SLOTS or len(
                event.token_ids) != PAGE_SLOTS * len(event.block_hashes):
            raise AssertionError(
                f"{len(event.token_ids)} tokens in {len(event.block_hashes)} pages of "
                f"{event.block_size}"
            )
        parent = event.parent_block_hash
        for index, page in enumerate(event.block_hashes):
            if page in self.pages or (parent is not None and parent not in self.pages):
                raise AssertionError("a page is stored twice or hangs on nothing")
            self.pages[page] = (parent, event.token_ids[index * PAGE_SLOTS:][:PAGE_SLOTS],
                                event.extra_keys[index])
            self.stored += 1
            parent = page

    def catch_up(self, server) -> None:
        """Waits until it has seen all that the server has published, by subscription or by
        replay."""
        def all_is_known():
            published = server.metric("diffserve_kv_events_published_total")
            self.ask.send_multipart([b"", self.next.to_bytes(8, "big")])
            while True:
                _, topic, number, payload = self.ask.recv_multipart()
                if int.from_bytes(number, "big", signed=True) < 0:
                    break
                if topic != TOPIC.encode():
                    raise AssertionError(f"topic {topic}")
                self.take(int.from_bytes(number, "big"), payload)
            return server.metric("diffserve_kv_events_published_total") == published
        eventually(all_is_known, "nothing new is published")

    def chain(self, tokens: list[int], keys=None) -> int:
        """How many pages of `tokens` are known, counted from the first."""
        parent, count = None, 0
        while wanted := tokens[count * PAGE_SLOTS:(count + 1) * PAGE_SLOTS]:
            first = keys if count == 0 else None
            parent = next(
                (page for page, known in self.pages.items() if known == (parent, wanted, first)),
                None)
            if parent is None:
                break
            count += 1
        return count


def unsigned(page: int) -> int:
    return page % (1 << 64)


def grpc_pages(batches, last: int) -> dict:
    """The pages that are cached after batch `last`: (parent, tokens) by hash."""
    pages = {}
    for batch in batches:
        for event in batch.events:
            kind = event.WhichOneof("data")
            if kind == "cleared":
                pages = {}
            elif kind == "removed":
                for page in event.removed.block_hashes:
                    del pages[unsigned(page)]
            else:
                stored = event.stored
                parent = unsigned(stored.parent_block_hash) if stored.HasField(
                    "parent_block_hash") else None
                for block in stored.blocks:
                    pages[unsigned(block.block_hash)] = (parent, list(block.token_ids))
                    parent = unsigned(block.block_hash)
        if batch.sequence_number == last:
            return pages
    raise AssertionError("the stream ended")


def prompt(seed: int, length: int) -> list[int]:
    return [BOS_ID] + [FIRST_BYTE_ID + (seed * 31 + i * i) % 256 for i in range(length - 1)]


class HostilePeerTest(unittest.TestCase):
    """Bytes that no subscriber sends, with the handshake of ZMTP 3.0 before them."""

    GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16 + 1 + 31)

    def handshake(self, endpoint: str, kind: bytes) -> socket.socket:
        host, port = endpoint.removeprefix("tcp://").rsplit(":", 1)
        peer = self.enterContext(socket.create_connection((host, int(port)), timeout=60))
        ready = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
        peer.sendall(self.GREETING + bytes([4, len(ready)]) + ready)
        received = b""
        while b"READY" not in received:
            received += peer.recv(1024)
        return peer

    def test_frame_larger_than_any_request_ends_the_connection(self):
        server = self.enterContext(ServerProcess(*FLAGS))
        follower = Follower(self, server)
        for endpoint, kind in [(follower.endpoint, b"SUB"), (follower.replay, b"DEALER")]:
            for size in (257, 600 << 20, (1 << 63) - 1, 1 << 63):
                with self.subTest(kind=kind, size=size):
                    peer = self.handshake(endpoint, kind)
                    peer.sendall(b"\x02" + size.to_bytes(8, "big") + b"\x01")
                    with contextlib.suppress(ConnectionResetError):
                        while peer.recv(1024):
                            pass
        follower.catch_up(server)
        self.assertEqual(server.get("/readyz").status, 200)


class KvEventsTest(unittest.TestCase):
    def complete(self, server, ids, max_tokens=1, **fields):
        body = {
            "prompt": ids, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True,
            "return_token_ids": True
        } | fields
        response = server.post("/v1/completions", body)
        self.assertEqual(response.status, 200)
        return response.json()["choices"][0]["token_ids"]

    def test_pages_of_prompt_and_answer_are_published_with_their_tokens(self):
        with ServerProcess(*FLAGS) as server:
            ids = prompt(1, 3 * PAGE_SLOTS + 5)
            output = self.complete(server, ids, max_tokens=2 * PAGE_SLOTS)
            follower = Follower(self, server)
            follower.catch_up(server)
            self.assertEqual(follower.cleared, 1)
            computed = (ids + output)[:-1]  # the last token's K and V are never needed
            self.assertEqual(follower.chain(computed), len(computed) // PAGE_SLOTS)
            self.assertEqual(len(follower.pages), len(computed) // PAGE_SLOTS)
            # A second prompt with the same start adds new pages from where it differs.
            other = ids[:2 * PAGE_SLOTS] + prompt(2, 2 * PAGE_SLOTS)
            self.complete(server, other)
            follower.catch_up(server)
            self.assertEqual(follower.chain(other), 4)
            self.assertEqual(len(follower.pages), len(computed) // PAGE_SLOTS + 2)
            self.assertEqual(server.metric("diffserve_kv_pages", state="cached"),
                             len(follower.pages))

    def test_grpc_subscribers_get_what_zeromq_has(self):
        with ServerProcess(*FLAGS) as server, channel(server) as connection:
            subscribe = vllm_pb_grpc.VllmEngineStub(connection).SubscribeKvEvents
            live = subscribe(SubscribeKvEventsRequest())
            live.initial_metadata()
            self.complete(server, prompt(1, 3 * PAGE_SLOTS + 5), max_tokens=2 * PAGE_SLOTS)
            self.complete(server, prompt(2, 2 * PAGE_SLOTS + 1))
            follower = Follower(self, server)
            follower.catch_up(server)
            known = {page: (parent, tokens) for page, (parent, tokens, _) in follower.pages.items()}
            self.assertGreater(len(known), 5)
            last = follower.next - 1
            self.assertEqual(grpc_pages(live, last), known)
            live.cancel()
            again = subscribe(SubscribeKvEventsRequest())
            self.assertEqual(grpc_pages(again, last), known)
            after = subscribe(SubscribeKvEventsRequest(start_sequence_number=last - 1))
            self.assertEqual(next(after).sequence_number, last)
            with self.assertRaises(grpc.RpcError) as caught:
                next(subscribe(SubscribeKvEventsRequest(start_sequence_number=last + 1)))
            self.assertEqual(caught.exception.code(), grpc.StatusCode.OUT_OF_RANGE)

    def test_live_events_need_no_replay_request(self):
        with ServerProcess(*FLAGS) as server:
            follower = Follower(self, server)
            seed = 0

            def something_came():
                nonlocal seed
                seed += 1
                self.complete(server, prompt(seed, 2 * PAGE_SLOTS))
                return follower.live.poll(50)
            eventually(something_came, "the subscription has arrived")
            topic, number, payload = follower.live.recv_multipart()
            self.assertEqual(topic, TOPIC.encode())
            follower.next = int.from_bytes(number, "big")
            follower.take(follower.next, payload)
            self.assertEqual(follower.stored, 2)

    def test_evictions_are_published(self):
        pool = 12 * PAGE_BYTES
        with ServerProcess(*FLAGS, "--max-model-len", 4 * PAGE_SLOTS, "--kv-cache-memory",
                           pool) as server:
            follower = Follower(self, server)
            for seed in range(20):
                self.complete(server, prompt(seed, 3 * PAGE_SLOTS))
                follower.catch_up(server)
                self.assertEqual(server.metric("diffserve_kv_pages", state="cached"),
                                 len(follower.pages))
            self.assertGreater(follower.removed, 20)
            self.assertEqual(follower.stored - follower.removed, len(follower.pages))
            self.assertEqual(follower.chain(prompt(19, 3 * PAGE_SLOTS)), 3)
            self.assertEqual(follower.chain(prompt(0, 3 * PAGE_SLOTS)), 0)
            self.assertEqual(server.metric("diffserve_kv_events_dropped_total"), 0)

    def test_cache_reset_is_published(self):
        with ServerProcess(*FLAGS) as server:
            ids = prompt(4, 2 * PAGE_SLOTS + 1)
            self.complete(server, ids)
            self.assertEqual(server.request("POST", "/reset_prefix_cache").status, 200)
            follower = Follower(self, server)
            eventually(lambda: server.metric("diffserve_kv_pages", state="cached") == 0, "no page")
            follower.catch_up(server)
            self.assertEqual((follower.cleared, len(follower.pages)), (2, 0))
            self.complete(server, ids)
            follower.catch_up(server)
            self.assertEqual((follower.cleared, follower.chain(ids)), (2, 2))

    def test_page_from_disk_is_published_when_it_is_in_memory(self):
        folder = self.enterContext(tempfile.TemporaryDirectory())
        flags = (*FLAGS, "--kv-cache-dir", folder)
        ids = prompt(5, 3 * PAGE_SLOTS + 5)
        with ServerProcess(*flags) as server:
            self.complete(server, ids)
        with ServerProcess(*flags) as server:
            follower = Follower(self, server)
            follower.catch_up(server)
            self.assertEqual(server.metric("diffserve_kv_tier_pages"), 3)
            self.assertEqual(len(follower.pages), 0)
            self.complete(server, ids)
            follower.catch_up(server)
            self.assertEqual(server.metric("diffserve_kv_tier_hit_tokens_total"), 3 * PAGE_SLOTS)
            self.assertEqual((len(follower.pages), follower.chain(ids)), (3, 3))
            server.request("POST", "/reset_prefix_cache?reset_local=false")
            eventually(lambda: server.metric("diffserve_kv_tier_pages") == 0, "no page on disk")
            follower.catch_up(server)
            self.assertEqual((follower.cleared, follower.chain(ids)), (1, 3))
            server.request("POST", "/reset_prefix_cache?reset_external=false")
            eventually(lambda: server.metric("diffserve_kv_pages", state="cached") == 0, "no page")
            follower.catch_up(server)
            self.assertEqual((follower.cleared, len(follower.pages)), (2, 0))

    def test_salted_prefix_is_distinct(self):
        with ServerProcess(*FLAGS) as server:
            follower = Follower(self, server)
            ids = prompt(3, 2 * PAGE_SLOTS)
            self.complete(server, ids, cache_salt="tenant")
            follower.catch_up(server)
            self.assertEqual((follower.chain(ids), follower.chain(ids, keys=("tenant",))), (0, 2))
            self.complete(server, ids)
            follower.catch_up(server)
            self.assertEqual((follower.chain(ids), follower.chain(ids, keys=("tenant",))), (2, 2))

    def test_flags_that_do_not_fit_are_refused(self):
        with ServerProcess(*FLAGS) as server:
            replay = re.search(r'replay_endpoint="?([^" \n]+)', server.stderr()).group(1)
            cases = (
                (("--kv-events-topic", "t"), 2,
                 "--kv-events-topic is set; allowed: only with --kv-events-endpoint"),
                (("--kv-events-endpoint", "tcp://127.0.0.1:*", "--no-enable-prefix-caching"), 2,
                 "needs the prefix cache"),
                (("--kv-events-endpoint", "here"), 2, "--kv-events-endpoint is here: "),
                (("--kv-events-endpoint", "tcp://127.0.0.1:*", "--kv-events-replay-endpoint",
                  replay), 1, "Address already in use"),
            )
            for flags, code, words in cases:
                with self.subTest(flags=flags):
                    command = [
                        BINARY, "serve",
                        directory(), "--port", "0", "--grpc-port", "0", *DEVICE_FLAGS, *flags
                    ]
                    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn(words, done.stderr.splitlines()[-1])
