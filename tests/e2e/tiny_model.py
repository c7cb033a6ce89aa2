# SPDX-License-Identifier: Apache-2.0
"""A tiny DiffLlama with random weights and a byte-level tokenizer, written by hand: most tests need
no trained model.

Its greedy output is arbitrary bytes that depend on the whole prompt, which is what exactness tests
want; half of it is not UTF-8, which is what streaming tests want.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

MAX_MODEL_LEN = 8192
EOS = "<|end|>"
SPECIAL_TOKENS = ["<|bos|>", EOS, "<|system|>", "<|user|>", "<|assistant|>"]
# Pairs that the tokenizer merges; every other byte is a token of its own.
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ t", "t h"]
BOS_ID, EOS_ID = 0, 1
FIRST_BYTE_ID = len(SPECIAL_TOKENS)
VOCAB_SIZE = FIRST_BYTE_ID + 256 + len(MERGES)

CONFIG = {
    "architectures": ["DiffLlamaForCausalLM"],
    "model_type": "diffllama",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "max_position_embeddings": MAX_MODEL_LEN,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
}
CHAT_TEMPLATE = (
    "<|bos|>{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + "
    "'<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}")


def byte_alphabet() -> list[str]:
    """GPT-2's printable character for each byte: entry b is the character of byte b."""
    printable = [
        *range(ord("!"),
               ord("~") + 1), *range(ord("¡"),
                                     ord("¬") + 1), *range(ord("®"),
                                                           ord("ÿ") + 1)
    ]
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def encode(text: str) -> list[int]:
    """Ids of a text without merges, without BOS."""
    return [FIRST_BYTE_ID + byte for byte in text.encode()]


def tokenizer_json() -> dict:
    added = [{
        "id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False,
        "normalized": False, "special": True
    } for i, token in enumerate(SPECIAL_TOKENS)]
    pieces = SPECIAL_TOKENS + byte_alphabet() + [merge.replace(" ", "") for merge in MERGES]
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }
    bos = {"SpecialToken": {"id": "<|bos|>", "type_id": 0}}
    sequences = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [bos, sequences[0]],
            "pair": [bos, *sequences],
            "special_tokens": {
                "<|bos|>": {"id": "<|bos|>", "ids": [BOS_ID], "tokens": ["<|bos|>"]}
            },
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {piece: i
                      for i, piece in enumerate(pieces)},
            "merges": MERGES,
        },
    }


def weights(config: dict, seed: int = 1) -> dict[str, np.ndarray]:
    """Random float32 tensors with Hugging Face's names, scaled so that attention and the next token
    are both clearly decided."""
    import numpy as np

    rng = np.random.default_rng(seed)
    width, inner, vocab, head_dim = (config[k] for k in ("hidden_size", "intermediate_size",
                                                         "vocab_size", "head_dim"))
    q_width, kv_width = config["num_attention_heads"] * head_dim, config[
        "num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(vocab, width, 8),
        "model.norm.weight": np.ones(width, np.float32)
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        for name, rows, columns, gain in (("q", q_width, width, 2), ("k", kv_width, width, 2),
                                          ("v", kv_width, width, 1), ("o", width, q_width, 1)):
            tensors[f"{prefix}self_attn.{name}_proj.weight"] = matrix(rows, columns, gain)
        for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
            tensors[f"{prefix}self_attn.{name}"] = (rng.standard_normal(head_dim) * 0.1).astype(
                np.float32)
        for name, rows, columns in (("gate", inner, width), ("up", inner, width), ("down", width,
                                                                                   inner)):
            tensors[f"{prefix}mlp.{name}_proj.weight"] = matrix(rows, columns)
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{name}.weight"] = np.ones(width, np.float32)
    return tensors | {"lm_head.weight": matrix(vocab, width, 4)}


def safetensors_bytes(tensors: dict[str, np.ndarray]) -> bytes:
    header, data = {}, b""
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32", "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + tensor.nbytes]
        }
        data += tensor.tobytes()
    return with_header(json.dumps(header), data)


def with_header(header: str, data: bytes) -> bytes:
    padded = header.encode() + b" " * (-len(header.encode()) % 8)
    return len(padded).to_bytes(8, "little") + padded + data


def write(directory: Path, config: dict = CONFIG) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [EOS_ID], "bos_token_id": BOS_ID}))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<|bos|>", "eos_token": EOS, "chat_template": CHAT_TEMPLATE}))
    (directory / "model.safetensors").write_bytes(safetensors_bytes(weights(config)))
    return directory


@functools.cache
def directory() -> Path:
    """The model directory of this run, called tiny: that of DIFFSERVE_TINY_MODEL, for machines
    without numpy, or one that is removed at exit."""
    if made := os.environ.get("DIFFSERVE_TINY_MODEL"):
        return Path(made)
    parent = Path(tempfile.mkdtemp(prefix="diffserve-e2e-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    return write(parent / "tiny")
