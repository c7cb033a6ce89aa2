#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compiles every CUDA kernel with the build's own command lines and judges what ptxas reports.
Needs a CUDA toolkit, no GPU.

Usage: compile_gate.py [BUILD] [--update]. BUILD is a build folder of preset cuda-release (default
build/cuda-release; configured if it is not there). A kernel fails if it spills, if it keeps local
memory and lies in kernels/attention (SPILLS says which may do both, and why), if ptxas serialises
its wgmma instructions (C7510 to C7519), or if its registers or static shared memory differ from
kernels/cuda_resources.json, which --update rewrites. Hopper's machine code must keep the rules of
sass_walk.py. The PTX that newer GPUs compile at first use must pass ptxas for sm_100 and sm_120.
Prints `N passed, N failed` last; exit code 1 on any failure.
"""

import argparse
import collections
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import sass_walk

ROOT = Path(__file__).resolve().parents[2]
TABLE = ROOT / "kernels/cuda_resources.json"
NO_LOCAL_MEMORY = "kernels/attention/"
# Kernels that may spill and keep local memory, by the end of their template arguments, and why.
SPILLS = {
    r", 256, 512, 2(, (true|false))?>$":
        "a warp's 16 rows of 512 columns of V are 256 registers per thread, all that there are",
    r"DiffPrefillKernel<.*BFloat16Codec, 256, 256, 1>$":
        "whether there is a second map, kept in 8 bytes from one tile to the next",
}
JIT_TARGETS = ("sm_100", "sm_120")

ENTRY = re.compile(r"ptxas info\s*: Compiling entry function '(\S+)' for '(\w+)'")
FUNCTION = re.compile(r"ptxas info\s*: Function properties for (\S+)")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
USED = re.compile(r"ptxas info\s*: Used (\d+) registers(.*)")
SHARED = re.compile(r"(\d+) bytes smem")
SERIALISED = re.compile(r"\(C751\d\).*")
MANGLED_IN_QUOTES = re.compile(r"'(_Z\w+)'")


@dataclasses.dataclass
class Kernel:
    name: str  # mangled until demangle()
    target: str  # "sm_80"
    is_local: bool = False  # in an unnamed namespace, or with a type of one
    registers: int = 0
    shared_bytes: int = 0
    stack_bytes: int = 0  # of its own frame and those of the functions it calls
    spill_bytes: int = 0


@dataclasses.dataclass
class Report:
    kernels: list = dataclasses.field(default_factory=list)
    serialised: list = dataclasses.field(default_factory=list)  # messages


def parse_report(text):
    """What one run of nvcc with -Xptxas -v printed. A called function's frame and spills count for
    the kernel reported before it."""
    report = Report()
    for line in text.splitlines():
        if match := ENTRY.search(line):
            report.kernels.append(Kernel(match[1], match[2], "_GLOBAL__N__" in match[1]))
        elif match := SERIALISED.search(line):
            report.serialised.append(match.group())
        elif (match := STACK.search(line)) and report.kernels:
            report.kernels[-1].stack_bytes += int(match[1])
            report.kernels[-1].spill_bytes += int(match[2]) + int(match[3])
        elif (match := USED.search(line)) and report.kernels:
            report.kernels[-1].registers = int(match[1])
            shared = SHARED.search(match[2])
            report.kernels[-1].shared_bytes = int(shared[1]) if shared else 0
    return report


def without_hashes(mangled):
    """nvcc puts a hash of the file's path into the name of an anonymous namespace; the number
    before the name is its length."""
    while match := re.search(r"(\d+)_GLOBAL__N__", mangled):
        mangled = mangled[:match.start()] + "12_GLOBAL__N_1" + mangled[match.end(1) +
                                                                       int(match[1]):]
    return mangled


def demangle(names):
    """"diffserve::cuda::RmsNormKernel<8>" for each."""
    plain = "".join(without_hashes(name) + "\n" for name in names)
    output = subprocess.run(["c++filt"], input=plain, capture_output=True, text=True,
                            check=True).stdout.splitlines()
    return [
        re.sub(r"\(.*\)$", "",
               name.removeprefix("void ").replace("(anonymous namespace)::", "")) for name in output
    ]


def judge_kernel(source, kernel):
    """Findings that need no table."""
    if kernel.registers == 0:
        yield "the report says nothing about its registers"
    if kernel.is_local:
        yield "its name has a hash of the build's folder: move it out of the unnamed namespace"
    if any(re.search(pattern, kernel.name) for pattern in SPILLS):
        return
    if kernel.spill_bytes:
        yield f"spills {kernel.spill_bytes} bytes (stores and loads)"
    if kernel.stack_bytes and source.startswith(NO_LOCAL_MEMORY):
        yield (f"keeps {kernel.stack_bytes} bytes of local memory; none is allowed in "
               f"{NO_LOCAL_MEMORY}")


def judge_against_table(key, kernel, table):
    recorded = table.get(key, {}).get(kernel.target)
    if recorded is None:
        yield "is not in the table (--update)"
        return
    for what, now, before in zip(("registers", "bytes of static shared memory"),
                                 (kernel.registers, kernel.shared_bytes), recorded):
        if now != before:
            yield f"{now} {what}, the table has {before} (--update if that is meant)"


def judge(reports, table):
    """(name, findings) of every kernel and target, of each file's wgmma messages, and of the
    table's own entries. reports: source -> Report with readable names. Without a table (another
    compiler than the recorded one) only the absolute rules count."""
    seen = set()
    for source, report in reports.items():
        for kernel in report.kernels:
            key = f"{source} {kernel.name}"
            findings = list(judge_kernel(source, kernel))
            if (key, kernel.target) in seen:
                findings.append("two kernels of this name in one file")
            if table is not None:
                findings += judge_against_table(key, kernel, table)
            seen.add((key, kernel.target))
            yield f"{key} {kernel.target}", findings
        yield f"{source}: wgmma runs asynchronously", report.serialised
        if not report.kernels:
            yield source, ["holds no kernel"]
    if table is not None:
        recorded = {(key, target) for key, targets in table.items() for target in targets}
        yield "the table", [
            f"{key} {target} is gone (--update)" for key, target in sorted(recorded - seen)
        ]


def table_of(reports):
    table = {}
    for source, report in reports.items():
        for kernel in report.kernels:
            table.setdefault(f"{source} {kernel.name}",
                             {})[kernel.target] = [kernel.registers, kernel.shared_bytes]
    return table


def write_table(compiler, table, path):
    """One line a kernel, so that a difference shows what changed."""
    lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(table[key], sort_keys=True)}"
                       for key in sorted(table))
    path.write_text(
        f'{{\n  "compiler": {json.dumps(compiler)},\n'
        f'  "columns": ["registers", "static shared memory, bytes"],\n'
        f'  "kernels": {{\n{lines}\n  }}\n}}\n')


def build(folder):
    """Compiles what is not up to date; returns nvcc's path."""
    if not (folder / "CMakeCache.txt").is_file():
        subprocess.run(["cmake", "--preset", "cuda-release", "-B",
                        str(folder)], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", str(folder), "--target", "cuda_kernels"], check=True,
                   stdout=subprocess.DEVNULL)
    return Path(
        re.search(r"^DIFFSERVE_NVCC:\w+=(.*)$", (folder / "CMakeCache.txt").read_text(), re.M)[1])


