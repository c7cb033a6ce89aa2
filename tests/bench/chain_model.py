# SPDX-License-Identifier: Apache-2.0
"""Models of real shapes whose texts are known beforehand, for measurements of speculation.

All weights that lead into a layer are random, and all that lead out of it are zero. So a layer
costs what it always does, and the last hidden state is the embedding of the last token. The output
matrix then prefers one token after each: successor(token). The texts of greedy decoding are pieces
of one cycle over all tokens, whatever the prompt contains. `temperature` decides how often a drawn
text leaves the cycle: the preferred token's logit is PREFERRED, the others' are about 0.
"""

import itertools
import json
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
TOKENIZER = ROOT / "models/demo/diff/tokenizer.json"
PREFERRED = 30.0
FIRST = 4000  # tokens below have a text, or are special; they are not in the cycle
CHUNK = 1 << 22


@dataclass
class Tensor:
    shape: tuple
    kind: str  # "in": random, "zero", "one", "embedding", "head"


def norm(name, width, has_bias):
    yield f"{name}.weight", Tensor((width,), "one")
    if has_bias:
        yield f"{name}.bias", Tensor((width,), "zero")


def linear(name, rows, columns, kind="in", has_bias=False):
    yield f"{name}.weight", Tensor((rows, columns), kind)
    if has_bias:
        yield f"{name}.bias", Tensor((rows,), "zero")


