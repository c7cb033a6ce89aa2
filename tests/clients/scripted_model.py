# SPDX-License-Identifier: Apache-2.0
"""Writes a model directory whose answers are fixed texts, chosen by a client's test.

The model is a Llama whose attention and MLP are zero, so the next token depends only on the last
one. A script is a list of texts, one per turn of the assistant. A user's message with `#NAME#`, or
NAME between other marks, starts the script NAME; each further answer is its next text. The prompt
has only the start of each message, so that a client's long instructions take no time.
"""

import array
import json
import pathlib
import struct

TEMPLATE = """\
{%- set ns = namespace(name='NONE', turn=0) -%}
{%- for m in messages -%}
{%- set text = m.content if m.content is string else (m.content | string) -%}
{%- if m.role == 'user' -%}
{%- for name in NAMES -%}
{%- if (MARK ~ name ~ MARK) in text -%}
{%- set ns.name = name -%}{%- set ns.turn = 0 -%}
{%- endif -%}
{%- endfor -%}
{%- elif m.role == 'assistant' -%}{%- set ns.turn = ns.turn + 1 -%}
{%- endif -%}
{{- '<|turn|>' ~ m.role ~ ': ' ~ text[:200] ~ '<|end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|' ~ ns.name ~ '.' ~ ns.turn ~ '|>' -}}{%- endif -%}
"""


def byte_alphabet():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def unused_pieces(data, used):
    """Cuts `data` into the shortest pieces of at least three bytes that are not tokens yet."""
    pieces, begin = [], 0
    while begin < len(data):
        end = min(begin + 3, len(data))
        while end < len(data) and data[begin:end] in used:
            end += 1
        while data[begin:end] in used:  # the end of the text: joined to the piece before it
            last = pieces.pop()
            used.discard(last)
            begin -= len(last)
        pieces.append(data[begin:end])
        used.add(data[begin:end])
        begin = end
    return pieces


def write_safetensors(path, tensors):
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            values.tofile(file)


def zeros(*shape):
    size = 1
    for extent in shape:
        size *= extent
    return list(shape), array.array("f", bytes(4 * size))


def weights(rows, hidden, next_of):
    embed, head = zeros(rows, hidden), zeros(rows, hidden)
    ones = ([hidden], array.array("f", [1.0] * hidden))
    for token, following in next_of.items():
        embed[1][token * hidden + token] = 1.0
        head[1][following * hidden + token] = 1.0
    layer = "model.layers.0."
    tensors = {"model.embed_tokens.weight": embed, "lm_head.weight": head,
               "model.norm.weight": ones, layer + "input_layernorm.weight": ones,
               layer + "post_attention_layernorm.weight": ones}
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors[f"{layer}self_attn.{name}.weight"] = zeros(16, hidden)
    tensors[layer + "self_attn.o_proj.weight"] = zeros(hidden, 16)
    for name, shape in (("gate", (16, hidden)), ("up", (16, hidden)), ("down", (hidden, 16))):
        tensors[f"{layer}mlp.{name}_proj.weight"] = zeros(*shape)
    return tensors


def tokenizer(special, pieces):
    alphabet = byte_alphabet()
    texts = [*special, *alphabet, *("".join(alphabet[b] for b in piece) for piece in pieces)]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}
    added = [{"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False,
              "normalized": False, "special": True} for i, text in enumerate(special)]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": {"type": "BPE", "dropout": None, "unk_token": None,
                      "continuing_subword_prefix": None, "end_of_word_suffix": None,
                      "fuse_unk": False, "byte_fallback": False, "merges": [],
                      "vocab": {text: i for i, text in enumerate(texts)}}}


def write_model(folder, scripts, max_position_embeddings=65536, mark="#"):
    """scripts: name -> texts; `mark` is on both sides of a name. Returns the folder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    scripts = {"NONE": ["No script."], **scripts}
    starts = [(f"<|{name}.{turn}|>", text.encode())
              for name, texts in scripts.items() for turn, text in enumerate(texts)]
    special = ["<|end|>", "<|turn|>", *(start for start, _ in starts)]
    used, pieces, next_of = {bytes([b]) for b in range(256)}, [], {}
    for number, (_, text) in enumerate(starts):
        before = 2 + number
        for piece in unused_pieces(text, used):
            token = len(special) + 256 + len(pieces)
            next_of[before] = token
            pieces.append(piece)
            before = token
        next_of[before] = 0
    rows = len(special) + 256 + len(pieces)
    for token in range(rows):
        next_of.setdefault(token, 0)
    hidden = -(-rows // 64) * 64
    write_safetensors(folder / "model.safetensors", weights(rows, hidden, next_of))
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": rows,
              "hidden_size": hidden, "intermediate_size": 16, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8,
              "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
              "max_position_embeddings": max_position_embeddings, "tie_word_embeddings": False,
              "torch_dtype": "float32", "eos_token_id": 0}
    template = TEMPLATE.replace("MARK", json.dumps(mark)).replace("NAMES", json.dumps([*scripts]))
    parts = {"config.json": config, "tokenizer.json": tokenizer(special, pieces),
             "generation_config.json": {"do_sample": False, "temperature": 1.0},
             "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast",
                                       "eos_token": "<|end|>", "chat_template": template}}
    for name, value in parts.items():
        (folder / name).write_text(json.dumps(value), encoding="utf-8")
    return folder
