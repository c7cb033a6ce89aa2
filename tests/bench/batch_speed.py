#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The speed of `diffserve run-batch` as a share of the engine's own.

    batch_speed.py [--layers 26] [--streams 64] [--tokens 128] [--waves 3] [--rounds 3]
                   [--flag=FLAG ...]

A round has `diffserve bench` and `run-batch` once each, with as many sequences of as many tokens
and prompts of one token. The batch has that many requests per wave: the first wave also waits for
the system to provide the memory of its KV pages, which bench has touched before it measures. The
model has random weights; 26 layers are 0.3 billion parameters. Prints one JSON object: tokens/s of
each round, and the ratio of the best ones.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "reliability"), str(TESTS / "e2e")]
import slow_model  # noqa: E402
from server_process import BINARY  # noqa: E402


def bench(model: Path, arguments) -> float:
    done = subprocess.run([
        BINARY, "bench", model, "--batch", str(arguments.streams), "--depth", "0", "--prompt", "1",
        "--generate", str(arguments.tokens), "--repeat", "1", "--json", *arguments.flags
    ], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["decode"][0]["tokens_per_s"]["max"]


def run_batch(model: Path, folder: Path, arguments) -> float:
    requests, answers = folder / "in.jsonl", folder / "out.jsonl"
    answers.unlink(missing_ok=True)
    count = arguments.waves * arguments.streams
    with requests.open("w") as file:
        for number in range(count):
            body = {"prompt": [5 + number], "max_tokens": arguments.tokens, "ignore_eos": True,
                    "temperature": 0}
            print(json.dumps({"custom_id": str(number), "method": "POST", "url": "/v1/completions",
                              "body": body}), file=file)
    done = subprocess.run([
        BINARY, "run-batch", model, "--input", requests, "--output", answers, "--max-num-seqs",
        str(arguments.streams), *arguments.flags
    ], check=True, capture_output=True, text=True)
    found = re.search(r"(\d+) generated tokens in ([\d.]+) s", done.stderr)
    if int(found[1]) != count * arguments.tokens:
        raise RuntimeError(done.stderr)
    return int(found[1]) / float(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=26)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--waves", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--flag", action="append", default=[], help="of both: --flag=--threads=2")
    arguments = parser.parse_args()
    arguments.flags = ["--load-format", "dummy", *arguments.flag]
    result = {"bench": [], "run_batch": []}
    with tempfile.TemporaryDirectory() as folder:
        model = slow_model.make(Path(folder) / "model", arguments.layers)
        for _ in range(arguments.rounds):
            result["bench"].append(round(bench(model, arguments), 1))
            result["run_batch"].append(round(run_batch(model, Path(folder), arguments), 1))
    result["ratio_of_best"] = round(max(result["run_batch"]) / max(result["bench"]), 4)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
