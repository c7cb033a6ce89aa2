"""Writes the golden cases: tiny checkpoints and what Hugging Face's own code computes from them.

    python tests/golden/make_golden.py [CASE ...]      (all cases without arguments)

Needs transformers 5.23.0 (the expectations in the tree were made with it, torch 2.15.0, on the CPU) and safetensors. Building and
testing do not need it: the results are committed. Each case is a folder cases/NAME with a checkpoint in one of the spellings that
are in use, and expected.safetensors, all float32:
  tokens           [T]         the prompt
  logits           [T, vocab]  eager attention, float32, weights as stored
  greedy_tokens    [64]        greedy continuation of the prompt, float32
  greedy_margins   [64]        logit of each of those minus the next best one
  bfloat16_error   [1]         of the same code run in bfloat16: max|a - b| / max|b| against `logits`
Seeds are chosen so that the continuation varies and no margin is a tie.
"""
import json
import pathlib
import shutil
import sys

import torch
import transformers
from safetensors.torch import save_file

TRANSFORMERS_VERSION = "5.23.0"
CASES_DIR = pathlib.Path(__file__).resolve().parent / "cases"
PROMPT_TOKENS = 40
GREEDY_TOKENS = 64
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

ROPE_LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def diff(**keys):
    return {"model_type": "diffllama", "architectures": ["DiffLlamaForCausalLM"], "rms_norm_eps": 1e-5, **keys}


def llama(**keys):
    return {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "rms_norm_eps": 1e-6, **keys}


def size(hidden, heads, kv_heads, layers, intermediate, vocab, **more):
    return {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv_heads, "num_hidden_layers": layers,
            "intermediate_size": intermediate, "vocab_size": vocab, "hidden_act": "silu", "max_position_embeddings": 512,
            "bos_token_id": 1, "eos_token_id": 2, **more}


# name -> (config.json, shards, lambda deviation). The key of the weights' dtype says how they are stored.
CASES = {
    "diff_mha_tied": (diff(**size(64, 4, 4, 2, 72, 100), tie_word_embeddings=True, rope_theta=10000.0, rope_scaling=None,
                           torch_dtype="float32"), 1, 0.3),
    "diff_gqa2_bf16": (diff(**size(64, 8, 4, 3, 88, 120), tie_word_embeddings=False, dtype="bfloat16",
                            rope_parameters={"rope_type": "default", "rope_theta": 500000.0}), 1, 0.3),
    "diff_gqa4_bias": (diff(**size(64, 8, 2, 1, 112, 99), attention_bias=True, torch_dtype="float32",
                            rope_theta=10000.0), 1, 0.3),
    "diff_head_dim_linear": (diff(**size(48, 4, 2, 2, 51, 97, head_dim=20), torch_dtype="float32", rope_theta=10000.0,
                                  rope_scaling={"type": "linear", "factor": 4.0}), 1, 0.3),
    "diff_llama3_bf16_tied": (diff(**size(64, 4, 2, 2, 96, 128), tie_word_embeddings=True, torch_dtype="bfloat16",
                                   rope_theta=10000.0, rope_scaling={"rope_type": "llama3", **ROPE_LLAMA3}), 1, 0.3),
    "diff_llama3_f16_shards": (diff(**size(64, 8, 4, 4, 80, 101), attention_bias=True, tie_word_embeddings=False, dtype="float16",
                                    rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **ROPE_LLAMA3}), 3, 0.3),
    "diff_linear_five_layers": (diff(**size(36, 6, 2, 5, 60, 110, head_dim=8), tie_word_embeddings=True, dtype="float32",
                                     rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}), 2, 0.3),
    "diff_one_pair_wide": (diff(**size(64, 2, 2, 2, 72, 96), attention_bias=True, tie_word_embeddings=False,
                                torch_dtype="float16", rope_theta=10000.0), 1, 0.3),
    "diff_gqa8": (diff(**size(128, 16, 2, 1, 96, 128), tie_word_embeddings=True, dtype="bfloat16", rope_parameters=None), 1, 0.3),
    "diff_lambda_extremes": (diff(**size(48, 4, 4, 3, 48, 112), tie_word_embeddings=True, torch_dtype="float32",
                                  rope_theta=10000.0), 1, 0.8),
    "llama_mha_tied_bf16": (llama(**size(64, 4, 4, 2, 96, 128), tie_word_embeddings=True, torch_dtype="bfloat16",
                                  rope_theta=10000.0), 1, 0.0),
    "llama_gqa_biases_linear": (llama(**size(48, 4, 2, 3, 68, 105), attention_bias=True, mlp_bias=True, tie_word_embeddings=False,
                                      torch_dtype="float32", rope_theta=10000.0, rope_scaling={"type": "linear", "factor": 2.0}),
                                1, 0.0),
    "llama_head_dim_llama3_shards": (llama(**size(60, 6, 2, 2, 96, 130, head_dim=16), tie_word_embeddings=False, dtype="float16",
                                           rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **ROPE_LLAMA3}),
                                     2, 0.0),
    "llama_mqa": (llama(**size(64, 8, 1, 1, 80, 127), tie_word_embeddings=True, dtype="float32",
                        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}), 1, 0.0),
}