def version_of(nvcc):
    return re.search(
        r"\bV([\d.]+)",
        subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout)[1]


def read_reports(folder):
    """(source -> Report, [object])"""
    reports, objects = {}, []
    for line in (folder / "kernels/cuda_sources.txt").read_text().splitlines():
        source, compiled, report = line.split("\t")
        parsed = parse_report(Path(report).read_text())
        for kernel, name in zip(parsed.kernels,
                                demangle([kernel.name for kernel in parsed.kernels])):
            kernel.name = name
        reports[str(Path(source).relative_to(ROOT))] = parsed
        objects.append(Path(compiled))
    return reports, objects


def judge_jit(compiled, bin_folder):
    """(name, findings) for each newer GPU that would compile the object's PTX when it is first
    used. An object that passed once has a stamp beside it and is not tried again."""
    stamp = compiled.with_suffix(".jit_passed")
    if stamp.is_file() and stamp.stat().st_mtime >= compiled.stat().st_mtime:
        yield f"{compiled.name}: its PTX has passed for newer GPUs", []
        return
    if "_sm90a_" in compiled.name:  # has machine code for Hopper alone
        return
    clean = True
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([bin_folder / "cuobjdump", "--extract-ptx", "all", compiled], cwd=folder,
                       check=True, stdout=subprocess.DEVNULL)
        texts = sorted(Path(folder).glob("*.ptx"))
        if not texts:
            clean = False
            yield f"{compiled.name}: PTX for newer GPUs", ["there is none"]
        for text in texts:
            for target in JIT_TARGETS:
                done = subprocess.run([
                    bin_folder / "ptxas", "-O1", f"-arch={target}", text, "-o",
                    Path(folder) / "out.cubin"
                ], capture_output=True, text=True, check=False)
                clean = clean and done.returncode == 0
                found = [done.stderr.strip()] if done.returncode else []
                yield f"{compiled.name}: its PTX for {target}", found
    if clean:
        stamp.touch()


