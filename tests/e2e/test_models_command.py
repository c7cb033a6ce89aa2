# SPDX-License-Identifier: Apache-2.0
"""`diffserve models`: the hub's cache, and the memory and speed of its models on this machine."""

import json
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY

COMMITS = {"acme/tiny": "a" * 40, "acme/other": "b" * 40, "acme/broken": "c" * 40}


class ModelsCommandTest(unittest.TestCase):
    def setUp(self):
        self.cache = Path(tempfile.mkdtemp(prefix="diffserve-models-"))
        self.addCleanup(shutil.rmtree, self.cache, ignore_errors=True)

    def add(self, name: str, config: dict) -> Path:
        folder = self.cache / ("models--" + name.replace("/", "--"))
        (folder / "refs").mkdir(parents=True)
        (folder / "refs" / "main").write_text(COMMITS[name])
        return tiny_model.write(folder / "snapshots" / COMMITS[name], config)

    def run_models(self, *flags) -> str:
        environment = os.environ | {"HF_HUB_CACHE": str(self.cache)}
        return subprocess.run([BINARY, "models", *flags], capture_output=True, text=True,
                              check=True, env=environment).stdout

    def listed(self) -> dict:
        return json.loads(self.run_models("--json"))

    def test_an_empty_cache_says_how_to_fill_it(self):
        self.assertEqual(self.run_models(),
                         f"no model in {self.cache}; diffserve serve hf:ORG/NAME fetches one\n")
        self.assertEqual(self.listed()["models"], [])

    def test_each_format_has_the_memory_that_inspect_reports_and_a_speed(self):
        folder = self.add("acme/tiny", tiny_model.CONFIG)
        listed = self.listed()
        model, = listed["models"]
        self.assertEqual(model | {"formats": None, "disk_bytes": None}, {
            "name": "hf:acme/tiny", "revision": "main", "commit": COMMITS["acme/tiny"],
            "directory": str(folder), "disk_bytes": None, "refusal": None, "family": "diffllama",
            "formats": None})
        self.assertEqual(model["disk_bytes"],
                         sum(path.stat().st_size for path in folder.iterdir()))
        self.assertEqual([row["format"] for row in model["formats"]], ["float32", "int8", "int4"])
        sizes = [row["total_bytes"] for row in model["formats"]]
        self.assertEqual(sizes, sorted(sizes, reverse=True))
        for row in model["formats"]:
            memory = json.loads(subprocess.run(
                [BINARY, "inspect", folder, "--json", "--max-num-seqs", "1", "--max-model-len",
                 str(listed["context_tokens"]), "--quantization",
                 row["format"].replace("float32", "none")],
                capture_output=True, text=True, check=True).stdout)["memory"]
            self.assertEqual(row["total_bytes"], memory["total_bytes"])
            self.assertEqual(row["step_weight_bytes"], memory["step_weight_bytes"])
            self.assertTrue(row["fits"])
            self.assertAlmostEqual(row["tokens_per_s"] * row["step_weight_bytes"],
                                   listed["read_bytes_per_s"], delta=1)

    def test_a_model_that_is_not_served_has_the_reason(self):
        self.add("acme/other", dict(tiny_model.CONFIG, model_type="mixtral"))
        (self.add("acme/broken", tiny_model.CONFIG) / "model.safetensors").unlink()
        broken, other = self.listed()["models"]
        self.assertIn('model_type is "mixtral"', other["refusal"])
        self.assertIn("holds neither model.safetensors", broken["refusal"])
        self.assertEqual([other["formats"], broken["formats"]], [[], []])
        self.assertIn("hf:acme/other@main", self.run_models())

    def test_a_model_beyond_the_memory_is_listed_as_not_fitting(self):
        folder = self.add("acme/tiny", tiny_model.CONFIG)
        size = 1 << 14
        config = dict(tiny_model.CONFIG, hidden_size=size, intermediate_size=4 * size,
                      num_hidden_layers=256, vocab_size=1 << 17)
        (folder / "config.json").write_text(json.dumps(config))
        write_header(folder / "model.safetensors", config)
        model, = self.listed()["models"]
        self.assertIsNone(model["refusal"])
        self.assertEqual([row["fits"] for row in model["formats"]], [False] * 3)
        self.assertIn("does not fit", self.run_models())

    def test_an_argument_is_refused(self):
        done = subprocess.run([BINARY, "models", "x"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 2)
        self.assertIn("allowed: flags only", done.stderr)


def write_header(path: Path, config: dict) -> None:
    """A safetensors file of the model's shapes without data on the disk: its end is a hole."""
    header, end = {}, 0

    def add(name, *shape):
        nonlocal end
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    width, inner, head_dim = (config[k] for k in ("hidden_size", "intermediate_size", "head_dim"))
    q_width, kv_width = (config[k] * head_dim
                         for k in ("num_attention_heads", "num_key_value_heads"))
    for name in ("model.embed_tokens", "lm_head"):
        add(f"{name}.weight", config["vocab_size"], width)
    add("model.norm.weight", width)
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns in (("q", q_width, width), ("k", kv_width, width),
                                    ("v", kv_width, width), ("o", width, q_width)):
            add(f"{prefix}self_attn.{name}_proj.weight", rows, columns)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            add(f"{prefix}self_attn.{name}", head_dim)
        for name, rows, columns in (("gate", inner, width), ("up", inner, width),
                                    ("down", width, inner)):
            add(f"{prefix}mlp.{name}_proj.weight", rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            add(f"{prefix}{name}.weight", width)
    text = json.dumps(header)
    path.write_bytes(tiny_model.with_header(text, b""))
    os.truncate(path, path.stat().st_size + end)


if __name__ == "__main__":
    unittest.main()
