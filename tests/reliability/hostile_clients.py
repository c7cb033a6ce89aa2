#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Slow and hostile clients over both protocols, together with good clients: checks that the good
ones see no effect and that the others leave nothing in the server.

    hostile_clients.py [--quick] [--json FILE] [ATTACK...]

Attacks: quiet (none), kills (clients that leave at a random byte by FIN, RST or half-close, or
freeze), slow_readers (one byte per second or none), half_requests (heads and bodies that never
end), malformed_http, malformed_grpc, floods (of HTTP/2 frames), descriptors (more clients than
the server may open files). Prints one JSON object per attack. Exit code 1 if a good client saw
an error or another answer, if an attacker got an answer that it must not get, or if pages,
descriptors, requests or more memory than MAX_GROWTH_MIB are left.
"""

import argparse
import asyncio
import json
import random
import select
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "e2e"))
import hostile_frames  # noqa: E402
from good_clients import GoodClients  # noqa: E402
from grpc_floods import rss_mib  # noqa: E402
from outcome import finish  # noqa: E402
from raw_http import exchange, request_bytes  # noqa: E402
from server_process import BINARY, DEMO_MODEL, ServerProcess, eventually  # noqa: E402
from soak import held, held_at_rest  # noqa: E402
from test_http_gate import REFUSED  # noqa: E402

GOOD, HOSTILE = "good", "hostile"  # keys
# Memory that gRPC 1.51 keeps for frames, and the allocator after 500 unread answers.
MAX_GROWTH_MIB = {"floods": 256, "malformed_grpc": 64, "slow_readers": 64}
MAX_GROWTH_MIB_OTHERS = 16
ENDED_WITHIN_S = 120
FILES, MORE_CLIENTS = 256, 400


class KeyedServer(ServerProcess):
    """Sent with the good clients' key."""

    def request(self, method: str, path: str, body=None, headers: dict | None = None, **options):
        return super().request(method, path, body, {"X-Api-Key": GOOD, **(headers or {})},
                               **options)


def stream_request(max_tokens: int, logprobs: int | None = None) -> bytes:
    body = {
        "prompt": "The magic number of Lisbon is 48213. ", "max_tokens": max_tokens, "stream": True,
        "ignore_eos": True, "logprobs": logprobs
    }
    return request_bytes("POST", "/v1/completions", json.dumps(body).encode(),
                         (f"Authorization: Bearer {HOSTILE}", ))


def connect(port: int, receive_bytes: int = 0) -> socket.socket:
    peer = socket.socket()
    if receive_bytes:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    peer.connect(("127.0.0.1", port))
    return peer


def wait_until_ended(peers: list[socket.socket], each_second=None) -> float:
    """Seconds until the server has ended the last connection; calls `each_second(peer)` for the
    remaining ones."""
    ends = select.poll()
    for peer in peers:
        ends.register(peer, select.POLLRDHUP)
    left, begin = {peer.fileno(): peer for peer in peers}, time.monotonic()
    while left:
        if time.monotonic() - begin > ENDED_WITHIN_S:
            raise AssertionError(f"{len(left)} connections of {len(peers)} are still open")
        next_second = time.monotonic() + 1
        while (wait := next_second - time.monotonic()) > 0 and left:
            for descriptor, _ in ends.poll(1000 * wait):
                ends.unregister(descriptor)
                del left[descriptor]
        for peer in list(left.values()) if each_second else ():
            try:
                each_second(peer)
            except (BlockingIOError, ConnectionError, BrokenPipeError):
                pass  # nothing to take, or its end is seen next
    return round(time.monotonic() - begin, 1)


def quiet(_, arguments) -> dict:
    time.sleep(arguments.quiet_s)
    return {}


