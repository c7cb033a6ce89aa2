# SPDX-License-Identifier: Apache-2.0
"""A model's files are replaced, cut, overwritten or removed: a serving process does not notice, a
loading one ends with one line."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from server_process import BINARY, ServerProcess, eventually

FLAGS = ("--no-enable-prefix-caching", "--max-num-seqs", 8)  # every answer is computed again
PROMPTS = ["once upon a time", "hello there the other", "the tail of the whale" * 8]
FILES = [
    "model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
    "tokenizer_config.json"
]


def other_model(parent: Path) -> Path:
    """A model of the same shape with other weights."""
    folder = tiny_model.write(parent / "other")
    tensors = tiny_model.safetensors_bytes(tiny_model.weights(tiny_model.CONFIG, seed=2))
    (folder / "model.safetensors").write_bytes(tensors)
    return folder


def rename_over(folder: Path, other: Path):
    for name in FILES:
        shutil.copy(other / name, folder / "new")
        os.replace(folder / "new", folder / name)


def cut_in_place(folder: Path, _):
    for name in FILES:
        os.truncate(folder / name, 100)


def empty_in_place(folder: Path, _):
    for name in FILES:
        os.truncate(folder / name, 0)


def overwrite_in_place(folder: Path, _):
    random = np.random.default_rng(3)
    for name in FILES:
        with open(folder / name, "r+b") as file:
            file.write(random.bytes((folder / name).stat().st_size))


def put_other_in_place(folder: Path, other: Path):
    for name in FILES:
        with open(folder / name, "r+b") as file:
            file.write((other / name).read_bytes())


def remove(folder: Path, _):
    shutil.rmtree(folder)


class WhileItServesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parent = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.other = other_model(cls.parent)

    def answers(self, server) -> list:
        completions = [{"prompt": prompt, "max_tokens": 24, "temperature": 0, "logprobs": 3}
                       for prompt in PROMPTS]
        chat = {
            "messages": [{"role": "user", "content": "hello"}], "max_tokens": 24, "temperature": 0,
            "logprobs": True
        }
        replies = [server.post("/v1/completions", body)
                   for body in completions] + [server.post("/v1/chat/completions", chat)]
        for reply in replies:
            self.assertEqual(reply.status, 200, reply.body)
        return [(choice.get("text")
                 or choice.get("message"), choice["finish_reason"], choice["logprobs"])
                for choice in (reply.json()["choices"][0] for reply in replies)]

    def test_answers_keep_their_bits(self):
        for change in (rename_over, cut_in_place, empty_in_place, overwrite_in_place,
                       put_other_in_place, remove):
            with self.subTest(change.__name__):
                folder = self.parent / change.__name__ / "tiny"
                shutil.copytree(tiny_model.directory(), folder)
                with ServerProcess(*FLAGS, model=folder) as server:
                    expected = self.answers(server)
                    during, done = [], threading.Event()

                    def ask(server=server, during=during, done=done):
                        while not done.is_set():
                            during.append(self.answers(server))

                    asking = threading.Thread(target=ask)
                    asking.start()
                    try:
                        eventually(lambda during=during: during, "answers come")
                        change(folder, self.other)
                        seen = len(during)
                        eventually(lambda during=during, seen=seen: len(during) > seen + 1,
                                   "answers come after the change")
                    finally:
                        done.set()
                        asking.join()
                    self.assertEqual([answer for answer in during if answer != expected], [])
                    self.assertEqual(self.answers(server), expected)
                    self.assertEqual(server.get("/health").status, 200)

    def test_another_model_answers_otherwise(self):
        with ServerProcess(*FLAGS) as server, ServerProcess(*FLAGS, model=self.other) as other:
            self.assertNotEqual(self.answers(server), self.answers(other))


class WhileItLoadsTest(unittest.TestCase):
    """The process is stopped between two reads of a large model and continues when its file has
    changed."""

    CONFIG = tiny_model.CONFIG | {"intermediate_size": 1 << 17}
    STOP_AT_BYTES = 16 << 20  # of about 200 MiB

    def setUp(self):
        parent = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.folder = tiny_model.write(parent / "large")
        (self.folder / "config.json").write_text(tiny_model.json.dumps(self.CONFIG))
        shapes = {
            name: list(tensor.shape)
            for name, tensor in tiny_model.weights(tiny_model.CONFIG).items()
        }
        header, end = {}, 0
        for name, shape in shapes.items():
            shape = [
                self.CONFIG["intermediate_size"]
                if extent == tiny_model.CONFIG["intermediate_size"] else extent for extent in shape
            ]
            size = 4 * int(np.prod(shape))
            header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
            end += size
        self.path = self.folder / "model.safetensors"
        self.path.write_bytes(tiny_model.with_header(tiny_model.json.dumps(header), b""))
        self.header_bytes = self.path.stat().st_size
        os.truncate(self.path, self.header_bytes + end)  # zeros, which take no disk space

    def load_with(self, change) -> str:
        """Runs `serve`, makes the change while it reads the weights, and returns its single
        line."""
        time.sleep(0.05)  # so that the file's change time shows a later write
        errors = tempfile.TemporaryFile()
        process = subprocess.Popen([
            BINARY, "serve", self.folder, "--port", "0", "--grpc-port", "0", "--max-model-len", "64"
        ], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        try:
            read_bytes = 0
            while read_bytes < self.STOP_AT_BYTES and process.poll() is None:
                read_bytes = int(Path(f"/proc/{process.pid}/io").read_text().split()[1])
            process.send_signal(signal.SIGSTOP)
            change()
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=30)
        finally:
            process.kill()
            process.wait()
        errors.seek(0)
        text = errors.read().decode()
        errors.close()
        self.assertEqual((process.returncode, output), (1, b""), text)
        self.assertEqual(len(text.splitlines()), 1, text)
        self.assertIn(str(self.path), text)
        return text

    def test_file_cut_is_refused(self):
        self.assertIn("became shorter",
                      self.load_with(lambda: os.truncate(self.path, self.header_bytes + 1000)))

    def test_file_written_to_is_refused(self):
        def write():
            with open(self.path, "r+b") as file:
                file.seek(self.header_bytes + 1000)
                file.write(b"\1")
        self.assertIn("was changed", self.load_with(write))


if __name__ == "__main__":
    unittest.main()
