# SPDX-License-Identifier: Apache-2.0
"""A tiny Phi-4-mini-flash with random weights and a substitute for its tokenizer and chat template:
the real files are not available, so pre-tokenizer, byte-level BPE and turns are built alike."""

import json
from pathlib import Path

import numpy as np

import tiny_model

WINDOW = 24
CONFIG = {
    "architectures": ["Phi4FlashForCausalLM"],
    "model_type": "phi4flash",
    "vocab_size": tiny_model.VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "layer_norm_eps": 1e-5,
    "mb_per_layer": 2,
    "sliding_window": WINDOW,
    "mamba_d_state": 4,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "max_position_embeddings": tiny_model.MAX_MODEL_LEN,
    "tie_word_embeddings": True,
    "torch_dtype": "float32",
    "bos_token_id": tiny_model.BOS_ID,
    "eos_token_id": tiny_model.EOS_ID,
}
# How o200k cuts text before its merges: words with one leading sign, contractions, up to three
# digits, runs of punctuation, line ends, spaces.
SIGN, ENDING = r"[^\r\n\p{L}\p{N}]?", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
WORDS = "|".join((f"{SIGN}{UPPER}*{LOWER}+{ENDING}", f"{SIGN}{UPPER}+{LOWER}*{ENDING}",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)|\s+"))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + "
    "'<|end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}"
    "{% else %}{{ eos_token }}{% endif %}")


def tokenizer_json() -> dict:
    """The tokenizer; as in the checkpoint's tokenizer_config.json, the tokens of turns absorb the
    space after them."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    split = {"type": "Split", "pattern": {"Regex": WORDS}, "behavior": "Isolated", "invert": False}
    tokenizer = tiny_model.tokenizer_json()
    for token in tokenizer["added_tokens"]:
        token["rstrip"] = token["content"] != tiny_model.SPECIAL_TOKENS[0]  # the turns' tokens
    return tokenizer | {
        "pre_tokenizer": {
            "type": "Sequence", "pretokenizers": [split, byte_level | {"use_regex": False}]
        },
        "post_processor": None,
    }


def tiktoken_arguments() -> dict:
    """The same tokenizer for OpenAI's library, whose ranks are ids."""
    ranks = {bytes([byte]): tiny_model.FIRST_BYTE_ID + byte for byte in range(256)}
    for index, merge in enumerate(tiny_model.MERGES):
        piece = merge.replace(" ", "").replace("Ġ", " ").encode()
        ranks[piece] = tiny_model.FIRST_BYTE_ID + 256 + index
    return {
        "pat_str": WORDS,
        "mergeable_ranks": ranks,
        "special_tokens": {token: i
                           for i, token in enumerate(tiny_model.SPECIAL_TOKENS)},
    }


def weights(config: dict, seed: int = 3) -> dict[str, np.ndarray]:
    """Random float32 tensors with the checkpoint's names."""
    rng = np.random.default_rng(seed)
    width, mlp, layers = (config[k]
                          for k in ("hidden_size", "intermediate_size", "num_hidden_layers"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, inner = width // heads, config["mamba_expand"] * width
    states, rank, taps = config["mamba_d_state"], -(-width // 16), config["mamba_d_conv"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def vector(size: int, middle: float = 0.0, spread: float = 0.1) -> np.ndarray:
        return (middle + spread * rng.standard_normal(size)).astype(np.float32)

    tensors = {"model.embed_tokens.weight": matrix(config["vocab_size"], width, 8)}

    def norm(name: str) -> None:
        tensors[name + ".weight"], tensors[name + ".bias"] = vector(width, 1), vector(width)

    norm("model.final_layernorm")
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        norm(prefix + "input_layernorm")
        norm(prefix + "post_attention_layernorm")
        tensors[prefix + "mlp.fc1.weight"] = matrix(2 * mlp, width)
        tensors[prefix + "mlp.fc2.weight"] = matrix(width, mlp)
        prefix += "attn."
        is_late = layer >= layers // 2 + 2
        if layer % 2 == 1:
            rows = (heads if is_late else heads + 2 * kv_heads) * head_dim
            tensors[prefix + "Wqkv.weight"] = matrix(rows, width, 2)
            tensors[prefix + "Wqkv.bias"] = vector(rows)
            tensors[prefix + "out_proj.weight"] = matrix(width, heads * head_dim)
            tensors[prefix + "out_proj.bias"] = vector(width)
            for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                tensors[f"{prefix}inner_cross_attn.{name}"] = vector(head_dim)
            tensors[prefix + "inner_cross_attn.subln.weight"] = vector(2 * head_dim, 1)
            continue
        tensors[prefix + "in_proj.weight"] = matrix(inner if is_late else 2 * inner, width)
        tensors[prefix + "out_proj.weight"] = matrix(width, inner)
        if is_late:
            continue
        tensors[prefix + "conv1d.weight"] = matrix(inner, taps).reshape(inner, 1, taps)
        tensors[prefix + "conv1d.bias"] = vector(inner)
        tensors[prefix + "x_proj.weight"] = matrix(rank + 2 * states, inner)
        tensors[prefix + "dt_proj.weight"] = matrix(inner, rank)
        tensors[prefix + "dt_proj.bias"] = vector(inner, -2, 1)
        tensors[prefix + "A_log"] = np.log(np.tile(np.arange(1, states + 1, dtype=np.float32),
                                                   (inner, 1)))
        tensors[prefix + "D"] = vector(inner, 1)
    return tensors


def write(directory: Path, **changes) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config = CONFIG | changes
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [tiny_model.EOS_ID], "bos_token_id": tiny_model.BOS_ID}))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (directory / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": tiny_model.EOS, "chat_template": CHAT_TEMPLATE}))
    (directory / "model.safetensors").write_bytes(
        tiny_model.safetensors_bytes(weights(CONFIG)))
    return directory
