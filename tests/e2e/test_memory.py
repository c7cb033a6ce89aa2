# SPDX-License-Identifier: Apache-2.0
"""Running out of memory at startup is one line and exit code 1, never a signal; KV pages are
committed at startup on request."""

import re
import resource
import subprocess
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE, STOP_TIMEOUT_S, ServerProcess

MIB = 1 << 20


def run_below(limit: int, *arguments) -> subprocess.CompletedProcess:
    """Runs the server with a limit of address space."""
    def set_limit():
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    return subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                          preexec_fn=set_limit, timeout=STOP_TIMEOUT_S)


@unittest.skipIf(DEVICE == "cuda", "the host's memory")
class MemoryTest(unittest.TestCase):
    def test_address_space_limit_is_reported_with_numbers(self):
        """Limits from one that loads no library to one that suffices, in steps of 8 MiB."""
        arguments = ("generate", tiny_model.directory(), "--tokens", 5, "--max-tokens", 1,
                     "--kv-cache-memory", "64MiB", "--threads", 2)
        lines = set()
        for limit in range(64 * MIB, 2048 * MIB, 8 * MIB):
            with self.subTest(mib=limit // MIB):
                ended = run_below(limit, *arguments)
                if ended.returncode == 0:
                    break
                if "error while loading shared libraries" in ended.stderr:
                    continue  # the system's own message
                is_of_a_flag = ended.stderr.startswith("diffserve: --")
                self.assertEqual(ended.returncode, 2 if is_of_a_flag else 1, ended.stderr)
                self.assertRegex(ended.stderr, r"diffserve: .*\d MiB.*\n")
                lines.add(re.sub(r"[\d.]+ MiB", "N MiB", ended.stderr))
        self.assertEqual(ended.returncode, 0, "no limit was enough")
        self.assertTrue(any("ulimit -v" in line for line in lines), lines)

    def test_pages_are_committed_at_startup_on_request(self):
        size = 256 * MIB
        with ServerProcess("--kv-cache-memory", size, "--kv-cache-commit") as server:
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            resident = int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024
            self.assertGreater(resident, size)


if __name__ == "__main__":
    unittest.main()
