#!/usr/bin/env python3
"""Writes the table of CPU figures into README.md from tests/bench/results/cpu_*.json, one table for
each kind of machine.

    report_cpu.py measure KIND [--rounds 5]  runs `diffserve bench` of every model and format in
                                             turns, on a machine without other work; makes
                                             tests/bench/results/cpu_KIND.json and the tables
    report_cpu.py                            rewrites the tables
    report_cpu.py --check                    exits 1 if README.md says something else than the
                                             results; runs nothing. Ends with `N passed, N failed`.

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
                about = {key: runs[0][key] for key in ("cpu_isa", "threads")}
                for run in runs:
                    for figure in run["prefill"] + run["decode"]:
                        samples.setdefault((model, name, figure["name"]), []).append(
                            (figure["tokens_per_s"]["median"], figure["ratio_to_probe"]["median"]))
    figures = {}
    for (model, name, what), values in samples.items():
        rates, ratios = zip(*values)
        figures.setdefault(model, {}).setdefault(name, {})[what] = {
            "tokens_per_s": statistics.median(rates), "least": min(rates), "most": max(rates),
            "of_the_limit": statistics.median(ratios)}
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()).group(1)
    result = {"machine": f"{kind.replace('_', ' ')} ({cpu})", **about, "rounds": rounds,
              "generate": GENERATE, "models": figures}
    (RESULTS / f"cpu_{kind}.json").write_text(json.dumps(result, indent=1) + "\n")


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


def with_section(readme):
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("cpu_*.json"))]
    tables = [table(result) for result in results if "models" in result]
    begin, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    return readme[:begin] + "\n" + "\n\n".join(tables) + "\n" + readme[end:]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measure", nargs="*", help="measure KIND")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    if arguments.measure:
        if len(arguments.measure) != 2 or arguments.measure[0] != "measure":
            parser.error("usage: report_cpu.py measure KIND")
        measure(arguments.measure[1], arguments.rounds)
    readme = README.read_text()
    written = with_section(readme)
    if arguments.check:
        print(f"{int(written == readme)} passed, {int(written != readme)} failed")
        return int(written != readme)
    README.write_text(written)
    return 0


if __name__ == "__main__":
    sys.exit(main())
