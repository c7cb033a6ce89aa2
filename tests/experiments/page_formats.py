#!/usr/bin/env python3
"""What each format of KV pages costs in accuracy and brings in memory and speed: writes a table
and a plot into README.md and the figures to page_formats.json beside this file.

    page_formats.py [--samples 200] [--rounds 5]  measures; needs a built server, run it with
                                                  .venv/bin/python
    page_formats.py --check                       exits 1 if README.md or the plot says something
                                                  else than the figures; runs nothing. Ends with
                                                  `N passed, N failed`.

Accuracy of the bundled pair with bfloat16 weights: perplexity of held-out replies, how often the
most likely next token is that of bfloat16 pages, one needle among four. Decode of the paper's 830M
shape with int4 weights after DEPTH tokens, the formats in turns.
"""

import json
import statistics
import sys

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import quality
from experiment import ROOT, run
from logit_bits import figures_of

FORMATS = ("bfloat16", "int8", "int8k_int4v", "int4")
SPEED_MODEL, DEPTH = "diff_830m", 4096


def inspect(model, name):
    return json.loads(run(ROOT / "build/diffserve", "inspect", ROOT / "models/demo" / model,
                          "--kv-cache-dtype", name, "--json"))


def speeds(rounds):
    samples = {name: [] for name in FORMATS}
    for _ in range(rounds):
        for name in FORMATS:
            report = json.loads(run(
                ROOT / "build/diffserve", "bench", ROOT / "tests/bench/models" / SPEED_MODEL,
                "--load-format", "dummy", "--dtype", "bfloat16", "--quantization", "int4",
                "--kv-cache-dtype", name, "--prompt", 16, "--depth", DEPTH, "--batch", 1,
                "--generate", 24, "--repeat", 1, "--json"))
            samples[name].append((report["decode"][0]["tokens_per_s"]["median"],
                                  report["decode"][0]["ratio_to_probe"]["median"]))
            print(name, samples[name][-1], flush=True)
    return {name: {"tokens_per_s": statistics.median(rate for rate, _ in found),
                   "of_the_limit": statistics.median(ratio for _, ratio in found)}
            for name, found in samples.items()}


def measure(samples, rounds):
    models = {}
    for model in quality.MODELS:
        best = None
        for name in FORMATS:
            figures, tokens = figures_of(model, samples, best, "--kv-cache-dtype", name)
            best = best or tokens
            figures["bytes"] = inspect(model, name)["memory"]["kv_bytes_per_token"]
            models.setdefault(model, {})[name] = figures
    return {"models": models, "speed": speeds(rounds)}


def section(result):
    lines = ["| model | pages | bytes a token | perplexity | same most likely token | 1 of 4 |",
             "|---|---|---|---|---|---|"]
    for model, title in quality.MODELS.items():
        for name, figures in result["models"][model].items():
            agreement = "" if name == FORMATS[0] else f"{100 * figures['agreement']:.2f} %"
            lines.append(f"| {title} | {name} | {figures['bytes']:,} | "
                         f"{figures['perplexity']:.4f} | {agreement} | {figures['accuracy']:.3f} |")
    told = ", ".join(f"{name} {speed['tokens_per_s']:.0f} ({speed['of_the_limit']:.2f} of the "
                     "memory probe)" for name, speed in result["speed"].items())
    lines += ["", f"Decode of the paper's 830M with int4 weights after {DEPTH} tokens, tokens/s, "
              f"medians of {result['rounds']} on the machine of the table below: {told}. Made by "
              f"`tests/experiments/page_formats.py` at commit {result['commit']}.", "",
              experiment.image(__file__, "Agreement and speed of each format as bars")]
    return "\n".join(lines)


def plot(result):
    agreements = [bar_charts.Bar(f"{model}, {name}", 100 * figures["agreement"], colour)
                  for colour, model in enumerate(quality.MODELS)
                  for name, figures in result["models"][model].items()]
    rates = [bar_charts.Bar(name, speed["tokens_per_s"], 0)
             for name, speed in result["speed"].items()]
    return bar_charts.svg(
        [bar_charts.Chart("Same most likely token as with bfloat16 pages, %", agreements),
         bar_charts.Chart(f"Decode of the 830M after {DEPTH} tokens, tokens/s", rates)],
        "Formats of KV pages")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 200, "rounds": 5}, measure, section,
                             plot))
