#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the time of a step goes: each kernel of one prompt and of one step of batch 1 and 64, in
order, as NVIDIA's profiler ncu sees them.

    steps.py NCU PROGRAM MODEL_DIR

Prints one JSON object: name, microseconds and MB read from memory of each kernel. The profiler's
durations are longer than those without it. Only the standard library is needed.
"""

import csv
import io
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROMPT, DEPTH, BATCHES = 2048, 2048, (1, 64)
DURATION, READ = "gpu__time_duration.sum", "dram__bytes_read.sum"
# A step's first and last kernel, and what `bench` runs before and after each sample of decode.
FIRST, LAST, PROBE = "EmbeddingLookup", "SampleKernel", "ReadStream"
NAME_MAX = 80


def command(ncu, program, model, log):
    return [ncu, "--csv", "--log-file", log, "--print-units", "base", "--metrics",
            f"{DURATION},{READ}", "--clock-control", "none", "--cache-control", "none", program,
            "bench", model, "--device", "cuda", "--load-format", "dummy", "--repeat", "1",
            "--generate", "2", "--prompt", str(PROMPT), "--depth", str(DEPTH), "--batch",
            ",".join(str(batch) for batch in BATCHES)]


def kernels(text):
    """Name, microseconds and MB of each launch: ncu's CSV has a row for each metric of it."""
    found = {}
    for row in csv.DictReader(io.StringIO(text[text.index('"ID"'):])):
        if row["Metric Name"] in (DURATION, READ):
            kernel = found.setdefault(row["ID"], {"name": row["Kernel Name"]})
            kernel[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [[re.sub(r"^void |\([^()]*\)$", "", kernel["name"])[:NAME_MAX],
             round(kernel[DURATION] * 1e-3, 2), round(kernel[READ] * 1e-6, 2)]
            for kernel in found.values()]


def samples(launches):
    """The whole steps between two probes of memory, where there are any."""
    groups, step = [[]], None
    for kernel in launches:
        if PROBE in kernel[0]:
            groups += [[]] if groups[-1] else []
            step = None
        elif FIRST in kernel[0]:
            step = [kernel]
        elif step is not None:
            step.append(kernel)
            if LAST in kernel[0]:
                groups[-1].append(step)
                step = None
    return [group for group in groups if group]


def steps(launches):
    """The prompt is the longest step. Each batch has a group with its first steps and one with its
    sample, and the batches come last."""
    groups = samples(launches)
    if len(groups) < 2 * len(BATCHES):
        raise ValueError(f"{len(groups)} groups of steps in {len(launches)} kernels")
    every = [step for group in groups for step in group]
    found = {f"prompt_{PROMPT}": max(every, key=lambda step: sum(us for _, us, _ in step))}
    for number, batch in enumerate(reversed(BATCHES)):
        found[f"decode_batch{batch}_depth{DEPTH}"] = groups[-1 - 2 * number][-1]
    return found


def main():
    if len(sys.argv) != 4:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log.csv"
        done = subprocess.run(command(*sys.argv[1:], str(log)), stdout=subprocess.DEVNULL)
        text = log.read_text() if log.exists() else ""
    if done.returncode != 0 or '"ID"' not in text:
        print(f"ncu ended with {done.returncode}: {text.strip().splitlines()[-1:]}")
        return 1
    print(json.dumps({"unit": "kernel, microseconds, MB read from memory"} | steps(kernels(text))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
