#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Accuracy against the bits of attention logits (arXiv 2410.05258, figure 8) for the bundled pair,
the Diff Transformer and its twin: a block of docs/results/experiments.md, a plot, and the figures
in logit_bits.json beside this file. Usage: experiment.py; `measure` has --samples 200.

For each scale and number of --attention-logit-bits: accuracy of one needle among four,
over all five digits; accuracy of multiple choice by log-probabilities (choices.py); perplexity of
held-out replies; and how often the most likely next token is that of logits that are not quantised.

No server has the paper's scale, that of a whole tensor: it would depend on the batch. It is
computed by numpy_model.py in float32, one prompt with its answer a tensor. There a needle is found
if each token of the right answer is the most likely one.
"""

import functools
import math
import sys
from concurrent.futures import ThreadPoolExecutor

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import blocks
import choices
import needle_samples
import quality
from experiment import ROOT

SCALES, BITS = ("row", "tile", "anchored"), (8, 6, 4)
NEEDLES, ITEMS, FIRST_ITEM = 4, 200, 40000  # the items are seeds from there on
CHECKED = 8  # texts


def items():
    return [choices.item(FIRST_ITEM + index) for index in range(ITEMS)]


def chosen(server):
    """Accuracy of multiple choice."""
    def logprobs(item):
        return [quality.scores(server, tokens)[0][begin - 1:]
                for tokens, begin in choices.reply_tokens(server, item)]

    with ThreadPoolExecutor(quality.CONCURRENT) as pool:
        return choices.accuracy(items(), list(pool.map(logprobs, items())))


def replies_told(scored, best):
    """What the replies say; `scored` is of each token its log-probability and the most likely one,
    `best` the most likely ones of logits that are not quantised, None for these themselves."""
    tokens = [token for _, token in scored]
    return {"perplexity": math.exp(-sum(p for p, _ in scored) / len(scored)),
            "agreement": sum(a == b for a, b in zip(tokens, best or tokens)) / len(tokens),
            "tokens": len(scored)}, tokens


def figures_of(model, samples, best, *flags):
    from server_process import ServerProcess
    with ServerProcess(*flags, "--max-num-seqs", quality.CONCURRENT,
                       model=ROOT / "models/demo" / model) as server:
        told, tokens = replies_told(quality.predictions(server), best)
        found = {"accuracy": quality.accuracy(server, NEEDLES, samples), "choices": chosen(server),
                 **told}
    print(model, flags, found, flush=True)
    return found, tokens


class Texts:
    """The same texts as tokens, for a forward pass without a server."""

    def __init__(self, server, samples):
        self.replies = [quality.replies(server, messages) for messages in quality.conversations()]
        drawn = [needle_samples.evaluation_sample(index, NEEDLES) for index in range(samples)]
        self.needles = [quality.replies(server, [
            *sample.messages, {"role": "assistant", "content": sample.answer}]) for sample in drawn]
        self.choices = [choices.reply_tokens(server, item) for item in items()]


def scores_of(model, bits, tokens):
    import numpy as np
    import numpy_model
    logprobs, best = numpy_model.model(model).scores(np.array(tokens), bits)
    return logprobs.tolist(), best.tolist()


def tensor_figures(model, texts, bits, best):
    """What figures_of gives, by scales of a whole tensor."""
    import numpy_model
    with numpy_model.processes() as pool:
        def scores(sequences):
            return pool.map(functools.partial(scores_of, model, bits),
                            [tokens for tokens, _ in sequences], chunksize=4)

        scored = [(logprobs[at - 1], best_tokens[at - 1])
                  for (_, positions), (logprobs, best_tokens) in zip(texts.replies,
                                                                     scores(texts.replies))
                  for at in positions]
        right = [all(best_tokens[at - 1] == tokens[at] for at in positions)
                 for (tokens, positions), (_, best_tokens) in zip(texts.needles,
                                                                  scores(texts.needles))]
        sequences = [reply for replies in texts.choices for reply in replies]
        logprobs = [found[begin - 1:]
                    for (_, begin), (found, _) in zip(sequences, scores(sequences))]
    told, tokens = replies_told(scored, best)
    by_item = [logprobs[at:at + choices.CHOICES] for at in range(0, len(logprobs), choices.CHOICES)]
    found = {"accuracy": sum(right) / len(right), "choices": choices.accuracy(items(), by_item),
             **told}
    print(model, "tensor", bits, found, flush=True)
    return found, tokens


def measure_tensor(model, samples):
    """The figures by bits, the largest logits [layers][maps], and how far the forward pass is from
    a server's in float32."""
    import numpy as np
    import numpy_model
    from server_process import ServerProcess
    with ServerProcess("--dtype", "float32", model=ROOT / "models/demo" / model) as server:
        texts = Texts(server, samples)
        checked = [tokens for tokens, _ in texts.replies[:CHECKED]]
        difference = numpy_model.check(model, server, checked)
    plain, best = tensor_figures(model, texts, None, None)
    quantised = {f"tensor {bits}": tensor_figures(model, texts, bits, best)[0] for bits in BITS}
    largest = numpy_model.model(model).largest_logits(map(np.array, checked)).tolist()
    return {"tensor 16": plain, **quantised}, largest, difference


