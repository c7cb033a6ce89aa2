#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What quantised linear layers cost the bundled pair, the Diff Transformer and its twin: a block of
docs/results/quantisation.md, and its figures in tests/bench/results/quality.json.

    quality.py measure [--samples 200]  measures; needs a built server, run it with .venv/bin/python
    quality.py                          rewrites the block
    quality.py --check                  exits 1 if the block differs from the figures; runs
                                        nothing. Ends with `N passed, N failed`.

For each format of the linear layers: perplexity of the replies of held-out conversations (needle
samples and small talk of other seeds than training's; the models learnt replies alone), how often
the most likely next token is that of bfloat16 weights, and the accuracy of one needle, alone and
among four, over all five digits.
"""

import argparse
import json
import math
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402

RESULTS = ROOT / "tests/bench/results/quality.json"
MODELS = {"diff": "Diff Transformer", "twin": "Transformer twin"}
FORMATS = ("none", "int8", "int4")
NEEDLES = (1, 4)
TEXTS, TURNS = 100, 8
CONCURRENT = 16


def ask(server, path, body):
    response = server.post(path, body)
    if response.status != 200:
        raise RuntimeError(f"{path}: {response.status} {response.body.decode()}")
    return response.json()


def is_right(server, sample):
    """Whether the greedy answer has all digits of all numbers asked for."""
    answer = ask(server, "/v1/chat/completions",
                 {"messages": sample.messages, "temperature": 0,
                  "max_tokens": 16 * len(sample.numbers)})
    found = re.findall(r"\d+", answer["choices"][0]["message"]["content"])
    return found == sample.numbers


def accuracy(server, needles, samples):
    import needle_samples
    drawn = [needle_samples.evaluation_sample(index, needles) for index in range(samples)]
    with ThreadPoolExecutor(CONCURRENT) as pool:
        return sum(pool.map(lambda sample: is_right(server, sample), drawn)) / samples


def conversations():
    import chat_samples
    import needle_samples
    for index in range(TEXTS):
        sample = needle_samples.evaluation_sample(10000 + index, NEEDLES[index % 2])
        yield [*sample.messages, {"role": "assistant", "content": sample.answer}]
        rng = random.Random(20000 + index)
        messages = []
        for _ in range(TURNS):
            question, reply = chat_samples.exchange(rng)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": reply})
        yield messages


def tokens_of(server, messages, add_generation_prompt):
    body = {"messages": messages, "add_generation_prompt": add_generation_prompt}
    return ask(server, "/tokenize", body)["tokens"]


def replies(server, messages):
    """The tokens of a conversation, and the positions of those of its replies."""
    positions = []
    for turn in range(1, len(messages), 2):
        begin = len(tokens_of(server, messages[:turn], True))
        positions += range(begin, len(tokens_of(server, messages[:turn + 1], False)))
    return tokens_of(server, messages, False), positions


def scores(server, tokens):
    """Of each token but the first: its log-probability, and the most likely token instead."""
    answer = ask(server, "/v1/completions",
                 {"prompt": tokens, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1})
    entries = answer["choices"][0]["prompt_logprobs"][1:]
    best = [next(int(key) for key, value in entry.items() if value["rank"] == 1)
            for entry in entries]
    return [entry[str(token)]["logprob"] for entry, token in zip(entries, tokens[1:])], best


def predictions(server):
    """Of each token of the replies: its log-probability, and the most likely token."""
    scored = []
    for messages in conversations():
        tokens, positions = replies(server, messages)
        logprobs, best = scores(server, tokens)
        scored += [(logprobs[at - 1], best[at - 1]) for at in positions]
    return scored


def measure(samples):
    sys.path[:0] = [str(ROOT / "tests/e2e"), str(ROOT / "models/demo")]
    from server_process import ServerProcess
    figures = {}
    for model in MODELS:
        best = None
        for name in FORMATS:
            flags = ("--dtype", "bfloat16", "--quantization", name, "--max-num-seqs", CONCURRENT)
            with ServerProcess(*flags, model=ROOT / "models/demo" / model) as server:
                scored = predictions(server)
                best = best or [token for _, token in scored]
                agreement = sum(a == b for (_, a), b in zip(scored, best)) / len(scored)
                figures.setdefault(model, {})[name] = {
                    "perplexity": math.exp(-sum(p for p, _ in scored) / len(scored)),
                    "agreement": agreement,
                    "tokens": len(scored),
                    "needles": {n: accuracy(server, n, samples) for n in NEEDLES},
                }
                print(model, name, figures[model][name], flush=True)
    return {"samples": samples, "models": figures}


def section(result):
    rows = []
    for model, title in MODELS.items():
        for name in FORMATS:
            figures = result["models"][model][name]
            agreement = "" if name == "none" else f"{100 * figures['agreement']:.2f} %"
            rows.append([title, "bfloat16" if name == "none" else name,
                         f"{figures['perplexity']:.4f}", agreement,
                         *(f"{figures['needles'][str(count)]:.3f}" for count in NEEDLES)])
    tokens = result["models"]["diff"]["none"]["tokens"]
    heads = ["model", "linear layers", "perplexity", "same most likely token", "1 needle", "1 of 4"]
    return (blocks.table(heads, rows),
            f"{tokens:,} tokens of held-out replies; {result['samples']} samples per needle "
            "setting. Made by `tests/bench/quality.py`.")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["measure"])
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.command == "measure":
        RESULTS.write_text(json.dumps(measure(arguments.samples), indent=1) + "\n")
    texts = blocks.with_block("quality", *section(json.loads(RESULTS.read_text())))
    return blocks.settle(texts, arguments.check)


if __name__ == "__main__":
    sys.exit(main())
