#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the prefix cache on disk brings and costs: makes the tables of docs/results/prefix-cache.md
from tests/bench/results/kv_disk_*.json.

    kv_disk.py restart KIND [--model M] [--tokens N] [--commit]
                                                       the first token after a restart, beside `dd`;
                                                       --commit: with --kv-cache-commit
    kv_disk.py steps KIND                              steps beside page traffic
    kv_disk.py index KIND                              the start with 50 GiB
    kv_disk.py peer KIND --peers DIR                   beside llama.cpp's slot files: DIR has
                                                       llama-server; needs the package gguf
    kv_disk.py                                         rewrites the block
    kv_disk.py --check                                 exits 1 if it differs; runs nothing. Ends
                                                       with `N passed, N failed`.

Each command measures --rounds times (5) on a machine without other work, and writes its part of
kv_disk_KIND.json; --note says what else ran. Weights are random. --directory is on the disk that is
measured. Run it with .venv/bin/python.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / part) for part in ("e2e", "bench", "reliability")]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402
import chain_model  # noqa: E402
import figures  # noqa: E402
import llama_server  # noqa: E402
import slot_files  # noqa: E402
from http_load import percentile  # noqa: E402

MODELS = {"diff_830m": "DiffLlama, the paper's 830M", "llama_778m": "Llama 778M",
          "phi4_mini_flash": "Phi-4-mini-flash's shape"}
COMMITTED = ", --kv-cache-commit"
TOKENIZER = ROOT / "models/demo/diff/tokenizer.json"
FLAGS = ("--load-format", "dummy", "--quantization", "int4", "--max-queue-wait", 3600)
# A stream beside prompts of TRAFFIC_TOKENS, which come every PERIOD_S for PHASE_S.
TRAFFIC_TOKENS, PERIOD_S, PHASE_S, STREAM_TOKENS = 1024, 1.0, 16.0, 2200
STATES_BYTES = 1 << 30  # at least, of the sequences of a model that has states and windows
PHASES = ("quiet", "memory", "written", "read")


@contextlib.contextmanager
def model_directory(name):
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / name
        model.mkdir()
        shutil.copy(ROOT / "tests/bench/models" / name / "config.json", model)
        shutil.copy(TOKENIZER, model)
        yield model


def tokens(seed, count):
    return [1000 + (seed * 7919 + i * 10473) % 20000 for i in range(count)]


def first_token(server, prompt):
    """Seconds to the first token, and how many prompt tokens were found."""
    begin = time.monotonic()
    answer = server.request("POST", "/v1/completions", {
        "prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}, timeout_s=1200)
    if answer.status != 200:
        raise SystemExit(f"{answer.status} {answer.body[:500]}")
    seconds = time.monotonic() - begin
    return seconds, answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]


def bytes_per_token(model):
    told = json.loads(subprocess.run(
        [ROOT / "build/diffserve", "inspect", model, *map(str, FLAGS[:4]), "--json"], check=True,
        stdout=subprocess.PIPE).stdout)
    return int(told["memory"]["kv_bytes_per_token"])


def segments(directory):
    return sorted(Path(directory).rglob("*.pages"))


def drop_from_memory(files):
    """The system's page cache forgets the files."""
    for path in files:
        with open(path, "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    left = subprocess.run(["fincore", "--bytes", "--noheadings", "--output", "RES", *files],
                          check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    if sum(map(int, left)) > 16 << 20:
        raise SystemExit(f"{sum(map(int, left))} bytes of the segments stay in the page cache")


def direct_read_seconds(files):
    begin = time.monotonic()
    for path in files:
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct",
                        "status=none"], check=True)
    return time.monotonic() - begin


def wait_for_pages(server, count, timeout_s=600):
    from server_process import eventually
    eventually(lambda: server.metric("diffserve_kv_tier_pages") >= count, "pages on disk",
               timeout_s)