def judge_sass(compiled, bin_folder):
    """What sass_walk.judge says about the object's code for Hopper. cuobjdump calls nvdisasm."""
    command = [bin_folder / "cuobjdump", "-sass", "-arch", "sm_90a", compiled]
    environment = dict(os.environ, PATH=f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        verdicts, counts = sass_walk.judge(process.stdout)
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    names = demangle([name for name, _, _ in verdicts])
    return [(f"{compiled.name} {name}: {rule}", findings)
            for name, (_, rule, findings) in zip(names, verdicts)], counts


def judge_counts(counts):
    """(name, findings) of each rule of sass_walk.py."""
    for rule in sass_walk.RULES:
        yield f"{rule}: {counts[rule]} looked at", [] if counts[rule] else ["that is nothing"]


def main(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", nargs="?", type=Path, default=ROOT / "build/cuda-release")
    parser.add_argument("--update", action="store_true",
                        help="record registers and shared memory as they are now")
    options = parser.parse_args(arguments)
    try:
        nvcc = build(options.build)
    except subprocess.CalledProcessError as error:
        print(
            f"{error.cmd} failed: is there a CUDA toolkit (deploy/install_cuda.sh)?\n0 passed, 1 "
            f"failed"
        )
        return 1
    compiler = version_of(nvcc)
    reports, objects = read_reports(options.build)
    if options.update:
        write_table(compiler, table_of(reports), TABLE)
    recorded = json.loads(TABLE.read_text())
    table = recorded["kernels"] if recorded["compiler"] == compiler else None
    if table is None:
        print(
            f"{TABLE.name} was recorded with nvcc {recorded['compiler']}, this is {compiler}: its "
            f"figures are not compared"
        )
    checks = list(judge(reports, table))
    counts = collections.Counter()
    for compiled in objects:
        checks += judge_jit(compiled, nvcc.parent)
        verdicts, found = judge_sass(compiled, nvcc.parent)
        checks += verdicts
        counts += found
    checks += judge_counts(counts)
    print(", ".join(name for name, _ in judge_counts(counts)))
    for name, findings in checks:
        for finding in findings:
            print(
                f"{name}: {MANGLED_IN_QUOTES.sub(lambda match: demangle([match[1]])[0], finding)}")
    failed = sum(bool(findings) for _, findings in checks)
    print(f"{len(checks) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
