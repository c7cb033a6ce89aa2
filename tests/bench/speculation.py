#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What several tokens per step bring and cost: makes the tables of docs/results/speculation.md from
tests/bench/results/speculation_*.json.

    speculation.py measure KIND [--model M ...] [--draft] [--peers DIR]
    speculation.py                                              rewrites the block
    speculation.py --check     exits 1 if it differs; runs nothing. Ends with `N passed, N failed`

`measure` serves each model twice, without and with speculation, and asks the two in turns, --rounds
times (5), on a machine without other work. --note says what else ran. Texts are made by
chain_model.py, so each workload repeats as much as it should, and both servers must give the same
tokens. --draft: new text with a draft model. --peers: DIR has a llama-server. The Llama is also
served by llama.cpp, without and with its lookup decoding (needs the package gguf). Run it with
.venv/bin/python.
"""

import contextlib
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / part) for part in ("e2e", "bench")]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402
import chain_model  # noqa: E402
import figures  # noqa: E402
import llama_server  # noqa: E402

STREAMS = (1, 16)
DRAFT_RIGHT = 0.8
ON = ("--speculative", "prompt-lookup")
LOOKUPS = {"off": (),
           "ngram-simple": ("--spec-type", "ngram-simple"),
           "ngram-simple of 3": ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", 3,
                                 "--spec-ngram-simple-size-m", 8),
           "ngram-map-k": ("--spec-type", "ngram-map-k"),
           "ngram-mod": ("--spec-type", "ngram-mod"),
           "ngram-cache": ("--spec-type", "ngram-cache")}
SCHEMA = {
    "type": "object",
    "properties": {
        "customer_identifier": {"type": "integer", "minimum": 10, "maximum": 99},
        "subscription_status": {"enum": ["active", "cancelled", "suspended"]},
        "shipping_address": {
            "type": "object",
            "properties": {"street_name": {"type": "string", "maxLength": 8},
                           "postal_code": {"type": "string", "maxLength": 5}},
            "required": ["street_name", "postal_code"], "additionalProperties": False},
        "requires_signature": {"type": "boolean"},
        "last_delivery_attempt": {"type": "integer", "minimum": 10, "maximum": 99}},
    "required": ["customer_identifier", "subscription_status", "shipping_address",
                 "requires_signature", "last_delivery_attempt"],
    "additionalProperties": False}


@dataclass
class Model:
    name: str  # of tests/bench/models
    title: str
    quantization: str
    share: float  # of the tokens of the fastest model


MODELS = {
    "llama_778m": Model("llama_778m", "Llama 778M, int4", "int4", 1),
    "diff_830m": Model("diff_830m", "DiffLlama, the paper's 830M, int4", "int4", 1),
    "phi4_int4": Model("phi4_mini_flash", "Phi-4-mini-flash's shape, int4", "int4", 0.25),
    "phi4_bf16": Model("phi4_mini_flash", "Phi-4-mini-flash's shape, bfloat16", "none", 0.125)}


# Each workload returns the request of a stream: its own part of the cycle begins at `begin`.
def others(chain, count, draw):
    return [int(chain.order[draw.randrange(len(chain.order))]) for _ in range(count)]


def editing(chain, begin, tokens, draw):
    """The prompt is the answer, but one phrase of 6 in 60 tokens is another."""
    damaged = []
    while len(damaged) < tokens:
        kept = draw.randrange(36, 73)
        damaged += chain.text(begin + len(damaged), kept) + others(chain, 6, draw)
    return {"prompt": [*damaged, chain.before(begin)], "temperature": 0}


def pieces_of(chain, begin, tokens, size, share, draw):
    """Pieces of an answer in any order, and other tokens between them."""
    parts = [chain.text(begin + at, size) for at in range(0, tokens, size)
             if draw.random() < share]
    draw.shuffle(parts)
    return [token for part in parts
            for token in [*part, *others(chain, size, draw)]]


def summary(chain, begin, tokens, draw):
    """The prompt has half of the answer's phrases of 12 tokens, in another order."""
    return {"prompt": [*pieces_of(chain, begin, tokens, 12, 0.5, draw), chain.before(begin)],
            "temperature": 0}


