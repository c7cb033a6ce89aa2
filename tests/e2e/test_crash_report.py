# SPDX-License-Identifier: Apache-2.0
"""A crashing process writes one line that says what it was and where, and nothing of a request."""

import json
import re
import resource
import signal
import subprocess
import unittest
from pathlib import Path

from server_process import BINARY, GATED_BINARY, GatedServer, ServerProcess


class CrashReport(unittest.TestCase):
    def crashed(self, variable: str, number: signal.Signals) -> str:
        """The line of a server that crashes in its third step."""
        with GatedServer("--log-level", "debug", "--speculative", "off",
                         environment={variable: "3"}) as server:
            with self.assertRaises((ConnectionError, OSError)):
                server.post("/v1/completions", {"prompt": "a secret prompt", "max_tokens": 8})
            self.assertEqual(server.wait(), -number)
            text = server.stderr()
            server.code = 0  # the signal is intended
        self.assertNotIn("secret", text)
        lines = [line for line in text.splitlines() if "crashed" in line]
        self.assertEqual(len(lines), 1, text)
        self.assertEqual(text.splitlines()[-1], lines[0])
        version = subprocess.run([BINARY, "--version"], capture_output=True, text=True).stdout
        for key in ("version", "commit"):
            value = re.search(rf"^{key}: (.*)$", version, re.M)[1]
            self.assertIn(f" {key}={value} ", lines[0])
        self.assertIn(f"signal={int(number)} ", lines[0])
        self.assertIn('thread=engine activity="the launch of a step"', lines[0])
        self.assertIn(" step=3 sequences=1 tokens=1 ", lines[0])
        self.assertRegex(lines[0], r"backtrace=(\S*\+0x[0-9a-f]+,){5}")
        return lines[0]

    def test_line_is_json_where_the_log_is(self):
        with GatedServer("--log-format", "json",
                         environment={"DIFFSERVE_FAILED_CHECK_STEP": "1"}) as server:
            with self.assertRaises((ConnectionError, OSError)):
                server.post("/v1/completions", {"prompt": "x", "max_tokens": 8})
            self.assertEqual(server.wait(), -signal.SIGABRT)
            last = [json.loads(line) for line in server.stderr().splitlines()][-1]
            server.code = 0  # the signal is intended
        self.assertEqual((last["event"], last["level"], last["step"]), ("crashed", "ERROR", "1"))
        self.assertIn("a step that is to fail", last["check"])

    def test_fatal_signal(self):
        self.assertNotIn("check=", self.crashed("DIFFSERVE_CRASH_STEP", signal.SIGSEGV))

    def test_stack_overflow(self):
        line = self.crashed("DIFFSERVE_OVERFLOW_STEP", signal.SIGSEGV)
        self.assertGreater(len(set(re.findall(r"diffserve_gated\+0x[0-9a-f]+", line))), 1)

    def test_failed_check(self):
        line = self.crashed("DIFFSERVE_FAILED_CHECK_STEP", signal.SIGABRT)
        self.assertRegex(line, r'check="\S*gated_server\.cc:\d+: plan\.sequences\.empty\(\): '
                               'a step that is to fail"')

    def test_memory_that_runs_out(self):
        """A body that does not fit what the process may still have."""
        with ServerProcess() as server:
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            used = int(re.search(r"VmData:\s+(\d+) kB", status)[1]) << 10
            resource.prlimit(server.process.pid, resource.RLIMIT_DATA,
                             (used + (1 << 20), resource.RLIM_INFINITY))
            with self.assertRaises((ConnectionError, OSError)):
                server.post("/tokenize", {"prompt": "secret " * 500_000})
            self.assertEqual(server.wait(), -signal.SIGABRT)
            text = server.stderr()
            server.code = 0  # the signal is intended
        self.assertNotIn("secret", text)
        self.assertRegex(text.splitlines()[-1],
                         r'^diffserve: crashed signal=6 .* reason="out of memory" backtrace=')
        self.assertEqual(text.count("crashed"), 1, text)

    def test_backtrace_names_a_function_to_addr2line(self):
        line = self.crashed("DIFFSERVE_CRASH_STEP", signal.SIGSEGV)
        offsets = re.findall(r"diffserve_gated\+(0x[0-9a-f]+)", line)
        names = subprocess.run(["addr2line", "-Cfe", GATED_BINARY, *offsets], capture_output=True,
                               text=True).stdout
        self.assertIn("EngineLoop", names)


if __name__ == "__main__":
    unittest.main()
