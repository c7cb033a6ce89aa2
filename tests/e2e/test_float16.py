# SPDX-License-Identifier: Apache-2.0
"""--dtype float16 and --kv-cache-dtype float16: answers near those of float32, pages of half the
size, values out of range, and no float16 on a GPU."""

import json
import subprocess
import tempfile
import unittest
from pathlib import Path

import tiny_model
from server_process import BINARY, DEVICE, ServerProcess
from test_cuda_on_cpu import ON_SHIM
from tiny_model import encode

FLOAT16 = ("--dtype", "float16")
PAGES = ("--dtype", "float32", "--kv-cache-dtype", "float16")
PROMPTS = ["one prompt of some length", "another", "and a third one, longer than both others"]


def logprobs(server, prompt: str) -> list[float]:
    body = {"prompt": prompt, "max_tokens": 0, "prompt_logprobs": 0, "echo": True, "logprobs": 0}
    return server.post("/v1/completions", body).json()["choices"][0]["logprobs"]["token_logprobs"]


def write_loud_model(directory: Path, norm_weight: float) -> Path:
    """A model whose K and V are huge at the token "~" and normal elsewhere."""
    tensors = tiny_model.weights(tiny_model.CONFIG)
    tensors["model.layers.0.input_layernorm.weight"][0] = norm_weight
    tensors["model.embed_tokens.weight"][:, 0] = 0
    tensors["model.embed_tokens.weight"][encode("~")[0], 0] = 1e4
    folder = tiny_model.write(directory)
    (folder / "model.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
    return folder


@unittest.skipIf(DEVICE == "cuda", "float16 is the CPU's")
class Float16Test(unittest.TestCase):
    def test_answers_are_near_those_of_float32(self):
        with ServerProcess("--dtype", "float32") as server:
            expected = [logprobs(server, prompt) for prompt in PROMPTS]
        for flags in (FLOAT16, PAGES):
            with self.subTest(flags=flags), ServerProcess(*flags) as server:
                answers = [logprobs(server, prompt) for prompt in PROMPTS]
                self.assertEqual(server.metric("diffserve_build_info", kv_cache_dtype="float16"), 1)
                for mine, theirs in zip(answers, expected):
                    self.assertEqual(len(mine), len(theirs))
                    for a, b in zip(mine[1:], theirs[1:]):
                        self.assertAlmostEqual(a, b, delta=0.05)
                self.assertNotEqual(answers, expected)

    def test_token_takes_half_the_bytes(self):
        def bytes_per_token(*flags):
            told = subprocess.run([BINARY, "inspect", tiny_model.directory(), *flags, "--json"],
                                  capture_output=True, check=True)
            return json.loads(told.stdout)["memory"]["kv_bytes_per_token"]

        self.assertEqual(2 * bytes_per_token(*PAGES), bytes_per_token("--dtype", "float32"))

    def test_weight_beyond_its_range_is_refused_by_name(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = tiny_model.write(Path(parent) / "tiny")
            tensors = tiny_model.weights(tiny_model.CONFIG)
            tensors["model.layers.1.mlp.up_proj.weight"][3, 2] = 70_000
            (folder / "model.safetensors").write_bytes(tiny_model.safetensors_bytes(tensors))
            refused = subprocess.run([BINARY, "serve", folder, *FLOAT16], capture_output=True,
                                     text=True)
        self.assertEqual(refused.returncode, 1)
        for word in ("model.layers.1.mlp.up_proj.weight", "70000", "65504"):
            self.assertIn(word, refused.stderr)

    def test_k_or_v_out_of_range_ends_only_its_request(self):
        with tempfile.TemporaryDirectory() as parent:
            folder = write_loud_model(Path(parent) / "tiny", 1e5)
            with ServerProcess(*PAGES, model=folder) as server:
                expected = logprobs(server, PROMPTS[0])
                answer = server.post("/v1/completions", {"prompt": "a ~ b", "max_tokens": 4})
                self.assertEqual(answer.status, 500)
                self.assertIn("float16 KV pages", answer.json()["error"]["message"])
                self.assertEqual(logprobs(server, PROMPTS[0]), expected)

    def test_gpu_refuses_it_by_name(self):
        for flags in (FLOAT16, PAGES[2:]):
            with self.subTest(flags=flags):
                refused = subprocess.run(
                    [ON_SHIM, "serve", tiny_model.directory(), "--device", "cuda", *flags],
                    capture_output=True, text=True)
                self.assertEqual(refused.returncode, 2)
                self.assertIn("float16", refused.stderr)
                self.assertIn("bfloat16", refused.stderr)


if __name__ == "__main__":
    unittest.main()
