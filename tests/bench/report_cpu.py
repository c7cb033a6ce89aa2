#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of CPU figures, a block of docs/results/speed.md, and a plot from
tests/bench/results/cpu_*.json, for each kind of machine.

    report_cpu.py measure KIND [--rounds 5]  runs `diffserve bench` of every model and format in
                                             turns, on a machine without other work; makes
                                             tests/bench/results/cpu_KIND.json, tables and plot
    report_cpu.py measure KIND --models A,B  measures these and leaves the others' figures
    report_cpu.py twins KIND [--rounds 5]    adds what the Diff model costs over its twin, in pairs
    report_cpu.py curve KIND [--rounds 5]    adds how decode of Llama 778M grows with the batch
    report_cpu.py peers KIND FILE            adds other servers' tokens/s of Llama 778M, measured in
                                             turns with ours: {peer: {type of weights: {figure: [a
                                             sample, ...]}}}, and "about": what the peers are
    report_cpu.py                            rewrites tables and plots
    report_cpu.py --check                    exits 1 if the block or a plot differs from the
                                             results; runs nothing. Ends with `N passed, N failed`.

Only the standard library is needed. A figure is the median over the rounds; "-" means not measured.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import bar_charts

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402
from figures import machine  # noqa: E402

RESULTS = ROOT / "tests/bench/results"
PROGRAM = ROOT / "build/diffserve"
MODEL_CONFIGS = ROOT / "tests/bench/models"
# Model, its title, and the formats of its linear layers.
MODELS = (("diff_830m", "DiffLlama, the paper's 830M", ("bfloat16", "int8", "int4")),
          ("transformer_830m", "its Transformer twin", ("bfloat16", )),
          ("llama_778m", "Llama 778M", ("bfloat16", "int8", "int4")),
          ("diff_3b", "DiffLlama 3B", ("int8", "int4")))
LARGE_MODELS = ("diff_3b", )  # a prompt of 512 and one stream only
PROMPTS, DEPTHS, BATCHES, GENERATE = (512, 2048), (0, 4096), (1, 4, 16), 24
TWINS = ("diff_830m", "transformer_830m")
# What twins are compared by: layers (None: all), the flags of `diffserve bench`, its figures.
TWIN_RUNS = ((None, ("--prompt", "2048", "--depth", "0", "--batch", "1"),
              ("prefill 2048", "decode depth 0 batch 1")),
             (6, ("--prompt", "4096,16384", "--depth", "0", "--batch", "1"),
              ("prefill 4096", "prefill 16384")))
# The batches of the curve, and the formats of its model, which is that of the peers.
CURVE_BATCHES, CURVE_FORMATS = (1, 2, 3, 4, 6, 8, 12, 16), ("bfloat16", "int8", "int4")
# The model and the figures that peers are measured by.
PEER_MODEL, PEER_DEPTH = "llama_778m", 128
PEER_FIGURES = (("prefill 512", "prefill of 512"), ("prefill 2048", "prefill of 2048"),
                ("decode depth 0 batch 1", "decode, 1 stream"),
                (f"decode depth {PEER_DEPTH} batch 4", "decode, 4 streams"),
                (f"decode depth {PEER_DEPTH} batch 16", "decode, 16 streams"),
                (f"decode depth {DEPTHS[1]} batch 1", f"decode after {DEPTHS[1]}"))


def bench(directory, name, *flags):
    quantization = name if name.startswith("int") else "none"
    command = [PROGRAM, "bench", directory, "--load-format", "dummy", "--dtype", "bfloat16",
               "--quantization", quantization, "--repeat", "1", "--json", "--generate",
               str(GENERATE), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def joined(numbers):
    return ",".join(map(str, numbers))


def runs_of(model):
    """The flags of each run of `diffserve bench`."""
    if model in LARGE_MODELS:
        return [("--prompt", "512", "--depth", "0", "--batch", "1")]
    runs = [("--prompt", joined(PROMPTS), "--depth", "0", "--batch", joined(BATCHES)),
            ("--prompt", "16", "--depth", str(DEPTHS[1]), "--batch", "1")]
    if model == PEER_MODEL:
        runs.append(("--prompt", "16", "--depth", str(PEER_DEPTH), "--batch", "4,16"))
    return runs


def figures_of(run):
    """{figure: (tokens/s, share of the limit)}"""
    return {figure["name"]: (figure["tokens_per_s"]["median"], figure["ratio_to_probe"]["median"])
            for figure in run["prefill"] + run["decode"]}


def measure(kind, rounds, models):
    samples = {}
    about = {}
    for turn in range(rounds):
        for model, _, formats in MODELS:
            if model not in models:
                continue
            for name in formats:
                print(f"round {turn + 1} of {rounds}: {model} {name}", file=sys.stderr, flush=True)
                for flags in runs_of(model):
                    run = bench(MODEL_CONFIGS / model, name, *flags)
                    about = {key: run[key] for key in ("cpu_isa", "threads")}
                    for what, values in figures_of(run).items():
                        samples.setdefault((model, name, what), []).append(values)
    write(kind, {**about, "rounds": rounds}, samples)


def with_layers(model, layers, folder):
    """The directory of the model's config, with this number of layers; None: as it is."""
    if layers is None:
        return MODEL_CONFIGS / model
    config = json.loads((MODEL_CONFIGS / model / "config.json").read_text())
    directory = Path(folder) / f"{model}_{layers}"
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**config, "num_hidden_layers": layers}))
    return directory


