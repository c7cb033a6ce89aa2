#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A KV cache of fewer slots (future work that arXiv 2410.05258 names) with the bundled pair, the
Diff Transformer and its twin: a block of docs/results/experiments.md, a plot, and the figures in
kept_slots.json beside this file. Usage: experiment.py; `measure` has --samples 100. It computes by
numpy_model.py and needs a server for tokens and to check that forward pass.

After a whole prompt of needles each layer and KV group keeps a share of its slots, the last 64
among them, and the answer's tokens see only those and each other. Kept are the slots with the
largest sums over queries, over those of the last 64 tokens or of all, of

    difference  |A1 / l1 - lambda A2 / l2|, what V is multiplied by
    map 1       A1 / l1 alone
    attention   the twin's one map
    recent      no sum: the most recent slots

`counted`: what is dropped gives no value but still counts in l1 and l2, which no cache could know;
it tells what of the loss comes from softmaxes that are normalised over fewer slots.

A sample is right if each token of the right answer is the most likely one, so if greedy decoding
writes it.
"""

import sys

import experiment  # first: from here on the other folders' modules are found
import blocks
import line_charts
import needle_samples
import quality
from experiment import ROOT

NEEDLES, SHARES, LAST = (1, 4), (1, 2, 4, 8, 16), 64
SUMMED = {"diff": ("difference", "map 1"), "twin": ("attention",)}
QUERIES = {"last": f"last {LAST} queries", "all": "all queries"}
CHECKED = 4  # texts
COUNTED = ", counted"


def selections(name):
    summed = [f"{what}, {whose}" for what in SUMMED[name] for whose in QUERIES.values()]
    counted = [f"{what}, {QUERIES['last']}{COUNTED}" for what in SUMMED[name]]
    return [*summed, *counted, "recent"]


def sums(name, prompt):
    """K and V of each layer, the output, and by selection and layer the sums of each slot, [units,
    slots]."""
    import numpy as np
    import numpy_model
    model, slots = numpy_model.model(name), len(prompt)
    found = {selection: np.zeros((model.layers, model.units, slots), np.float32)
             for selection in selections(name) if not selection.endswith(COUNTED)}
    found["recent"] += np.arange(slots, dtype=np.float32)

    def watch(layer, first, _logits, p, weights):
        late = np.arange(first, first + weights.shape[1]) >= slots - LAST
        for what, attention in zip(SUMMED[name], (np.abs(weights), p[0])):
            seen = slice(attention.shape[-1])
            found[f"{what}, {QUERIES['all']}"][layer, :, seen] += attention.sum(1)
            found[f"{what}, {QUERIES['last']}"][layer, :, seen] += attention[:, late].sum(1)

    output, caches = model.forward(prompt, watch=watch)
    return caches, output, found


def kept(slot_sums, share):
    import numpy as np
    ranked = slot_sums.copy()
    ranked[..., -LAST:] = np.inf
    count = max(LAST, ranked.shape[-1] // share)
    chosen = np.zeros(ranked.shape, bool)
    np.put_along_axis(chosen, np.argsort(-ranked, -1)[..., :count], True, -1)
    return chosen


def survival(name, tokens, answer_at):
    """By selection and share: whether the answer is right."""
    import numpy as np
    import numpy_model
    model = numpy_model.model(name)
    prompt, answer = np.array(tokens[:answer_at]), np.array(tokens[answer_at:])
    caches, output, found = sums(name, prompt)
    right = {}
    for selection in selections(name):
        slot_sums = found[selection.removesuffix(COUNTED)]
        for share in SHARES:
            past = numpy_model.Past(caches, kept(slot_sums, share), selection.endswith(COUNTED))
            outputs, _ = model.forward(answer, past)
            best = model.logprobs(np.concatenate([output[-1:], outputs[:-1]])).argmax(-1)
            right.setdefault(selection, []).append(bool((best == answer).all()))
    return right


def sequences(server, needles, samples):
    """Tokens with the answer, and where it begins."""
    for index in range(samples):
        sample = needle_samples.evaluation_sample(index, needles)
        answer = {"role": "assistant", "content": sample.answer}
        tokens, positions = quality.replies(server, [*sample.messages, answer])
        yield tokens, positions[0]


def measure(samples):
    import numpy_model
    from server_process import ServerProcess
    models, difference = {}, 0.0
    for model in quality.MODELS:
        with ServerProcess("--dtype", "float32", model=ROOT / "models/demo" / model) as server:
            texts = {needles: list(sequences(server, needles, samples)) for needles in NEEDLES}
            difference = max(difference, numpy_model.check(
                model, server, [tokens for tokens, _ in texts[NEEDLES[-1]][:CHECKED]]))
        models[model] = {}
        for needles in NEEDLES:
            with numpy_model.processes() as pool:
                found = list(pool.map(survival, [model] * samples, *zip(*texts[needles])))
            models[model][str(needles)] = {
                selection: [sum(right[selection][at] for right in found) / samples
                            for at in range(len(SHARES))]
                for selection in selections(model)}
            print(model, needles, models[model][str(needles)], flush=True)
    return {"difference": difference, "models": models}


def section(result):
    rows = []
    for model, title in quality.MODELS.items():
        for selection in selections(model):
            found = [result["models"][model][str(needles)][selection] for needles in NEEDLES]
            cells = [", ".join(f"{value:.2f}" for value in values) for values in zip(*found)]
            rows.append([title, selection, *cells])
    about = ("Each cell: accuracy with one needle in the text and with four of which one is asked "
             f"for, {result['samples']} samples each. In float32 by numpy, log-probabilities "
             f"within {result['difference']:.1e} of the server's. "
             f"{experiment.made_by(__file__, result)}")
    heads = ["model", "kept by", "all slots", *(f"1/{share}" for share in SHARES[1:])]
    return (blocks.table(heads, rows), blocks.paragraph(about),
            experiment.image(__file__, "Accuracy by share of slots"))


def plot(result):
    ticks = line_charts.evenly(["all", *(f"1/{share}" for share in SHARES[1:])])
    charts = []
    for needles in NEEDLES:
        chart = line_charts.Chart(f"1 of {needles} needles, by slots kept", "percentunit", False, 1,
                                  ticks)
        last = QUERIES["last"]
        for label, model, selection in (
                ("diff", "diff", f"difference, {last}"),
                ("counted", "diff", f"difference, {last}{COUNTED}"),
                ("map 1", "diff", f"map 1, {last}"), ("twin", "twin", f"attention, {last}"),
                ("recent", "diff", "recent")):
            chart.lines[label] = result["models"][model][str(needles)][selection]
        charts.append(chart)
    return line_charts.svg(charts, f"Slots kept by attention of the last {LAST} queries")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {"samples": 100}, measure, section, plot))