def restart(arguments):
    from server_process import PAGE_SLOTS, ServerProcess
    count, seconds = arguments.tokens, {}
    prompt = tokens(1, count)

    def note(name, value):
        seconds.setdefault(name, []).append(value)
        print(f"{name}: {value:.3f} s", file=sys.stderr, flush=True)

    def ask(server, name, is_hit):
        value, cached = first_token(server, prompt)
        if (cached >= count - 2 * PAGE_SLOTS) != is_hit:
            raise SystemExit(f"{name}: {cached} tokens were found")
        note(name, value)

    with model_directory(arguments.model) as model, \
            tempfile.TemporaryDirectory(dir=arguments.directory) as cache:
        per_token = bytes_per_token(model)
        flags = (*FLAGS, *(["--kv-cache-commit"] if arguments.commit else []),
                 "--max-model-len", count + 256, "--max-num-seqs", 4,
                 "--kv-cache-memory", per_token * (count + 4096) + STATES_BYTES)
        with_disk = (*flags, "--kv-cache-dir", cache, "--kv-cache-disk",
                     4 * per_token * count + STATES_BYTES)

        def start(*with_flags):
            return ServerProcess(*with_flags, model=model)

        with start(*with_disk) as server:
            ask(server, "computed", False)
            wait_for_pages(server, (count - 1) // PAGE_SLOTS)
        for turn in range(arguments.rounds):
            if turn < arguments.rounds - 1:  # the first is above
                with start(*flags) as server:
                    ask(server, "computed", False)
            files = segments(cache)
            file_bytes = sum(path.stat().st_size for path in files)
            drop_from_memory(files)
            note("dd", direct_read_seconds(files))
            with start(*with_disk) as server:
                ask(server, "cold", True)
                ask(server, "memory", True)
                read_bytes = server.metric("diffserve_kv_tier_read_bytes_total")
            with start(*with_disk) as server:
                ask(server, "warm", True)
    return {"tokens": count, "read_bytes": read_bytes, "file_bytes": file_bytes,
            "seconds": seconds}


class Stream(threading.Thread):
    """Reads one long answer and notes when each token came."""

    def __init__(self, server):
        super().__init__()
        self.server, self.times, self.ended = server, [], False

    def run(self):
        import http.client
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": tokens(3, 32), "max_tokens": STREAM_TOKENS, "temperature": 0,
            "ignore_eos": True, "stream": True, "return_token_ids": True}),
                           {"Content-Type": "application/json"})
        with connection.getresponse() as reply:
            while not self.ended and (line := reply.readline()):
                if line.startswith(b"data: {"):
                    self.times.append(time.monotonic())
        connection.close()

    def __enter__(self):
        self.start()
        while len(self.times) < 16:
            time.sleep(0.01)
        return self

    def __exit__(self, *_):
        self.ended = True
        self.join()

    def gaps_since(self, begin):
        times = [value for value in list(self.times) if value >= begin]
        return [after - before for before, after in zip(times, times[1:])]


def phase(server, asks):
    """The gaps between a stream's tokens while `asks` prompts in turns, and the traffic in MB/s."""
    names = [f"diffserve_kv_tier_{what}_bytes_total" for what in ("read", "written")]

    def moved():
        metrics = server.metrics()
        return sum(metrics.get(name, 0) for name in names)  # none without a disk

    with Stream(server) as stream:
        before, begin = moved(), time.monotonic()
        for turn in range(int(PHASE_S / PERIOD_S)):
            if asks:
                first_token(server, asks[turn % len(asks)])
            time.sleep(max(0, begin + (turn + 1) * PERIOD_S - time.monotonic()))
        seconds = time.monotonic() - begin
        return stream.gaps_since(begin), (moved() - before) / seconds / 1e6