def llama_layer(config, layer, prefix):
    hidden, mlp = config["hidden_size"], config["intermediate_size"]
    head = config.get("head_dim", hidden // config["num_attention_heads"])
    q, kv = (config[f"num_{which}_heads"] * head for which in ("attention", "key_value"))
    yield from norm(f"{prefix}input_layernorm", hidden, False)
    yield from norm(f"{prefix}post_attention_layernorm", hidden, False)
    for name, rows in (("q", q), ("k", kv), ("v", kv)):
        yield from linear(f"{prefix}self_attn.{name}_proj", rows, hidden)
    yield from linear(f"{prefix}self_attn.o_proj", hidden, q, "zero")
    if config["model_type"] == "diffllama":
        for name in ("q1", "k1", "q2", "k2"):
            yield f"{prefix}self_attn.lambda_{name}", Tensor((head,), "in")
    for name in ("gate", "up"):
        yield from linear(f"{prefix}mlp.{name}_proj", mlp, hidden)
    yield from linear(f"{prefix}mlp.down_proj", hidden, mlp, "zero")


def phi4flash_layer(config, layer, prefix):
    hidden, mlp, half = (config["hidden_size"], config["intermediate_size"],
                         config["num_hidden_layers"] // 2)
    head = hidden // config["num_attention_heads"]
    inner, states, rank = (config["mamba_expand"] * hidden, config["mamba_d_state"],
                           -(-hidden // 16))
    yield from norm(f"{prefix}input_layernorm", hidden, True)
    yield from norm(f"{prefix}post_attention_layernorm", hidden, True)
    yield from linear(f"{prefix}mlp.fc1", 2 * mlp, hidden)
    yield from linear(f"{prefix}mlp.fc2", hidden, mlp, "zero")
    if layer % 2 == 1:
        kv = 2 * config["num_key_value_heads"] * head if layer <= half + 1 else 0
        yield from linear(f"{prefix}attn.Wqkv", hidden + kv, hidden, has_bias=True)
        yield from linear(f"{prefix}attn.out_proj", hidden, hidden, "zero", has_bias=True)
        for name in ("q1", "k1", "q2", "k2"):
            yield f"{prefix}attn.inner_cross_attn.lambda_{name}", Tensor((head,), "in")
        yield from norm(f"{prefix}attn.inner_cross_attn.subln", 2 * head, False)
        return
    yield from linear(f"{prefix}attn.out_proj", hidden, inner, "zero")
    is_mamba = layer <= half
    yield from linear(f"{prefix}attn.in_proj", 2 * inner if is_mamba else inner, hidden)
    if is_mamba:
        yield f"{prefix}attn.A_log", Tensor((inner, states), "one")
        yield f"{prefix}attn.D", Tensor((inner,), "one")
        yield f"{prefix}attn.conv1d.weight", Tensor((inner, 1, config["mamba_d_conv"]), "in")
        yield f"{prefix}attn.conv1d.bias", Tensor((inner,), "zero")
        yield from linear(f"{prefix}attn.dt_proj", inner, rank, has_bias=True)
        yield from linear(f"{prefix}attn.x_proj", rank + 2 * states, inner)


def tensors(config):
    """Yields (name, Tensor) of a checkpoint with an output matrix of its own."""
    is_hybrid = config["model_type"] == "phi4flash"
    vocab, hidden = config["vocab_size"], config["hidden_size"]
    yield "model.embed_tokens.weight", Tensor((vocab, hidden), "embedding")
    yield "lm_head.weight", Tensor((vocab, hidden), "head")
    yield from norm("model.final_layernorm" if is_hybrid else "model.norm", hidden, is_hybrid)
    layer_of = phi4flash_layer if is_hybrid else llama_layer
    for layer in range(config["num_hidden_layers"]):
        yield from layer_of(config, layer, f"model.layers.{layer}.")


class Chain:
    """The cycle of a vocabulary."""

    def __init__(self, vocab):
        self.order = np.random.default_rng(1).permutation(np.arange(FIRST, vocab))
        self.place = {int(token): i for i, token in enumerate(self.order)}
        # Outside the cycle a token is followed by the next one.
        self.predecessor = (np.arange(vocab) - 1) % FIRST
        self.predecessor[self.order] = np.roll(self.order, 1)

    def text(self, begin, count):
        """`count` tokens of the cycle from its `begin`th on."""
        return [int(self.order[(begin + i) % len(self.order)]) for i in range(count)]

    def before(self, begin):
        return int(self.order[begin - 1])


def signs(vocab, hidden):
    """[vocab, hidden] of 1 and -1: the embeddings."""
    bits = np.random.default_rng(2).integers(0, 2, (vocab, hidden), np.int8)
    return 2 * bits - 1


def pieces(config, chain):
    """Yields (name, Tensor, the float32 values of some of its rows): all tensors, rows in order."""
    embeddings = signs(config["vocab_size"], config["hidden_size"])
    noise = 0.02 * np.random.default_rng(3).standard_normal(CHUNK, np.float32)
    for name, tensor in tensors(config):
        columns = int(np.prod(tensor.shape[1:]))
        step = max(1, CHUNK // columns)
        for begin in range(0, tensor.shape[0], step):
            rows = slice(begin, min(begin + step, tensor.shape[0]))
            size = (rows.stop - begin) * columns
            if tensor.kind == "embedding":
                values = embeddings[rows].astype(np.float32)
            elif tensor.kind == "head":
                values = embeddings[chain.predecessor[rows]] * np.float32(
                    PREFERRED / config["hidden_size"])
            elif tensor.kind == "in":
                values = noise[:size]
            else:
                values = np.full(size, tensor.kind == "one", np.float32)
            yield name, tensor, values.reshape(-1)


def arrays(config, chain):
    """Yields (name, float32 array) of all tensors."""
    for name, group in itertools.groupby(pieces(config, chain), key=lambda piece: piece[0]):
        group = list(group)
        yield name, np.concatenate([values for _, _, values in group]).reshape(group[0][1].shape)


def bfloat16(values):
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write(name, folder):
    """Writes the model of tests/bench/models/NAME to `folder` and returns its Chain."""
    config = json.loads((ROOT / "tests/bench/models" / name / "config.json").read_text())
    config["tie_word_embeddings"] = False
    chain = Chain(config["vocab_size"])
    write_weights(config, chain, folder)
    return chain


def write_draft(name, folder, right):
    """Writes a draft model for it, a Llama of a tenth of the size of Llama 778M. It knows the next
    token after a share of `right` of the tokens."""
    config = json.loads((ROOT / "tests/bench/models" / name / "config.json").read_text())
    config |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 768,
               "intermediate_size": 2048, "num_hidden_layers": 6, "num_attention_heads": 6,
               "num_key_value_heads": 6, "head_dim": 128, "tie_word_embeddings": False}
    chain = Chain(config["vocab_size"])
    draw = np.random.default_rng(4)
    wrong = draw.random(len(chain.predecessor)) > right
    chain.predecessor[wrong] = draw.permutation(chain.predecessor[wrong])
    write_weights(config, chain, folder)


def write_weights(config, chain, folder):
    (folder / "config.json").write_text(json.dumps(config))
    shutil.copy(TOKENIZER, folder)
    header, end = {}, 0
    for tensor_name, tensor in tensors(config):
        begin, end = end, end + 2 * int(np.prod(tensor.shape))
        header[tensor_name] = {"dtype": "BF16", "shape": tensor.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, values in pieces(config, chain):
            file.write(bfloat16(values).tobytes())
