#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/gpu_check with a program that behaves as its tests' names say: what hangs, crashes, is
skipped or missing costs its own line only."""

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import zipfile
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy/gpu_check"
sys.path.insert(0, str(FOLDER))

import archive  # noqa: E402
import collect  # noqa: E402
import parts  # noqa: E402
import run  # noqa: E402
import steps  # noqa: E402
import suites  # noqa: E402
from archive import Archive  # noqa: E402
from runner import Runner, Suite, matching, read_gtest, read_unittest  # noqa: E402

# Lists the tests that FAKE_TESTS names, or runs those of its filter. Tests that Meet wait for each
# other in the folder FAKE_MEETING.
PROGRAM = """#!/usr/bin/env python3
import os, signal, subprocess, sys, time
part, tests = sys.argv[1], os.environ["FAKE_TESTS"].split()
say = lambda text: print(text, flush=True)
if part == "cuda_device" and "FAKE_DEVICE" in os.environ:
    sys.exit(os.environ["FAKE_DEVICE"])
if part == "cuda_device":
    say('{"name": "fake", "compute_capability": %s, "num_sms": 1, "memory_bytes": %d, '
        '"simulated": %s}' % (os.environ.get("FAKE_CAPABILITY", "90"), 16 << 30,
                              os.environ.get("FAKE_SIMULATED", "false")))
elif part == "cuda_bench":
    say('{"figures": {"launch_us": 2.5}}')
elif part == "bench":
    say('{"program": "%s", "flags": "%s"}' % (sys.argv[0], " ".join(sys.argv[2:])))
elif part == "--version":
    say("diffserve of a wheel")
elif "--gtest_list_tests" in sys.argv:
    say("Running main()")
    for test in tests:
        suite, name = test.split(".")
        say(f"{suite}.\\n  {name}  # GetParam() = {{ 3 }}")
else:
    lost = False
    for test in sys.argv[2].partition("=")[2].split(":"):
        say(f"[ RUN      ] {test}")
        if "Meets" in test:
            open(os.path.join(os.environ["FAKE_MEETING"], str(os.getpid())), "w").close()
            while len(os.listdir(os.environ["FAKE_MEETING"])) < 2:
                time.sleep(0.01)
        if "Waits" in test:
            say(f"process {os.getpid()}")
            time.sleep(1000)
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
        self.archive = Archive(self.folder)


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

    def test_suite_may_know_its_limit(self):
        self.runner.run(Suite("says", ["echo", '{"limit": {limit_s}}'], 60, is_figure=True))
        self.assertEqual(self.runner.figures, {"says": {"limit": 55}})

    def test_figure_that_prints_none_is_a_failure(self):
        self.runner.run(Suite("says", ["echo", "nothing"], 60, is_figure=True))
        self.assertEqual(self.runner.results[-1].failures, ["says: no JSON object was printed"])

    def test_figures_of_a_failed_suite_are_kept(self):
        self.runner.run(Suite("half", ["sh", "-c", """echo '{"loads": 1}'; exit 1"""], 60,
                              is_figure=True))
        self.assertEqual(self.runner.figures, {"half": {"loads": 1}})
        self.assertEqual(self.runner.total("failed"), 1)

    def test_suite_without_time_is_not_run(self):
        now = [0]
        self.runner = Runner(self.folder / "logs", 10, clock=lambda: now[0])
        now[0] = 11
        self.assertEqual(self.result(["A.Runs"])[:2], (0, 1))
        self.assertEqual(self.runner.results[-1].remark, "no time was left")

    def test_figure_without_the_time_that_it_needs_is_left_out(self):
        self.runner = Runner(self.folder / "logs", 10, clock=lambda: 0)
        figure = Suite("large", ["sh", "-c", "echo '{}'"], 60, is_figure=True, needs_s=10)
        self.assertTrue(self.runner.run(figure))
        self.assertEqual(self.runner.left_out, {"large": "no time was left"})
        self.assertEqual((self.runner.total("failed"), self.runner.total("skipped")), (0, 1))
        figure.needs_s = 9
        self.runner.run(figure)
        self.assertEqual(self.runner.figures, {"large": {}})

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
        here, before = Archive(ROOT), Archive(ROOT)
        names = [name for name, *_ in suites.CORRECTNESS]
        names += [f"{tool}_{name}" for tool, name, *_ in suites.SHARDS]
        with tempfile.TemporaryDirectory() as work:
            for part in parts.figures(here, before, Path(work), 80):
                found = [suite.name for suite in part.suites]
                names += found if part.name in found else [part.name, *found]
        self.assertEqual(len(names), len(set(names)))

    def test_parts_share_the_whole_call(self):
        with tempfile.TemporaryDirectory() as work:
            found = [*parts.proofs(Archive(ROOT), work, 1, True),
                     *parts.figures(Archive(ROOT), None, Path(work), 90)]
        self.assertEqual(sum(part.budget_s for part in found), 235)
        self.assertEqual([part.name for part in found if part.shares],
                         ["suites", "exactness", "sanitizer"])


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


