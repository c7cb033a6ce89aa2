# SPDX-License-Identifier: Apache-2.0
"""The prefix cache on disk beside llama.cpp's slot files, on the same random Llama: what saving a
prompt, restoring it and a restart cost on each side. For kv_disk.py."""

import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import llama_server

TOKENS = 4096
GGUF = "model.gguf"
ROWS = (("computed", "the prompt, computed"),
        ("saved", "saved, after the answer"),
        ("hit", "the prompt again, in memory"),
        ("restored", "after a restart: the first token"),
        ("restored_by_hand", "the same, when the client first asks for the slot file"))


@dataclass
class Sides:
    model: Path
    flags: tuple
    per_token: int
    peers: Path
    folder: Path


def prompt(turn):
    return [1000 + (turn * 7919 + i * 10473) % 20000 for i in range(TOKENS)]


class SlotServer(llama_server.LlamaServer):
    def __init__(self, sides):
        super().__init__(sides.peers, sides.folder / GGUF, "--slot-save-path", sides.folder, "-np",
                         1, "-c", TOKENS + 256, "--no-warmup")

    def first_token(self, turn):
        """Seconds, and whether the prompt was found."""
        seconds, answer = self.post("/completion", {
            "prompt": prompt(turn), "n_predict": 1, "temperature": 0, "cache_prompt": True,
            "ignore_eos": True})
        return seconds, answer["timings"]["prompt_n"] < TOKENS // 2

    def slot(self, action):
        return self.post(f"/slots/0?action={action}", {"filename": "slot.bin"})


def expect(found, wanted, what):
    if found != wanted:
        raise SystemExit(f"{what}: the prompt was {'' if found else 'not '}found")


def theirs(sides, turn, note):
    with SlotServer(sides) as server:
        seconds, found = server.first_token(turn)
        expect(found, False, "computed")
        note("computed", seconds)
        note("saved", server.slot("save")[0])
        seconds, found = server.first_token(turn)
        expect(found, True, "hit")
        note("hit", seconds)
    with SlotServer(sides) as server:
        seconds, found = server.first_token(turn)
        expect(found, False, "restart")
        note("restored", seconds)
    with SlotServer(sides) as server:
        restore = server.slot("restore")[0]
        seconds, found = server.first_token(turn)
        expect(found, True, "restored")
        note("restored_by_hand", restore + seconds)


def ours(sides, turn, note):
    from server_process import PAGE_SLOTS, ServerProcess, eventually
    pages = sides.per_token * TOKENS
    flags = (*sides.flags, "--max-model-len", TOKENS + 256, "--kv-cache-memory", 2 * pages,
             "--kv-cache-dir", sides.folder / f"cache-{turn}", "--kv-cache-disk", 4 * pages)

    def first_token(server, what, wanted):
        begin = time.monotonic()
        reply = server.request("POST", "/v1/completions", {
            "prompt": prompt(turn), "max_tokens": 1, "temperature": 0, "ignore_eos": True},
                               timeout_s=600).json()
        note(what, time.monotonic() - begin)
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        expect(cached > TOKENS // 2, wanted, what)

    with ServerProcess(*flags, model=sides.model) as server:
        first_token(server, "computed", False)
        begin = time.monotonic()
        eventually(lambda: server.metric("diffserve_kv_tier_pages") >= (TOKENS - 1) // PAGE_SLOTS,
                   "pages on disk")
        note("saved", time.monotonic() - begin)
        first_token(server, "hit", True)
    with ServerProcess(*flags, model=sides.model) as server:
        first_token(server, "restored", True)


def measure(sides, rounds):
    result = {"tokens": TOKENS, "peer": llama_server.version(sides.peers), "ours": {}, "theirs": {}}
    for turn in range(rounds):
        for name, side in (("ours", ours), ("theirs", theirs)):
            def note(what, seconds, name=name):
                result[name].setdefault(what, []).append(seconds)
                print(f"{name}, {what}: {seconds:.3f} s", file=sys.stderr, flush=True)
            side(sides, turn, note)
    return result


def rows(result):
    for what, title in ROWS:
        yield [title, *(f"{statistics.median(result[side][what]):.2f}" if what in result[side]
                        else "-" for side in ("ours", "theirs"))]
