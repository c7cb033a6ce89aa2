# SPDX-License-Identifier: Apache-2.0
"""A crashing process writes one line that says what it was and where, and nothing of a request."""

import re
import signal
import subprocess
import unittest

from server_process import BINARY, GATED_BINARY, GatedServer


class CrashReport(unittest.TestCase):
    def crashed(self, variable: str, number: signal.Signals) -> str:
        """The line of a server that crashes in its third step."""
        with GatedServer("--log-level", "debug", environment={variable: "3"}) as server:
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

    def test_fatal_signal(self):
        self.assertNotIn("check=", self.crashed("DIFFSERVE_CRASH_STEP", signal.SIGSEGV))

    def test_failed_check(self):
        line = self.crashed("DIFFSERVE_FAILED_CHECK_STEP", signal.SIGABRT)
        self.assertRegex(line, r'check="\S*gated_server\.cc:\d+: plan\.sequences\.empty\(\): '
                               'a step that is to fail"')

    def test_backtrace_names_a_function_to_addr2line(self):
        line = self.crashed("DIFFSERVE_CRASH_STEP", signal.SIGSEGV)
        offsets = re.findall(r"diffserve_gated\+(0x[0-9a-f]+)", line)
        names = subprocess.run(["addr2line", "-Cfe", GATED_BINARY, *offsets], capture_output=True,
                               text=True).stdout
        self.assertIn("EngineLoop", names)


if __name__ == "__main__":
    unittest.main()
