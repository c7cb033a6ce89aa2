"""Model directories that cannot be served: one clear line on stderr, exit code 1, little time, little memory, never a signal."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY

CONFIG = tiny_model.CONFIG
CPU_S, RSS_BYTES = 1.0, 200 << 20


def write(name, content):
    """Replaces a file; content is bytes, text, or something to write as JSON."""
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
        (folder / "model.safetensors").write_bytes(tiny_model.with_header(json.dumps(header), data[8 + length:]))
    return apply


def cut(length):
    def apply(folder: Path):
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:length])
    return apply


def index(weight_map):
    def apply(folder: Path):
        (folder / "model.safetensors").unlink()
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return apply


def all_in(shard):
    return index({name: shard for name in tiny_model.weights(CONFIG)})


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
    ("eos beyond the vocabulary", write("generation_config.json", {"eos_token_id": 5000}), ["eos_token_id", "5000"]),
    ("no weights", remove("model.safetensors"), ["model.safetensors"]),
    ("weights are empty", cut(0), ["model.safetensors"]),
    ("weights end in the length", cut(5), ["model.safetensors"]),
    ("weights end in the header", cut(100), ["model.safetensors"]),
    ("weights end in the data", cut(100_000), ["model.safetensors"]),
    ("one byte is missing", cut(-1), ["model.safetensors"]),
    ("header of 2^63 bytes", write("model.safetensors", b"\xff" * 7 + b"\x7f" + b"{}"), ["model.safetensors"]),
    ("header of 101 MB", write("model.safetensors", (101 << 20).to_bytes(8, "little") + b"{" + b" " * 100), ["model.safetensors"]),
    ("header is nonsense", write("model.safetensors", tiny_model.with_header("nonsense", b"")), ["model.safetensors"]),
    ("header is deep", write("model.safetensors", tiny_model.with_header('{"a":' * 100_000, b"")), ["model.safetensors"]),
    ("name given twice", write("model.safetensors", tiny_model.with_header(
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', b"\0" * 4)),
     ["model.safetensors", "a"]),
    ("a tensor is missing", weights(lambda h: h.update({"model.other.weight": h.pop(NORM)})), [NORM]),
    ("wrong shape", weights(lambda h: h[NORM].update(shape=[8, 8])), [NORM, "[8, 8]", "[64]"]),
    ("wrong dtype", weights(lambda h: h[NORM].update(dtype="I32")), [NORM, "I32"]),
    ("unknown dtype", weights(lambda h: h[NORM].update(dtype="Q4")), [NORM, "Q4"]),
    ("shape and bytes differ", weights(lambda h: h[NORM].update(shape=[65])), [NORM]),
    ("shape overflows", weights(lambda h: h[NORM].update(shape=[1 << 32, 1 << 32, 64])), [NORM]),
    ("negative shape", weights(lambda h: h[NORM].update(shape=[-64])), ["model.safetensors", "header"]),
    ("offsets are backwards", weights(lambda h: h[NORM].update(data_offsets=[256, 0])), [NORM]),
    ("offsets beyond the file", weights(lambda h: h[NORM].update(data_offsets=[1 << 40, (1 << 40) + 256])), ["model.safetensors", "data"]),
    ("tensors overlap", weights(lambda h: h[NORM].update(data_offsets=[h[EMBED]["data_offsets"][1] - 256, h[EMBED]["data_offsets"][1]])),
     ["model.safetensors"]),
    ("a hole", weights(lambda h: h.pop(NORM)), ["model.safetensors"]),
    ("index leaves the directory", all_in("../tiny/model.safetensors"), ["../tiny/model.safetensors"]),
    ("index is absolute", all_in("/etc/passwd"), ["/etc/passwd"]),
    ("index names a missing shard", all_in("model-00001-of-00001.safetensors"), ["model-00001-of-00001.safetensors"]),
    ("index is nonsense", index("everything"), ["model.safetensors.index.json"]),
    ("no tokenizer", remove("tokenizer.json"), ["tokenizer.json"]),
    ("tokenizer is nonsense", write("tokenizer.json", "{}"), ["tokenizer.json"]),
    ("chat template does not compile", write("tokenizer_config.json", {"chat_template": "{% for x %}"}), ["chat_template"]),
]


class BadModelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.parent = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))

    def refuse(self, command: str, folder: Path, words) -> str:
        """Runs the command with its limits checked and returns its one line."""
        errors = tempfile.TemporaryFile()
        flags = ["--port", "0", "--grpc-port", "0"] if command == "serve" else []
        process = subprocess.Popen([BINARY, command, folder, *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
        output = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        errors.seek(0)
        text = errors.read().decode()
        errors.close()
        self.assertEqual(process.returncode, 1, text)
        self.assertEqual(output, b"")
        self.assertEqual(len(text.splitlines()), 1, text)
        for word in words:
            self.assertIn(word, text)
        self.assertLess(usage.ru_utime + usage.ru_stime, CPU_S)
        self.assertLess(usage.ru_maxrss * 1024, RSS_BYTES)
        return text

    def test_a_directory_that_is_none(self):
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

    def test_a_sharded_model_is_served_like_the_whole(self):
        folder = self.parent / "sharded"
        shutil.copytree(tiny_model.directory(), folder)
        tensors = tiny_model.weights(CONFIG)
        names = list(tensors)
        shards = {"model-00001-of-00002.safetensors": names[:7], "model-00002-of-00002.safetensors": names[7:]}
        index({name: shard for shard, inside in shards.items() for name in inside})(folder)
        for shard, inside in shards.items():
            (folder / shard).write_bytes(tiny_model.safetensors_bytes({name: tensors[name] for name in inside}))
        answers = [subprocess.run([BINARY, "generate", model, "--prompt", "abc", "--max-tokens", "16", "--ignore-eos"],
                                  capture_output=True, check=True, timeout=60).stdout for model in (folder, tiny_model.directory())]
        self.assertEqual(*answers)
