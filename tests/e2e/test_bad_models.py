# SPDX-License-Identifier: Apache-2.0
"""Model directories that cannot be served: one clear line on stderr, exit code 1, little time and
memory, never a signal."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from server_process import BINARY

CONFIG = tiny_model.CONFIG
CPU_S, RSS_BYTES = 1.0, 200 << 20


def write(name, content):
    """Replaces a file; content is bytes, text, or a value to write as JSON."""
    def change(folder: Path):
        data = content if isinstance(content, (bytes, str)) else json.dumps(content)
        (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return change


def remove(name):
    return lambda folder: (folder / name).unlink()


def config(**changes):
    return write("config.json", {k: v for k, v in (CONFIG | changes).items() if v != "absent"})


def weights(change):
    """Rewrites model.safetensors with its header as changed by `change(header)`."""
    def apply(folder: Path):
        data = (folder / "model.safetensors").read_bytes()
        length = int.from_bytes(data[:8], "little")
        header = json.loads(data[8:8 + length])
        change(header)
        (folder / "model.safetensors").write_bytes(
            tiny_model.with_header(json.dumps(header), data[8 + length:]))
    return apply


def cut(length):
    def apply(folder: Path):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:length])
    return apply


def index(weight_map):
    def apply(folder: Path):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {}, "weight_map": weight_map}))
    return apply


def spaces(count):
    """A header of spaces only. Written in pieces: the peak memory of this process counts as its
    children's (ru_maxrss)."""
    def apply(folder: Path):
        with open(folder / "model.safetensors", "wb") as file:
            file.write(count.to_bytes(8, "little"))
            for begin in range(0, count, 1 << 20):
                file.write(b" " * min(1 << 20, count - begin))
    return apply


def in_place_of(name, make):
    """Puts something else under a file's name: make(path)."""
    def change(folder: Path):
        (folder / name).unlink()
        make(folder / name)
    return change


def link_to(target):
    return lambda path: path.symlink_to(target)


def all_in(shard):
    return index({name: shard for name in tiny_model.weights(CONFIG)})


def all_in_named(tensor):
    """An index of an existing shard that names one tensor more than the shard has."""
    def apply(folder: Path):
        (folder / "model.safetensors").rename(folder / "shard.safetensors")
        names = [*tiny_model.weights(CONFIG), tensor]
        (folder / "model.safetensors.index.json").write_text(
            json.dumps({"weight_map": {name: "shard.safetensors"
                                       for name in names}}))
    return apply


def only(**files):
    """Only these files. Names have _dot_ for . and __ for a slash; values are contents."""
    def apply(folder: Path):
        shutil.rmtree(folder)
        folder.mkdir()
        for name, content in files.items():
            path = folder / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            write(path.name, content)(path.parent)
    return apply


LFS_POINTER = ("version https://git-lfs.github.com/spec/v1\n"
               "oid sha256:" + "0" * 64 + "\nsize 12345\n")
