#!/usr/bin/env python3
"""Accuracy against the bits of attention logits (arXiv 2410.05258, figure 8) for the bundled pair,
the Diff Transformer and its twin: writes a table and a plot into README.md and the figures to
logit_bits.json beside this file.

    logit_bits.py [--samples 200]  measures; needs a built server, run it with .venv/bin/python
    logit_bits.py --check          exits 1 if README.md or the plot says something else than the
                                   figures; runs nothing. Ends with `N passed, N failed`.

For each scale of --attention-logit-scale and number of bits: accuracy of one needle among four,
over all five digits; perplexity of held-out replies; and how often the most likely next token is
that of logits that are not quantised.
"""

import math
import sys

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import quality
from experiment import ROOT

SCALES, BITS = ("row", "tile", "anchored"), (8, 6, 4)
NEEDLES = 4


def figures_of(model, samples, best, *flags):
    from server_process import ServerProcess
    with ServerProcess(*flags, "--max-num-seqs", quality.CONCURRENT,
                       model=ROOT / "models/demo" / model) as server:
        scored = quality.predictions(server)
        tokens = [token for _, token in scored]
        found = {
            "accuracy": quality.accuracy(server, NEEDLES, samples),
            "perplexity": math.exp(-sum(p for p, _ in scored) / len(scored)),
            "agreement": sum(a == b for a, b in zip(tokens, best or tokens)) / len(tokens),
            "tokens": len(scored),
        }
    print(model, flags, found, flush=True)
    return found, tokens


def measure(samples):
    models = {}
    for model in quality.MODELS:
        plain, best = figures_of(model, samples, None)
        models[model] = {"16": plain}
        for scale in SCALES:
            for bits in BITS:
                models[model][f"{scale} {bits}"], _ = figures_of(
                    model, samples, best, "--attention-logit-bits", bits,
                    "--attention-logit-scale", scale)
    return {"models": models}


def cell(figures):
    return (f"{figures['accuracy']:.3f}, {figures['perplexity']:.3f}, "
            f"{100 * figures['agreement']:.1f} %")


def section(result):
    lines = ["| model | scale | 16 bits | 8 bits | 6 bits | 4 bits |", "|---|---|---|---|---|---|"]
    for model, title in quality.MODELS.items():
        figures = result["models"][model]
        for scale in SCALES:
            cells = [figures["16"], *(figures[f"{scale} {bits}"] for bits in BITS)]
            lines.append(f"| {title} | {scale} | " + " | ".join(map(cell, cells)) + " |")
    tokens = result["models"]["diff"]["16"]["tokens"]
    lines += ["", f"Each cell: accuracy of one needle among four ({result['samples']} samples), "
              f"perplexity of {tokens:,} tokens of held-out replies, how often the most likely "
              f"token is the same. Made by `tests/experiments/logit_bits.py` at commit "
              f"{result['commit']}.", "",
              experiment.image(__file__, "The accuracies as bars")]
    return "\n".join(lines)


def plot(result):
    charts = []
    for scale in SCALES:
        bars = [bar_charts.Bar(f"{model}, {bits} bits", 100 * figures["accuracy"], colour)
                for colour, model in enumerate(quality.MODELS)
                for bits, figures in ((16, result["models"][model]["16"]),
                                      *((bits, result["models"][model][f"{scale} {bits}"])
                                        for bits in BITS))]
        charts.append(bar_charts.Chart(f"{scale}: one needle of four, %", bars))
    return bar_charts.svg(charts, "Accuracy of the bundled pair by bits of attention logits")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 200}, measure, section, plot))
