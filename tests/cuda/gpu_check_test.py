#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_check with a program that behaves as its tests' names say: what hangs, crashes, is
skipped or missing costs its own line only."""

import contextlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "deploy/gpu_check"
sys.path.insert(0, str(FOLDER))

import collect  # noqa: E402
import run  # noqa: E402
import suites  # noqa: E402
from runner import Runner, Suite, matching, read_gtest, read_unittest  # noqa: E402

# Lists the tests that FAKE_TESTS names, or runs those of its filter.
PROGRAM = """#!/usr/bin/env python3
import os, signal, subprocess, sys, time
part, tests = sys.argv[1], os.environ["FAKE_TESTS"].split()
say = lambda text: print(text, flush=True)
if part == "cuda_device" and "FAKE_DEVICE" in os.environ:
    sys.exit(os.environ["FAKE_DEVICE"])
if part == "cuda_device":
    say('{"name": "fake", "compute_capability": 90, "num_sms": 1, "memory_bytes": 1, '
        '"simulated": %s}' % os.environ.get("FAKE_SIMULATED", "false"))
elif part == "cuda_bench":
    say('{"figures": {"launch_us": 2.5}}')
elif "--gtest_list_tests" in sys.argv:
    say("Running main()")
    for test in tests:
        suite, name = test.split(".")
        say(f"{suite}.\\n  {name}  # GetParam() = {{ 3 }}")
else:
    lost = False
    for test in sys.argv[2].partition("=")[2].split(":"):
        say(f"[ RUN      ] {test}")
        if "Hangs" in test:
            subprocess.Popen(["sleep", "1000"])
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(1000)
        if "Crashes" in test:
            os.kill(os.getpid(), signal.SIGSEGV)
        if "SkippedFor" in test:
            reason = test.split("SkippedFor")[1].replace("__", ": ").replace("_", " ")
            say(f"a_test.cc:1: Skipped\\n{reason}\\n\\n[  SKIPPED ] {test} (0 ms)")
        elif "Fails" in test or lost:
            say(f"[  FAILED  ] {test}, where GetParam() = 3 (0 ms)")
            lost = lost or "FailsForEver" in test
        else:
            say(f"[       OK ] {test} (0 ms)")
