#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How fast LAYERS layers of the paper's 830M decode after long contexts in each format of KV pages:
a block of docs/results/kv-pages.md, a plot, and the figures in page_speeds.json beside this file.
Usage: experiment.py; `measure`, on an idle machine, has --rounds 3. What a format costs in accuracy
is page_formats.py's business.

`diffserve bench` with random weights, linear layers of int4, one stream. The formats take turns;
each figure is the median of the rounds.
"""

import json
import statistics
import sys
import tempfile
from pathlib import Path

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import blocks
from experiment import ROOT, run
from page_formats import FORMATS

MODEL, LAYERS = "diff_830m", 6  # all 24 would need 10 GB of pages
DEPTHS = (4096, 16384, 65536)
GENERATED = 24


def bench(model, name):
    """By depth: tokens/s and the share of the memory probe, and the bytes of a token's pages."""
    report = json.loads(run(
        ROOT / "build/diffserve", "bench", model, "--load-format", "dummy", "--dtype", "bfloat16",
        "--quantization", "int4", "--kv-cache-dtype", name, "--prompt", 16, "--depth",
        ",".join(map(str, DEPTHS)), "--batch", 1, "--generate", GENERATED, "--repeat", 1, "--json"))
    figures = report["decode"]
    if len(figures) != len(DEPTHS):
        raise RuntimeError(f"{name}: {len(figures)} of {len(DEPTHS)} depths fit the memory")
    between = figures[-1]["bytes_per_token"] - figures[0]["bytes_per_token"]
    return ([(figure["tokens_per_s"]["median"], figure["ratio_to_probe"]["median"])
             for figure in figures], round(between / (DEPTHS[-1] - DEPTHS[0])))


def measure(rounds):
    samples, sizes = {name: [] for name in FORMATS}, {}
    with tempfile.TemporaryDirectory() as folder:
        config = json.loads((ROOT / "tests/bench/models" / MODEL / "config.json").read_text())
        config.update(num_hidden_layers=LAYERS, max_position_embeddings=2 * DEPTHS[-1])
        (Path(folder) / "config.json").write_text(json.dumps(config))
        for _ in range(rounds):
            for name in FORMATS:
                found, sizes[name] = bench(folder, name)
                samples[name].append(found)
                print(name, found, flush=True)
    return {"formats": {name: {
        "bytes": sizes[name],
        "depths": {depth: {"tokens_per_s": statistics.median(found[at][0] for found in rounds_of),
                           "of_the_limit": statistics.median(found[at][1] for found in rounds_of)}
                   for at, depth in enumerate(DEPTHS)}}
        for name, rounds_of in samples.items()}}


def gain(result, name, depth):
    """Over bfloat16 pages."""
    speed, plain = (result["formats"][pages]["depths"][str(depth)]["tokens_per_s"]
                    for pages in (name, FORMATS[0]))
    return speed / plain


def section(result):
    rows = []
    for name, figures in result["formats"].items():
        cells = []
        for depth in DEPTHS:
            speed = figures["depths"][str(depth)]
            times = "" if name == FORMATS[0] else f", {gain(result, name, depth):.2f}x"
            cells.append(f"{speed['tokens_per_s']:.1f}{times} ({speed['of_the_limit']:.2f})")
        rows.append([name, f"{figures['bytes']:,}", *cells])
    about = (f"Decode of {LAYERS} layers of the paper's 830M and its head with int4 weights, one "
             "stream, tokens/s, the gain over bfloat16 pages and in brackets the share of the "
             f"memory probe; medians of {result['rounds']} on the Zen 4 machine of the speed "
             f"tables. {experiment.made_by(__file__, result)}")
    heads = ["pages", "bytes per token", *(f"after {depth:,} tokens" for depth in DEPTHS)]
    return (blocks.table(heads, rows), blocks.paragraph(about),
            experiment.image(__file__, "Speed of each format at each depth as bars"))


def plot(result):
    return bar_charts.svg(
        [bar_charts.Chart(f"After {depth:,} tokens, % of bfloat16's tokens/s",
                          [bar_charts.Bar(name, 100 * gain(result, name, depth), 0)
                           for name in FORMATS]) for depth in DEPTHS],
        f"Decode of {LAYERS} layers of the 830M by format of KV pages")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"rounds": 3}, measure, section, plot))