ADAPTER = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
NORM, EMBED = "model.norm.weight", "model.embed_tokens.weight"
# name, change to a good directory, words of the line
BAD = [
    ("no config", remove("config.json"), ["config.json"]),
    ("config is not JSON", write("config.json", "{nonsense"), ["config.json"]),
    ("config is a list", write("config.json", [1]), ["config.json"]),
    ("config is deep", write("config.json", '{"a":' * 5000 + "1" + "}" * 5000), ["config.json"]),
    ("config is binary", write("config.json", b"\x00\xff" * 1000), ["config.json"]),
    ("unknown model_type", config(model_type="mamba"), ["model_type", "mamba", "diffllama"]),
    ("no model_type", config(model_type="absent"), ["model_type"]),
    ("no hidden_size", config(hidden_size="absent"), ["config.json", "hidden_size"]),
    ("hidden_size is negative", config(hidden_size=-64), ["config.json", "hidden_size", "-64"]),
    ("hidden_size is text", config(hidden_size="64"), ["config.json", "hidden_size"]),
    ("hidden_size is huge", config(hidden_size=1 << 40), ["config.json", "hidden_size"]),
    ("hidden_size is 64.5", config(hidden_size=64.5), ["config.json", "hidden_size"]),
    ("vocab_size is huge", config(vocab_size=(1 << 31) - 1), ["vocab_size"]),
    ("no layers", config(num_hidden_layers=0), ["num_hidden_layers", "0"]),
    ("a million layers", config(num_hidden_layers=1 << 20), ["num_hidden_layers"]),
    ("3 heads for 2 kv heads", config(num_attention_heads=3), ["num_attention_heads"]),
    ("an odd number of kv heads", config(num_attention_heads=3, num_key_value_heads=3), ["heads"]),
    ("odd head_dim", config(head_dim=15), ["head_dim", "15"]),
    ("unknown rope", config(rope_scaling={"rope_type": "spiral", "factor": 2}), ["rope", "spiral"]),
    ("rope factor 0", config(rope_scaling={"rope_type": "linear", "factor": 0}), ["factor"]),
    ("unknown activation", config(hidden_act="relu6"), ["hidden_act", "relu6"]),
    ("eps is text", config(rms_norm_eps="small"), ["rms_norm_eps"]),
    ("eos beyond the vocabulary", write("generation_config.json",
                                        {"eos_token_id": 5000}), ["eos_token_id", "5000"]),
    ("no weights", remove("model.safetensors"), ["model.safetensors"]),
    ("weights are empty", cut(0), ["model.safetensors"]),
    ("weights end in the length", cut(5), ["model.safetensors"]),
    ("weights end in the header", cut(100), ["model.safetensors"]),
    ("weights end in the data", cut(100_000), ["model.safetensors"]),
    ("one byte is missing", cut(-1), ["model.safetensors"]),
    ("header of 2^63 bytes", write("model.safetensors",
                                   b"\xff" * 7 + b"\x7f" + b"{}"), ["model.safetensors"]),
    ("header of 101 MB",
     write("model.safetensors",
           (101 << 20).to_bytes(8, "little") + b"{" + b" " * 100), ["model.safetensors"]),
    ("header is nonsense", write("model.safetensors",
                                 tiny_model.with_header("nonsense", b"")), ["model.safetensors"]),
    ("header is deep", write("model.safetensors",
                             tiny_model.with_header('{"a":' * 100_000,
                                                    b"")), ["model.safetensors"]),
    ("name given twice",
     write(
         "model.safetensors",
         tiny_model.with_header(
             '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
             '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
             b"\0" * 4)), ["model.safetensors", "a"]),
    ("a tensor is missing", weights(lambda h: h.update({"model.other.weight": h.pop(NORM)})),
     [NORM]),
    ("wrong shape", weights(lambda h: h[NORM].update(shape=[8, 8])), [NORM, "[8, 8]", "[64]"]),
    ("wrong dtype", weights(lambda h: h[NORM].update(dtype="I32")), [NORM, "I32"]),
    ("unknown dtype", weights(lambda h: h[NORM].update(dtype="Q4")), [NORM, "Q4"]),
    ("shape and bytes differ", weights(lambda h: h[NORM].update(shape=[65])), [NORM]),
    ("shape overflows", weights(lambda h: h[NORM].update(shape=[1 << 32, 1 << 32, 64])), [NORM]),
    ("negative shape", weights(lambda h: h[NORM].update(shape=[-64])),
     ["model.safetensors", "header"]),
    ("offsets are backwards", weights(lambda h: h[NORM].update(data_offsets=[256, 0])), [NORM]),
    ("offsets beyond the file",
     weights(lambda h: h[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256])),
     ["model.safetensors", "data"]),
    ("tensors overlap",
     weights(lambda h: h[NORM].update(
         data_offsets=[h[EMBED]["data_offsets"][1] - 256, h[EMBED]["data_offsets"][1]])),
     ["model.safetensors"]),
    ("a hole", weights(lambda h: h.pop(NORM)), ["model.safetensors"]),
    ("index leaves the directory", all_in("../tiny/model.safetensors"),
     ["../tiny/model.safetensors"]),
    ("index is absolute", all_in("/etc/passwd"), ["/etc/passwd"]),
    ("index names a missing shard", all_in("model-00001-of-00001.safetensors"),
     ["model-00001-of-00001.safetensors"]),
    ("index is nonsense", index("everything"), ["model.safetensors.index.json"]),
    ("index of names with control characters", all_in_named("a\nb\u0085\u2028\u001b[31m"),
     ["model.safetensors", "missing"]),
    ("index of 100,000 tensors", index({f"t{i}": "a"
                                        for i in range(100_000)}), ["/a", "no such file"]),
    ("index of 200,000 tensors", index({f"t{i}": "a"
                                        for i in range(200_000)}),
     ["model.safetensors.index.json", "131072"]),
    ("config of empty objects", write("config.json", '{"a":[{}' + ",{}" * 1_300_000 + "]}"),
     ["config.json", "131072"]),
    ("header of 100 MB of spaces", spaces(10**8), ["model.safetensors", "'{'"]),
    *((f"{name} is {what}", in_place_of(name, make), [name])
      for name in ("model.safetensors", "config.json", "tokenizer.json")
      for what, make in (("a directory", Path.mkdir), ("a pipe", os.mkfifo),
                         ("a device", link_to("/dev/zero")), ("a link to itself", link_to(name)),
                         ("a link to nothing", link_to("nothing")))),
    *((f"{name} is a Git LFS pointer", write(name, LFS_POINTER), [name, "Git LFS pointer"])
      for name in ("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
                   "generation_config.json")),
    ("an HTML page for the weights", write("model.safetensors", "<!DOCTYPE html>\n<html>"),
     ["model.safetensors", "HTML page"]),
    ("a failed download for the tokenizer", write("tokenizer.json", "Entry not found"),
     ["tokenizer.json", "failed download"]),
    ("an adapter", only(adapter_config_dot_json=ADAPTER, adapter_model_dot_safetensors=b""),
     ["config.json", "PEFT adapter", "org/base"]),
    ("an adapter beside a config", only(adapter_config_dot_json=ADAPTER, config_dot_json=CONFIG),
     ["model.safetensors", "PEFT adapter", "org/base"]),
    ("an adapter whose config is no JSON", only(adapter_config_dot_json="{"), ["PEFT adapter"]),
    ("nothing", only(), ["config.json", "empty"]),
    ("GGUF", only(model_dot_gguf=b"GGUF"), ["model.gguf", "GGUF", "safetensors"]),
    ("pickled weights", only(config_dot_json=CONFIG, pytorch_model_dot_bin=b"PK"),
     ["pytorch_model.bin", "pickled", "safetensors"]),
    ("weights of another framework", only(config_dot_json=CONFIG, tf_model_dot_h5=b""),
     ["tf_model.h5", "another framework"]),
    ("a shard without its index",
     only(config_dot_json=CONFIG, **{"model-00001-of-00002_dot_safetensors": b""}),
     ["model-00001-of-00002.safetensors", "index"]),
    ("an unfinished download", only(config_dot_json=CONFIG, x_dot_incomplete=b""),
     ["x.incomplete", "unfinished"]),
    ("an unfinished hf download",
     only(config_dot_json=CONFIG, _dot_cache__huggingface__download__x_dot_incomplete=b""),
     ["x.incomplete", "unfinished"]),
    ("a folder of Hugging Face's cache",
     only(refs__main="abc", snapshots__abc__config_dot_json=CONFIG), ["cache", "snapshots/abc"]),
    ("a folder of Hugging Face's cache with two snapshots",
     only(refs__main="def", snapshots__abc__config_dot_json=CONFIG,
          snapshots__def__config_dot_json=CONFIG), ["cache", "snapshots/def"]),
    ("a model one level down", only(**{"checkpoint-5__config_dot_json": CONFIG}),
     ["checkpoint-5", "subdirectory"]),
    ("tokenizer is nonsense", write("tokenizer.json", "{}"), ["tokenizer.json"]),
    ("chat template does not compile",
     write("tokenizer_config.json", {"chat_template": "{% for x %}"}), ["chat_template"]),
]


