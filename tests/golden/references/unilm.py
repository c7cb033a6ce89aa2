# SPDX-License-Identifier: Apache-2.0
"""Reference for diff_transformer (V1) and diff_transformer_v2: the authors' attention modules in a
block of Llama's form.

Needs a checkout of github.com/microsoft/unilm (MIT licence), of which these files are imported as
they are:
  Diff-Transformer/multihead_flashdiff_1.py, Diff-Transformer/rms_norm.py
      (V1; its flash form defines the head pairing)
  Diff-Transformer/Diff-Transformer-V2/multihead_flashdiffv2.py
      (V2)
The packages they import for GPUs (flex_head_fa, flash_attn, kernel.rotary) are replaced by
references/stand_ins.py; apex stays absent, so V1 takes the RMSNorm beside it. torch.compile is left
out. What the authors did not publish is ours: embedding, block norms, SwiGLU, frequencies
theta^(-2i/d), and the spelling of the checkpoint.
"""
import importlib
import sys
import unittest.mock

import torch
from torch.nn import functional

from references import stand_ins, tensors

V1_COMMIT = "768a3c87"
V2_COMMIT = "31646c58"
SHA256 = {
    "multihead_flashdiff_1.py": "2970a4f37d7deb4e0b39ae8e6c7f27118022548256e8a2c42519a4aef271ef99",
    "rms_norm.py": "c7857f1f0348592c9458452f802d41875f9e15f64b4d6bfb3e2e46856baea1c1",
    "Diff-Transformer-V2/multihead_flashdiffv2.py":
        "2f55992c6c9b16860bae31c7fcba5c0c47e70dd5722d3a87bdaf70489349f642",
}
STAND_INS = "CPU stand-ins for flash attention and the rotary kernel, Llama block"


def flash_attn_func(q, k, v, causal):
    """q [1, rows, heads, d]; the scale is the package's default."""
    assert causal and q.shape[0] == 1
    return stand_ins.causal_attention(q[0], k[0], v[0], q.shape[-1] ** -0.5)[None]


def apply_rotary_emb(x, cos, sin, interleaved):
    assert interleaved
    return stand_ins.rotate_neighbours(x, cos, sin)


def import_attention(checkout):
    """The classes MultiheadFlashDiff1 and MultiheadFlashDiffV2 of the checkout."""
    folder = checkout / "Diff-Transformer"
    for name, sha256 in SHA256.items():
        tensors.warn_unless_same(folder / name, sha256)
    module = stand_ins.module
    replaced = {"flex_head_fa": module("flex_head_fa", flash_attn_func=flash_attn_func),
                "flash_attn": module("flash_attn", flash_attn_func=flash_attn_func),
                "kernel": module("kernel", __path__=[]),
                "kernel.rotary": module("kernel.rotary", apply_rotary_emb=apply_rotary_emb)}
    path = [str(folder), str(folder / "Diff-Transformer-V2"), *sys.path]
    patch = unittest.mock.patch
    with patch.dict(sys.modules,
                    replaced), patch.object(sys, "path",
                                            path), patch.object(torch, "compile", lambda f: f):
        v1 = importlib.import_module("multihead_flashdiff_1").MultiheadFlashDiff1
        v2 = importlib.import_module("multihead_flashdiffv2").MultiheadFlashDiffV2
    return v1, v2


class PlainNorm(torch.nn.Module):
    """The sub-norm of the ablation without it."""

    def forward(self, x):
        return x