def measure_twins(kind, rounds):
    ratios = {}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            print(f"round {turn + 1} of {rounds}", file=sys.stderr, flush=True)
            for layers, flags, names in TWIN_RUNS:
                order = TWINS if turn % 2 == 0 else TWINS[::-1]
                got = {model: figures_of(bench(with_layers(model, layers, folder), "bfloat16",
                                               *flags)) for model in order}
                for name in names:
                    ours, twins = (got[model][name][0] for model in TWINS)
                    ratios.setdefault((name, layers), []).append(ours / twins)
    result = json.loads(path_of(kind).read_text())
    result["twins"] = [{"figure": name, "layers": layers, "pairs": len(values),
                        "median": statistics.median(values), "least": min(values),
                        "most": max(values)} for (name, layers), values in ratios.items()]
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def measure_curve(kind, rounds):
    samples = {}
    for turn in range(rounds):
        for name in CURVE_FORMATS:
            print(f"round {turn + 1} of {rounds}: {name}", file=sys.stderr, flush=True)
            run = bench(MODEL_CONFIGS / PEER_MODEL, name, "--prompt", "16", "--depth", "0",
                        "--batch", joined(CURVE_BATCHES))
            for figure in run["decode"]:
                samples.setdefault(name, {}).setdefault(figure["batch"], []).append(
                    [figure[what]["median"]
                     for what in ("tokens_per_s", "ratio_to_probe", "ratio_to_arithmetic")])
    result = json.loads(path_of(kind).read_text())
    result["curve"] = {
        name: [dict(zip(("batch", "tokens_per_s", "of_memory", "of_arithmetic"),
                        (batch, *map(statistics.median, zip(*values)))))
               for batch, values in batches.items()] for name, batches in samples.items()}
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def path_of(kind):
    return RESULTS / f"cpu_{kind}.json"


def write(kind, about, samples):
    """`samples`: of (model, format, figure), each tokens/s and the share of the limit."""
    figures = {}
    for (model, name, what), values in samples.items():
        rates, ratios = zip(*values)
        figures.setdefault(model, {}).setdefault(name, {})[what] = {
            "tokens_per_s": statistics.median(rates), "least": min(rates), "most": max(rates),
            "of_the_limit": statistics.median(ratios)}
    before = json.loads(path_of(kind).read_text()) if path_of(kind).exists() else {"models": {}}
    result = {"machine": machine(kind), **about, "generate": GENERATE,
              "models": {**before["models"], **figures},
              **{key: before[key] for key in ("about_peers", "peers", "twins", "curve")
                 if key in before}}
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def add_peers(kind, samples):
    """Figures that `samples` does not name stay."""
    result = json.loads(path_of(kind).read_text())
    result["about_peers"] = samples.pop("about")
    for peer, types in samples.items():
        for name, figures in types.items():
            known = result.setdefault("peers", {}).setdefault(peer, {}).setdefault(name, {})
            for what, values in figures.items():
                known[what] = {"tokens_per_s": statistics.median(values), "least": min(values),
                               "most": max(values)}
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def cell(figures, what):
    figure = figures.get(what)
    if figure is None:
        return "-"
    return f"{figure['tokens_per_s']:.0f} ({figure['of_the_limit']:.2f})"


