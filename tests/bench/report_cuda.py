#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the tables of docs/results/gpu.md from tests/bench/results/cuda_*.json: the figures beside
their aims, a column for each kind of GPU, then the tables of each (cuda_tables.py).

    report_cuda.py                         rewrites the block
    report_cuda.py --check                 exits 1 if the block differs from the results; runs
                                           nothing
    report_cuda.py --combine FILE...       makes tests/bench/results/cuda_<GPU>.json of the files
                                           results.json of deploy/gpu_check/run.py

Only the standard library is needed. Where a figure is missing the table says so; none is made up.
Ends with `N passed, N failed` for --check.
"""

import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402
import cuda_tables  # noqa: E402

RESULTS = ROOT / "tests/bench/results"
NO_TESTS = ("device", "smoke", "wheel", "arguments")  # suites of the check
SANITIZERS = ("memcheck", "synccheck", "racecheck")
PAPER = {2048: 46811, 4096: 44521}  # the paper's tokens/s (arXiv 2410.05258)


def number(value, digits):
    return f"{value:,.{digits}f}"


def pair(values, digits, unit=""):
    """"a / b" of what is there; None if nothing is."""
    shown = [None if value is None else number(value, digits) + unit for value in values]
    return None if all(value is None for value in shown) else " / ".join(value or "missing"
                                                                         for value in shown)


def kernel(result, name):
    return result.get("kernels", {}).get("figures", {}).get(name)


def decode_share(result):
    figures = result.get("kernels", {}).get("figures", {})
    shares = sorted(value for name, value in figures.items()
                    if name.startswith("decode_share_") and value is not None)
    return f"{shares[0]:.2f} to {shares[-1]:.2f} over {len(shares)} shapes" if shares else None


def against_calls(result):
    cells = []
    for head_dim in (128, 64):
        names = [
            f"decode_over_{calls}_calls_v1_d{head_dim}_batch16_length4096"
            for calls in ("four", "two")
        ]
        shown = pair([kernel(result, name) for name in names], 2, "x")
        cells += [f"{shown} (d={head_dim})"] if shown else []
    return ", ".join(cells) or None


def one_operation(result):
    cells = [(groups, kernel(result,
                             f"op_us_v1_d128_heads{heads}_groups{groups}_batch1_length4096"))
             for heads, groups in ((16, 4), (12, 12))]
    return ", ".join(f"{value:.1f} us ({groups} KV groups)"
                     for groups, value in cells if value is not None) or None


def prefill(head_dim):
    def cell(result):
        names = [
            f"prefill_v1_d{head_dim}_{mask}"
            for mask in ("full_2048_rows_after_15360", "causal_16384")
        ]
        speed = pair([kernel(result, name + "_tflop_per_s") for name in names], 0)
        share = pair([kernel(result, name + "_of_cublas") for name in names], 2)
        return f"{speed}; {share} of cuBLAS" if speed and share else speed
    return cell


def bench_figure(result, run, kind, name, field="tokens_per_s"):
    """The median of `diffserve bench`'s figure, or a plain field of it."""
    for figure in result.get(run, {}).get(kind, []):
        if figure["name"] == name:
            return figure[field]["median"] if isinstance(figure[field], dict) else figure[field]
    return None


def forward(result):
    speeds = [bench_figure(result, "diff_3b", "prefill", f"prefill {tokens}") for tokens in PAPER]
    return pair(speeds, 0)


def against_twin(result):
    changes = []
    for tokens in PAPER:
        diff, twin = (bench_figure(result, run, "prefill", f"prefill {tokens}")
                      for run in ("diff_3b", "transformer_3b"))
        changes.append(None if diff is None or twin is None else 100 * (diff / twin - 1))
    return pair(changes, 1, " %")


def decode_step(result):
    read = kernel(result, "hbm_read_gb_per_s")
    shares = []
    for batch in (1, 64):
        name = f"decode depth 2048 batch {batch}"
        speed = bench_figure(result, "diff_3b", "decode", name)
        needed = bench_figure(result, "diff_3b", "decode", name, "bytes_per_token")
        shares.append(None if None in (read, speed, needed) else speed * needed / (read * 1e9))
    return pair(shares, 2)


