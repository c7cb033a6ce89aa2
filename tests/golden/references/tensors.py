# SPDX-License-Identifier: Apache-2.0
"""Reading a checkpoint folder for a reference that is not Hugging Face's code."""
import hashlib
import json
import sys

from safetensors.torch import load_file


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


def read_tensors(folder):
    tensors = {}
    for path in sorted(folder.glob("model*.safetensors")):
        tensors.update(load_file(path))
    return {name: tensor.float() for name, tensor in tensors.items()}


def warn_unless_same(path, sha256):
    """The expectations in the tree were made with one version of the authors' file."""
    if not path.exists():
        raise SystemExit(
            f"{path} is not there: the checkout is another repository's, or older than this file")
    if hashlib.sha256(path.read_bytes()).hexdigest() != sha256:
        print(f"warning: {path} is not the version that made the cases in the tree",
              file=sys.stderr)


def shell_shapes(config):
    """Names and shapes of everything but attention and MLP in a model of Llama's form."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    shapes = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        shapes[f"model.layers.{layer}.input_layernorm.weight"] = (hidden,)
        shapes[f"model.layers.{layer}.post_attention_layernorm.weight"] = (hidden,)
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (vocab, hidden)
    return shapes
