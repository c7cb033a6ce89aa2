# SPDX-License-Identifier: Apache-2.0
"""65,536 tokens (the paper's long-context setting: theta 640,000) through a one-layer model: the
last logits against a double-precision reference written here, and a server's answer and memory
against them and against what `inspect` says."""

import functools
import json
import re
import subprocess
import tempfile
import unittest
from pathlib import Path

import numpy as np

import tiny_model
from server_process import BINARY, ServerProcess

LENGTH = 65_536
CONFIG = tiny_model.CONFIG | {
    "hidden_size": 32,
    "intermediate_size": 160,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rope_theta": 640_000.0,
    "max_position_embeddings": LENGTH,
}
LAMBDA_INIT = 0.2  # of layer 0


@functools.cache
def tokens() -> np.ndarray:
    return np.random.default_rng(3).integers(0, tiny_model.VOCAB_SIZE, LENGTH)


def rms_norm(x: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)


def rotate(x: np.ndarray, positions: np.ndarray, theta: float) -> np.ndarray:
    """x: [positions, head_dim], half-split. Angles are rounded to float32, as transformers computes
    them."""
    half = x.shape[-1] // 2
    inv_freq = (1 / np.float32(theta)
                **(np.arange(half, dtype=np.float32) * 2 / np.float32(2 * half))).astype(np.float32)
    angles = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    a, b = x[:, :half], x[:, half:]
    return np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], axis=-1)


def reference_logits(rows: list[int], theta: float) -> np.ndarray:
    """Float64 logits of one-layer DiffLlama with two query and two key-value heads (one
    differential head)."""
    w = {name: tensor.astype(np.float64) for name, tensor in tiny_model.weights(CONFIG).items()}
    layer, eps, d = "model.layers.0.", CONFIG["rms_norm_eps"], CONFIG["head_dim"]
    hidden = w["model.embed_tokens.weight"][tokens()]
    x = rms_norm(hidden, eps)
    q, k, v = (x @ w[f"{layer}self_attn.{name}_proj.weight"].T for name in "qkv")
    positions = np.arange(LENGTH)
    q = [rotate(q[:, d * head:d * (head + 1)], positions, theta) for head in range(2)]
    k = [rotate(k[:, d * head:d * (head + 1)], positions, theta) for head in range(2)]
    dot = [
        float(w[f"{layer}self_attn.lambda_q{i}"] @ w[f"{layer}self_attn.lambda_k{i}"])
        for i in (1, 2)
    ]
    lambda_ = np.exp(dot[0]) - np.exp(dot[1]) + LAMBDA_INIT
    logits = []
    for row in rows:
        def attend(map_):
            scores = k[map_][:row + 1] @ q[map_][row] / np.sqrt(d)
            weights = np.exp(scores - scores.max())
            return weights @ v[:row +
                               1] / weights.sum()  # both value heads side by side are the wide V

        head = rms_norm(attend(0) - lambda_ * attend(1), eps) * (1 - LAMBDA_INIT)
        h = hidden[row] + w[f"{layer}self_attn.o_proj.weight"] @ head
        x = rms_norm(h, eps)
        gate = w[f"{layer}mlp.gate_proj.weight"] @ x
        h = h + w[f"{layer}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) *
                                                     (w[f"{layer}mlp.up_proj.weight"] @ x))
        logits.append(w["lm_head.weight"] @ rms_norm(h, eps))
    return np.stack(logits)


class LongContextTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls._folder = tempfile.TemporaryDirectory(prefix="diffserve-e2e-")
        folder = Path(cls._folder.name)
        cls.model = tiny_model.write(folder / "long", CONFIG)
        cls.tokens_file = folder / "tokens"
        cls.tokens_file.write_text(" ".join(map(str, tokens())))
        cls.output = folder / "logits.npy"
        subprocess.run(
            [BINARY, "logits", cls.model, "--tokens", f"@{cls.tokens_file}", "--output",
             cls.output],
            check=True, timeout=300)

    @classmethod
    def tearDownClass(cls):
        cls._folder.cleanup()

    def test_logits_up_to_the_last_position_equal_the_double_reference(self):
        rows = [0, 1, 4_095, 32_768, 65_534, 65_535]
        found = np.load(self.output, mmap_mode="r")[rows].astype(np.float64)
        expected = reference_logits(rows, CONFIG["rope_theta"])
        error = np.abs(found - expected).max() / np.abs(expected).max()
        self.assertLess(error, 1e-4)
        # The comparison sees positions: with another theta the last logits are others.
        elsewhere = reference_logits(rows, 10_000.0)
        self.assertGreater(
            np.abs(elsewhere[-1] - expected[-1]).max() / np.abs(expected).max(), 1e-2)

    def test_server_needs_the_memory_that_inspect_reports(self):
        limits = ["--max-num-seqs", "1", "--max-num-batched-tokens", str(LENGTH)]
        told = json.loads(
            subprocess.run([BINARY, "inspect", self.model, "--json", *limits], check=True,
                           capture_output=True).stdout)
        memory = told["memory"]
        self.assertEqual(memory["kv_bytes"], LENGTH * memory["kv_bytes_per_token"])
        with ServerProcess(*limits, model=self.model) as server:
            def status_bytes(name: str) -> int:
                status = Path(f"/proc/{server.process.pid}/status").read_text()
                return int(re.search(rf"{name}:\s+(\d+) kB", status)[1]) * 1024

            # The program itself, the weights and the rope table; activations take memory when they
            # are written.
            at_start = status_bytes("VmRSS")
            request = {
                "model": server.name, "prompt": tokens()[:-1].tolist(), "max_tokens": 1,
                "temperature": 0, "logprobs": 1, "ignore_eos": True
            }
            response = server.post("/v1/completions", request, timeout_s=300)
            taken = status_bytes("VmHWM") - at_start + memory["weight_bytes"]
        self.assertEqual(response.status, 200)
        # Huge pages may make KV pages resident before they are written.
        self.assertGreater(taken, 0.95 * (memory["total_bytes"] - memory["kv_bytes"]), memory)
        self.assertLess(taken, 1.05 * memory["total_bytes"], memory)
        # The sampled token is the likeliest of row 65,534, with that row's log-probability.
        row = np.load(self.output, mmap_mode="r")[LENGTH - 2].astype(np.float64)
        drawn = response.json()["choices"][0]["logprobs"]["token_logprobs"][0]
        self.assertAlmostEqual(drawn, -np.log(np.exp(row - row.max()).sum()), places=4)


if __name__ == "__main__":
    unittest.main()