def steps(arguments):
    """Three servers, of which one is asked at a time: all pages in memory; all in memory and a disk
    that has no room for the prompts, so that they are written each time; and a disk with room and a
    memory without: it has room for a prompt beside the stream."""
    from server_process import ServerProcess
    asks = [tokens(seed, TRAFFIC_TOKENS) for seed in range(4)]
    with model_directory(arguments.model) as model, contextlib.ExitStack() as stack:
        per_token = bytes_per_token(model)
        pages = per_token * TRAFFIC_TOKENS

        def start(memory, disk):
            flags = [*FLAGS, "--max-model-len", STREAM_TOKENS + 64, "--kv-cache-memory",
                     memory + per_token * (STREAM_TOKENS + 64)]
            if disk:
                cache = stack.enter_context(tempfile.TemporaryDirectory(dir=arguments.directory))
                flags += ["--kv-cache-dir", cache, "--kv-cache-disk", disk]
            return stack.enter_context(ServerProcess(*flags, model=model))

        servers = {"memory": start(5 * pages, 0), "written": start(5 * pages, int(1.2 * pages)),
                   "read": start(int(1.2 * pages), 8 * pages)}
        servers["quiet"] = servers["memory"]
        for server in (servers["memory"], servers["written"], servers["read"]):
            for prompt in asks:
                first_token(server, prompt)
        time.sleep(5)  # until pages are written
        gaps, traffic = {}, {}
        for turn in range(arguments.rounds):
            for name in PHASES if turn % 2 == 0 else PHASES[::-1]:
                got, rate = phase(servers[name], asks if name != "quiet" else [])
                gaps.setdefault(name, []).append(got)
                traffic.setdefault(name, []).append(rate)
                if (rate > 0) != (name in ("written", "read")):
                    raise SystemExit(f"{name}: {rate:.0f} MB/s of pages")
                print(f"{name}: {len(got)} steps, p50 {1000 * percentile(got, 0.5):.2f} ms, p99 "
                      f"{1000 * percentile(got, 0.99):.2f} ms, {rate:.0f} MB/s", file=sys.stderr,
                      flush=True)
    return {"prompt_tokens": TRAFFIC_TOKENS, "period_s": PERIOD_S, "phases": {
        name: {"steps": sum(map(len, gaps[name])),
               "p50_ms": [1000 * percentile(got, 0.5) for got in gaps[name]],
               "p99_ms": [1000 * percentile(got, 0.99) for got in gaps[name]],
               "mb_per_s": statistics.median(traffic[name])} for name in PHASES}}


def index(arguments):
    """The time that engine_test measures over sparse segments."""
    found = []
    for _ in range(arguments.rounds):
        with tempfile.NamedTemporaryFile(suffix=".json") as report:
            subprocess.run([ROOT / "build/dev/tests/engine_test",
                            "--gtest_filter=PageStoreTest.StartReadsListsAndNotTheirPages",
                            f"--gtest_output=json:{report.name}"], check=True,
                           stdout=subprocess.DEVNULL)
            [suite] = json.loads(Path(report.name).read_text())["testsuites"]
            found.append(suite["testsuite"][0])
    return {"gib": int(found[0]["gib"]), "pages": int(found[0]["pages"]),
            "seconds": [float(test["index_seconds"]) for test in found]}


def store(arguments, part, result):
    path = figures.RESULTS / f"kv_disk_{arguments.kind}.json"
    all_parts = json.loads(path.read_text()) if path.exists() else {}
    all_parts["machine"] = figures.machine(arguments.kind)
    result |= figures.about_run(arguments)
    if part == "restart":
        key = arguments.model + (COMMITTED if arguments.commit else "")
        all_parts.setdefault(part, {})[key] = result
    else:
        all_parts[part] = result
    path.write_text(json.dumps(all_parts, indent=1) + "\n")


def peer(arguments):
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        folder = Path(directory)
        model = folder / "model"
        model.mkdir()
        chain = chain_model.write("llama_778m", model)
        config = json.loads((model / "config.json").read_text())
        llama_server.write_llama(folder / slot_files.GGUF, config,
                                 chain_model.arrays(config, chain))
        return slot_files.measure(slot_files.Sides(
            model=model, flags=FLAGS, per_token=bytes_per_token(model), peers=arguments.peers,
            folder=folder), arguments.rounds)


