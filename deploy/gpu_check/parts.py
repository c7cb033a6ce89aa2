# SPDX-License-Identifier: Apache-2.0
"""The parts of the check, in order, each with its suites and its share of the call's time."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

import suites
from archive import python_with_torch, tool
from runner import Suite

HERE = Path(__file__).parent
# Table 7 of the paper, and how speed grows with the prompt and with the batch.
SWEEP = ("--prompt 512,1024,2048,4096,8000 --depth 512,2048 --batch 1,2,4,8,16,32,64,128,256 "
         "--generate 32 --repeat 3")
TWIN = "--prompt 2048,4096 --depth 2048 --batch 1,64 --generate 32 --repeat 3"
LARGE = "--prompt 2048 --depth 2048 --batch 1,32 --generate 16 --repeat 3"
START_13B_S = 20  # 27 GB of weights
BUNDLED = "--repeat 3 --prompt 32 --depth 32 --batch 256 --generate 128"
# Formats of weights and of pages, and their cases: name, flags.
WEIGHTS = "--prompt 2048 --depth 512 --batch 1,4,16,64"
PAGES = "--prompt 2048 --depth 4096 --batch 1,64"
FORMATS = (
    ("quarter", "--prompt 2048 --depth 512,4096 --batch 1,4,16,64"),
    ("quarter_int8", "--quantization int8 " + WEIGHTS),
    ("quarter_int4", "--quantization int4 " + WEIGHTS),
    (FP8 := "quarter_fp8", "--quantization fp8 " + WEIGHTS),
    ("quarter_pages_int8", "--kv-cache-dtype int8 " + PAGES),
    ("quarter_pages_int4", "--kv-cache-dtype int4 " + PAGES),
    ("quarter_pages_fp8", "--kv-cache-dtype fp8_e4m3 " + PAGES),
    ("quarter_batch_invariant", "--batch-invariant " + WEIGHTS),
)
FP8_CAPABILITY = 89  # compute capability that multiplies fp8 numbers
QUARTER = {"num_hidden_layers": 7, "vocab_size": 25072}  # of diff_3b, in all that a format changes
PROFILED = {"num_hidden_layers": 4}
LOADS = "1x512x128,16x512x128,64x512x128,256x512x128,1x4096x16"  # streams x prompt x answer
SMALL_LOADS = "1x16x4,4x16x4"


@dataclass
class Part:
    name: str
    budget_s: float
    suites: list = field(default_factory=list)
    shares: bool = False  # the card, with the parts beside it that do
    left_out: str = ""  # why

    def has(self, names):
        """Whether it or a suite of it is named."""
        return self.name in names or any(suite.name in names for suite in self.suites)


def bench(archive, name, model, limit_s, flags):
    return Suite(name, [archive.server, "bench", str(model), "--device", "cuda", "--json",
                        *flags.split()], limit_s, environment=archive.environment, is_figure=True)


def random_bench(archive, name, model, limit_s, flags):
    return bench(archive, name, model, limit_s, "--load-format dummy " + flags)


def streams(archive, name, model, limit_s, loads, *flags):
    command = [sys.executable, str(archive.root / "tests/bench/streams.py"), archive.server,
               str(model), "--loads", loads, "--seconds", "{limit_s}", "--flag=--device=cuda"]
    return Suite(name, [*command, *(f"--flag={flag}" for flag in flags)], limit_s, is_figure=True)


def in_turns(archive, before, name, make):
    """The suite `name`; with another archive twice of both, so that a drifting clock meets both."""
    if before is None:
        return [make(archive, name)]
    return [make(which, f"{when}_{name}_{turn}") for turn in (1, 2)
            for when, which in (("before", before), ("after", archive))]


def kernels(archive, before):
    return in_turns(archive, before, "kernels", lambda which, name: Suite(
        name, [which.program, "cuda_bench"], 60, is_figure=True))


def models(archive, before):
    return [*in_turns(archive, before, "diff_3b", lambda which, name: random_bench(
                which, name, archive.model("diff_3b"), 80, SWEEP)),
            random_bench(archive, "transformer_3b", archive.model("transformer_3b"), 60, TWIN),
            bench(archive, "engine", archive.root / "models/demo/diff", 30, BUNDLED)]


def formats(archive, work):
    quarter = archive.changed_model("diff_3b", work / "quarter", **QUARTER)
    return [random_bench(archive, name, quarter, 30, "--generate 16 --repeat 3 " + flags)
            for name, flags in FORMATS]


def serving(archive, work, is_simulated):
    demo = archive.root / "models/demo/diff"
    if is_simulated:
        small = archive.changed_model("../../../models/demo/diff", work / "small")
        return [streams(archive, "serving", small, 60, SMALL_LOADS, "--load-format=dummy",
                        "--max-num-seqs=4", "--max-num-batched-tokens=64")]
    many = "--max-num-seqs=256"
    return [streams(archive, "serving", archive.model("diff_3b"), 70, LOADS, many,
                    "--load-format=dummy"),
            streams(archive, "streams", demo, 30, "256x32x128", many)]


def profile(archive, work, ncu):
    model = archive.changed_model("diff_3b", work / "profiled", **PROFILED)
    return [Suite("profile", [sys.executable, str(HERE / "steps.py"), ncu, archive.server,
                              str(model)], 60, is_figure=True)]


def models_13b(archive):
    suites_13b = [random_bench(archive, name, archive.model(name), 90, LARGE)
                  for name in ("diff_13b", "transformer_13b")]
    for suite in suites_13b:
        suite.needs_s = START_13B_S
    return suites_13b


def proofs(archive, logs, sample, is_simulated):
    sanitizer = tool("compute-sanitizer")
    shards = Part("sanitizer", 5, shares=True)
    if is_simulated:
        shards.left_out = "needs a GPU"
    elif sanitizer is None:
        shards.suites = [Suite("sanitizer", ["compute-sanitizer"], 5)]  # which fails by name
    else:
        shards.suites = suites.sanitizer(archive, logs, sanitizer)
    return [Part("suites", 35, suites.correctness(archive, logs, sample), True),
            Part("exactness", 15, suites.exactness(archive, sys.executable, sample), True), shards]


def figures(archive, before, work, capability):
    """Of a GPU. The largest models are last: their start takes the longest."""
    python, ncu = python_with_torch(), tool("ncu")
    peers = Part("peers", 25, left_out="" if python else "PyTorch is not on this machine")
    if python:
        peers.suites = [Suite("peers", [python, str(HERE / "peers.py"), "{limit_s}"], 60,
                              is_figure=True)]
    steps = Part("profile", 24, left_out="" if ncu else "ncu is not on this machine")
    if ncu:
        steps.suites = profile(archive, work, ncu)
    quarter = formats(archive, work)
    refused = []
    if capability < FP8_CAPABILITY:
        quarter = [suite for suite in quarter if suite.name != FP8]
        refused.append(Part(FP8, 0, left_out="the device multiplies no fp8 numbers"))
    return [Part("kernels", 6, kernels(archive, before)),
            Part("models", 45, models(archive, before)), Part("formats", 38, quarter), *refused,
            Part("serving", 22, serving(archive, work, False)), peers, steps,
            Part("models_13b", 20, models_13b(archive))]


def simulated_figures(archive, work):
    names = ("kernels", "models", "formats", "peers", "profile", "models_13b")
    return [Part("serving", 22, serving(archive, work, True)),
            *(Part(name, 0, left_out="needs a GPU") for name in names)]


def all_parts(archive, before, device, logs, work, sample):
    """Its files go to the folder `work`."""
    first = [Suite("smoke", [archive.program, "cuda_bench", "--smoke"], 60)]
    if archive.server != archive.program:
        first.append(Suite("wheel", [archive.server, "--version"], 30))
    is_simulated = device["simulated"]
    return [Part("device", 5, first), *proofs(archive, logs, sample, is_simulated),
            *(simulated_figures(archive, work) if is_simulated else
              figures(archive, before, work, device["compute_capability"]))]
