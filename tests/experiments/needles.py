#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several needles in a text (arXiv 2410.05258, table 2 and figure 5) for the bundled pair, the Diff
Transformer and its twin: a block of docs/results/experiments.md, a plot, and the figures in
needles.json beside this file. Usage: experiment.py; `measure` has --samples 40.

N cities have a magic number, R of them are asked for in one question; an answer is right if it has
all digits of all R. The first city asked for lies at each of five depths, the others anywhere;
`samples` is of each depth. A model writes its own answer, greedily; where R is 2 it is also asked
for the digits alone, the words of the answer given.
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import experiment  # first: from here on the other folders' modules are found
import blocks
import line_charts
import needle_samples
import quality
from experiment import ROOT

NEEDLES, ASKED = (1, 2, 4, 6, 8), (1, 2)
FULL = needle_samples.FULL_CONTEXT_TOKENS
LENGTHS = (FULL // 4, FULL // 2, FULL)
DEPTHS = needle_samples.DEPTHS
SETTINGS = [(needles, asked) for asked in ASKED for needles in NEEDLES if needles >= asked]
BY_DEPTH = (1, 4, 8)  # needles of the charts by depth
DIGITS = "0123456789 0 1 2 3 4 5 6 7 8 9"  # each of them is a token, with and without a space


def has_digits(server, sample):
    """Whether each digit of the right answer is the most likely token after what is before it."""
    tokens, positions = quality.replies(
        server, [*sample.messages, {"role": "assistant", "content": sample.answer}])
    digits = set(quality.ask(server, "/tokenize", {"prompt": DIGITS})["tokens"])
    _, best = quality.scores(server, tokens)
    return all(best[at - 1] == tokens[at] for at in positions if tokens[at] in digits)


def accuracies(server, is_right, setting, samples):
    """By depth; `setting` is needles, tokens and how many are asked for."""
    needles, length, asked = setting
    drawn = [needle_samples.evaluation_sample(index, needles, length, asked)
             for index in range(samples * len(DEPTHS))]
    with ThreadPoolExecutor(quality.CONCURRENT) as pool:
        right = list(pool.map(lambda sample: is_right(server, sample), drawn))
    return [sum(right[at::len(DEPTHS)]) / samples for at in range(len(DEPTHS))]


def measure(samples):
    from server_process import ServerProcess
    models, digits = {}, {}
    for model in quality.MODELS:
        with ServerProcess("--max-num-seqs", quality.CONCURRENT,
                           model=ROOT / "models/demo" / model) as server:
            models[model], digits[model] = {}, {}
            for needles, asked in SETTINGS:
                name = f"{needles}, {asked}"
                models[model][name] = [accuracies(server, quality.is_right,
                                                  (needles, length, asked), samples)
                                       for length in LENGTHS]
                if asked > 1:
                    digits[model][name] = accuracies(server, has_digits, (needles, FULL, asked),
                                                     samples)
                print(model, name, models[model][name], digits[model].get(name), flush=True)
    return {"models": models, "digits": digits}


def mean(values):
    return sum(values) / len(values)


def section(result):
    titles = [f"{model}, {length:,}" for model in quality.MODELS for length in LENGTHS]
    rows = []
    for needles, asked in SETTINGS:
        name = f"{needles}, {asked}"
        cells = [f"{mean(by_depth):.3f}" for model in quality.MODELS
                 for by_depth in result["models"][model][name]]
        cells += [f"{mean(found[name]):.3f}" if name in found else ""
                  for found in result["digits"].values()]
        rows.append([needles, asked, *cells])
    about = (f"Each cell: {result['samples'] * len(DEPTHS)} samples of 300, 600 or 1,200 tokens, "
             "depths 0 to 100 % in turn, greedy, all digits right; digits: at 1,200 tokens, the "
             f"words of the answer given. {experiment.made_by(__file__, result)}")
    heads = ["needles", "asked", *titles, "diff, digits", "twin, digits"]
    return (blocks.table(heads, rows), blocks.paragraph(about),
            experiment.image(__file__, "Accuracy by number of needles and by depth"))


def plot(result):
    def line(setting, model, values_of):
        found = result["models"][model].get(setting)
        return values_of(found) if found else float("nan")

    charts = []
    for at, length in enumerate(LENGTHS):
        chart = line_charts.Chart(f"By number of needles, {length:,} tokens", "percentunit", False,
                                  1, line_charts.evenly([str(count) for count in NEEDLES]))
        for asked in ASKED:
            for model in quality.MODELS:
                chart.lines[f"{model}, {asked}"] = [
                    line(f"{count}, {asked}", model, lambda found: mean(found[at]))  # noqa: B023
                    for count in NEEDLES]
        charts.append(chart)
    for needles in BY_DEPTH:
        chart = line_charts.Chart(f"By depth, N = {needles}, {FULL:,} tokens",
                                  "percentunit", False, 1,
                                  line_charts.evenly([f"{depth} %" for depth in DEPTHS]))
        for asked in (count for count in ASKED if count <= needles):
            for model in quality.MODELS:
                chart.lines[f"{model}, {asked}"] = result["models"][model][
                    f"{needles}, {asked}"][-1]
        charts.append(chart)
    return line_charts.svg(charts, "Accuracy of the bundled pair with 1 and 2 numbers asked for")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 40}, measure, section, plot))
