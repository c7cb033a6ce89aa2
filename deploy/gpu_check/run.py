#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What only a GPU can prove or measure, from an unpacked archive of `deploy/gpu_check.sh collect`,
in three calls of at most 9 minutes. Each is useful by itself.

    run.py check    a smoke test, every suite of cuda_test, then figures of the kernels
    run.py figures  whole models, pairs with an archive unpacked at --before, profiles
    run.py prove    compute-sanitizer's shards, bit-equality end to end

SUITE... after the call: only these suites. Each suite is a process of its own with its own limit.
A line per suite; the last line is one JSON object. OUT gets results.json and logs.tgz. Exit code 1
if anything failed. Needs Python 3.9, an NVIDIA driver, cuBLASLt 13 and no network.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tarfile
import traceback
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import suites  # noqa: E402
from runner import Runner  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
CALL_S = 530
JSON_CHARACTERS_MAX = 9000  # of the last line, which is read at the end of a long output
LOG_BYTES_MAX = 1 << 20  # of each log in the archive: its beginning and its end
CUBLAS = "libcublasLt.so.13"
CUBLAS_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib",
                  "/usr/lib/x86_64-linux-gnu")
PYTHON_CUBLAS = "import nvidia; print(*(path + '/cu13/lib' for path in nvidia.__path__), sep='\\n')"


def link_cublas():
    """Puts the machine's own cuBLASLt among the program's libraries, where its run path looks."""
    link = ROOT / "lib" / CUBLAS
    if link.exists():
        return
    python = subprocess.run([shutil.which("python3") or sys.executable, "-c", PYTHON_CUBLAS],
                            capture_output=True, text=True).stdout.split("\n")
    for folder in (*filter(None, python), *CUBLAS_FOLDERS):
        if (found := Path(folder) / CUBLAS).exists():
            link.unlink(missing_ok=True)
            link.symlink_to(found)
            return
    print(f"-- no {CUBLAS} found in Python's packages or in {', '.join(CUBLAS_FOLDERS)}")


def tool(name):
    """The path of one of NVIDIA's tools, or None."""
    beside = sorted(Path("/usr/local").glob(f"cuda*/bin/{name}"))
    return shutil.which(name) or (str(beside[-1]) if beside else None)


class Call:
    def __init__(self, options):
        self.options, self.out = options, Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.archive = suites.Archive(ROOT)
        self.parts, self.device = {}, None
        self.runner = Runner(self.out / "logs", options.seconds, suites.KNOWN_SKIPS,
                             suites.KNOWN_ALARMS)

    def wants(self, name):
        return not self.options.suites or name in self.options.suites

    def run(self, all_suites):
        for suite in all_suites:
            if self.wants(suite.name):
                self.runner.run(suite)

    def measure(self, suite):
        """Runs a suite that prints one JSON object, which becomes a part of the results."""
        if not self.runner.run(suite):
            return
        text = self.runner.log(suite.name).read_text()
        try:
            self.parts[suite.name] = json.loads(text[text.index("{"):text.rindex("}") + 1])
        except ValueError:
            self.runner.fail(f"{suite.name}_json", ["no JSON object was printed"])

    def measure_wanted(self, suite):
        if self.wants(suite.name):
            self.measure(suite)

    def open_device(self):
        """Whether the program can use the device."""
        self.measure(suites.Suite("device", [self.archive.program, "cuda_device"], 60))
        self.device = self.parts.pop("device", None)
        if self.device is None:
            return False
        if self.device["simulated"]:
            self.runner.known_skips += suites.KNOWN_SKIPS_SIMULATED
            self.archive.environment["DIFFSERVE_FUZZ_SECONDS"] = "2"
            self.runner.patience = 5
            return True
        link_cublas()
        if self.device["compute_capability"] // 10 != 9:
            self.runner.known_skips += suites.KNOWN_SKIPS_BEFORE_HOPPER
        return True

    def check(self):
        smoke = suites.Suite("smoke", [self.archive.program, "cuda_bench", "--smoke"], 60)
        self.run([smoke, *suites.correctness(self.archive, self.runner.logs, self.options.sample)])
        if not self.device["simulated"]:
            self.measure_wanted(suites.kernel_figures(self.archive))

    def figures(self):
        for suite in suites.model_figures(self.archive, sys.executable):
            self.measure_wanted(suite)
        if self.options.before:
            before = suites.Archive(self.options.before)
            for round_ in (1, 2):  # in turns, so that a drifting clock meets both
                self.measure_wanted(suites.kernel_figures(before, f"before_{round_}"))
                self.measure_wanted(suites.kernel_figures(self.archive, f"after_{round_}"))
        if ncu := tool("ncu"):
            self.run(suites.profiles(self.archive, ncu))
        else:
            print("-- no profiles: ncu is not on this machine")

    def prove(self):
        if sanitizer := tool("compute-sanitizer"):
            self.run(suites.sanitizer(self.archive, self.runner.logs, sanitizer))
        elif not self.device["simulated"]:
            self.runner.fail("sanitizer", ["compute-sanitizer is not on this machine"])
        self.run(suites.exactness(self.archive, sys.executable))

    def finish(self):
        ran = {result.name for result in self.runner.results}
        if self.device and (unknown := set(self.options.suites) - ran):
            self.runner.fail("arguments", [f"no suite is called {name}" for name in unknown])
        result = {
            "call": self.options.call, "device": self.device,
            "commit": (ROOT / "commit").read_text().strip(),
            "passed": self.runner.total("passed"), "failed": self.runner.total("failed"),
            "skipped": self.runner.total("skipped"),
            "suites": [[found.name, found.passed, found.failed, found.skipped,
                        round(found.seconds, 1), found.remark] for found in self.runner.results],
            "failures": [name for found in self.runner.results for name in found.failures],
        }
        whole = json.dumps(result | {"parts": self.parts}, indent=1)
        (self.out / "results.json").write_text(whole + "\n")
        pack_logs(self.runner.logs, self.out / "logs.tgz")
        print(shortened(result, self.parts), flush=True)
        return 1 if result["failed"] else 0


def shortened(result, parts):
    """One line of JSON with as much as fits: failures are cut first, then figures go."""
    kernels = parts.get("kernels", {}).get("figures", {})
    for failures, figures in ((60, kernels), (20, kernels), (20, {}), (5, {})):
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
    parser.add_argument("call", choices=("check", "figures", "prove"))
    parser.add_argument("suites", nargs="*", metavar="SUITE")
    parser.add_argument("--out", default="gpu_check_out")
    parser.add_argument("--before", metavar="DIR", help="another archive, unpacked")
    parser.add_argument("--seconds", type=float, default=CALL_S)
    parser.add_argument("--sample", type=int, default=1, metavar="N",
                        help="of each suite of cuda_test every Nth test")
    options = parser.parse_intermixed_args()
    call = Call(options)
    try:
        if call.open_device():
            getattr(call, options.call)()
    except Exception:  # what has run is reported all the same
        call.runner.fail("run.py", [traceback.format_exc()])
    return call.finish()


if __name__ == "__main__":
    sys.exit(main())
