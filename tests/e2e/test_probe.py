# SPDX-License-Identifier: Apache-2.0
"""`diffserve probe`: the check that containers and scripts run before they send work."""

import contextlib
import signal
import socket
import subprocess
import threading
import time
import unittest

from server_process import BINARY, GatedServer, ServerProcess, eventually
from test_shutdown import start_clients

HANG = None


def probe(url: str, *flags) -> subprocess.CompletedProcess:
    return subprocess.run([BINARY, "probe", url, *map(str, flags)], capture_output=True, text=True,
                          timeout=60)


@contextlib.contextmanager
def listener(answer: bytes | None, family=socket.AF_INET, address="127.0.0.1"):
    """A server that reads one request, sends `answer` and closes; HANG: it never answers. Yields
    its port and the received bytes."""
    with socket.create_server((address, 0), family=family) as server:
        requests, done = [], threading.Event()

        def serve():
            connection, _ = server.accept()
            with connection:
                requests.append(connection.recv(65536).decode())
                if answer is HANG:
                    done.wait(60)
                else:
                    connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1], requests
        finally:
            done.set()
            thread.join(10)


class ProbeTest(unittest.TestCase):
    def assert_not_ready(self, result, url, *words):
        self.assertEqual((result.returncode, result.stdout), (1, ""), result.stderr)
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        for word in (f"{url} is not ready: ", *words):
            self.assertIn(word, result.stderr)

    def test_ready_server(self):
        with ServerProcess() as server:
            for url in (server.url, f"{server.url}/readyz", f"{server.url}/livez",
                        f"http://localhost:{server.port}"):
                with self.subTest(url=url):
                    result = probe(url)
                    self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            self.assert_not_ready(probe(f"{server.url}/nowhere"), server.url + "/nowhere",
                                  "status 404")

    def test_draining_server_is_not_ready(self):
        with GatedServer("--drain-timeout", 600) as server:
            start_clients(server, 8000)
            self.assertEqual(probe(server.url).returncode, 0)
            server.terminate()
            results = []
            eventually(lambda: results.append(probe(server.url)) or results[-1].returncode == 1,
                       "not ready")
            self.assert_not_ready(results[-1], server.url, "status 503", "drain")
            server.terminate()
            self.assertEqual(server.wait(), -signal.SIGTERM)
            server.code = 0  # the end by the second signal is intended

    def test_refused_connection(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        self.assert_not_ready(probe(url), url, "connect: Connection refused")

    def test_server_that_never_answers(self):
        with listener(HANG) as (port, _):
            url, begin = f"http://127.0.0.1:{port}", time.monotonic()
            self.assert_not_ready(probe(url), url, "no answer in time (4 s)")
            self.assertGreaterEqual(time.monotonic() - begin, 4)

    def test_full_backlog_is_no_connection_in_time(self):
        with contextlib.ExitStack() as stack:
            server = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
            for _ in range(4):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(server.getsockname())
            url = f"http://127.0.0.1:{server.getsockname()[1]}"
            self.assert_not_ready(probe(url), url, "no connection in time (4 s)")

    def test_malformed_and_failed_answers_are_not_ready(self):
        for answer, word in ((b"", "closed without an answer"), (b"SSH-2.0-OpenSSH\r\n",
                                                                 "not HTTP: SSH-2.0-OpenSSH"),
                             (b"\x00\x00\x12\x04" + bytes(200), "not HTTP"), (b"HTTP/1.1 20",
                                                                              "not HTTP"),
                             (b"HTTP/1.1 2000 OK\r\n\r\n", "not HTTP"), (b"HTTP/2.0 200 OK\r\n\r\n",
                                                                         "not HTTP"),
                             (b"HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n",
                              "status 302"), (b"HTTP/1.1 503 X\r\n\r\n" + b"a\nb\x1b[2J" * 100000,
                                              "status 503 a b")):
            with self.subTest(answer=answer[:40]), listener(answer) as (port, _):
                result = probe(f"http://127.0.0.1:{port}")
                self.assert_not_ready(result, f"http://127.0.0.1:{port}", word)
                self.assertTrue(result.stderr.strip().isprintable())
                self.assertLess(len(result.stderr), 400)

    def test_request_has_the_path_and_the_host(self):
        for family, address, shown in ((socket.AF_INET, "127.0.0.1", "127.0.0.1"),
                                       (socket.AF_INET6, "::1", "[::1]")):
            with self.subTest(address=address), listener(b"HTTP/1.0 200 OK\r\n", family,
                                                         address) as (port, requests):
                self.assertEqual(probe(f"http://{shown}:{port}/a?b=c").returncode, 0)
                self.assertTrue(requests[0].startswith("GET /a?b=c HTTP/1.1\r\n"), requests)
                self.assertIn(f"\r\nHost: {shown}:{port}\r\n", requests[0])

    def test_unknown_host_name(self):
        url = "http://unknown.invalid:80"
        self.assert_not_ready(probe(url), url)

    def test_wrong_usage(self):
        for arguments, word in ((("https://h:1", ), "https://h:1"), (("http://h", ),
                                                                     "http://HOST:PORT[/PATH]"),
                                (("http://h:1", "--port", "1"), "--port")):
            with self.subTest(arguments=arguments):
                result = probe(*arguments)
                self.assertEqual((result.returncode, result.stdout), (2, ""))
                self.assertIn(word, result.stderr)
