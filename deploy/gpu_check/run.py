#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can prove or measure, from an unpacked archive of `deploy/gpu_check.sh collect`,
in one call of at most 240 seconds on 16 cores.

    run.py all [--only PART_OR_SUITE...] [--wheel FILE] [--before DIR]

Parts: device; suites, exactness and sanitizer side by side; then alone on the card kernels, models,
formats, serving, peers, profile, models_13b. A part has a share of the time, and what those before
it left; what gets no time says so: a proof has failed then, a figure is left out. Each suite is a
process of its own with its own limit. A line per suite; the last line is one JSON object. OUT gets
results.json, written anew after each suite, and logs. Exit code 1 if anything failed. Needs Python
3.9, an NVIDIA driver, cuBLASLt 13 and no network.
"""

import argparse
import json
import os
import shutil
import signal
import sys
import tarfile
import tempfile
import traceback
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import suites  # noqa: E402
from archive import Archive  # noqa: E402
from parts import all_parts  # noqa: E402
from runner import Runner, Suite  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CALL_S = 230  # what reaches the end of it may take some seconds more to end
GIB_PER_JOB = 4  # of the device's memory
JSON_CHARACTERS_MAX = 9000  # of the last line, which is read at the end of a long output
LOG_BYTES_MAX = 1 << 20  # of each log in the archive: its beginning and its end


class Call:
    """Its files, besides the results, go to the folder `work`."""

    def __init__(self, options, work):
        self.options, self.out, self.work = options, Path(options.out), Path(work)
        self.out.mkdir(parents=True, exist_ok=True)
        self.archive = Archive(ROOT)
        self.device, self.jobs = None, options.jobs
        self.runner = Runner(self.out / "logs", options.seconds, suites.KNOWN_SKIPS,
                             suites.KNOWN_ALARMS)
        self.runner.on_result = self.write
        signal.signal(signal.SIGTERM, lambda *_: self.runner.cut())

    def open_device(self):
        """Whether the program can use the device."""
        self.runner.run(Suite("device", [self.archive.program, "cuda_device"], 60, is_figure=True))
        self.device = self.runner.figures.pop("device", None)
        if self.device is None:
            return False
        jobs = len(os.sched_getaffinity(0))
        if self.device["simulated"]:
            self.runner.known_skips += suites.KNOWN_SKIPS_SIMULATED
            self.archive.environment |= suites.SIMULATED_ENVIRONMENT
            self.runner.patience = 5
        else:
            jobs = max(1, min(jobs, (self.device["memory_bytes"] >> 30) // GIB_PER_JOB))
            if self.device["compute_capability"] // 10 != 9:
                self.runner.known_skips += suites.KNOWN_SKIPS_BEFORE_HOPPER
        self.jobs = self.jobs or jobs
        return True

    def prepare(self):
        """The parts that are wanted, with the suites of them that are."""
        options, before = self.options, None
        if options.wheel:
            self.archive.use_wheel(options.wheel, self.work / "wheel")
        if options.before:
            before = Archive(options.before)
        for archive in filter(None, (self.archive, before)):
            if not self.device["simulated"]:
                archive.link_cublas()
        parts = all_parts(self.archive, before, self.device, self.runner.logs, self.work,
                          options.sample)
        if not options.only:
            return parts
        known = {part.name for part in parts}.union(
            *({suite.name for suite in part.suites} for part in parts))
        if unknown := set(options.only) - known:
            self.runner.fail("arguments", [f"no part or suite is called {name}"
                                           for name in sorted(unknown)])
        parts = [part for part in parts if part.has(options.only)]
        for part in parts:
            if part.name not in options.only:
                part.suites = [suite for suite in part.suites if suite.name in options.only]
        return parts

    def run(self):
        if not self.open_device():
            return
        parts = self.prepare()
        whole = sum(part.budget_s for part in parts) or 1
        end, left = self.runner.clock(), self.runner.left_s()
        for shares, group in groupby(parts, key=lambda part: part.shares):
            group = list(group)
            end += left * sum(part.budget_s for part in group) / whole
            self.runner.end = end
            for part in group:
                if part.left_out:
                    self.runner.leave_out(part.name, part.left_out)
            self.runner.run_all([suite for part in group for suite in part.suites],
                                self.jobs if shares else 1)

    def results(self):
        runner = self.runner
        return {
            "device": self.device, "commit": (ROOT / "commit").read_text().strip(),
            "wheel": self.options.wheel and Path(self.options.wheel).name, "jobs": self.jobs,
            "passed": runner.total("passed"), "failed": runner.total("failed"),
            "skipped": runner.total("skipped"), "left_out": runner.left_out,
            "suites": [[found.name, found.passed, found.failed, found.skipped,
                        round(found.seconds, 1), found.remark] for found in runner.results],
            "failures": [name for found in runner.results for name in found.failures],
        }

    def write(self):
        """At each moment results.json is whole, so a call may be cut at any."""
        new = self.out / "results.json.new"
        whole = self.results() | {"parts": self.runner.figures}
        new.write_text(json.dumps(whole, indent=1) + "\n")
        new.replace(self.out / "results.json")

    def finish(self):
        self.write()
        pack_logs(self.runner.logs, self.out / "logs.tgz")
        result = self.results()
        print(shortened(result, self.runner.figures), flush=True)
        return 1 if result["failed"] else 0


def brief(figures):
    """The medians of a run of `bench`, the speeds of a server, or the figures of the kernels."""
    speeds = {case["name"]: round(case["tokens_per_s"]["median"])
              for kind in ("prefill", "decode") for case in figures.get(kind, [])}
    for load in figures.get("loads", []):
        name = f"{load['streams']} streams of {load['in']} and {load['out']}"
        speeds[name] = round(load["out_tokens_per_s"])
    return speeds or figures.get("figures")


def shortened(result, parts):
    """One line of JSON with as much as fits: failures are cut first, then figures go."""
    found = {name: shown for name, figures in parts.items() if (shown := brief(figures))}
    kernels = {name: shown for name, shown in found.items() if name == "kernels"}
    for failures, figures in ((60, found), (20, found), (20, kernels), (5, {})):
        text = json.dumps(result | {
            "failures": [name[:150] for name in result["failures"][:failures]],
            "figures": figures}, separators=(",", ":"))
        if len(text) <= JSON_CHARACTERS_MAX:
            break
    return text


def pack_logs(logs, packed):
    with tarfile.open(packed, "w:gz") as tar:
        for log in sorted(logs.iterdir()):
            data = log.read_bytes()
            if len(data) > LOG_BYTES_MAX:
                half = LOG_BYTES_MAX // 2
                log.write_bytes(data[:half] + b"\n[...]\n" + data[-half:])
            tar.add(log, f"logs/{log.name}")
    shutil.rmtree(logs)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", choices=("all",))
    parser.add_argument("--only", nargs="+", default=[], metavar="PART_OR_SUITE")
    parser.add_argument("--wheel", metavar="FILE", help="its diffserve takes the archive's place "
                        "in bit equality, models and the server")
    parser.add_argument("--before", metavar="DIR", help="another archive, unpacked: the figures of "
                        "kernels and of diff_3b are measured with both in turns")
    parser.add_argument("--jobs", type=int, metavar="N", help="suites side by side; by default the "
                        "cores, and a suite for each 4 GiB of the device's memory at most")
    parser.add_argument("--out", default="gpu_check_out")
    parser.add_argument("--seconds", type=float, default=CALL_S)
    parser.add_argument("--sample", type=int, default=1, metavar="N",
                        help="every Nth test of each suite, every Nth file of bit equality")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        call = Call(options, work)
        try:
            call.run()
        except Exception as error:  # what has run is reported all the same
            traceback.print_exc(file=sys.stdout)
            call.runner.fail("run.py", [f"{type(error).__name__}: {error}"])
        return call.finish()


if __name__ == "__main__":
    sys.exit(main())
