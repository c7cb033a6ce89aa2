# SPDX-License-Identifier: Apache-2.0
"""DiffLlama and its Llama twin as one compact module for training, with the parameter names of
transformers.

The mathematics is that of transformers' DiffLlamaForCausalLM and LlamaForCausalLM (multi-head, tied
embeddings); export.py checks it against them. Faster here, since a training run on one CPU core
depends on it: q and k are padded with zeros to the width of the wide values, so that one fused
attention call does both maps, and the last layer and the logits are computed only where the loss
needs them.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CONFIG = {
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100000.0,
}
# The draft model is a Transformer of these sizes.
DRAFT_SIZES = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
# While rows are short. The paper, too, raises theta to lengthen the context: the matching of cities
# can only use channels that hardly turn over the distance, and with 16 channels a head and a theta
# of 10,000 those are few.
SHORT_ROPE_THETA = 10000.0

# Scale of the projections that write to the residual stream: their outputs start as large as the
# embeddings.
_OUTPUT_SCALE = 0.12
# A token that finds its like in the second layer gives it a logit of about ten.
_MATCHING_SCALE = 3.0


class RmsNorm(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight, CONFIG["rms_norm_eps"])


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Half-split rotary embedding; x [B, H, T, d], cos and sin [.., T, d]."""
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-b, a), dim=-1) * sin


class Attention(nn.Module):
    """Heads i and i + H/2 are a pair: its maps read the values of both heads side by side and are
    subtracted."""

    def __init__(self, layer: int, differential: bool):
        super().__init__()
        width, self.heads, self.head_dim = (CONFIG[k] for k in ("hidden_size",
                                                                "num_attention_heads", "head_dim"))
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(width, self.heads * self.head_dim,
                                                           bias=False) for _ in range(3))
        self.o_proj = nn.Linear(self.heads * self.head_dim, width, bias=False)
        self.differential = differential
        if differential:
            self.lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                setattr(self, name, nn.Parameter(torch.randn(self.head_dim) * 0.1))

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], rows: Tensor | None) -> Tensor:
        """x [B, T, D] to [B, T, D], or to [B, Q, D] for the query positions `rows` [B, Q]."""
        q_input = x if rows is None else gather_rows(x, rows)
        q, k, v = (
            projection(source).unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)
            for projection, source in ((self.q_proj, q_input), (self.k_proj, x), (self.v_proj, x))
        )
        cos, sin = rope
        k = rotate(k, cos, sin)
        mask = None
        if rows is None:
            q = rotate(q, cos, sin)
        else:
            q = rotate(q, cos[rows].unsqueeze(1), sin[rows].unsqueeze(1))
            mask = (torch.arange(x.shape[1], device=x.device) <= rows.unsqueeze(-1)).unsqueeze(1)
        if self.differential:
            q, k = F.pad(q, (0, self.head_dim)), F.pad(k, (0, self.head_dim))
            v = torch.cat(v.chunk(2, dim=1), dim=-1).repeat(1, 2, 1, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=rows is None,
                                             scale=self.head_dim**-0.5)
        if self.differential:
            map1, map2 = out.chunk(2, dim=1)
            lam = (self.lambda_q1 @ self.lambda_k1).exp() - (
                self.lambda_q2 @ self.lambda_k2).exp() + self.lambda_init
            out = map1 - lam * map2
            out = (1 - self.lambda_init) * F.rms_norm(out, out.shape[-1:],
                                                      eps=CONFIG["rms_norm_eps"])
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        width, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
        self.gate_proj, self.up_proj = nn.Linear(width, inner,
                                                 bias=False), nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, layer: int, differential: bool):
        super().__init__()
        self.self_attn, self.mlp = Attention(layer, differential), Mlp()
        self.input_layernorm = RmsNorm(CONFIG["hidden_size"])
        self.post_attention_layernorm = RmsNorm(CONFIG["hidden_size"])

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], rows: Tensor | None = None) -> Tensor:
        attended = self.self_attn(self.input_layernorm(x), rope, rows)
        x = (x if rows is None else gather_rows(x, rows)) + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    def __init__(self, vocab_size: int, differential: bool):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, CONFIG["hidden_size"])
        self.layers = nn.ModuleList(
            Layer(i, differential) for i in range(CONFIG["num_hidden_layers"]))
        self.norm = RmsNorm(CONFIG["hidden_size"])


