# SPDX-License-Identifier: Apache-2.0
"""`serve --unix-socket`, `--no-grpc` and `--stop-with-stdin`; `probe unix:PATH`."""

import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

from server_process import BINARY, DEMO_MODEL, REPOSITORY

sys.path.insert(0, str(REPOSITORY / "deploy" / "python"))
import diffserve

PROMPT = "The magic number of Lisbon is"


class UnixSocketTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "s"

    def start(self, *flags, **options) -> tuple[subprocess.Popen, str]:
        process = subprocess.Popen([BINARY, "serve", DEMO_MODEL, "--unix-socket", self.path,
                                    "--grpc-port", "0", *flags], stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, **options)

        def end():
            process.kill()
            process.wait()
            process.stdout.close()
            process.stderr.close()
        self.addCleanup(end)
        return process, process.stdout.readline()

    def test_ready_line_names_the_socket(self):
        process, line = self.start()
        self.assertRegex(line, rf"^ready http=unix:{self.path} grpc=127\.0\.0\.1:\d+ model=diff\n$")
        self.assertEqual(self.path.stat().st_mode & 0o777, 0o600)
        self.assertTrue(diffserve.connect(f"unix:{self.path}").tokenize("a"))
        process.terminate()
        self.assertEqual(process.wait(30), 0)
        self.assertFalse(self.path.exists())

    def test_no_grpc_leaves_its_port_out(self):
        _, line = self.start("--no-grpc")
        self.assertEqual(line, f"ready http=unix:{self.path} model=diff\n")

    def test_socket_of_a_killed_server_is_replaced(self):
        process, _ = self.start()
        process.kill()
        process.wait()
        self.assertTrue(self.path.exists())
        self.start()
        self.assertTrue(diffserve.connect(f"unix:{self.path}").tokenize("a"))

    def test_socket_of_a_live_server_is_refused(self):
        self.start()
        second, line = self.start()
        self.assertEqual((line, second.wait(30)), ("", 1))
        self.assertIn(f"cannot listen on unix:{self.path}: another server listens there",
                      second.stderr.read())
        self.assertTrue(diffserve.connect(f"unix:{self.path}").tokenize("a"))

    def test_long_path_is_wrong_usage(self):
        self.path = self.path.with_name("s" * 108)
        process, _ = self.start()
        self.assertEqual(process.wait(30), 2)
        self.assertRegex(process.stderr.read(), r"--unix-socket /\S+ has \d+ bytes; allowed: "
                                                r"at most 107")

    def test_any_host_name_is_served(self):
        self.start()
        ran = subprocess.run(["curl", "-sf", "--unix-socket", self.path,
                              "http://any.example/v1/models"], capture_output=True, text=True)
        self.assertIn('"id":"diff"', ran.stdout)

    def test_end_of_input_drains(self):
        process, _ = self.start("--stop-with-stdin", stdin=subprocess.PIPE)
        client, begun, whole = diffserve.connect(f"unix:{self.path}"), threading.Event(), []

        def read():
            for _ in client.stream(PROMPT, max_tokens=300, ignore_eos=True):
                begun.set()
            whole.append(True)
        reader = threading.Thread(target=read)
        reader.start()
        self.assertTrue(begun.wait(30))
        process.stdin.write("dropped")
        process.stdin.close()
        reader.join(60)
        self.assertTrue(whole)
        self.assertEqual(process.wait(60), 0)

    def test_probe(self):
        def probe() -> subprocess.CompletedProcess:
            return subprocess.run([BINARY, "probe", f"unix:{self.path}"], capture_output=True,
                                  text=True)
        self.assertRegex(probe().stderr, "is not ready: connect: No such file")
        self.start()
        self.assertEqual(probe().returncode, 0)


if __name__ == "__main__":
    unittest.main()
