#!/usr/bin/env python3
"""Writes the tables of CPU figures into README.md and a plot beside them from
tests/bench/results/cpu_*.json, for each kind of machine.

    report_cpu.py measure KIND [--rounds 5]  runs `diffserve bench` of every model and format in
                                             turns, on a machine without other work; makes
                                             tests/bench/results/cpu_KIND.json, tables and plot
    report_cpu.py peers KIND FILE            adds other servers' tokens/s of Llama 778M, measured in
                                             turns with ours: {peer: {type of weights: {figure: [a
                                             sample, ...]}}}, and "about": what the peers are
    report_cpu.py                            rewrites tables and plots
    report_cpu.py --check                    exits 1 if README.md or a plot says something else than
                                             the results; runs nothing. Ends with `N passed, N
                                             failed`.

Only the standard library is needed. The section stands in README.md between <!-- cpu --> and
<!-- /cpu -->. A figure is the median over the rounds; where one is missing the table says so.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

import bar_charts

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
RESULTS = ROOT / "tests/bench/results"
BEGIN, END = "<!-- cpu -->", "<!-- /cpu -->"
PROGRAM = ROOT / "build/diffserve"
# Model, its title, and the formats of its linear layers.
MODELS = (("diff_830m", "DiffLlama, the paper's 830M", ("bfloat16", "int8", "int4")),
          ("transformer_830m", "its Transformer twin", ("bfloat16", )),
          ("llama_778m", "Llama 778M", ("bfloat16", "int8", "int4")))
PROMPTS, DEPTHS, BATCHES, GENERATE = (512, 2048), (0, 4096), (1, 4, 16), 24
# The model and the figures that peers are measured by.
PEER_MODEL, PEER_DEPTH = "llama_778m", 128
PEER_FIGURES = (("prefill 512", "prefill of 512"), ("prefill 2048", "prefill of 2048"),
                ("decode depth 0 batch 1", "decode, 1 stream"),
                (f"decode depth {PEER_DEPTH} batch 4", "decode, 4 streams"),
                (f"decode depth {PEER_DEPTH} batch 16", "decode, 16 streams"),
                (f"decode depth {DEPTHS[1]} batch 1", f"decode after {DEPTHS[1]}"))


def bench(model, name, *flags):
    quantization = name if name.startswith("int") else "none"
    command = [PROGRAM, "bench", ROOT / "tests/bench/models" / model, "--load-format", "dummy",
               "--dtype", "bfloat16", "--quantization", quantization, "--repeat", "1", "--json",
               "--generate", str(GENERATE), *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def joined(numbers):
    return ",".join(map(str, numbers))


def measure(kind, rounds):
    samples = {}
    about = {}
    for turn in range(rounds):
        for model, _, formats in MODELS:
            for name in formats:
                print(f"round {turn + 1} of {rounds}: {model} {name}", file=sys.stderr, flush=True)
                runs = [bench(model, name, "--prompt", joined(PROMPTS), "--depth", "0", "--batch",
                              joined(BATCHES)),
                        bench(model, name, "--prompt", "16", "--depth", str(DEPTHS[1]), "--batch",
                              "1")]
                if model == PEER_MODEL:
                    runs.append(bench(model, name, "--prompt", "16", "--depth", str(PEER_DEPTH),
                                      "--batch", "4,16"))
                about = {key: runs[0][key] for key in ("cpu_isa", "threads")}
                for run in runs:
                    for figure in run["prefill"] + run["decode"]:
                        samples.setdefault((model, name, figure["name"]), []).append(
                            (figure["tokens_per_s"]["median"], figure["ratio_to_probe"]["median"]))
    write(kind, {**about, "rounds": rounds}, samples)


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
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()).group(1)
    result = {"machine": f"{kind.replace('_', ' ')} ({cpu})", **about, "generate": GENERATE,
              "models": figures}
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def add_peers(kind, samples):
    result = json.loads(path_of(kind).read_text())
    result["about_peers"] = samples.pop("about")
    result["peers"] = {
        peer: {name: {what: {"tokens_per_s": statistics.median(values), "least": min(values),
                             "most": max(values)} for what, values in figures.items()}
               for name, figures in types.items()}
        for peer, types in samples.items()}
    path_of(kind).write_text(json.dumps(result, indent=1) + "\n")


def cell(figures, what):
    figure = figures.get(what)
    if figure is None:
        return "not measured"
    return f"{figure['tokens_per_s']:.0f} ({figure['of_the_limit']:.2f})"


def table(result):
    columns = [(f"prefill {prompt}", f"prefill {prompt}") for prompt in PROMPTS]
    columns += [(f"decode depth 0 batch {batch}", f"decode, {batch}") for batch in BATCHES]
    columns += [(f"decode depth {DEPTHS[1]} batch 1", f"decode, 1, after {DEPTHS[1]}")]
    lines = [f"{result['machine'][0].upper()}{result['machine'][1:]}, {result['cpu_isa']}, "
             f"{result['threads']} threads, medians of {result['rounds']}:", "",
             "| model | linear layers | " + " | ".join(title for _, title in columns) + " |",
             "|---" * (len(columns) + 2) + "|"]
    for model, title, formats in MODELS:
        for name in formats:
            figures = result["models"].get(model, {}).get(name, {})
            cells = [cell(figures, what) for what, _ in columns]
            lines.append(f"| {title} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def servers(result):
    """Ours first: {server: {type of weights: figures}}."""
    return {"diffserve": result["models"][PEER_MODEL], **result["peers"]}


def rate(figures, what):
    return figures[what]["tokens_per_s"] if what in figures else None


def best(types, what):
    return max((rate(figures, what) or 0 for figures in types.values()), default=0)


def peer_table(result):
    columns = servers(result)
    heads = [f"{server}, {' / '.join(types)}" for server, types in columns.items()]
    lines = [f"Llama 778M beside {result['about_peers']}, measured in turns:", "",
             "| | " + " | ".join(heads) + " | our best over theirs |",
             "|---" * (len(heads) + 2) + "|"]
    for what, title in PEER_FIGURES:
        cells = []
        for types in columns.values():
            rates = (rate(figures, what) for figures in types.values())
            cells.append(" / ".join("-" if value is None else f"{value:.0f}" for value in rates))
        theirs = max(best(types, what) for types in result["peers"].values())
        ours = best(columns["diffserve"], what)
        cells.append(f"{ours / theirs:.2f}" if ours and theirs else "not measured")
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


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
    sections, texts = [], {}
    for path in sorted(RESULTS.glob("cpu_*.json")):
        result = json.loads(path.read_text())
        if "models" not in result:
            continue
        sections.append(table(result))
        if "peers" in result:
            picture = path.with_suffix(".svg")
            sections.append(peer_table(result))
            sections.append(f'<img src="{picture.relative_to(ROOT)}" alt="The same as bars" '
                            f'width="{bar_charts.WIDTH}">')
            texts[picture] = plot(result)
    readme = README.read_text()
    begin, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    texts[README] = readme[:begin] + "\n" + "\n\n".join(sections) + "\n" + readme[end:]
    return texts


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="*", help="measure KIND, or peers KIND FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    match arguments.command:
        case []:
            pass
        case ["measure", kind]:
            measure(kind, arguments.rounds)
        case ["peers", kind, file]:
            add_peers(kind, json.loads(Path(file).read_text()))
        case _:
            parser.error("usage: report_cpu.py [measure KIND | peers KIND FILE]")
    texts = outputs()
    if arguments.check:
        failed = [path for path, text in texts.items()
                  if not path.exists() or path.read_text() != text]
        for path in failed:
            print(f"{path.relative_to(ROOT)} is not what the results say")
        print(f"{len(texts) - len(failed)} passed, {len(failed)} failed")
        return int(bool(failed))
    for path, text in texts.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
