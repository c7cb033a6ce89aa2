#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What each format of KV pages costs the bundled pair, the Diff Transformer and its twin, in
accuracy and takes in memory: a block of docs/results/kv-pages.md, a plot, and the figures in
page_formats.json beside this file. Usage: experiment.py; `measure` has --samples 200.

With bfloat16 weights, over held-out replies: the divergence KL(bfloat16 || format) of the next
token, over the whole vocabulary and in nats, of all tokens and of those after at least CONTEXT
others; how often the most likely token is that of bfloat16 pages; perplexity. And needles at full
context: one of four and one of eight in the model's own words, two of eight with the words of the
answer given.
"""

import json
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import blocks
import needles
import quality
from experiment import ROOT, run
from logit_bits import replies_told

FORMATS = ("bfloat16", "int8", "int8k_int4v", "int4")
CONTEXT = 1000
NEEDLES = {"1 of 4": (4, 1), "1 of 8": (8, 1), "2 of 8": (8, 2)}
PROCESSES = 2


def inspect(model, name):
    return json.loads(run(ROOT / "build/diffserve", "inspect", ROOT / "models/demo" / model,
                          "--kv-cache-dtype", name, "--json"))


def logprobs(model, name, tokens):
    """[tokens, vocabulary]: of what follows each."""
    import numpy as np
    with tempfile.TemporaryDirectory() as folder:
        ids, output = Path(folder) / "ids", Path(folder) / "logits.npy"
        ids.write_text(",".join(map(str, tokens)))
        run(ROOT / "build/diffserve", "logits", ROOT / "models/demo" / model, "--tokens",
            f"@{ids}", "--output", output, "--kv-cache-dtype", name, "--threads", 1)
        logits = np.load(output).astype(np.float64)
    logits -= logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def divergences(model, text):
    """By format: the divergence at each token of the text's replies."""
    import numpy as np
    tokens, positions = text
    before = np.array(positions) - 1
    plain, *others = (logprobs(model, name, tokens)[before] for name in FORMATS)
    return {name: (np.exp(plain) * (plain - other)).sum(-1)
            for name, other in zip(FORMATS[1:], others)}


def divergence_told(model, texts):
    """By format: the means, and of how many tokens they are."""
    import numpy as np
    with ThreadPoolExecutor(PROCESSES) as pool:
        found = list(pool.map(lambda text: divergences(model, text), texts))
    deep = np.concatenate([np.array(positions) >= CONTEXT for _, positions in texts])
    told = {}
    for name in FORMATS[1:]:
        values = np.concatenate([by_format[name] for by_format in found])
        told[name] = {"divergence": float(values.mean()),
                      "divergence_deep": float(values[deep].mean()),
                      "deep_tokens": int(deep.sum())}
        print(model, name, told[name], flush=True)
    return told


def needle_accuracy(server, setting, samples):
    count, asked = setting
    if asked == 1:
        return quality.accuracy(server, count, samples)
    by_depth = needles.accuracies(server, needles.has_digits, (count, needles.FULL, asked),
                                  samples // len(needles.DEPTHS))
    return needles.mean(by_depth)


def figures_of(model, name, samples, best):
    """The figures, the most likely tokens and the texts."""
    from server_process import ServerProcess
    with ServerProcess("--kv-cache-dtype", name, "--max-num-seqs", quality.CONCURRENT,
                       model=ROOT / "models/demo" / model) as server:
        told, tokens = replies_told(quality.predictions(server), best)
        found = {"bytes": inspect(model, name)["memory"]["kv_bytes_per_token"], **told,
                 "needles": {title: needle_accuracy(server, setting, samples)
                             for title, setting in NEEDLES.items()}}
        texts = [quality.replies(server, messages) for messages in quality.conversations()]
    print(model, name, found, flush=True)
    return found, tokens, texts


def measure(samples):
    models = {}
    for model in quality.MODELS:
        best, models[model] = None, {}
        for name in FORMATS:
            models[model][name], tokens, texts = figures_of(model, name, samples, best)
            best = best or tokens
        for name, told in divergence_told(model, texts).items():
            models[model][name].update(told)
    return {"models": models}


def row(title, name, figures):
    told = [""] * 3
    if name != FORMATS[0]:
        told = [f"{figures['divergence']:.1e}", f"{figures['divergence_deep']:.1e}",
                f"{100 * figures['agreement']:.2f} %"]
    accuracies = [f"{figures['needles'][title]:.3f}" for title in NEEDLES]
    return [title, name, f"{figures['bytes']:,}", *told, f"{figures['perplexity']:.4f}",
            *accuracies]


def section(result):
    heads = ["model", "pages", "bytes per token", "KL", f"KL after {CONTEXT:,} tokens",
             "same most likely token", "perplexity", *NEEDLES]
    rows = [row(title, name, figures) for model, title in quality.MODELS.items()
            for name, figures in result["models"][model].items()]
    figures = result["models"]["diff"][FORMATS[1]]
    about = (f"KL(bfloat16 \\|\\| format) in nats per token over the whole vocabulary: the mean of "
             f"{figures['tokens']:,} tokens of held-out replies, and of the "
             f"{figures['deep_tokens']:,} after {CONTEXT:,} tokens or more. {result['samples']} "
             "samples per needle setting at full context; with `2 of 8` both numbers are asked for "
             f"and the words of the answer are given. {experiment.made_by(__file__, result)}")
    return (blocks.table(heads, rows), blocks.paragraph(about),
            experiment.image(__file__, "Divergence and agreement of each format as bars"))


def plot(result):
    def bars(value_of):
        return [bar_charts.Bar(f"{model}, {name}", value_of(figures), colour)
                for colour, model in enumerate(quality.MODELS)
                for name, figures in result["models"][model].items() if name != FORMATS[0]]

    return bar_charts.svg(
        [bar_charts.Chart("KL beside bfloat16 pages, millionths of a nat",
                          bars(lambda figures: 1e6 * figures["divergence"])),
         bar_charts.Chart(f"The same after {CONTEXT:,} tokens",
                          bars(lambda figures: 1e6 * figures["divergence_deep"])),
         bar_charts.Chart("Same most likely token as with bfloat16 pages, %",
                          bars(lambda figures: 100 * figures["agreement"]))],
        "Formats of KV pages")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 200}, measure, section, plot))
