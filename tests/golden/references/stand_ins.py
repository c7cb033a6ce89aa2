# SPDX-License-Identifier: Apache-2.0
"""Plain PyTorch on the CPU in the place of GPU kernels that the authors' modules call: causal
attention and rotary embedding.

Everything here is float32 arithmetic; results are rounded to the dtype of what came in, as the
kernels do.
"""
import types

import torch


def module(name, **attributes):
    made = types.ModuleType(name)
    vars(made).update(attributes)
    return made


def causal_attention(q, k, v, scale, window=None):
    """q [rows, heads, d], k [keys, kv heads, d], v [keys, kv heads, any width]; the rows are the
    last ones of the keys; `window`: how many keys a row sees at most, itself included.

    Query head h reads KV head h // (heads / kv heads). As in flash attention the probabilities meet
    V in V's dtype.
    """
    rows, heads, _ = q.shape
    keys, kv_heads, _ = k.shape
    k = k.repeat_interleave(heads // kv_heads, dim=1)
    v = v.repeat_interleave(heads // kv_heads, dim=1)
    scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scale
    ages = torch.arange(rows)[:, None] + (keys - rows) - torch.arange(keys)[None, :]
    hidden = (ages < 0) | (ages >= (window or keys))
    probabilities = torch.softmax(scores.masked_fill(hidden, float("-inf")), dim=-1).to(v.dtype)
    return torch.einsum("hqk,khe->qhe", probabilities.float(), v.float()).to(q.dtype)


def inverse_frequencies(theta, head_dim):
    """Llama's: theta^(-2i/d) for i < d/2."""
    return 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)


def cos_sin(theta, head_dim, positions, dtype):
    angles = positions.float()[:, None] * inverse_frequencies(theta, head_dim)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotate_neighbours(x, cos, sin):
    """x [..., rows, heads, d]: channels 2i and 2i + 1 are turned by angle i (GPT-J style); cos, sin
    [rows, d / 2]."""
    even, odd = x[..., 0::2].float(), x[..., 1::2].float()
    cos, sin = cos.float()[:, None, :], sin.float()[:, None, :]
    return torch.stack([even * cos - odd * sin, odd * cos + even * sin],
                       dim=-1).flatten(-2).to(x.dtype)


def rotate_halves(x, cos, sin):
    """The same with channels i and i + d/2 (GPT-NeoX, Llama)."""
    first, second = (half.float() for half in x.chunk(2, dim=-1))
    cos, sin = cos.float()[:, None, :], sin.float()[:, None, :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
