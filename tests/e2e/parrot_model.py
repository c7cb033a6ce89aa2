# SPDX-License-Identifier: Apache-2.0
"""A model with scripted answers: a Llama without attention in which each token leads to one other.
Tests of answer handling choose its answers.

`#3#` in the last message asks for the answer with that number; without it, answer 0 is given.
"""

import atexit
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np

import tiny_model

PIECE_BYTES = 5  # of a token of an answer, or a few more: no two tokens have the same
BOS, EOS, USER = "<|bos|>", "<|end|>", "<|user|>"
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}"
    "{% for name, value in c.function.arguments | items %}{{ name }}={{ value }}{% endfor %}"
    "{% endfor %}<|end|>{% endfor %}{% set ns = namespace(number=0) %}{% for i in range(COUNT) %}"
    "{% if ('#' ~ i ~ '#') in messages[-1].content %}{% set ns.number = i %}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|begin' ~ ns.number ~ '|>OPENING' }}"
    "{% endif %}")


def _tokenizer(special: list[str], pieces: list[bytes]) -> dict:
    """A byte-level tokenizer; no text is encoded to `pieces`, each of which is a token of its
    own."""
    letters = tiny_model.byte_alphabet()
    tokenizer = tiny_model.tokenizer_json()
    tokenizer["added_tokens"] = [
        tokenizer["added_tokens"][0] | {"id": i, "content": token}
        for i, token in enumerate(special)
    ]
    tokens = special + letters + ["".join(letters[b] for b in piece) for piece in pieces]
    tokenizer["post_processor"] = None
    tokenizer["model"] |= {"vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
    return tokenizer


def _weights(vocab: int, follows: dict[int, int]) -> dict[str, np.ndarray]:
    embed = np.eye(vocab, dtype=np.float32)
    head = np.zeros((vocab, vocab), np.float32)
    for token in range(vocab):
        head[follows.get(token, 1), token] = 1
    layer, one = "model.layers.0.", np.ones(vocab, np.float32)
    tensors = {"model.embed_tokens.weight": embed, "lm_head.weight": head,
               "model.norm.weight": one, layer + "input_layernorm.weight": one,
               layer + "post_attention_layernorm.weight": one}
    for name, rows, columns in (("self_attn.q", 16, vocab), ("self_attn.k", 16, vocab),
                                ("self_attn.v", 16, vocab), ("self_attn.o", vocab, 16),
                                ("mlp.gate", 16, vocab), ("mlp.up", 16, vocab),
                                ("mlp.down", vocab, 16)):
        tensors[f"{layer}{name}_proj.weight"] = np.zeros((rows, columns), np.float32)
    return tensors


def _cut(data: bytes, taken: set[bytes]) -> list[bytes]:
    """Cuts a text into pieces that are not used yet, and marks them as used."""
    pieces = []
    while data:
        size = PIECE_BYTES
        while data[:size] in taken and size < len(data):
            size += 1
        piece, data = data[:size], data[size:]
        while pieces and (piece in taken or len(piece) == 1):  # it ends like another one
            taken.discard(pieces[-1])
            piece = pieces.pop() + piece
        pieces.append(piece)
        taken.add(piece)
    return pieces


def write(name: str, tokenizer: dict, tokenizer_config: dict, follows: dict[int, int]) -> Path:
    """Writes a model directory with these tokens, whose number is a multiple of 64. A token without
    entry in `follows` is followed by token 1, which ends the text. Removed at exit."""
    parent = Path(tempfile.mkdtemp(prefix="diffserve-e2e-"))
    atexit.register(shutil.rmtree, parent, ignore_errors=True)
    where, vocab = parent / name, len(tokenizer["model"]["vocab"])
    where.mkdir()
    (where / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocab,
        "hidden_size": vocab, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "hidden_act": "silu", "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0,
        "eos_token_id": 1}))
    (where / "tokenizer.json").write_text(json.dumps(tokenizer))
    (where / "tokenizer_config.json").write_text(json.dumps(tokenizer_config))
    (where / "model.safetensors").write_bytes(
        tiny_model.safetensors_bytes(_weights(vocab, follows)))
    return where


def directory(answers: list[str], template: str = TEMPLATE, prompt_end: str = "",
              opening: str = "") -> Path:
    """A prompt that ends with the character `prompt_end` asks for answer 0; the template's own
    prompts end with `opening`. Removed at exit."""
    special = [BOS, EOS, USER] + [f"<|begin{i}|>{opening}" for i in range(len(answers))]
    pieces, follows, taken = [], {}, set()
    for number, answer in enumerate(answers):
        last = 3 + number
        for piece in _cut(answer.encode(), taken):
            follows[last] = len(special) + 256 + len(pieces)
            last = follows[last]
            pieces.append(piece)
    if prompt_end:
        follows[len(special) + ord(prompt_end)] = follows[3]
    # Features that no token uses round the width up, as kernels want it.
    vocab = -(-(len(special) + 256 + len(pieces)) // 64) * 64
    pieces += [b"\xff\xfe" + i.to_bytes(2, "big")
               for i in range(vocab - len(special) - 256 - len(pieces))]
    return write("parrot", _tokenizer(special, pieces),
                 {"bos_token": BOS, "eos_token": EOS,
                  "chat_template": template.replace("COUNT", str(len(answers)))
                                           .replace("OPENING", opening)}, follows)
