#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a model with states, windows and shared K and V costs: makes the tables of
Phi-4-mini-flash, a block of docs/results/hybrid.md, from tests/bench/results/hybrid_*.json.

    hybrid.py measure KIND [--rounds 3]  runs `diffserve bench` and servers, with random weights, on
                                         a machine without other work: 12 GB, half an hour; run it
                                         with .venv/bin/python
    hybrid.py                            rewrites the block
    hybrid.py --check                    exits 1 if the block differs from the results; runs
                                         nothing. Ends with `N passed, N failed`.

A figure is the median over the rounds.
  prefill           of a prompt, as `bench` runs it; "all rows" is the time of /v1/embeddings with
                    the mean of all tokens, for which no layer leaves out a token, and "wanted rows"
                    that of a completion of one token, by the same server
  a sequence        what four more prompts at once add to the largest resident memory of a server
                    that has three, by a fourth, and what `inspect` says of the same length
  prefix            prompts that share their first 4,096 tokens, one after the other
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / "e2e"), str(ROOT / "docs")]

import blocks  # noqa: E402
from figures import machine  # noqa: E402

RESULTS = ROOT / "tests/bench/results"
CONFIG = ROOT / "tests/bench/models/phi4_mini_flash/config.json"
TOKENIZER = ROOT / "models/demo/diff/tokenizer.json"
PROMPTS, DEPTHS, BATCHES, GENERATE = (512, 4096), (0, 4096, 32768), (1, 16), 8
SEQUENCE_TOKENS, FEW_SEQUENCES, MORE_SEQUENCES = 1024, 3, 4  # three fill a step
SHARED, OWN, ASKED = 4096, 64, 4
FLAGS = ("--load-format", "dummy", "--max-model-len", 40960, "--max-num-seqs", 16)


def bench(model, rounds):
    command = ["build/diffserve", "bench", model, *FLAGS[:6], "--prompt", PROMPTS, "--depth",
               DEPTHS, "--batch", BATCHES, "--generate", GENERATE, "--repeat", rounds,
               "--kv-cache-memory", "4G", "--json"]
    words = [",".join(map(str, word)) if isinstance(word, tuple) else str(word) for word in command]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    result = json.loads(done.stdout)
    return {"cpu_isa": result["cpu_isa"], "threads": result["threads"]}, {
        figure["name"]: {"tokens_per_s": figure["tokens_per_s"]["median"],
                         "of_the_limit": figure["ratio_to_probe"]["median"]}
        for figure in result["prefill"] + result["decode"]}


def tokens(seed, count):
    return [1000 + (seed * 7919 + i * 104729) % 190000 for i in range(count)]


def ask(server, route, body):
    """Seconds, and the answer."""
    begin = time.monotonic()
    answer = server.request("POST", route, body, timeout_s=600)
    if answer.status != 200:
        raise SystemExit(f"{route}: {answer.status} {answer.body[:500]}")
    return time.monotonic() - begin, answer.json()


def complete(server, prompt, count=1):
    seconds, answer = ask(server, "/v1/completions",
                          {"prompt": prompt, "max_tokens": count, "temperature": 0,
                           "ignore_eos": True})
    return seconds, answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def prefill_rows(server, rounds):
    times = {}
    for turn in range(rounds):
        for count in PROMPTS:
            prompt = tokens(10 * turn + count, count)
            embed = {"input": prompt, "pooling": "mean"}
            times.setdefault(f"{count} all rows", []).append(
                ask(server, "/v1/embeddings", embed)[0])
            times.setdefault(f"{count} wanted rows", []).append(complete(server, prompt)[0])
    return {what: statistics.median(values) for what, values in times.items()}


def peak_mib(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1]) / 1024


def peak_of(start, sequences):
    """The server's largest resident memory after this many prompts at once."""
    with start("--no-enable-prefix-caching") as server, ThreadPoolExecutor(sequences) as pool:
        # The first is still at its answer when the last one's prompt has been computed.
        list(pool.map(lambda i: complete(server, tokens(i, SEQUENCE_TOKENS), 2 * sequences),
                      range(sequences)))
        return peak_mib(server)


