# SPDX-License-Identifier: Apache-2.0
"""The forward pass of the bundled pair by numpy, for what no server offers: logits quantised by an
absmax of the whole tensor, and slots of the KV cache that are dropped.

In float32, by the definition of DiffLlama and Llama with as many K as Q heads. A unit is what has
an output of its own: a differential pair (heads u and u + units) or a plain head; it is also the KV
group. Attention goes through its queries in runs of ROWS.
"""

import functools
import json
import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
ROWS = 128
# Largest difference from a server's log-probability: float32 sums in another order.
TOLERANCE = 5e-3


def tensors(directory, dtype):
    """The bfloat16 tensors of model.safetensors by name."""
    raw = (directory / "model.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__", None)
    found = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        bits = np.frombuffer(raw[begin:end], np.uint16).astype(np.uint32) << 16
        found[name] = bits.view(np.float32).reshape(entry["shape"]).astype(dtype)
    return found


def rms_norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def rotate(x, theta, first=0):
    """Half-split rotary embedding of x [tokens, heads, width] from position `first` on; angles are
    rounded to float32, as transformers has them."""
    half = x.shape[-1] // 2
    frequencies = 1 / np.float32(theta)**(np.arange(half, dtype=np.float32) / np.float32(half))
    angles = np.arange(first, first + len(x), dtype=np.float32)[:, None] * frequencies
    angles = angles[:, None].astype(x.dtype)
    cos, sin = np.cos(angles), np.sin(angles)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)


def softmax(scores):
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass
class Past:
    layers: list[tuple[np.ndarray, np.ndarray]]  # K and V of each, as forward gives them
    kept: np.ndarray  # [layers, units, slots] bool: those that are still there
    counted: bool = False  # whether the others still count in the softmaxes' sums


