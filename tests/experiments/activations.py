#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Activations of the bundled pair, the Diff Transformer and its twin, by `diffserve inspect
--activations`: how large attention logits and hidden states get (arXiv 2410.05258, table 5), how
much attention an answer gets by its depth (table 3), and how far the subtraction amplifies errors
of logits, by layer. A block of docs/results/experiments.md, a plot, and the figures in
activations.json beside this file. Usage: experiment.py.

The texts are conversations of other seeds than training's: NEEDLE_TEXTS documents of full context
with a question and its answer, and TALK_TEXTS of small talk. For the depths, SAMPLES documents each
with NEEDLES needles; the answer is the sentence of the needle that is asked for, and those that
look for it are the tokens that predict its five digits.
"""

import json
import random
import sys
import tempfile

import experiment  # first: from here on the other folders' modules are found
import bar_charts
import blocks
import chat_samples
import needle_samples
import quality
from experiment import ROOT, run

NEEDLE_TEXTS, TALK_TEXTS, TURNS = 320, 160, 8
SAMPLES, NEEDLES, DIGITS = 50, 4, 5
# First seed for models/demo/needle_samples.py; quality.py and the model cards use lower ones.
FIRST_SEED = 70_000_000
MAGNITUDES = ("logits", "logits_1", "logits_2", "hidden")
HEAD = ("kappa", "kappa_90", "entropy_1", "entropy_2")
RANKS = ("top_1", "top_2", "top_3", "top_10", "top_100", "median")


def tokens_of(server, body):
    return quality.ask(server, "/tokenize", body)["tokens"]


def conversations():
    for index in range(NEEDLE_TEXTS):
        depth = needle_samples.DEPTHS[index % len(needle_samples.DEPTHS)]
        sample = needle_samples.make_sample(FIRST_SEED + index, 1 + index % NEEDLES, depth)
        yield [*sample.messages, {"role": "assistant", "content": sample.answer}]
    for index in range(TALK_TEXTS):
        rng = random.Random(FIRST_SEED + index)
        messages = chat_samples.system_messages(rng)
        for _ in range(TURNS):
            question, reply = chat_samples.exchange(rng)
            messages.append({"role": "user", "content": question})
            messages.append({"role": "assistant", "content": reply})
        yield messages


def needle_line(server, seed, depth):
    """A document, its question and the answer up to the last digit but one, and where the needle
    lies in it."""
    sample = needle_samples.make_sample(seed, NEEDLES, depth)
    prompt = tokens_of(server, {"messages": sample.messages, "add_generation_prompt": True})
    # Its first token may be another at the beginning of a text.
    needle = tokens_of(server, {"prompt": sample.answer, "add_special_tokens": False})[1:]
    begins = [at for at in range(len(prompt)) if prompt[at:at + len(needle)] == needle]
    if len(begins) != 1:
        raise RuntimeError(f"seed {seed}: the needle is there {len(begins)} times")
    reply = [*sample.messages, {"role": "assistant", "content": sample.answer}]
    tokens = tokens_of(server, {"messages": reply, "add_generation_prompt": False})
    full_stop = len(prompt) + len(needle)
    first_digit = full_stop - DIGITS
    if tokens[:len(prompt)] != prompt or tokens[full_stop - DIGITS:full_stop + 1] != needle[-6:]:
        raise RuntimeError(f"seed {seed}: the answer is not where it should be")
    return {"tokens": tokens[:full_stop - 1],
            "spans": {"answer": [[begins[0] - 1, begins[0] + len(needle)]],
                      "query_from": first_digit - 1}}


def texts():
    """Of each name, lines for inspect: all, and those of a depth."""
    from server_process import ServerProcess
    with ServerProcess(model=ROOT / "models/demo/diff") as server:
        found = {"all": [{"tokens": tokens_of(server, {"messages": messages,
                                                       "add_generation_prompt": False})}
                         for messages in conversations()]}
        for number, depth in enumerate(needle_samples.DEPTHS):
            first = FIRST_SEED + (1 + number) * 1_000_000
            found[str(depth)] = [needle_line(server, first + i, depth) for i in range(SAMPLES)]
    return found


def inspect(model, *flags):
    return json.loads(run(ROOT / "build/diffserve", "inspect", ROOT / "models/demo" / model, *flags,
                          "--json"))


def activations(model, lines):
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
        file.flush()
        return inspect(model, "--activations", file.name)


def picked(entry, names):
    return {name: entry[name] for name in names if name in entry}


def magnitudes_of(report):
    def of(layer):
        heads = [picked(head, HEAD) for head in layer["heads"]]
        return picked(layer, MAGNITUDES) | {"heads": heads}
    layers = [of(layer) | picked(layer["all_heads"], HEAD) for layer in report["layers"]]
    return picked(report, ("texts", "tokens", "seconds")) | {
        "all": picked(report["all"], MAGNITUDES), "layers": layers}


def answers_of(report):
    """The shares of all layers, and of each."""
    return {"texts": report["texts"], "all": report["all"]["heads"][0]["answer"],
            "layers": [layer["all_heads"]["answer"] for layer in report["layers"]]}


def measure():
    lines, models = texts(), {}
    for model in quality.MODELS:
        figures = magnitudes_of(activations(model, lines["all"]))
        figures["depths"] = {str(depth): answers_of(activations(model, lines[str(depth)]))
                             for depth in needle_samples.DEPTHS}
        figures["lambda"] = inspect(model)["attention"]["lambda"]
        models[model] = figures
        print(model, figures["seconds"], "s", flush=True)
    return {"models": models}


def magnitudes_table(models):
    rows = []
    for name, of in (("logits", "attention logits"), ("logits_1", "those of map 1"),
                     ("logits_2", "those of map 2"), ("hidden", "hidden states")):
        for model, title in quality.MODELS.items():
            found = models[model]["all"][name]
            if model == "twin" and name.startswith("logits_"):
                continue
            cells = [f"{found[rank]:.1f}" for rank in RANKS[:-1]] + [f"{found[RANKS[-1]]:.2f}"]
            rows.append([title, of, *cells])
    return blocks.table(["model", "magnitude of", "top 1", 2, 3, 10, 100, "median"], rows)


def answer_shares(figures, of, layer=None):
    """By depth, of all layers or of one."""
    found = [figures["depths"][str(depth)] for depth in needle_samples.DEPTHS]
    return [(run["all"] if layer is None else run["layers"][layer])[of] for run in found]


def attentive_layer(figures):
    """The layer that gives the answer most of its attention, all depths together."""
    return max(range(len(figures["layers"])),
               key=lambda layer: sum(answer_shares(figures, "w", layer)))


def answer_table(models):
    rows = []
    for model, title in quality.MODELS.items():
        best = attentive_layer(models[model])
        for layer, of_layer in ((None, "all layers"), (best, f"layer {best}")):
            maps = (("w", "p1 - lambda p2"), ("p1", "map 1"), ("p2", "map 2")) if model == "diff" \
                else (("w", "its map"),)
            for of, name in maps:
                shares = answer_shares(models[model], of, layer)
                rows.append([title, f"{name}, {of_layer}",
                             *(f"{share:.3f}" for share in shares)])
    return blocks.table(["model", "attention to the answer",
                         *(f"{depth} %" for depth in needle_samples.DEPTHS)], rows)


def layers_table(models):
    rows = []
    for number, (diff, twin) in enumerate(zip(models["diff"]["layers"], models["twin"]["layers"])):
        heads = [head["kappa"] for head in diff["heads"]]
        rows.append([
            number, f"{models['diff']['lambda'][number]:.3f}",
            f"{diff['kappa']:.3f} ({min(heads):.3f} to {max(heads):.3f}) and "
            f"{diff['kappa_90']:.2f}", f"{diff['entropy_1']:.2f} and {diff['entropy_2']:.2f}",
            f"{twin['entropy_1']:.2f}",
            f"{diff['logits_1']['top_1']:.1f} and {diff['logits_2']['top_1']:.1f}",
            f"{twin['logits']['top_1']:.1f}"])
    return blocks.table(["layer", "lambda", "kappa, mean (of the heads) and 90 %",
                         "entropy, map 1 and 2", "twin's", "largest logit, map 1 and 2", "twin's"],
                        rows)


def section(result):
    models = result["models"]
    diff, depth = models["diff"], models["diff"]["depths"]["0"]
    about = (f"{diff['tokens']:,} tokens of {diff['texts']} held-out conversations; at each depth "
             f"{depth['texts']} documents with {NEEDLES} needles, the shares by token and head. "
             f"{experiment.made_by(__file__, result)}")
    return (magnitudes_table(models), answer_table(models), layers_table(models),
            blocks.paragraph(about), experiment.image(
                __file__, "Attention to the answer by depth, and magnitudes, as bars"))


def answer_chart(models, title, layer_of):
    bars = [bar_charts.Bar(f"{model}, depth {depth} %", 100 * share, colour)
            for colour, model in enumerate(quality.MODELS)
            for depth, share in zip(needle_samples.DEPTHS,
                                    answer_shares(models[model], "w", layer_of(models[model])))]
    return bar_charts.Chart(f"Attention to the answer, {title}, %", bars)


def plot(result):
    models = result["models"]
    bars = [bar_charts.Bar(f"{model}, {name}, top {rank[4:]}", models[model]["all"][name][rank],
                           colour)
            for name in ("logits", "hidden") for rank in ("top_1", "top_100")
            for colour, model in enumerate(quality.MODELS)]
    return bar_charts.svg([answer_chart(models, "all layers", lambda _: None),
                           answer_chart(models, "best layer", attentive_layer),
                           bar_charts.Chart("Largest magnitudes", bars)],
                          "Attention and activations of the bundled pair")


if __name__ == "__main__":
    sys.exit(experiment.main(__file__, __doc__, {}, measure, section, plot))