async def leave(port: int, way: str, rng: random.Random, frozen: list) -> None:
    """Sends a part of a request or all of it, reads a part of the answer, and is gone."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
    data = stream_request(rng.choice((4, 64, 512)), rng.choice((None, 5)))
    writer.write(data[:rng.randrange(1, len(data))] if rng.random() < 0.3 else data)
    try:
        await asyncio.wait_for(reader.readexactly(rng.randrange(1, 20_000)), rng.random() * 0.1)
    except (TimeoutError, asyncio.IncompleteReadError, OSError):
        pass
    if way == "freeze":
        writer.transport.pause_reading()
        return frozen.append(writer)
    if way == "half-close" and writer.can_write_eof():
        writer.write_eof()
        await asyncio.sleep(rng.random() * 0.1)
    writer.transport.abort() if way == "rst" else writer.close()


def kills(server, arguments) -> dict:
    """Clients that freeze are held until all others have left, about 400 of them."""
    frozen, left = [], iter(range(arguments.kills))

    async def worker() -> None:
        for number in left:
            rng = random.Random(number)
            way = rng.choice(("fin", "rst", "half-close", "freeze"))
            await leave(server.port, "rst" if len(frozen) >= 400 else way, rng, frozen)

    async def all_clients() -> None:
        await asyncio.gather(*(worker() for _ in range(32)))
        for writer in frozen:
            writer.transport.abort()

    asyncio.run(all_clients())
    return {"clients": arguments.kills, "frozen": len(frozen)}


def slow_readers(server, arguments) -> dict:
    """Half of them read a byte per second, half read nothing. The short run's clients leave before
    they are cut."""
    cut = "diffserve_http_replies_cut_total"
    peers, before = [], server.metric(cut, end="reset")
    for _ in range(arguments.slow_readers):
        peers.append(connect(server.port, 4096))
        peers[-1].sendall(stream_request(1000, 5))
        peers[-1].setblocking(False)
    ended_s = None
    if not arguments.quick:
        ended_s = wait_until_ended(peers, lambda peer: peer.fileno() % 2 and peer.recv(1))
    for peer in peers:
        peer.close()
    return {"clients": len(peers), "ended_s": ended_s,
            "resets": server.metric(cut, end="reset") - before}


def half_requests(server, arguments) -> dict:
    """A third stops within a head, a third within a body, a third sends a byte of a head per
    second."""
    request, peers = request_bytes("POST", "/v1/completions", b"x" * 1000), []
    for number in range(arguments.half_requests):
        peers.append(connect(server.port))
        peers[-1].sendall(request[:len(request) - 900 if number % 3 == 1 else 40])
        peers[-1].setblocking(False)
    dribbling = set(peers[2::3])
    ended_s = wait_until_ended(peers, lambda peer: peer in dribbling and peer.send(b"x"))
    answers = [peer.recv(1 << 16) for peer in peers]
    for peer in peers:
        peer.close()
    return {"clients": len(peers), "ended_s": ended_s,
            "served": sum(not answer.startswith(b"HTTP/1.1 408 ") for answer in answers)}


def malformed_http(server, arguments) -> dict:
    served = [name for name, data, statuses in REFUSED
              if exchange(server.port, data).status not in statuses]
    good, rng = stream_request(2), random.Random(1)
    for data in hostile_frames.mutants(good, arguments.mutants, rng):
        with connect(server.port) as peer:
            peer.sendall(data)
            peer.shutdown(socket.SHUT_WR)
            while peer.recv(1 << 16):
                pass
    return {"cases": len(REFUSED), "mutants": arguments.mutants, "served": served}


def malformed_grpc(server, arguments) -> dict:
    def answered() -> float:
        """Calls with the status OK of the method that no good client calls."""
        return server.metrics().get(
            'diffserve_grpc_requests_total{method="Detokenize",code="0"}', 0)

    conversations, ends, answers = hostile_frames.Conversations(HOSTILE), Counter(), []
    for name, data in conversations.refused():
        before = answered()
        ends[hostile_frames.converse(server.grpc_port, data)] += 1
        if answered() != before:
            answers.append(name)
    if hostile_frames.converse(server.grpc_port, conversations.good()) != "ended":
        raise AssertionError("a good conversation is not answered")
    eventually(lambda: answered() == len(answers) + 1, "the good conversation is counted")
    for data in hostile_frames.mutants(conversations.good(), arguments.mutants, random.Random(1)):
        with connect(server.grpc_port) as peer:
            peer.sendall(data)
    return {"cases": ends.total(), "ends": dict(ends), "mutants": arguments.mutants,
            "passed_over": len(answers),
            "served": [name for name in answers if name not in hostile_frames.PASSED_OVER]}


def floods(server, arguments) -> dict:
    figures = {}
    for name, (begin, repeated) in hostile_frames.flood_frames(HOSTILE).items():
        figures[name] = hostile_frames.flood(server, begin, repeated, arguments.frames, 20)
        figures[name]["mib"] = rss_mib(server)
    return figures


def descriptors(server, arguments) -> dict:
    """Until the clients beyond the limit of files have left, new clients may have to wait."""
    peers = []
    for port in (server.port, server.grpc_port):
        for _ in range(MORE_CLIENTS):
            peers.append(socket.socket())
            peers[-1].setblocking(False)
            peers[-1].connect_ex(("127.0.0.1", port))
    time.sleep(arguments.quiet_s)
    for peer in peers:
        peer.close()
    begin = time.monotonic()
    server.get("/v1/models")
    return {"clients": len(peers), "files": FILES,
            "served_again_s": round(time.monotonic() - begin, 3)}


ATTACKS = {attack.__name__: attack
           for attack in (quiet, kills, slow_readers, half_requests, malformed_http,
                          malformed_grpc, floods, descriptors)}


def peak_mib(server, ended: threading.Event, peak: list[int]) -> None:
    while not ended.wait(0.05):
        peak[0] = max(peak[0], rss_mib(server))


def beside_good_clients(server, attack, arguments) -> dict:
    with GoodClients(server, GOOD):
        pass  # memory and tables of the first use
    before, peak, ended = held(server), [rss_mib(server)], threading.Event()
    with GoodClients(server, GOOD) as good:
        watching = threading.Thread(target=peak_mib, args=(server, ended, peak))
        watching.start()
        try:
            figures = attack(server, arguments)
        finally:
            ended.set()
            watching.join()
    after = held_at_rest(server, before["descriptors"])
    return {
        **figures, "good": good.result, "mib_before": before["resident_bytes"] >> 20,
        "mib_peak": peak[0], "mib_after": after["resident_bytes"] >> 20,
        "left": {name: after[name] - (before[name] if name in ("descriptors", "threads") else 0)
                 for name in ("pages", "requests", "descriptors")}
    }


def run(name: str, arguments, folder: Path) -> dict:
    keys, binary = folder / "keys", BINARY
    keys.write_text(f"{GOOD}\n{HOSTILE}\n")
    if name == "descriptors":
        binary = folder / "diffserve"
        binary.write_text(f'#!/bin/sh\nulimit -n {FILES}\nexec {BINARY} "$@"\n')
        binary.chmod(0o755)
    with KeyedServer("--api-key-file", keys, "--log-level", "error", "--kv-cache-commit",
                     model=DEMO_MODEL, binary=binary) as server:
        return beside_good_clients(server, ATTACKS[name], arguments)


def problems(name: str, result: dict) -> list[str]:
    found = [f"a good client: {what}, {count} times"
             for what, count in result["good"]["failed"].items()]
    if result["good"]["wrong"] or not result["good"].get("answers"):
        found.append(f"of the good clients' answers {result['good']['wrong']} were others")
    if result.get("served"):
        found.append(f"served, and must not be: {result['served']}")
    found += [f"left: {count} {what}" for what, count in result["left"].items() if count > 0]
    growth = result["mib_after"] - result["mib_before"]
    if growth > MAX_GROWTH_MIB.get(name, MAX_GROWTH_MIB_OTHERS):
        found.append(f"memory grew by {growth} MiB")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few of each")
    parser.add_argument("--json", type=Path)
    parser.add_argument("attacks", nargs="*", metavar="ATTACK", default=list(ATTACKS))
    arguments = parser.parse_args()
    counts = {"kills": (10_000, 200), "slow_readers": (500, 20), "half_requests": (2000, 30),
              "mutants": (10_000, 200), "frames": (200_000, 4000), "quiet_s": (20, 0.5)}
    for name, (long, quick) in counts.items():
        setattr(arguments, name, quick if arguments.quick else long)
    results, found = {}, []
    for name in arguments.attacks:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = run(name, arguments, Path(folder))
        print(name, json.dumps(results[name]), flush=True)
        found += [f"{name}: {problem}" for problem in problems(name, results[name])]
    return finish(results, found, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