def prefix(start, interval):
    with start("--state-snapshot-interval", interval) as server:
        asked = [complete(server, tokens(1, SHARED) + tokens(2 + i, OWN)) for i in range(ASKED)]
    seconds, cached = zip(*asked)
    return {"first_s": seconds[0], "later_s": statistics.median(seconds[1:]),
            "hit_rate": sum(cached) / (ASKED * (SHARED + OWN)), "cached_tokens": list(cached)}


def measure(kind, rounds):
    from server_process import ServerProcess
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "phi"
        model.mkdir()
        shutil.copy(CONFIG, model)
        shutil.copy(TOKENIZER, model)

        def start(*flags):
            return ServerProcess(*FLAGS, "--max-queue-wait", 3600, *flags, model=model)

        about, figures = bench(model, rounds)
        print(json.dumps(figures), file=sys.stderr)
        with start("--no-enable-prefix-caching") as server:
            rows = prefill_rows(server, rounds)
        print(json.dumps(rows), file=sys.stderr)
        peaks = [peak_of(start, FEW_SEQUENCES + more) for more in (0, MORE_SEQUENCES)]
        told = json.loads(subprocess.run(
            ["build/diffserve", "inspect", model, *map(str, FLAGS), "--json"], check=True,
            stdout=subprocess.PIPE, cwd=ROOT).stdout)
        print(json.dumps(peaks), file=sys.stderr)
        prefixes = {str(interval): prefix(start, interval) for interval in (1024, 0)}
    memory = told["memory"]
    result = {
        "machine": machine(kind), **about, "rounds": rounds,
        "figures": figures, "seconds": rows, "sequence": {
            "tokens": SEQUENCE_TOKENS, "measured_mib": (peaks[1] - peaks[0]) / MORE_SEQUENCES,
            "inspect_mib": (memory["bytes_per_sequence_beside_pages"] +
                            SEQUENCE_TOKENS * memory["kv_bytes_per_token"]) / 2**20
        }, "prefix": prefixes
    }
    path = RESULTS / f"hybrid_{kind}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")


def section(result):
    figures, seconds = result["figures"], result["seconds"]

    def cell(name):
        return f"{figures[name]['tokens_per_s']:.3g} ({figures[name]['of_the_limit']:.2f})"

    speeds = [[f"prefill of {count}", cell(f"prefill {count}")] for count in PROMPTS]
    speeds += [[f"decode, {batch} stream{'s' * (batch > 1)}, after {depth}",
                cell(f"decode depth {depth} batch {batch}")] for batch in BATCHES
               for depth in DEPTHS]
    rows = []
    for count in PROMPTS:
        wanted, every = seconds[f"{count} wanted rows"], seconds[f"{count} all rows"]
        rows.append([count, f"{wanted:.1f}", f"{every:.1f}", f"{every / wanted:.2f}"])
    prefixes = [[f"snapshots every {interval} tokens and at prompts' ends"
                 if interval != "0" else "no snapshots", f"{found['hit_rate']:.0%}",
                 f"{found['first_s']:.2f}", f"{found['later_s']:.2f}"]
                for interval, found in result["prefix"].items()]
    sequence = result["sequence"]
    return [
        f"{result['machine'][0].upper()}{result['machine'][1:]}, {result['cpu_isa']}, "
        f"{result['threads']} threads, medians of {result['rounds']}:",
        blocks.table(["what", "tokens/s (share of the limit)"], speeds),
        blocks.table(["prompt", "rows that are wanted, s", "all rows, s", "ratio"], rows),
        blocks.table([f"{ASKED} prompts that share {SHARED} tokens", "prompt tokens found",
                      "first, s", "later ones, s"], prefixes),
        blocks.paragraph(
            f"A sequence of {sequence['tokens']} tokens adds {sequence['measured_mib']:.1f} MiB to "
            f"the largest resident memory; `inspect` says {sequence['inspect_mib']:.1f}. It is "
            "less where a sequence takes window pages that others have given back.")]


def outputs():
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("hybrid_*.json"))]
    return blocks.with_block("hybrid", *(part for result in results for part in section(result)))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*", help="measure KIND")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    match arguments.command:
        case []:
            pass
        case ["measure", kind]:
            measure(kind, arguments.rounds)
        case _:
            parser.error("usage: hybrid.py [measure KIND]")
    return blocks.settle(outputs(), arguments.check)


if __name__ == "__main__":
    sys.exit(main())