def middle(values, digits=2):
    return f"{statistics.median(values):.{digits}f}"


def title(key):
    """Of a part of "restart"."""
    name, comma, flag = key.partition(", ")
    return MODELS[name] + (f"{comma}`{flag}`" if flag else "")


def restart_rows(results):
    for name, result in results.items():
        seconds, read = result["seconds"], result["read_bytes"]
        median = {what: statistics.median(values) for what, values in seconds.items()}
        disk = result["file_bytes"] / median["dd"]
        yield [title(name), f"{result['tokens']:,}", f"{read / 1e9:.2f}",
               f"{median['computed']:.1f}", f"{median['cold']:.2f}", f"{median['warm']:.2f}",
               f"{median['memory']:.2f}", f"{median['computed'] / median['cold']:.0f}",
               f"{read / median['cold'] / disk:.2f}"]


def steps_rows(result):
    quiet = result["phases"]["memory"]
    names = {"quiet": "no prompts", "memory": "prompts found in memory",
             "written": "the same, and written to disk", "read": "prompts read from disk"}
    for name, found in result["phases"].items():
        ratios = [statistics.median([a / b for a, b in zip(found[key], quiet[key])])
                  for key in ("p50_ms", "p99_ms")]
        yield [names[name], f"{found['mb_per_s']:.0f}", middle(found["p50_ms"]),
               middle(found["p99_ms"]), *(f"{100 * (ratio - 1):+.1f} %" for ratio in ratios)]


def section(result):
    parts = [figures.heading(result)]
    if "restart" in result:
        parts += [blocks.table(["model, int4", "tokens", "GB", "computed", "cold", "warm",
                                "memory", "computed / cold", "cold / `dd`"],
                               restart_rows(result["restart"]))]
        parts += [figures.measured(
            part, f"{title(name)}: seconds to the first token. The fastest of each kind: computed "
                  f"{min(part['seconds']['computed']):.1f}, cold "
                  f"{min(part['seconds']['cold']):.2f}, warm {min(part['seconds']['warm']):.2f}.")
                  for name, part in result["restart"].items()]
    if "steps" in result:
        part = result["steps"]
        parts += [blocks.table(["beside the stream", "MB/s", "p50, ms", "p99, ms", "p50", "p99"],
                               steps_rows(part)),
                  figures.measured(
                      part, f"Time between the tokens of one stream, while prompts of "
                            f"{part['prompt_tokens']:,} tokens come every {part['period_s']:g} s; "
                            "the last columns compare with prompts found in memory.")]
    if "index" in result:
        part = result["index"]
        parts += [figures.measured(part, f"A start with {part['gib']} GiB of sparse segments, "
                              f"{part['pages']:,} pages, one segment without its list, takes "
                              f"{middle(part['seconds'])} s.")]
    if "peer" in result:
        part = result["peer"]
        parts += [blocks.table(["Llama 778M, 4-bit weights, 16-bit pages", "diffserve",
                                "llama.cpp"], slot_files.rows(part)),
                  figures.measured(part, f"A prompt of {part['tokens']:,} tokens, seconds; "
                                         f"llama.cpp is that of {part['peer']}.")]
    return parts


def outputs():
    return blocks.with_block("kv_disk", *(part for result in figures.stored("kv_disk")
                                          for part in section(result)))


MEASURES = {"restart": restart, "steps": steps, "index": index, "peer": peer}
COMMANDS = {name: lambda arguments, name=name: store(arguments, name, MEASURES[name](arguments))
            for name in MEASURES}


def main():
    command_line = figures.parser(__doc__, COMMANDS, rounds=5)
    command_line.add_argument("--model", choices=MODELS, default="diff_830m")
    command_line.add_argument("--tokens", type=int, default=16384)
    command_line.add_argument("--commit", action="store_true")
    command_line.add_argument("--peers", type=Path)
    return figures.run(command_line, COMMANDS, outputs)


if __name__ == "__main__":
    sys.exit(main())