class Model:
    def __init__(self, name):
        directory = ROOT / "models/demo" / name
        self.config = json.loads((directory / "config.json").read_text())
        self.weights = tensors(directory, np.float32)
        self.layers, self.heads = (self.config[key] for key in ("num_hidden_layers",
                                                                "num_attention_heads"))
        self.is_diff = self.config["model_type"] == "diffllama"
        self.maps = 2 if self.is_diff else 1
        self.units = self.heads // self.maps

    def weight(self, layer, key):
        return self.weights[f"model.layers.{layer}.{key}.weight"]

    def forward(self, tokens, past=None, bits=None, watch=None):
        """The normalised output [tokens, width], and K and V of each layer.

        past   the slots before `tokens`, a Past
        bits   logits are quantised by the largest magnitude in a map of a layer: heads x queries x
               visible slots
        watch  called with layer, first query of a run, logits and p [maps, units, queries, slots]
               and what V is multiplied by, [units, queries, slots]
        """
        eps, caches = self.config["rms_norm_eps"], []
        x = self.weights["model.embed_tokens.weight"][tokens]
        for layer in range(self.layers):
            normed = rms_norm(x, self.weight(layer, "input_layernorm"), eps)
            q, k, v = self._heads(layer, normed, 0 if past is None else past.kept.shape[-1])
            if past is not None:
                k, v = (np.concatenate(pair, 1) for pair in zip(past.layers[layer], (k, v)))
            caches.append((k, v))
            out = self._attention(layer, (q, k, v), past, bits, watch)
            x = x + out @ self.weight(layer, "self_attn.o_proj").T
            normed = rms_norm(x, self.weight(layer, "post_attention_layernorm"), eps)
            gate, up = (normed @ self.weight(layer, f"mlp.{part}_proj").T
                        for part in ("gate", "up"))
            x = x + (gate / (1 + np.exp(-gate)) * up) @ self.weight(layer, "mlp.down_proj").T
        return rms_norm(x, self.weights["model.norm.weight"], eps), caches

    def logprobs(self, output):
        """[tokens, vocabulary] of the tokens that follow the rows of `output`."""
        logits = output @ self.weights["model.embed_tokens.weight"].T  # tied
        logits -= logits.max(-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(-1, keepdims=True))

    def scores(self, tokens, bits=None):
        """Of each token but the first: its log-probability, and the most likely token instead."""
        logprobs = self.logprobs(self.forward(tokens, bits=bits)[0][:-1])
        return logprobs[np.arange(len(logprobs)), tokens[1:]], logprobs.argmax(-1)

    def largest_logits(self, texts):
        """[layers, maps]: the largest magnitude of a visible slot's logit."""
        largest = np.zeros((self.layers, self.maps))

        def watch(layer, _first, logits, _p, _weights):
            found = np.abs(np.where(np.isinf(logits), 0, logits)).max((1, 2, 3))
            largest[layer] = np.maximum(largest[layer], found)

        for tokens in texts:
            self.forward(tokens, watch=watch)
        return largest

    def _heads(self, layer, x, first):
        """q, k [heads, tokens, d] and v [units, tokens, width] of x from position `first` on."""
        q, k, v = (np.reshape(x @ self.weight(layer, f"self_attn.{part}_proj").T,
                              (len(x), self.heads, -1)) for part in "qkv")
        q, k = (rotate(part, self.config["rope_theta"], first) for part in (q, k))
        if self.is_diff:
            v = np.concatenate([v[:, :self.units], v[:, self.units:]], -1)
        return (part.transpose(1, 0, 2) for part in (q / np.float32(q.shape[-1]**0.5), k, v))

    def _attention(self, layer, qkv, past, bits, watch):
        q, k, v = qkv
        before = k.shape[1] - q.shape[1]
        runs = [(begin, min(begin + ROWS, q.shape[1])) for begin in range(0, q.shape[1], ROWS)]
        if past is not None:
            dropped = np.zeros((self.units, 1, k.shape[1]), bool)
            dropped[:, 0, :before] = ~past.kept[layer]

        def logits(begin, end):
            """[maps, units, queries, slots up to the last query], -inf where nothing is seen."""
            slots = before + end
            s = (q[:, begin:end] @ k[:, :slots].transpose(0, 2, 1)).reshape(
                self.maps, self.units, end - begin, slots)
            unseen = np.arange(slots) > np.arange(before + begin, slots)[:, None]
            if past is not None and not past.counted:
                unseen = unseen | dropped[..., :slots]
            return np.where(unseen, np.float32(-np.inf), s)

        step = None
        if bits is not None:
            largest = np.max([np.abs(np.where(np.isinf(s), 0, s)).max((1, 2, 3))
                              for s in (logits(*run) for run in runs)], 0)
            step = (largest / (2**(bits - 1) - 1))[:, None, None, None]
        outputs = []
        for run in runs:
            s = logits(*run)
            p = softmax(s if step is None else np.rint(s / step) * step)
            if past is not None:
                p = np.where(dropped[..., :s.shape[-1]], 0, p)
            weights = p[0] - self._lambda(layer) * p[1] if self.is_diff else p[0]
            if watch is not None:
                watch(layer, run[0], s, p, weights)
            outputs.append(weights @ v[:, :s.shape[-1]])
        out = np.concatenate(outputs, 1).transpose(1, 0, 2)
        if self.is_diff:
            out = rms_norm(out, np.float32(1 - lambda_init(layer)), 1e-5)
        return out.reshape(len(out), -1)

    def _lambda(self, layer):
        q1, k1, q2, k2 = (self.weights[f"model.layers.{layer}.self_attn.lambda_{name}"]
                          for name in ("q1", "k1", "q2", "k2"))
        return np.float32(np.exp(q1 @ k1) - np.exp(q2 @ k2) + lambda_init(layer))


def lambda_init(layer):
    return 0.8 - 0.6 * np.exp(-0.3 * layer)


def processes():
    return ProcessPoolExecutor(len(os.sched_getaffinity(0)))


@functools.cache
def model(name):
    return Model(name)


def check(name, server, texts):
    """How far log-probabilities are from those of a server of the same model in float32, at most;
    an error if that is not rounding."""
    import quality
    worst = 0.0
    for tokens in texts:
        expected, _ = quality.scores(server, tokens)
        found, _ = model(name).scores(np.array(tokens))
        worst = max(worst, float(np.abs(found - expected).max()))
    if not worst <= TOLERANCE:
        raise RuntimeError(f"{name}: a log-probability differs by {worst} from the server's, at "
                           f"most {TOLERANCE} is rounding")
    return worst