class Unilm:
    def __init__(self, checkout):
        self.v1, self.v2 = import_attention(checkout)

    def name(self, config):
        if config["model_type"] == "diff_transformer_v2":
            return f"unilm {V2_COMMIT} multihead_flashdiffv2.py, {STAND_INS}"
        return f"unilm {V1_COMMIT} multihead_flashdiff_1.py, {STAND_INS}"

    def shapes(self, folder):
        config = tensors.read_config(folder)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        heads, kv_heads, head_dim = head_counts(config)
        v2 = config["model_type"] == "diff_transformer_v2"
        kv_width = kv_heads * head_dim * (1 if v2 else 2)
        shapes = tensors.shell_shapes(config)
        for layer in range(config["num_hidden_layers"]):
            attention, mlp = f"model.layers.{layer}.self_attn.", f"model.layers.{layer}.mlp."
            shapes[attention + "q_proj.weight"] = (2 * heads * head_dim, hidden)
            shapes[attention + "k_proj.weight"] = (kv_width, hidden)
            shapes[attention + "v_proj.weight"] = (kv_width, hidden)
            if v2:
                shapes[attention + "o_proj.weight"] = (hidden, heads * head_dim)
                shapes[attention + "lambda_proj.weight"] = (heads, hidden)
            else:
                shapes[attention + "out_proj.weight"] = (hidden, 2 * heads * head_dim)
                shapes.update({
                    attention + name: (head_dim, )
                    for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
                })
                if config.get("use_subln", True) and config.get("subln_affine", True):
                    shapes[attention + "subln.weight"] = (2 * head_dim,)
            shapes.update({
                mlp + "gate_proj.weight": (inner, hidden), mlp + "up_proj.weight": (inner, hidden),
                mlp + "down_proj.weight": (hidden, inner)
            })
        return shapes

    def load(self, folder, dtype):
        config, weights = tensors.read_config(folder), tensors.read_tensors(folder)
        make = self.make_v2 if config["model_type"] == "diff_transformer_v2" else self.make_v1
        attention = []
        for layer in range(config["num_hidden_layers"]):
            prefix = f"model.layers.{layer}.self_attn."
            made = make(config, layer)
            made.load_state_dict({
                name.removeprefix(prefix): weights[name]
                for name in weights if name.startswith(prefix)
            })
            for name, parameter in made.named_parameters():
                if name not in ("lambda_q1", "lambda_k1", "lambda_q2",
                                "lambda_k2"):  # the module declares these float32
                    parameter.data = parameter.data.to(dtype)
            attention.append(made)
        return Model(config, {name: tensor.to(dtype)
                              for name, tensor in weights.items()}, attention, dtype)

    def make_v2(self, config, layer):
        heads, kv_heads, head_dim = head_counts(config)
        return self.v2(True, config["hidden_size"], heads, kv_heads, head_dim)

    def make_v1(self, config, layer):
        heads, kv_heads, head_dim = head_counts(config)
        hidden = config["hidden_size"]
        made = self.v1(hidden, layer, heads, kv_heads)
        if head_dim != made.head_dim:  # the module has no argument for it
            made.head_dim = head_dim
            made.q_proj = torch.nn.Linear(hidden, 2 * heads * head_dim, bias=False)
            made.k_proj = torch.nn.Linear(hidden, 2 * kv_heads * head_dim, bias=False)
            made.v_proj = torch.nn.Linear(hidden, 2 * kv_heads * head_dim, bias=False)
            made.out_proj = torch.nn.Linear(2 * heads * head_dim, hidden, bias=False)
        norm = type(made.subln)
        if not config.get("use_subln", True):
            made.subln = PlainNorm()
        else:
            made.subln = norm(2 * head_dim, eps=1e-5,
                              elementwise_affine=config.get("subln_affine", True))
        lambda_init = config.get("lambda_init", "exp")
        if lambda_init != "exp":
            made.lambda_init = lambda_init
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            setattr(made, name, torch.nn.Parameter(torch.zeros(head_dim, dtype=torch.float32)))
        return made


def head_counts(config):
    """Differential heads, differential KV heads, width of a query or key head."""
    heads = config["num_attention_heads"]
    v2 = config["model_type"] == "diff_transformer_v2"
    return (heads, config.get("num_key_value_heads", heads),
            config.get("head_dim") or config["hidden_size"] // heads // (1 if v2 else 2))


class Model:
    """Embedding, blocks x + attention(norm(x)), x + swiglu(norm(x)), final norm, head."""

    def __init__(self, config, weights, attention, dtype):
        self.config, self.weights, self.attention, self.dtype = config, weights, attention, dtype

    def norm(self, x, name):  # as Llama's: rounded before the weight
        x32 = x.float()
        scale = torch.rsqrt(
            x32.pow(2).mean(-1, keepdim=True) + self.config.get("rms_norm_eps", 1e-5))
        return (x32 * scale).to(self.dtype) * self.weights[name]

    def __call__(self, tokens):
        weights = self.weights
        rotary = stand_ins.cos_sin(self.config.get("rope_theta", 10000.0),
                                   head_counts(self.config)[2], torch.arange(len(tokens)),
                                   self.dtype)
        x = weights["model.embed_tokens.weight"][tokens]
        for layer, attention in enumerate(self.attention):
            prefix = f"model.layers.{layer}."
            x = x + attention(self.norm(x, prefix + "input_layernorm.weight")[None], rotary)[0]
            y = self.norm(x, prefix + "post_attention_layernorm.weight")
            gate = functional.silu(y @ weights[prefix + "mlp.gate_proj.weight"].T)
            x = x + (gate * (y @ weights[prefix + "mlp.up_proj.weight"].T)
                     ) @ weights[prefix + "mlp.down_proj.weight"].T
        head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
        return (self.norm(x, "model.norm.weight") @ head.T).float()