"""
SANITIZER_HEAD = "========= COMPUTE-SANITIZER\n[ RUN      ] A.Runs\n[       OK ] A.Runs (1 ms)\n"
UNKNOWN_ALARM = """========= Invalid __global__ write of size 4 bytes
=========     at kernel+0x30
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f is out of bounds
=========
========= ERROR SUMMARY: 1 error
"""
KNOWN_ALARM = UNKNOWN_ALARM.replace("__global__ write of size 4", "__shared__ ? of size 2048")


class Folder(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        (self.folder / "bin").mkdir()
        (self.folder / "bin/gpu_check").write_text(PROGRAM)
        (self.folder / "bin/gpu_check").chmod(0o755)
        self.archive = suites.Archive(self.folder)


class RunnerTest(Folder):
    def setUp(self):
        super().setUp()
        self.runner = Runner(self.folder / "logs", 1000, ("^there is a device$", ),
                             suites.KNOWN_ALARMS)

    def result(self, tests, limit_s=60):
        os.environ["FAKE_TESTS"] = ""
        self.runner.run(self.archive.gtest("suite", limit_s, tests))
        result = self.runner.results[-1]
        return result.passed, result.failed, result.skipped, result.remark

    def test_passes_are_counted_one_by_one(self):
        self.assertEqual(self.result(["A.Runs", "A.Fails", "A.RunsToo"]), (2, 1, 0, ""))

    def test_hang_costs_the_rest_of_its_suite(self):
        self.assertEqual(self.result(["A.Runs", "A.Hangs", "A.RunsToo"], limit_s=2),
                         (1, 2, 0, "ended after 2 s; in A.Hangs"))
        self.assertEqual(self.runner.results[-1].failures,
                         ["suite: A.Hangs", "suite: A.RunsToo did not run"])
        self.assertLess(self.runner.results[-1].seconds, 30)
        self.assertEqual(self.result(["B.Runs"]), (1, 0, 0, ""))

    def test_crash_costs_the_rest_of_its_suite(self):
        self.assertEqual(self.result(["A.Runs", "A.Crashes", "A.RunsToo"]),
                         (1, 2, 0, "exit code -11; in A.Crashes"))
        self.assertEqual(self.result(["B.Runs"]), (1, 0, 0, ""))

    def test_lost_device_costs_the_rest_of_its_suite(self):
        self.assertEqual(self.result(["A.Runs", "A.FailsForEver", "A.RunsToo"])[:2], (1, 2))
        self.assertEqual(self.result(["B.Runs"]), (1, 0, 0, ""))

    def test_skip_counts_as_a_failure_unless_it_is_known(self):
        self.assertEqual(self.result(["A.Runs", "A.SkippedForthere_is_a_device"]), (1, 0, 1, ""))
        self.assertEqual(self.result(["A.Runs", "A.SkippedForthere_is_no_device"])[:3], (1, 1, 0))
        self.assertEqual(self.runner.results[-1].failures,
                         ["suite: A.SkippedForthere_is_no_device was skipped: "
                          "there is no device"])

    def test_suite_without_tests_is_a_failure(self):
        self.assertEqual(self.result([])[:3], (0, 1, 0))

    def test_program_that_does_not_start_is_a_failure(self):
        self.runner.run(Suite("gone", [str(self.folder / "none")], 5))
        failure, = self.runner.results[-1].failures
        self.assertIn("none does not start: [Errno 2] No such file", failure)

    def test_suite_without_time_is_not_run(self):
        now = [0]
        self.runner = Runner(self.folder / "logs", 10, clock=lambda: now[0])
        now[0] = 11
        self.assertEqual(self.result(["A.Runs"])[:2], (0, 1))
        self.assertEqual(self.runner.results[-1].remark, "no time was left")

    def test_exit_code_after_passes_is_a_failure(self):
        suite = Suite("suite", [], 60, ["A.Runs"], read=read_gtest)
        log = "[ RUN      ] A.Runs\n[       OK ] A.Runs (1 ms)\n"
        self.assertEqual(self.runner.judge(suite, 0, log, 60).failed, 0)
        self.assertEqual(self.runner.judge(suite, 1, log, 60).failures, ["suite: exit code 1"])

    def test_alarm_is_a_failure_unless_it_is_known(self):
        suite = Suite("memcheck", [], 60, ["A.Runs"], read=read_gtest)
        silent = self.runner.judge(suite, 0, SANITIZER_HEAD + "========= ERROR SUMMARY: 0 errors\n",
                                   60)
        self.assertEqual((silent.failed, silent.remark), (0, ""))
        known = self.runner.judge(suite, 9, SANITIZER_HEAD + KNOWN_ALARM, 60)
        self.assertEqual((known.failed, known.remark), (0, "1 known false alarms; exit code 9"))
        both = self.runner.judge(suite, 9, SANITIZER_HEAD + KNOWN_ALARM + UNKNOWN_ALARM, 60)
        self.assertEqual(both.failures, ["memcheck: 1 alarms, the first: ========= Invalid "
                                         "__global__ write of size 4 bytes"])
        self.assertEqual(self.runner.judge(suite, 9, SANITIZER_HEAD, 60).failed, 1)

    def test_unittests_are_counted_one_by_one(self):
        log = ("test_a (test_x.C.test_a) ... ok\ntest_b (test_x.C.test_b)\nIts sentence. ... ok\n"
               "test_c (test_x.C.test_c) ... skipped 'refused there'\n"
               "test_d (test_x.C.test_d) ... FAIL\ntest_e (test_x.C.test_e) ... ")
        outcome = read_unittest(log)
        self.assertEqual(outcome.begun, ["test_a", "test_b", "test_c", "test_d", "test_e"])
        self.assertEqual(outcome.passed, {"test_a", "test_b"})
        self.assertEqual(outcome.skipped, {"test_c": "refused there"})
        suite = Suite("e2e", [], 60, read=read_unittest)
        self.assertEqual(self.runner.judge(suite, 124, log, 60).failed, 3)
        self.assertEqual(self.runner.judge(suite, 1, "ImportError\n", 60).failures,
                         ["e2e: there is no such test"])


class SuitesTest(unittest.TestCase):
    def test_filters_are_read_as_gtest_reads_them(self):
        tests = ["A.B", "X/A.B/0", "AB.C"]
        self.assertEqual(matching(tests, "A.*"), ["A.B"])
        self.assertEqual(matching(tests, "*A.*:AB.?"), tests)

    def test_names_are_given_once(self):
        names = [name for name, *_ in suites.CORRECTNESS]
        names += [f"{tool}_{name}" for tool, name, *_ in suites.SHARDS]
        self.assertEqual(len(names), len(set(names)))


class CollectTest(unittest.TestCase):
    def test_archive_of_more_than_30_mib_does_not_fit(self):
        with tempfile.NamedTemporaryFile() as file:
            for size, fits in ((30 << 20, True), ((30 << 20) + 1, False)):
                file.truncate(size)
                with contextlib.redirect_stdout(io.StringIO()):
                    self.assertEqual(collect.fits(Path(file.name)), fits)

    def test_libraries_of_glibc_and_cublas_stay_behind(self):
        stays = ("linux-vdso.so.1", "libc.so.6", "libm.so.6", "libcublasLt.so.13")
        comes = ("libcrypto.so.3", "libcares.so.2", "libmd.so.0", "libstdc++.so.6", "libz.so.1")
        for name in stays + comes:
            self.assertEqual(bool(collect.LEFT_OUT.match(name)), name in stays, name)


class CallTest(Folder):
    """The whole call with the program in an archive."""

    def call(self, *arguments, tests="PtxTest.Runs LinearTest.Runs NewTest.Runs", **environment):
        shutil.copytree(FOLDER, self.folder / "deploy/gpu_check", dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))
        (self.folder / "lib").mkdir(exist_ok=True)
        (self.folder / "commit").write_text("abc\n")
        done = subprocess.run([sys.executable, self.folder / "deploy/gpu_check/run.py", *arguments,
                               "--out", self.folder / "out"], capture_output=True, text=True,
                              env={**os.environ, "FAKE_TESTS": tests, **environment})
        self.assertEqual(done.stderr, "")
        self.lines = done.stdout.splitlines()
        self.code, self.json = done.returncode, json.loads(self.lines[-1])
        return {name: counts for name, *counts in self.json["suites"]}

    def test_without_a_device_the_reason_is_the_only_failure(self):
        self.assertEqual(list(self.call("check", "ptx", FAKE_DEVICE="no driver")), ["device"])
        self.assertEqual(self.json["failures"], ["device: no driver"])
        self.assertEqual(self.code, 1)

    def test_results_come_as_a_line_and_two_files(self):
        found = self.call("check")
        self.assertEqual(found["ptx"][:3], [1, 0, 0])
        self.assertEqual(found["rest"][:3], [1, 0, 0])
        self.assertEqual(found["kernels"][:3], [1, 0, 0])
        self.assertEqual(self.json["figures"], {"launch_us": 2.5})
        whole = json.loads((self.folder / "out/results.json").read_text())
        self.assertEqual(whole["parts"], {"kernels": {"figures": {"launch_us": 2.5}}})
        with tarfile.open(self.folder / "out/logs.tgz") as logs:
            self.assertIn("logs/ptx.log", logs.getnames())
        self.assertEqual(sorted(os.listdir(self.folder / "out")), ["logs.tgz", "results.json"])

    def test_missing_suites_cost_their_own_lines(self):
        found = self.call("check")
        self.assertEqual(found["wgmma"][:3], [0, 1, 0])
        self.assertEqual(self.code, 1)
        self.assertIn("wgmma: there is no such test", self.json["failures"])

    def test_named_suites_run_alone_and_names_of_none_fail(self):
        self.assertEqual(list(self.call("check", "ptx", "linear")), ["device", "ptx", "linear"])
        self.assertEqual(self.code, 0)
        self.assertEqual(self.call("check", "ptx", "none")["arguments"][:2], [0, 1])

    def test_simulation_knows_skips_that_a_gpu_does_not(self):
        tests = "PtxTest.Runs PtxTest.SkippedForneeds_a_GPU__much_memory"
        self.assertEqual(self.call("check", "ptx", tests=tests)["ptx"][:3], [1, 1, 0])
        found = self.call("check", "ptx", "smoke", tests=tests, FAKE_SIMULATED="true")
        self.assertEqual(found["ptx"][:3], [1, 0, 1])

    def test_absent_sanitizer_is_a_failure_and_an_absent_profiler_is_not(self):
        found = self.call("prove", "sanitizer", PATH=os.path.dirname(sys.executable))
        self.assertEqual(found["sanitizer"][:2], [0, 1])
        self.call("figures", "device", PATH=os.path.dirname(sys.executable))
        self.assertIn("-- no profiles: ncu is not on this machine", self.lines)
        self.assertEqual(self.code, 0)

    def test_kernels_of_another_archive_are_measured_in_turns(self):
        found = self.call("figures", "before_1", "after_1", "before_2", "after_2", "--before",
                          str(self.folder), PATH=os.path.dirname(sys.executable))
        self.assertEqual(list(found), ["device", "before_1", "after_1", "before_2", "after_2"])
        whole = json.loads((self.folder / "out/results.json").read_text())
        self.assertEqual(whole["parts"]["before_2"], {"figures": {"launch_us": 2.5}})

    def test_last_line_fits_the_end_of_a_long_output(self):
        tests = " ".join(f"PtxTest.Fails{'Long' * 40}{i}" for i in range(300))
        self.assertEqual(self.call("check", "ptx", tests=tests)["ptx"][1], 300)
        self.assertLess(len(self.lines[-1]), run.JSON_CHARACTERS_MAX)
        whole = json.loads((self.folder / "out/results.json").read_text())
        self.assertEqual(len(whole["failures"]), 300)


if __name__ == "__main__":
    unittest.main()