def measure(samples):
    models, largest, differences = {}, {}, []
    for model in quality.MODELS:
        plain, best = figures_of(model, samples, None)
        models[model] = {f"{scale} 16": plain for scale in SCALES}
        for scale in SCALES:
            for bits in BITS:
                models[model][f"{scale} {bits}"], _ = figures_of(
                    model, samples, best, "--attention-logit-bits",
                    bits if scale == "row" else f"{bits}:{scale}")
        figures, largest[model], difference = measure_tensor(model, samples)
        models[model].update(figures)
        differences.append(difference)
    return {"difference": max(differences), "largest": largest, "models": models}


def cell(figures):
    return (f"{figures['accuracy']:.2f}, {figures['choices']:.3f}, {figures['perplexity']:.3f}, "
            f"{100 * figures['agreement']:.1f} %")


def section(result):
    rows = [[title, scale, *(cell(result["models"][model][f"{scale} {bits}"])
                             for bits in (16, *BITS))]
            for model, title in quality.MODELS.items() for scale in (*SCALES, "tensor")]
    tokens = result["models"]["diff"]["row 16"]["tokens"]
    largest = "; ".join(
        f"{title}, " + ", ".join(" and ".join(f"{value:.0f}" for value in maps) for maps in layers)
        for title, layers in zip(quality.MODELS.values(), result["largest"].values()))
    about = (f"Each cell: accuracy of one needle among four ({result['samples']} samples), of a "
             f"choice among {choices.CHOICES} replies ({ITEMS} questions), perplexity of "
             f"{tokens:,} tokens of held-out replies, how often the most likely token is the same. "
             "`tensor` is computed in float32 by numpy, log-probabilities within "
             f"{result['difference']:.1e} of the server's. The largest logits in {CHECKED} texts, "
             f"by layer and map: {largest}. {experiment.made_by(__file__, result)}")
    return (blocks.table(["model", "scale", *(f"{bits} bits" for bits in (16, *BITS))], rows),
            blocks.paragraph(about), experiment.image(__file__, "The accuracies as bars"))


def plot(result):
    charts = []
    for scale, key, title in (*((scale, "accuracy", "one needle of four")
                                for scale in (*SCALES, "tensor")),
                              ("row", "choices", "choice"), ("tensor", "choices", "choice")):
        bars = [bar_charts.Bar(f"{model}, {bits} bits",
                               100 * result["models"][model][f"{scale} {bits}"][key], colour)
                for colour, model in enumerate(quality.MODELS) for bits in (16, *BITS)]
        charts.append(bar_charts.Chart(f"{scale}: {title}, %", bars))
    return bar_charts.svg(charts, "Accuracy of the bundled pair by bits of attention logits")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 200}, measure, section, plot))
