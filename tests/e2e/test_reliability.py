# SPDX-License-Identifier: Apache-2.0
"""Short runs of the programs in tests/reliability: they run, and their conditions hold. Their
figures need a quiet machine."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from server_process import DEVICE, REPOSITORY


@unittest.skipUnless(DEVICE == "cpu", "the programmes start servers of their own")
class ReliabilityTest(unittest.TestCase):
    def run_programme(self, name: str, *arguments) -> dict:
        with tempfile.TemporaryDirectory() as directory:
            figures = Path(directory) / "figures.json"
            done = subprocess.run(
                [sys.executable, REPOSITORY / "tests" / "reliability" / name, "--json", figures,
                 *map(str, arguments)], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            return json.loads(figures.read_text())

    def test_overload_is_refused_and_the_rest_is_served(self):
        figures = self.run_programme("overload.py", "--seconds", 2, "--factors", 10, "--layers", 2,
                                     "--max-queue-wait", 0.2)
        self.assertEqual(figures["10x"]["requests"],
                         figures["10x"]["whole"] + figures["10x"]["refused"])

    def test_chats_are_answered_beside_many_prompts(self):
        figures = self.run_programme("fairness.py", "--prompts", 40, "--chats", 2, "--layers", 2)
        self.assertEqual(figures["failed"], 0)

    def test_good_clients_are_served_beside_hostile_ones(self):
        figures = self.run_programme("hostile_clients.py", "--quick")
        self.assertEqual(set(figures), {
            "quiet", "kills", "slow_readers", "half_requests", "malformed_http", "malformed_grpc",
            "floods", "descriptors"
        })

    def test_faults_from_outside_cut_nothing_and_leave_nothing(self):
        figures = self.run_programme("faults.py", "--quick")
        self.assertEqual(set(figures), {"kill", "terminate", "full_disk", "clock", "files"})
        left_out = [figure["left_out"] for figure in figures.values() if "left_out" in figure]
        if left_out:
            self.skipTest("; ".join(left_out))

    def test_kills_lose_no_page_that_was_written_to_disk(self):
        figures = self.run_programme("kv_disk_kills.py", "--kills", 8)
        self.assertEqual((figures["kills"], figures["kills_while_starting"]), (8, 1))

    def test_every_call_that_arrives_is_counted_and_every_one_that_begins_has_a_code(self):
        programme = REPOSITORY / "tests" / "reliability" / "grpc_floods.py"
        done = subprocess.run(
            [sys.executable, programme, "--deadlines", "300", "--rest", "0", "deadlines"],
            capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        figures = json.loads(done.stdout)
        self.assertEqual(figures["arrived"], 300)
        self.assertEqual(figures["counted"], figures["begun"])


if __name__ == "__main__":
    unittest.main()