def needle(chain, begin, tokens, draw):
    """A short answer; the prompt has a quarter of it, in phrases of 8 tokens."""
    hay = others(chain, tokens, draw)
    needles = pieces_of(chain, begin, tokens // 4, 8, 0.25, draw)
    return {"prompt": [*hay, *needles, *hay, chain.before(begin)], "temperature": 0,
            "max_tokens": tokens // 4}


def reasoning(chain, begin, tokens, draw):
    """A drawn text over 300 tokens. Two in five of its tokens go on as they did before."""
    return {"prompt": chain.text(begin, 32), "temperature": 4,
            "allowed_token_ids": chain.text(begin, 300)}


def json_schema(chain, begin, tokens, draw):
    return {"prompt": chain.text(begin, 32), "temperature": 0, "ignore_eos": False,
            "structured_outputs": {"json": SCHEMA}}


def random_text(chain, begin, tokens, draw):
    return {"prompt": chain.text(begin, 64), "temperature": 100}


def new_text(chain, begin, tokens, draw):
    return {"prompt": chain.text(begin, 64), "temperature": 0}


WORKLOADS = {"editing": (editing, "editing: the answer repeats 90 % of the prompt"),
             "json": (json_schema, "JSON of a known schema"),
             "summary": (summary, "summary: half of it are phrases of the prompt"),
             "needle": (needle, "needle: a short answer, phrases of the prompt"),
             "reasoning": (reasoning, "reasoning: drawn, repeats its own phrases"),
             "random": (random_text, "random text")}
ALL_WORKLOADS = WORKLOADS | {"new": (new_text, "new text, guessed by a draft model")}
GREEDY = ("editing", "summary", "needle")  # that llama.cpp runs beside
PEER_TOKENS = 1000  # of the cycle, for one text


def requests_of(workload, model, chain, streams, begin=0):
    tokens = int((512 if streams == 1 else 128) * model.share)
    for stream in range(streams):
        request = ALL_WORKLOADS[workload][0](chain, begin + 1000 * stream, tokens,
                                             random.Random(f"{workload} {begin} {stream}"))
        yield {"max_tokens": tokens, "ignore_eos": True, "seed": stream} | request


class Ours:
    COUNTERS = ("steps", "proposed_tokens", "accepted_tokens", "plan_seconds")

    def __init__(self, server):
        self.server = server

    def ask(self, request):
        answer = self.server.post("/v1/completions", request | {"return_token_ids": True},
                                  timeout_s=1200)
        if answer.status != 200:
            raise SystemExit(f"{answer.status} {answer.body[:500]}")
        return answer.json()["choices"][0]["token_ids"]

    def counters(self):
        return [*(self.server.metric(f"diffserve_{name}_total") for name in self.COUNTERS[:-1]),
                self.server.metric("diffserve_step_phase_seconds_sum", phase="plan")]


class Theirs:
    COUNTERS = ()

    def __init__(self, server):
        self.server = server

    def ask(self, request):
        return self.server.post("/completion", {
            "prompt": request["prompt"], "n_predict": request["max_tokens"], "temperature": 0,
            "ignore_eos": True, "cache_prompt": True, "return_tokens": True})[1]["tokens"]

    def counters(self):
        return []


def ask_all(side, requests):
    """Tokens/s, the answers, and how the counters grew."""
    before, begin = side.counters(), time.monotonic()
    with ThreadPoolExecutor(len(requests)) as pool:
        answers = list(pool.map(side.ask, requests))
    seconds = time.monotonic() - begin
    grown = [after - old for after, old in zip(side.counters(), before)]
    return sum(map(len, answers)) / seconds, answers, grown


def compare(sides, requests_of_turn, rounds, label):
    """Asks all sides in turns, after they have computed the prompts."""
    result, asked = {name: {"tokens_per_s": []} for name in sides}, None
    for turn in range(rounds):
        requests, expected = requests_of_turn(turn), None
        if requests != asked:
            for side in sides.values():
                ask_all(side, [request | {"max_tokens": 1} for request in requests])
            asked = requests
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            speed, answers, grown = ask_all(sides[name], requests)
            expected = expected or answers
            if answers != expected:
                raise SystemExit(f"{label}, {name}: the tokens differ")
            result[name]["tokens_per_s"].append(speed)
            result[name] |= dict(zip(sides[name].COUNTERS, grown))
    for name, found in result.items():
        print(f"{label}, {name}: {statistics.median(found['tokens_per_s']):.1f} tokens/s",
              {key: value for key, value in found.items() if key != "tokens_per_s"},
              file=sys.stderr, flush=True)
    return result | {"tokens": sum(map(len, expected))}


def flags_of(model):
    return ("--quantization", model.quantization, "--max-model-len", 4096, "--max-num-seqs", 16,
            "--kv-cache-memory", "3G", "--max-queue-wait", 3600)


def measure_model(model, folder, arguments):
    """{workload: {streams: {"off", "on": figures, "tokens": of all answers}}}"""
    from server_process import ServerProcess
    chain = chain_model.write(model.name, folder)
    result = {}
    with ServerProcess(*flags_of(model), "--speculative", "off", model=folder) as off, \
            ServerProcess(*flags_of(model), *ON, model=folder) as on:
        sides = {"off": Ours(off), "on": Ours(on)}
        for workload in arguments.workload or WORKLOADS:
            for streams in STREAMS:
                requests = list(requests_of(workload, model, chain, streams))
                result.setdefault(workload, {})[str(streams)] = compare(
                    sides, lambda _, requests=requests: requests, arguments.rounds,
                    f"{model.title}, {workload}, {streams}")
    return result


def measure_draft(model, folder, arguments):
    """{streams: {"off", "on": figures, "tokens": of all answers}}"""
    from server_process import ServerProcess
    draft = folder / "draft"
    draft.mkdir()
    chain = chain_model.write(model.name, folder)
    chain_model.write_draft(model.name, draft, DRAFT_RIGHT)
    with ServerProcess(*flags_of(model), "--speculative", "off", model=folder) as off, \
            ServerProcess(*flags_of(model), "--speculative-model", draft, model=folder) as on:
        sides = {"off": Ours(off), "on": Ours(on)}
        return {str(streams): compare(
            sides, lambda _, streams=streams: list(requests_of("new", model, chain, streams)),
            arguments.rounds, f"draft, {streams}") for streams in (1, 4, 16)}


def measure_peer(model, folder, arguments):
    """{workload: {side: figures}}: llama.cpp without and with each kind of lookup. Some kinds learn
    past answers, so all texts are different."""
    from server_process import ServerProcess
    chain = chain_model.write(model.name, folder)
    config = json.loads((folder / "config.json").read_text())
    llama_server.write_llama(folder / "model.gguf", config, chain_model.arrays(config, chain))
    with contextlib.ExitStack() as stack:
        sides = {"ours": Ours(stack.enter_context(
            ServerProcess(*flags_of(model), *ON, model=folder)))}
        for kind, flags in LOOKUPS.items():
            sides[kind] = Theirs(stack.enter_context(llama_server.LlamaServer(
                arguments.peers, folder / "model.gguf", "-c", 4096, "-np", 1, *flags)))
        return {workload: compare(
            sides, lambda turn, begin=begin, workload=workload: list(
                requests_of(workload, model, chain, 1, begin + PEER_TOKENS * len(GREEDY) * turn)),
            arguments.rounds, f"beside llama.cpp, {workload}")
            for begin, workload in zip(itertools.count(0, PEER_TOKENS), GREEDY)}


def measure(arguments):
    path = figures.RESULTS / f"speculation_{arguments.kind}.json"
    machine, about = figures.machine(arguments.kind), figures.about_run(arguments)
    for name in arguments.model or ([] if arguments.peers or arguments.draft else MODELS):
        with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
            found = measure_model(MODELS[name], Path(folder), arguments)
            before = json.loads(path.read_text())["models"][name] if arguments.workload else {}
            store(path, machine, ("models", name), about | {
                "rounds": min(about["rounds"], before.get("rounds", about["rounds"])),
                "workloads": before.get("workloads", {}) | found})
    if arguments.draft:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
            store(path, machine, ("draft",), about | {
                "streams": measure_draft(MODELS["llama_778m"], Path(folder), arguments)})
    if arguments.peers:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
            store(path, machine, ("peer",), about | {
                "version": llama_server.version(arguments.peers),
                "workloads": measure_peer(MODELS["llama_778m"], Path(folder), arguments)})


def store(path, machine, keys, part):
    found = json.loads(path.read_text()) if path.exists() else {}
    found["machine"] = machine
    place = found
    for key in keys[:-1]:
        place = place.setdefault(key, {})
    place[keys[-1]] = part
    path.write_text(json.dumps(found, indent=1) + "\n")


def ratio(result, streams):
    """The median of the rounds' ratios, on over off."""
    found = result.get(str(streams))
    if found is None:
        return "-"
    pairs = zip(found["on"]["tokens_per_s"], found["off"]["tokens_per_s"])
    return f"{statistics.median(on / off for on, off in pairs):.2f}"


def middle(found):
    return statistics.median(found["tokens_per_s"])


def plan_us(found):
    """Per step."""
    return f"{1e6 * found['plan_seconds'] / found['steps']:.1f}" if "plan_seconds" in found else "-"


def right_share(found):
    return found["accepted_tokens"] / max(1, found["proposed_tokens"])


def model_rows(part):
    for workload, (_, title) in WORKLOADS.items():
        if (result := part["workloads"].get(workload)) is None:
            continue
        one = result["1"]
        steps = one["tokens"] / one["on"]["steps"]
        right = right_share(one["on"])
        yield [title, f"{middle(one['off']):.1f}", f"{middle(one['on']):.1f}", ratio(result, 1),
               f"{steps:.1f}", f"{100 * right:.0f} %", plan_us(one["on"]), ratio(result, 16)]


def peer_rows(part):
    for workload, found in part["workloads"].items():
        lookups = {kind: middle(found[kind]) for kind in LOOKUPS if kind != "off"}
        best = max(lookups, key=lookups.get)
        yield [WORKLOADS[workload][1], f"{middle(found['ours']):.0f}",
               f"{middle(found['off']):.0f}", f"{lookups[best]:.0f} ({best})",
               f"{middle(found['ours']) / max(lookups[best], middle(found['off'])):.2f}"]


def draft_rows(part):
    for streams, found in part["streams"].items():
        yield [streams, f"{middle(found['off']):.1f}", f"{middle(found['on']):.1f}",
               ratio(part["streams"], streams), f"{found['tokens'] / found['on']['steps']:.1f}",
               f"{100 * right_share(found['on']):.0f} %"]


def section(result):
    parts = [figures.heading(result)]
    for name, part in result.get("models", {}).items():
        parts += [blocks.table([MODELS[name].title, "off", "on", "on / off", "tokens per step",
                                "right", "plan, us", "on / off, 16 streams"], model_rows(part)),
                  figures.measured(
                      part, "Tokens/s of one stream; in the last column those of 16.")]
    if "draft" in result:
        part = result["draft"]
        parts += [blocks.table(["Llama 778M, int4; streams", "off", "with a draft model",
                                "on / off", "tokens per step", "right"], draft_rows(part)),
                  figures.measured(
                      part, "Tokens/s of new text. The draft model has a tenth of the size and "
                            f"knows the next token after {100 * DRAFT_RIGHT:.0f} % of the tokens.")]
    if "peer" in result:
        part = result["peer"]
        parts += [blocks.table(["Llama 778M, 4-bit weights, one stream", "diffserve",
                                "llama.cpp", "its best lookup", "ours / its best"],
                               peer_rows(part)),
                  figures.measured(part, f"Tokens/s; llama.cpp is that of {part['version']}.")]
    return parts


def outputs():
    return blocks.with_block("speculation", *(part for result in figures.stored("speculation")
                                              for part in section(result)))


def main():
    command_line = figures.parser(__doc__, ["measure"], rounds=5)
    command_line.add_argument("--model", action="append", choices=MODELS)
    command_line.add_argument("--workload", action="append", choices=WORKLOADS,
                              help="with --model; the other workloads keep their figures")
    command_line.add_argument("--draft", action="store_true")
    command_line.add_argument("--peers", type=Path)
    return figures.run(command_line, {"measure": measure}, outputs)


if __name__ == "__main__":
    sys.exit(main())