class StepsTest(unittest.TestCase):
    """What ncu prints, as samples of a prompt and of two batches."""
    HEAD = ('==PROF== x\n"ID","Kernel Name","Section Name","Metric Name","Metric Unit",'
            '"Metric Value"\n')

    def text(self, *names):
        rows = []
        for number, name in enumerate(names):
            name, _, us = name.partition(":")
            for metric, value in ((steps.DURATION, f"{float(us or 1) * 1000:,.0f}"),
                                  (steps.READ, "2,500,000")):
                rows.append(f'"{number}","void ns::{name}<8>(int)","","{metric}","x","{value}"')
        return self.HEAD + "\n".join(rows) + "\n"

    def step(self, us):
        return ["EmbeddingLookupKernel", f"Middle:{us}", "SampleKernel"]

    def test_a_prompt_and_a_step_of_each_batch_are_found(self):
        warm, probes = self.step(1), ["ReadStreamKernel", "ReadStreamKernel", "product"]
        launches = steps.kernels(self.text(
            *warm, *probes, *warm, *self.step(900), *warm, *probes, *self.step(10), *self.step(11),
            *probes, *warm, *self.step(60), *probes, *self.step(70), *self.step(71), *probes))
        self.assertEqual(launches[1], ["ns::Middle<8>", 1.0, 2.5])
        found = {name: step[1][1] for name, step in steps.steps(launches).items()}
        self.assertEqual(found, {"prompt_2048": 900, "decode_batch1_depth2048": 11,
                                 "decode_batch64_depth2048": 71})

    def test_kernels_without_steps_are_refused(self):
        with self.assertRaisesRegex(ValueError, "^0 groups of steps in 2 kernels$"):
            steps.steps(steps.kernels(self.text("ReadStreamKernel", "product")))


class PeersTest(unittest.TestCase):
    def test_the_first_python_that_has_pytorch_is_taken(self):
        with mock.patch("archive.python_programs", return_value=["/bin/false", "/bin/true"]):
            self.assertEqual(archive.python_with_torch(), "/bin/true")
        with mock.patch("archive.python_programs", return_value=["/bin/false"]):
            self.assertIsNone(archive.python_with_torch())

    def said(self, torch):
        with tempfile.TemporaryDirectory() as folder:
            if torch is not None:
                for name in ("torch/__init__.py", "torch/nn/__init__.py",
                             "torch/nn/attention.py", "torch/nn/functional.py"):
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(torch if name == "torch/__init__.py" else
                                    "scaled_dot_product_attention = attention = None\n")
            done = subprocess.run([sys.executable, FOLDER / "peers.py", "9"], capture_output=True,
                                  text=True, env={**os.environ, "PYTHONPATH": folder})
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)["left_out"]

    def test_what_cannot_be_measured_says_why(self):
        self.assertEqual(self.said("raise ImportError('no driver')\n"),
                         "PyTorch does not start: no driver")
        self.assertEqual(self.said("class cuda:\n    is_available = staticmethod(lambda: False)\n"
                                   "__version__ = '2.11'\n"), "PyTorch 2.11 sees no GPU")


