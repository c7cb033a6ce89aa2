# SPDX-License-Identifier: Apache-2.0
"""Writes a trained model as a Hugging Face directory in bfloat16 and checks it against
transformers' own code."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import needle_samples
from demo_model import CONFIG, DemoModel
from demo_tokenizer import BOS, END, render, save_tokenizer

# The tolerance, as a share of the largest logit, is for float32 sums in another order. A wrong
# pairing or rotation is off by the size of the logits.
LOGIT_TOLERANCE = 1e-3


def model_config(model: DemoModel, tokenizer) -> dict:
    name, kind = ("DiffLlamaForCausalLM",
                  "diffllama") if model.differential else ("LlamaForCausalLM", "llama")
    config = {
        "architectures": [name],
        "model_type": kind,
        "torch_dtype": "bfloat16",
        "vocab_size": tokenizer.get_vocab_size(),
        **CONFIG,
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "max_position_embeddings": needle_samples.MAX_POSITIONS,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "use_cache": True,
        "bos_token_id": tokenizer.token_to_id(BOS),
        "eos_token_id": tokenizer.token_to_id(END),
        "pad_token_id": tokenizer.token_to_id(END),
    }
    return config | ({"lambda_std_dev": 0.1} if model.differential else {"mlp_bias": False})


def export(model: DemoModel, tokenizer, out: Path) -> None:
    """Fills `out` file by file through renames, so that a server may read it meanwhile."""
    model = model.cpu()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as work:
        directory = Path(work)
        config = model_config(model, tokenizer)
        _write_json(directory / "config.json", config)
        end, bos = config["eos_token_id"], config["bos_token_id"]
        _write_json(
            directory / "generation_config.json",
            {"bos_token_id": bos, "eos_token_id": [end], "pad_token_id": end, "do_sample": False},
        )
        save_tokenizer(tokenizer, directory)
        weights = {
            name: tensor.to(torch.bfloat16).contiguous()
            for name, tensor in model.state_dict().items()
        }
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        check(model, tokenizer, directory)
        for file in sorted(directory.iterdir()):
            os.chmod(file, 0o644)
            shutil.move(file, out / file.name)


@torch.no_grad()
def check(model: DemoModel, tokenizer, directory: Path) -> None:
    """Raises unless transformers reads the directory, renders the same prompt and computes the same
    logits."""
    sample = needle_samples.evaluation_sample(0, needles=4)
    prompt = render(sample.messages, add_generation_prompt=True)
    own_ids = tokenizer.encode(prompt).ids
    their_tokenizer = AutoTokenizer.from_pretrained(directory)
    their_ids = their_tokenizer.apply_chat_template(sample.messages, add_generation_prompt=True,
                                                    return_dict=False)
    if own_ids != list(their_ids):
        raise RuntimeError(
            "the exported tokenizer or chat template renders another prompt than the training text")
    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32,
                                                  attn_implementation="eager").eval()
    tokens = torch.tensor([own_ids])
    rows = torch.arange(len(own_ids)).unsqueeze(0)
    rounded = DemoModel(tokenizer.get_vocab_size(), model.differential)
    rounded.load_state_dict(
        {name: tensor.to(torch.bfloat16).float()
         for name, tensor in model.state_dict().items()})
    expected = theirs(tokens).logits[0]
    difference, largest = (rounded(tokens, rows) -
                           expected).abs().max().item(), expected.abs().max().item()
    print(
        f"largest logit difference to transformers: {difference:.2e} (largest logit {largest:.1f})")
    if not difference <= LOGIT_TOLERANCE * largest:
        raise RuntimeError(f"the exported model's logits differ from transformers' by {difference}")


def _write_json(path: Path, value: dict) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
