#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What int8 and int4 linear layers cost the attention output of the bundled pair, before and after
the per-head norm: attention_error.py, run with .venv/bin/python; prints a table.

The forward pass in float64, by the definition of the models; in each layer the output is computed
from the same input once more, with q, k and v by quantised weights and activations
(weight_format.h). Relative errors are by token and head: |a - b| / |b|, the median of all.
"""

import json
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
GROUP = 64
TOKENS = 700

sys.path[:0] = [str(ROOT / folder) for folder in ("tests/e2e", "tests/experiments", "models/demo")]
import needle_samples  # noqa: E402
from numpy_model import lambda_init, rms_norm, rotate, tensors  # noqa: E402
from server_process import ServerProcess  # noqa: E402


def int8_rows(weight):
    scale = np.abs(weight).max(1, keepdims=True) / 127
    return np.rint(weight / scale) * scale


def int4_groups(weight):
    groups = weight.reshape(len(weight), -1, GROUP)
    largest = np.take_along_axis(groups, np.abs(groups).argmax(2)[..., None], 2)
    scale = (largest / -8).astype(np.float16).astype(np.float64)
    return (np.clip(np.rint(groups / scale), -8, 7) * scale).reshape(weight.shape)


def int8_activations(x):
    groups = x.reshape(len(x), -1, GROUP)
    scale = np.abs(groups).max(2, keepdims=True) / 127
    return (np.rint(groups / scale) * scale).reshape(x.shape)


def attention(config, x, weights, factor):
    """[tokens, heads, width]; `factor` is lambda, or None for plain attention."""
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    q, k, v = (np.reshape(x @ weight.T, (len(x), -1, config["head_dim"])) for weight in weights)
    q, k = rotate(q, config["rope_theta"]), rotate(k, config["rope_theta"])
    k, v = np.repeat(k, heads // shared, 1), np.repeat(v, heads // shared, 1)
    scores = np.einsum("thd,shd->hts", q, k) / np.sqrt(config["head_dim"])
    scores += np.triu(np.full((len(x), len(x)), -np.inf), 1)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    if factor is None:
        return np.einsum("hts,shd->thd", p, v)
    half = heads // 2
    wide = np.concatenate([v[:, :half], v[:, half:]], -1)
    return np.einsum("hts,shd->thd", p[:half] - factor * p[half:], wide)


def relative_error(found, expected):
    differences = np.linalg.norm(found - expected, axis=-1)
    return np.median(differences / np.linalg.norm(expected, axis=-1))


def report(name, tokens):
    directory = ROOT / "models/demo" / name
    config = json.loads((directory / "config.json").read_text())
    weights = tensors(directory, np.float64)
    config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
    eps, is_diff = config["rms_norm_eps"], name == "diff"
    x = weights["model.embed_tokens.weight"][tokens]
    for layer in range(config["num_hidden_layers"]):
        def weight(key):
            return weights[f"model.layers.{layer}.{key}"]  # noqa: B023

        qkv = [weight(f"self_attn.{part}_proj.weight") for part in "qkv"]
        factor, init = None, lambda_init(layer)
        if is_diff:
            exps = [np.exp(weight(f"self_attn.lambda_q{i}") @ weight(f"self_attn.lambda_k{i}"))
                    for i in (1, 2)]
            factor = exps[0] - exps[1] + init
        normed = rms_norm(x, weight("input_layernorm.weight"), eps)
        exact = attention(config, normed, qkv, factor)
        after = (lambda o: rms_norm(o, 1, 1e-5)) if is_diff else (lambda o: o)
        for kind, quantised in (("int8", int8_rows), ("int4", int4_groups)):
            found = attention(config, int8_activations(normed), [quantised(w) for w in qkv], factor)
            before = relative_error(found, exact)
            print(f"{name} layer {layer} {kind}: {before:.4f}" +
                  (f", after the norm {relative_error(after(found), after(exact)):.4f}"
                   if is_diff else ""))
        out = after(exact) * (1 - init if is_diff else 1)
        x = x + out.reshape(len(tokens), -1) @ weight("self_attn.o_proj.weight").T
        normed = rms_norm(x, weight("post_attention_layernorm.weight"), eps)
        gate, up = (normed @ weight(f"mlp.{part}_proj.weight").T for part in ("gate", "up"))
        x = x + (gate / (1 + np.exp(-gate)) * up) @ weight("mlp.down_proj.weight").T


def main():
    sample = needle_samples.evaluation_sample(10001, 4)
    with ServerProcess(model=ROOT / "models/demo/diff") as server:
        answer = server.post("/tokenize", {"messages": sample.messages}).json()
    for name in ("diff", "twin"):
        report(name, np.array(answer["tokens"][:TOKENS]))


if __name__ == "__main__":
    main()
