# SPDX-License-Identifier: Apache-2.0
"""No request depends on the server's standard streams or on whether they are read."""

import contextlib
import fcntl
import http.client
import json
import os
import signal
import subprocess
import unittest

import tiny_model
from server_process import BINARY, DEVICE_FLAGS, START_TIMEOUT_S, STOP_TIMEOUT_S, eventually
from server_process import free_port


def full_pipe() -> tuple[int, int]:
    """Both ends of a pipe that has no room for a single byte."""
    reader, writer = os.pipe()
    flags = fcntl.fcntl(writer, fcntl.F_GETFL)
    fcntl.fcntl(writer, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x")
    fcntl.fcntl(writer, fcntl.F_SETFL, flags)
    return reader, writer


class StandardStreams(unittest.TestCase):
    def start(self, *flags, **options) -> subprocess.Popen:
        """Starts a server whose ready line may be unreadable, and waits until it is ready."""
        self.port = free_port()
        server = subprocess.Popen([
            BINARY, "serve", tiny_model.directory(), "--port", str(self.port), "--grpc-port", "0",
            *DEVICE_FLAGS, *flags
        ], **options)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        eventually(lambda: self.status("GET", "/readyz") == 200, "ready", START_TIMEOUT_S)
        return server

    def status(self, method: str, path: str, body=None) -> int | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body and json.dumps(body),
                                   {"Content-Type": "application/json"})
                return connection.getresponse().status
            except ConnectionRefusedError:
                return None

    def stop(self, server: subprocess.Popen) -> int:
        server.send_signal(signal.SIGTERM)
        return server.wait(STOP_TIMEOUT_S)

    def test_full_stderr_pipe_blocks_no_request(self):
        reader, writer = full_pipe()
        self.addCleanup(os.close, reader)
        server = self.start("--log-level", "debug", stdin=subprocess.DEVNULL, stdout=writer,
                            stderr=writer)
        os.close(writer)
        body = {"model": tiny_model.directory().name, "prompt": "hello", "max_tokens": 1}
        for i in range(1000):
            self.assertEqual(self.status("POST", "/v1/completions", body), 200, i)
        self.assertEqual(self.status("GET", "/readyz"), 200)
        self.assertEqual(self.stop(server), 0)

    def test_streams_that_are_closed_at_the_start_become_the_null_device(self):
        def close_all():
            for stream in range(3):
                os.close(stream)
        server = self.start("--log-level", "debug", preexec_fn=close_all)
        for stream in range(3):
            self.assertEqual(os.readlink(f"/proc/{server.pid}/fd/{stream}"), "/dev/null")
        self.assertEqual(self.status("POST", "/v1/completions", {}), 400)  # and logs
        self.assertEqual(self.stop(server), 0)

    def test_last_line_is_written_before_the_end(self):
        ended = subprocess.run([BINARY, "serve", "/nonexistent"], capture_output=True, text=True,
                               timeout=STOP_TIMEOUT_S)
        self.assertEqual((ended.returncode, ended.stdout), (1, ""))
        self.assertEqual(ended.stderr, "diffserve: /nonexistent: is not a directory\n")


if __name__ == "__main__":
    unittest.main()
