# SPDX-License-Identifier: Apache-2.0
"""Before the ready line: invalid files, and signals while the model is read."""

import os
import signal
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE_FLAGS, GATED_BINARY, START_TIMEOUT_S, STOP_TIMEOUT_S
from server_process import eventually

LOADING = {
    "serve": ["--port", "0", "--grpc-port", "0"],
    "generate": ["--tokens", "5"],
    "logits": ["--tokens", "5", "--output", os.devnull],
    "bench": [],
}


class SignalWhileLoading(unittest.TestCase):
    """The first read of a tensor never returns, so the signal comes while the model is loaded."""

    def setUp(self):
        self._folder = tempfile.TemporaryDirectory(prefix="diffserve-start-")
        self.addCleanup(self._folder.cleanup)
        self.folder = Path(self._folder.name)

    def check(self, model: Path, command: str, number: signal.Signals) -> None:
        held = self.folder / f"{command}-{number.name}"
        process = subprocess.Popen([GATED_BINARY, command, model, *LOADING[command], *DEVICE_FLAGS],
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   env={**os.environ, "DIFFSERVE_HELD_READ": str(held)})
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        eventually(lambda: held.exists() or process.poll() is not None, "it reads", START_TIMEOUT_S)
        process.send_signal(number)
        out, error = process.communicate(timeout=STOP_TIMEOUT_S)
        self.assertEqual((process.returncode, out), (-number, b""), error)
        self.assertIn(f"ended_by_signal signal={number.name}", error.decode())

    def test_every_command_ends(self):
        for command in LOADING:
            for number in (signal.SIGTERM, signal.SIGINT):
                with self.subTest(command, signal=number.name):
                    self.check(tiny_model.directory(), command, number)

    @unittest.skipIf("cuda" in DEVICE_FLAGS, "packed weights are the CPU's")
    def test_packed_directory_ends_too(self):
        packed = self.folder / "packed"
        convert = [BINARY, "convert", tiny_model.directory(), packed, "--quantization", "int8"]
        subprocess.run(convert, check=True, capture_output=True)
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(signal=number.name):
                self.check(packed, "serve", number)


class NoFile(unittest.TestCase):
    def test_pipe_in_a_files_place_is_refused_by_name(self):
        with tempfile.TemporaryDirectory(prefix="diffserve-start-") as folder:
            for name in ("config.json", "model.safetensors", "tokenizer.json"):
                model = tiny_model.write(Path(folder) / name, tiny_model.CONFIG)
                (model / name).unlink()
                os.mkfifo(model / name)
                self.refused(model / name, 1, "serve", model)
            pipe, model = Path(folder) / "pipe", tiny_model.directory()
            os.mkfifo(pipe)
            self.refused(pipe, 1, "serve", model, "--api-key-file", pipe)
            self.refused(pipe, 2, "serve", model, "--config", pipe)
            self.refused(pipe, 2, "generate", model, "--tokens", f"@{pipe}")
            self.refused(pipe, 2, "inspect", model, "--activations", pipe)

    def refused(self, pipe: Path, code: int, *arguments) -> None:
        with self.subTest(" ".join(map(str, arguments))):
            ended = subprocess.run([BINARY, *map(str, arguments)], capture_output=True, text=True,
                                   timeout=STOP_TIMEOUT_S)
            self.assertEqual((ended.returncode, ended.stdout), (code, ""), ended.stderr)
            self.assertIn(f"{pipe}: is a pipe; allowed: a regular file", ended.stderr)


if __name__ == "__main__":
    unittest.main()