class CallTest(Folder):
    """The whole call with the program in an archive."""

    def setUp(self):
        super().setUp()
        ignored = shutil.ignore_patterns("__pycache__")
        for name in ("deploy/gpu_check", "tests/bench/models"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=ignored)
        demo = self.folder / "models/demo/diff"
        demo.mkdir(parents=True)
        shutil.copy(ROOT / "models/demo/diff/config.json", demo)
        (self.folder / "lib").mkdir()
        (self.folder / "commit").write_text("abc\n")

    def command(self, *arguments):
        return [sys.executable, str(self.folder / "deploy/gpu_check/run.py"), "all",
                *map(str, arguments), "--out", str(self.folder / "out")]

    def environment(self, tests, **environment):
        # Neither NVIDIA's tools nor a Python with PyTorch are found by their names.
        path = str(self.folder / "none")
        fake = {"FAKE_TESTS": tests, "PATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
        (self.folder / "bin/gpu_check").write_text(
            PROGRAM.replace("/usr/bin/env python3", sys.executable))
        return {**os.environ, **fake, **environment}

    def call(self, *arguments, tests="PtxTest.Runs LinearTest.Runs NewTest.Runs", **environment):
        done = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                              env=self.environment(tests, **environment))
        self.assertEqual(done.stderr, "")
        self.lines = done.stdout.splitlines()
        self.code, self.json = done.returncode, json.loads(self.lines[-1])
        return {name: counts for name, *counts in self.json["suites"]}

    def results(self):
        return json.loads((self.folder / "out/results.json").read_text())

    def test_without_a_device_the_reason_is_the_only_failure(self):
        self.assertEqual(list(self.call("--only", "ptx", FAKE_DEVICE="no driver")), ["device"])
        self.assertEqual(self.json["failures"], ["device: no driver"])
        self.assertEqual(self.code, 1)

    def test_results_come_as_a_line_and_two_files(self):
        found = self.call("--only", "suites", "kernels")
        self.assertEqual(found["ptx"][:3], [1, 0, 0])
        self.assertEqual(found["rest"][:3], [1, 0, 0])
        self.assertEqual(found["kernels"][:3], [1, 0, 0])
        self.assertEqual(self.json["figures"], {"kernels": {"launch_us": 2.5}})
        self.assertEqual(self.results()["parts"], {"kernels": {"figures": {"launch_us": 2.5}}})
        with tarfile.open(self.folder / "out/logs.tgz") as logs:
            self.assertIn("logs/ptx.log", logs.getnames())
        self.assertEqual(sorted(os.listdir(self.folder / "out")), ["logs.tgz", "results.json"])

    def test_all_names_every_part_that_is_left_out(self):
        found = self.call()
        self.assertEqual(self.json["left_out"].pop("profile"), "ncu is not on this machine")
        self.assertLessEqual(set(self.json["left_out"]), {"peers"})  # if there is no PyTorch
        for suite in ("diff_3b", "transformer_3b", "diff_13b", "transformer_13b", "quarter_int4",
                      "engine"):
            self.assertEqual(found[suite][:3], [1, 0, 0], suite)
        self.assertEqual(found["sanitizer"][:2], [0, 1])
        self.assertEqual(list(self.call(FAKE_SIMULATED="true"))[-1], "serving")
        self.assertEqual(set(self.json["left_out"]), {"sanitizer", "kernels", "models", "formats",
                                                      "peers", "profile", "models_13b"})

    def test_formats_that_a_device_lacks_are_left_out(self):
        self.assertEqual(list(self.call("--only", "quarter_fp8", FAKE_CAPABILITY="80")), ["device"])
        self.assertEqual(self.json["left_out"],
                         {"quarter_fp8": "the device multiplies no fp8 numbers"})
        self.assertIn("quarter_fp8", self.call("--only", "quarter_fp8", FAKE_CAPABILITY="89"))

    def test_missing_suites_cost_their_own_lines(self):
        found = self.call("--only", "suites")
        self.assertEqual(found["wgmma"][:3], [0, 1, 0])
        self.assertEqual(self.code, 1)
        self.assertIn("wgmma: there is no such test", self.json["failures"])

    def test_named_suites_run_alone_and_names_of_none_fail(self):
        self.assertEqual(set(self.call("--only", "ptx", "linear")), {"device", "ptx", "linear"})
        self.assertEqual(self.code, 0)
        self.assertEqual(self.call("--only", "ptx", "none")["arguments"][:2], [0, 1])
        self.assertEqual(self.json["failures"], ["arguments: no part or suite is called none"])

    def test_suites_run_side_by_side(self):
        meeting = self.folder / "meeting"
        meeting.mkdir()
        found = self.call("--only", "ptx", "linear", "--jobs", 2,
                          tests="PtxTest.Meets LinearTest.Meets", FAKE_MEETING=str(meeting))
        self.assertEqual([found["ptx"][:2], found["linear"][:2]], [[1, 0], [1, 0]])

    def test_figures_are_taken_alone_and_in_order(self):
        self.assertEqual(list(self.call("--only", "models", "--jobs", 8)),
                         ["device", "diff_3b", "transformer_3b", "engine"])

    def test_hang_costs_its_own_part_the_time(self):
        found = self.call("--only", "ptx", "linear", "kernels", "--seconds", 4, "--jobs", 1,
                          tests="PtxTest.Waits LinearTest.Runs")
        self.assertIn("; in PtxTest.Waits", found["ptx"][-1])
        self.assertEqual(found["linear"][-1], "no time was left")
        self.assertIn("linear: LinearTest.Runs did not run", self.json["failures"])
        self.assertEqual(found["kernels"][:3], [1, 0, 0])

    def started(self, *arguments, tests):
        """A call whose suite `linear` waits, after `ptx`."""
        process = subprocess.Popen(self.command("--only", "ptx", "linear", "kernels", "--jobs", 1,
                                                *arguments), stdout=subprocess.PIPE, text=True,
                                   env=self.environment(tests))
        self.addCleanup(process.stdout.close)
        log = self.folder / "out/logs/linear.log"
        while not (log.exists() and (found := re.search(r"process (\d+)\n", log.read_text()))):
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        return process, int(found[1])

    def test_killed_call_leaves_what_came_before(self):
        process, suite = self.started(tests="PtxTest.Runs LinearTest.Waits")
        process.kill()
        process.wait()
        os.kill(suite, signal.SIGKILL)
        found = self.results()
        self.assertEqual([name for name, *_ in found["suites"]], ["device", "ptx"])
        self.assertEqual((found["passed"], found["failed"]), (2, 0))
        self.assertEqual(found["device"]["name"], "fake")

    def test_ended_call_ends_its_suites_and_reports(self):
        process, _ = self.started(tests="PtxTest.Runs LinearTest.Waits")
        process.send_signal(signal.SIGTERM)
        last = process.stdout.read().splitlines()[-1]
        self.assertEqual(process.wait(), 1)
        found = {name: counts for name, *counts in json.loads(last)["suites"]}
        self.assertEqual(found["linear"][-1], "exit code -9; in LinearTest.Waits")
        self.assertEqual(found["kernels"][-1], "no time was left")

    def test_simulation_knows_skips_that_a_gpu_does_not(self):
        tests = "PtxTest.Runs PtxTest.SkippedForneeds_a_GPU__much_memory"
        self.assertEqual(self.call("--only", "ptx", tests=tests)["ptx"][:3], [1, 1, 0])
        found = self.call("--only", "ptx", tests=tests, FAKE_SIMULATED="true")
        self.assertEqual(found["ptx"][:3], [1, 0, 1])

    def test_two_archives_are_measured_in_turns(self):
        found = self.call("--only", "kernels", "diff_3b", "after_diff_3b_2", "--before",
                          self.folder)
        self.assertEqual(list(found)[2:], ["before_kernels_1", "after_kernels_1",
                                           "before_kernels_2", "after_kernels_2",
                                           "after_diff_3b_2"])
        self.assertEqual(self.json["failures"], ["arguments: no part or suite is called diff_3b"])
        self.assertEqual(self.results()["parts"]["before_kernels_2"],
                         {"figures": {"launch_us": 2.5}})

    def test_wheel_takes_the_place_of_the_archives_program(self):
        wheel = self.folder / "diffserve_cuda-1-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("diffserve/bin/diffserve",
                            PROGRAM.replace("/usr/bin/env python3", sys.executable))
        found = self.call("--only", "device", "engine", "kernels", "--wheel", wheel)
        self.assertEqual(set(found), {"device", "smoke", "wheel", "kernels", "engine"})
        self.assertEqual((self.code, self.json["wheel"]), (0, wheel.name))
        program = Path(self.results()["parts"]["engine"]["program"])
        self.assertEqual(program.parts[-4:], ("wheel", "diffserve", "bin", "diffserve"))
        self.assertFalse(program.exists())

    def test_wheel_without_a_program_is_refused(self):
        wheel = self.folder / "other.whl"
        with zipfile.ZipFile(wheel, "w") as packed:
            packed.writestr("other/bin/other", "")
        self.call("--only", "engine", "--wheel", wheel)
        self.assertIn(f"FileNotFoundError: {wheel} holds no diffserve/bin/diffserve",
                      self.json["failures"][0])

    def test_last_line_fits_the_end_of_a_long_output(self):
        tests = " ".join(f"PtxTest.Fails{'Long' * 40}{i}" for i in range(300))
        self.assertEqual(self.call("--only", "ptx", tests=tests)["ptx"][1], 300)
        self.assertLess(len(self.lines[-1]), run.JSON_CHARACTERS_MAX)
        self.assertEqual(len(self.results()["failures"]), 300)


if __name__ == "__main__":
    unittest.main()