class DemoModel(nn.Module):
    def __init__(self, vocab_size: int, differential: bool):
        super().__init__()
        self.model = Decoder(vocab_size, differential)
        self.differential = differential
        self.rope_theta = CONFIG["rope_theta"]
        self._initialize()

    @torch.no_grad()
    def _initialize(self) -> None:
        """A start from which matching is a small step: from a plain one, the first thousand steps
        only learn to copy any number.

        - The first half of the stream holds the token itself, the other two quarters are for the
        two tokens before it. - First layer: half of the heads copy the token before to the one
        quarter, half the one before that to the other.
          The word before an answer and the first digit after a city both carry that city then.
        - Second layer: queries read the one quarter, keys the other in the same way, so a token
        finds the positions
          whose last token but one is its own last. Further layers: keys equal queries, a token
          finds its likes.
        - From the second layer on the output projection is the transpose of the values: what is
        found is written down.
        """
        for name, parameter in self.named_parameters():
            if "embed" in name:
                nn.init.normal_(parameter, std=0.14)
                parameter[:, parameter.shape[1] // 2 :] = 0.0
                # The same for every token: what heads that look at a distance, not at a content,
                # can hold on to.
                parameter[:, 0] = 0.5
            elif parameter.dim() == 2:
                output = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter,
                                std=parameter.shape[1]**-0.5 * (_OUTPUT_SCALE if output else 1.0))
        heads, d, width = (CONFIG[name]
                           for name in ("num_attention_heads", "head_dim", "hidden_size"))
        # A unit is what has an own output: a head, or a differential pair named by its head of map
        # 1.
        units = heads // 2 if self.differential else heads
        unit_width = heads * d // units
        first, second, *later = (layer.self_attn for layer in self.model.layers)
        pairs, frequencies = d // 2, rope_frequencies(SHORT_ROPE_THETA, torch.device("cpu"))
        for unit in range(units):
            q, k = (projection.weight[unit * d:(unit + 1) * d, 0]
                    for projection in (first.q_proj, first.k_proj))
            angle = (1 + unit % 2) * frequencies
            q[:pairs], q[pairs:], k[:pairs], k[pairs:] = 1.0, 0.0, angle.cos(), angle.sin()
        quarter = width // 4
        # Units that copy the same distance share the quarter among them; a narrow unit's part has
        # its like at the other distance.
        parts = quarter // unit_width
        first.v_proj.weight[:, 0] = 0.0
        values = first.v_proj.weight.view(heads // units, units, d, width)
        first.o_proj.weight.zero_()
        for unit in range(units):
            part = unit // 2 % parts
            values[:, unit] = values[:, 2 * part]
            start = width // 2 + unit % 2 * quarter + part * unit_width
            first.o_proj.weight[start:start + unit_width, unit * unit_width:(unit + 1) *
                                unit_width] = 0.1 * torch.eye(unit_width)
            rows, mixing = slice(unit * d, (unit + 1) *
                                 d), torch.randn(d, quarter) * width**-0.5 * _MATCHING_SCALE
            second.q_proj.weight[rows], second.k_proj.weight[rows] = 0.0, 0.0
            second.q_proj.weight[rows, -2 * quarter : -quarter] = mixing
            second.k_proj.weight[rows, -quarter:] = mixing
        for attention in later:
            attention.k_proj.weight[: units * d] = attention.q_proj.weight[: units * d]
        for attention in (second, *later):
            values = attention.v_proj.weight.view(heads, d, width)
            if self.differential:
                values = torch.cat(values.chunk(2), dim=1)
            attention.o_proj.weight.copy_(_OUTPUT_SCALE * values.flatten(0, 1).T)

    def forward(self, tokens: Tensor, rows: Tensor) -> Tensor:
        """Logits [N, V] that follow those positions `rows` [B, Q] of tokens [B, T] that are not -1,
        row by row."""
        rope = rope_tables(tokens.shape[1], self.rope_theta, tokens.device)
        x = self.model.embed_tokens(tokens)
        *first, last = self.model.layers
        for layer in first:
            x = layer(x, rope)
        x = self.model.norm(last(x, rope, rows.clamp(min=0))[rows >= 0])
        return F.linear(x, self.model.embed_tokens.weight)


def gather_rows(x: Tensor, rows: Tensor) -> Tensor:
    return x.gather(1, rows.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def rope_frequencies(theta: float, device: torch.device) -> Tensor:
    d = CONFIG["head_dim"]
    return theta ** (-torch.arange(0, d, 2, device=device) / d)


def rope_tables(length: int, theta: float, device: torch.device) -> tuple[Tensor, Tensor]:
    angles = torch.arange(length, device=device).unsqueeze(1) * rope_frequencies(theta,
                                                                                 device).repeat(2)
    return angles.cos(), angles.sin()