def table(result):
    columns = [(f"prefill {prompt}", f"prefill {prompt}") for prompt in PROMPTS]
    columns += [(f"decode depth 0 batch {batch}", f"decode, {batch}") for batch in BATCHES]
    columns += [(f"decode depth {DEPTHS[1]} batch 1", f"decode, 1, after {DEPTHS[1]}")]
    rows = []
    for model, title, formats in MODELS:
        for name in formats:
            figures = result["models"].get(model, {}).get(name, {})
            rows.append([title, name, *(cell(figures, what) for what, _ in columns)])
    return [f"{result['machine'][0].upper()}{result['machine'][1:]}, {result['cpu_isa']}, "
            f"{result['threads']} threads, medians of {result['rounds']}:",
            blocks.table(["model", "linear layers", *(title for _, title in columns)], rows)]


def twins_table(result):
    twins = result["twins"]
    heads = [row["figure"].removesuffix(" depth 0 batch 1") +
             (f", {row['layers']} layers" if row["layers"] else "") for row in twins]
    cells = [f"{row['median']:.3f} ({row['least']:.3f} to {row['most']:.3f})" for row in twins]
    return [blocks.paragraph(
        "Tokens/s of DiffLlama divided by those of its Transformer twin, bfloat16, medians of "
        f"{twins[0]['pairs']} pairs, in brackets the minimum and the maximum:"),
        blocks.table(heads, [cells])]


def curve_table(result):
    curve = result["curve"]
    rows = [[name, *(f"{point['tokens_per_s']:.0f} ({point['of_memory']:.2f} "
                     f"{point['of_arithmetic']:.2f})" for point in points)]
            for name, points in curve.items()]
    heads = ["linear layers", *(str(point["batch"]) for point in next(iter(curve.values())))]
    return [blocks.paragraph(
        "Decode of Llama 778M by the number of streams, in brackets the shares of the memory's and "
        "of the arithmetic's limit:"), blocks.table(heads, rows)]


def servers(result):
    """Ours first: {server: {type of weights: figures}}."""
    return {"diffserve": result["models"][PEER_MODEL], **result["peers"]}


def rate(figures, what):
    return figures[what]["tokens_per_s"] if what in figures else None


def best(types, what):
    return max((rate(figures, what) or 0 for figures in types.values()), default=0)


def peer_table(result):
    columns = servers(result)
    heads = ["", *(f"{server}, {' / '.join(types)}" for server, types in columns.items()),
             "our best over theirs"]
    rows = []
    for what, title in PEER_FIGURES:
        cells = []
        for types in columns.values():
            rates = (rate(figures, what) for figures in types.values())
            cells.append(" / ".join("-" if value is None else f"{value:.0f}" for value in rates))
        theirs = max(best(types, what) for types in result["peers"].values())
        ours = best(columns["diffserve"], what)
        rows.append([title, *cells, f"{ours / theirs:.2f}" if ours and theirs else "not measured"])
    return [blocks.paragraph(f"Llama 778M beside {result['about_peers']}, measured in turns:"),
            blocks.table(heads, rows)]


def plot(result):
    charts = []
    for what, title in PEER_FIGURES:
        bars = [bar_charts.Bar(f"{server} {name}", rate(figures, what) or 0, colour)
                for colour, (server, types) in enumerate(servers(result).items())
                for name, figures in types.items() if rate(figures, what)]
        charts.append(bar_charts.Chart(f"{title}, tokens/s", bars))
    return bar_charts.svg(charts, f"Llama 778M on {result['machine']}, {result['threads']} threads")


def outputs():
    """What the files should hold: {path: text}."""
    parts, texts = [], {}
    for path in sorted(RESULTS.glob("cpu_*.json")):
        result = json.loads(path.read_text())
        if "models" not in result:
            continue
        parts += table(result)
        if "twins" in result:
            parts += twins_table(result)
        if "curve" in result:
            parts += curve_table(result)
        if "peers" in result:
            picture = path.with_suffix(".svg")
            parts += [*peer_table(result), blocks.image("cpu", picture, "The same as bars")]
            texts[picture] = plot(result)
    return blocks.with_block("cpu", *parts) | texts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*",
                        help="measure, twins or curve KIND, or peers KIND FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--models", default=joined(model for model, _, _ in MODELS))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    match arguments.command:
        case []:
            pass
        case ["measure", kind]:
            measure(kind, arguments.rounds, arguments.models.split(","))
        case ["twins", kind]:
            measure_twins(kind, arguments.rounds)
        case ["curve", kind]:
            measure_curve(kind, arguments.rounds)
        case ["peers", kind, file]:
            add_peers(kind, json.loads(Path(file).read_text()))
        case _:
            parser.error("usage: report_cpu.py [measure KIND | twins KIND | curve KIND | "
                         "peers KIND FILE]")
    return blocks.settle(outputs(), arguments.check)


if __name__ == "__main__":
    sys.exit(main())