# Runs a program and writes its exit code, CPU seconds and peak KiB to a descriptor. A process's
# peak begins with that of the one that starts it, so a small one starts the program instead of this
# one.
MEASURE = """
import os, sys
pid = os.spawnv(os.P_NOWAIT, sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
os.write(int(sys.argv[1]), f"{os.waitstatus_to_exitcode(status)} "
         f"{usage.ru_utime + usage.ru_stime} {usage.ru_maxrss}".encode())
"""


class BadModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parent = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def refuse(self, command: str, folder: Path, words) -> str:
        """Runs the command, checks its limits and returns its single line."""
        flags = ["--port", "0", "--grpc-port", "0"] if command == "serve" else []
        read_end, write_end = os.pipe()
        with open(read_end) as usage, open(write_end, "w") as for_child:
            run = subprocess.run([
                sys.executable, "-S", "-c", MEASURE,
                str(write_end), BINARY, command, folder, *flags
            ], stdin=subprocess.DEVNULL, capture_output=True, pass_fds=[write_end])
            for_child.close()
            code, cpu_s, peak_kib = usage.read().split()
        text = run.stderr.decode()
        self.assertEqual(int(code), 1, text)
        self.assertEqual(run.stdout, b"")
        self.assertEqual(len(text.splitlines()), 1, text)
        for word in words:
            self.assertIn(word, text)
        self.assertLess(float(cpu_s), CPU_S)
        self.assertLess(int(peak_kib) * 1024, RSS_BYTES)
        return text

    def test_path_that_is_not_a_directory(self):
        file = self.parent / "file"
        file.write_text("x")
        for path in (self.parent / "missing", file, self.parent / ("x" * 300)):
            self.refuse("serve", path, [str(path)[:50]])

    def test_bad_directories_are_refused_in_one_line_by_serve_and_inspect_alike(self):
        for name, change, words in BAD:
            with self.subTest(name):
                folder = self.parent / "tiny"
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(tiny_model.directory(), folder)
                change(folder)
                line = self.refuse("serve", folder, words)
                self.assertEqual(self.refuse("inspect", folder, words), line)

    def test_flipped_bits_of_any_file_are_refused_in_one_line_or_served(self):
        random = np.random.default_rng(18)
        folder = self.parent / "flipped"
        shutil.copytree(tiny_model.directory(), folder)
        codes = []
        for path in sorted(folder.iterdir()):
            good = path.read_bytes()
            for bit in random.integers(0, 8 * min(len(good), 20_000),
                                       15):  # of the weights, the header
                bytes_ = bytearray(good)
                bytes_[bit // 8] ^= 1 << bit % 8
                path.write_bytes(bytes_)
                done = subprocess.run([BINARY, "inspect", folder], capture_output=True, timeout=30)
                codes.append(done.returncode)
                with self.subTest(path.name, bit=bit):
                    self.assertIn(done.returncode, (0, 1), done.stderr)
                    self.assertEqual(len(done.stderr.decode().splitlines()), done.returncode,
                                     done.stderr)
            path.write_bytes(good)
        self.assertGreater(codes.count(0), 20)
        self.assertGreater(codes.count(1), 20)

    def test_sharded_model_is_served_like_the_whole(self):
        folder = self.parent / "sharded"
        shutil.copytree(tiny_model.directory(), folder)
        tensors = tiny_model.weights(CONFIG)
        names = list(tensors)
        shards = {
            "model-00001-of-00002.safetensors": names[:7],
            "model-00002-of-00002.safetensors": names[7:]
        }
        index({name: shard for shard, inside in shards.items() for name in inside})(folder)
        for shard, inside in shards.items():
            (folder / shard).write_bytes(
                tiny_model.safetensors_bytes({name: tensors[name]
                                              for name in inside}))
        answers = [
            subprocess.run([
                BINARY, "generate", model, "--prompt", "abc", "--max-tokens", "16", "--ignore-eos"
            ], capture_output=True, check=True, timeout=60).stdout
            for model in (folder, tiny_model.directory())
        ]
        self.assertEqual(*answers)