def random_weights(model, lambda_deviation, generator):
    """Weights that make the model's outputs vary: every path matters, and attention is neither flat nor one-hot."""
    def normal(shape, deviation):
        return torch.randn(shape, generator=generator) * deviation

    weights = {}
    for name, parameter in model.named_parameters():
        shape = parameter.shape
        if "lambda_" in name:
            weights[name] = normal(shape, lambda_deviation)
        elif "norm" in name:
            weights[name] = 1 + normal(shape, 0.1)
        elif name.endswith(".bias"):
            weights[name] = normal(shape, 0.3)
        elif "embed_tokens" in name:
            # Tied weights: a larger embedding would make each token predict itself.
            weights[name] = normal(shape, 0.2 if model.config.tie_word_embeddings else 0.6)
        elif "q_proj" in name or "k_proj" in name:
            weights[name] = normal(shape, 1.8 / shape[1] ** 0.5)
        else:
            weights[name] = normal(shape, 1.2 / shape[1] ** 0.5)
    return weights


def write_checkpoint(folder, config, shards, weights):
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    eos = [2, 5] if shards > 1 else 2  # both spellings
    generation = {"bos_token_id": 1, "eos_token_id": eos, "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    dtype = DTYPES[config.get("dtype", config.get("torch_dtype"))]
    stored = {name: tensor.to(dtype).contiguous() for name, tensor in weights.items()}
    if shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(stored)
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_file({name: stored[name] for name in part}, folder / file_name, metadata={"format": "pt"})
        weight_map.update({name: file_name for name in part})
    total = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


@torch.no_grad()
def expectations(folder, tokens):
    def load(dtype):
        return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()

    model = load(torch.float32)
    logits = model(tokens[None]).logits[0].float()
    sequence = tokens
    greedy, margins = [], []
    for _ in range(GREEDY_TOKENS):  # without a cache: the definition, not an optimisation of it
        best = model(sequence[None]).logits[0, -1].float().topk(2)
        greedy.append(int(best.indices[0]))
        margins.append(float(best.values[0] - best.values[1]))
        sequence = torch.cat([sequence, best.indices[:1]])
    bfloat16_logits = load(torch.bfloat16)(tokens[None]).logits[0].float()
    error = (bfloat16_logits - logits).abs().max() / logits.abs().max()
    return {"tokens": tokens.float(), "logits": logits.contiguous(), "greedy_tokens": torch.tensor(greedy).float(),
            "greedy_margins": torch.tensor(margins), "bfloat16_error": error.reshape(1)}


def make_case(name):
    config, shards, lambda_deviation = CASES[name]
    folder = CASES_DIR / name
    for seed in range(100):
        generator = torch.Generator().manual_seed(1000 * list(CASES).index(name) + seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config))
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
        write_checkpoint(folder, config, shards, random_weights(model, lambda_deviation, generator))
        tokens = torch.randint(0, config["vocab_size"], (PROMPT_TOKENS,), generator=generator)
        expected = expectations(folder, tokens)
        distinct = len(set(expected["greedy_tokens"].tolist()))
        margin = float(expected["greedy_margins"].min() / expected["logits"].abs().max())
        if distinct >= 20 and margin > 1e-3:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a lively continuation")
    save_file(expected, folder / "expected.safetensors")
    kib = sum(file.stat().st_size for file in folder.iterdir()) / 1024
    print(f"{name}: seed {seed}, {distinct} distinct tokens, least margin {margin:.1e}, "
          f"bfloat16 error {float(expected['bfloat16_error']):.2e}, {kib:.0f} KiB", flush=True)


def main():
    if transformers.__version__ != TRANSFORMERS_VERSION:
        print(f"warning: this is transformers {transformers.__version__}, the cases were made with {TRANSFORMERS_VERSION}",
              file=sys.stderr)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in sys.argv[1:] or CASES:
        make_case(name)


if __name__ == "__main__":
    main()