def server(result):
    engine = bench_figure(result, "engine", "decode", "decode depth 32 batch 256")
    speeds = [load["out_tokens_per_s"] for load in result.get("streams", {}).get("loads", [])]
    return None if engine is None or not speeds else number(speeds[0] / engine, 2)


ROWS = [
    ("decode attention bf16, KV of 256 MB and more: share of measured HBM read", "0.85", "0.93",
     decode_share),
    ("decode against four plain calls / two calls on the same data", "1.7x / 1.3x", "1.95x / 1.45x",
     against_calls),
    ("one whole attention op, batch 1, 4k context (in a graph, without the step's plan)", "12 us",
     "7 us", one_operation),
    ("prefill d=128, 16k, full / causal, TFLOP/s (12d count)", "560 / 500", "680 / 600",
     prefill(128)),
    ("prefill d=64, 16k, full / causal, TFLOP/s (12d count)", "440 / 400", "560 / 520",
     prefill(64)),
    ("Diff-3B of the paper, forward tokens/s at 2K / 4K", "46,811 / 44,521 (the paper's)", "2x",
     forward),
    ("the same against the Transformer twin in our engine", "-4 %", "-2 %", against_twin),
    ("Diff-3B decode step, batch 1 / 64 at 2k context: bytes needed over HBM read", "0.75 / 0.75",
     "0.88 / 0.85", decode_step),
    ("server: tokens/s of 256 streams over the bare engine (bundled model)", "0.95", "0.99",
     server),
]


def section(results):
    rows = [[label, aim, moonshot, *(cell(result) or "not measured" for result in results)]
            for label, aim, moonshot, cell in ROWS]
    parts = ["## Against the aims", blocks.table(
        ["figure", "aim", "moonshot", *(result["gpu"] for result in results)], rows)]
    for result in results:
        names = ("hbm_read_gb_per_s", "cublas_bf16_8192_tflop_per_s", "launch_us",
                 "launch_in_graph_us")
        values = [kernel(result, name) for name in names]
        shown = [
            "missing" if value is None else number(value, digits)
            for value, digits in zip(values, (0, 0, 2, 2))
        ]
        parts += [f"## {result['gpu']}", blocks.paragraph(
            f"Commit {result['commit']}. In the same run: HBM read {shown[0]} GB/s, cuBLASLt bf16 "
            f"8192^3 {shown[1]} TFLOP/s, an empty kernel {shown[2]} us from a stream and "
            f"{shown[3]} us in a graph."), *cuda_tables.tables(result)]
    return parts


def proofs(calls):
    """Tests passed, failed and skipped on the card, by kind; what only measures has none."""
    kinds = {"backend": [0, 0, 0], "end_to_end": [0, 0, 0], "sanitizer": [0, 0, 0]}
    for call in calls:
        for name, *counts in call["suites"]:
            if name in call["parts"] or name in NO_TESTS:
                continue
            kind = ("end_to_end" if name.startswith("e2e_") else
                    "sanitizer" if name.startswith(SANITIZERS) else "backend")
            kinds[kind] = [total + count for total, count in zip(kinds[kind], counts)]
    return kinds


def combine(paths):
    """One JSON file of the parts of several calls on one GPU with one archive."""
    calls = [json.loads(Path(path).read_text()) for path in paths]
    made_by = {(call["device"]["name"], call["commit"]) for call in calls}
    parts = {name: part for call in calls for name, part in call["parts"].items()}
    if len(made_by) != 1 or "kernels" not in parts:
        print(f"report_cuda.py: {len(made_by)} GPUs and commits instead of one, or no figures of "
              "the kernels", file=sys.stderr)
        return 1
    gpu, commit = made_by.pop()
    result = {"gpu": gpu, "commit": commit, "proofs": proofs(calls), **parts}
    path = RESULTS / f"cuda_{re.sub(r'[^a-z0-9]+', '_', gpu.lower()).strip('_')}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {path}")
    return 0


def main(arguments):
    if arguments[:1] == ["--combine"] and len(arguments) > 1:
        return combine(arguments[1:])
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    results = [json.loads(path.read_text()) for path in sorted(RESULTS.glob("cuda_*.json"))]
    return blocks.settle(blocks.with_block("gpu", *section(results)), bool(arguments))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
