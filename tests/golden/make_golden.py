# SPDX-License-Identifier: Apache-2.0
"""Writes the golden cases: tiny checkpoints and what the authors' own code computes from them.

    python tests/golden/make_golden.py [--unilm DIR] [--motif DIR] [CASE ...]
        without CASE: all that the options allow

diff_, llama_:        transformers 5.23.0 (the expectations in the tree were made with it, torch
                      2.15.0, on the CPU)
unilm_v1_, unilm_v2_: --unilm, a checkout of https://github.com/microsoft/unilm at 31646c58 (V1's
                      files as at 768a3c87), see references/unilm.py
motif_:               --motif, a checkout of https://github.com/MotifTechnologies/vllm at 477e4d79
                      (branch motif), see references/motif.py
phi4flash_:           made by make_phi4flash.py
Building and testing need none of this: the results are committed, the authors' code is not. Each
case is a folder cases/NAME with a checkpoint in one of the spellings that are in use, and
expected.safetensors, all float32; its metadata says which code made it:
  tokens              [T]         the prompt
  logits              [T, vocab]  of the prompt: float32, weights as stored
  greedy_tokens       [256]       greedy continuation of the prompt, float32
  greedy_margins      [256]       logit of each of those minus the next best one
  tail_logits         [8, vocab]  of the last 8 tokens of prompt + continuation
  bfloat16_error      [1]         of the same code run in bfloat16: max|a - b| / max|b| over
                                  `logits` and `tail_logits`
  bfloat16_agreement  [1]         share of greedy_tokens that it chooses, too, given the tokens
                                  before
Seeds are chosen so that the continuation varies and, where it can be had, no margin is a tie.
"""
import argparse
import json
import pathlib
import shutil
import zlib

import torch
from safetensors.torch import save_file

from golden_cases import CASES

CASES_DIR = pathlib.Path(__file__).resolve().parent / "cases"
PROMPT_TOKENS = 40
GREEDY_TOKENS = 256
TAIL_TOKENS = 8
SEEDS = 40
MIN_DISTINCT_TOKENS = 20
TIE = 2e-4  # of the largest logit: twice the tolerance of the tests
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def family(name):
    return next(prefix for prefix in ("motif_gda", "motif", "unilm_v1", "unilm_v2", "diff", "llama")
                if name.startswith(prefix))


def random_weights(shapes, config, lambda_deviation, generator):
    """Weights that make the model's outputs vary: every path matters, and attention is neither flat
    nor one-hot."""
    def normal(shape, deviation):
        return torch.randn(shape, generator=generator) * deviation

    weights = {}
    for name, shape in shapes.items():
        if "lambda_proj" in name:
            weights[name] = normal(shape, 1.5 / shape[1] ** 0.5)
        elif "lambda_" in name:
            weights[name] = normal(shape, lambda_deviation)
        elif "subln" in name:
            weights[name] = 1 + normal(shape, 0.4)
        elif "norm" in name:
            weights[name] = 1 + normal(shape, 0.1)
        elif "act_fn" in name:  # PolyNorm: thirds and a small bias
            weights[name] = (0 if name.endswith("bias") else 1 / 3) + normal(shape, 0.3)
        elif name.endswith(".bias"):
            weights[name] = normal(shape, 0.3)
        elif "embed_tokens" in name:
            # Tied weights: a larger embedding would make each token predict itself.
            weights[name] = normal(shape, 0.2 if config.get("tie_word_embeddings") else 0.6)
        elif "q_proj" in name or "k_proj" in name:
            weights[name] = normal(shape, 1.8 / shape[1] ** 0.5)
        else:
            weights[name] = normal(shape, 1.2 / shape[1] ** 0.5)
    return weights


def write_checkpoint(folder, case, weights):
    eos = [2, 5] if case.shards > 1 else 2  # both spellings
    generation = {"bos_token_id": 1, "eos_token_id": eos, "temperature": 0.7}
    (folder / "generation_config.json").write_text(json.dumps(generation) + "\n")
    dtype = DTYPES[case.config.get("dtype", case.config.get("torch_dtype"))]
    stored = {
        name: tensor.to(torch.float32 if name.endswith(case.float32_names) else dtype).contiguous()
        for name, tensor in weights.items()
    }
    if case.shards == 1:
        save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(stored)
    weight_map = {}
    for shard in range(case.shards):
        file_name = f"model-{shard + 1:05d}-of-{case.shards:05d}.safetensors"
        part = names[shard::case.shards]
        save_file({name: stored[name]
                   for name in part}, folder / file_name, metadata={"format": "pt"})
        weight_map.update({name: file_name for name in part})
    total = sum(tensor.numel() * tensor.element_size() for tensor in stored.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


@torch.no_grad()
def expectations(reference, folder, tokens, allowed_ties, dtype=torch.float32):
    """What is expected of the checkpoint, or None if its continuation has too many ties or too few
    different tokens; `dtype` is the reference's."""
    model = reference.load(folder, dtype)
    tie = TIE * float(model(tokens).abs().max())
    sequence = tokens
    margins = []
    for _ in range(GREEDY_TOKENS):  # without a cache: the definition, not an optimisation of it
        best = model(sequence)[-1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        sequence = torch.cat([sequence, best.indices[:1]])
        if sum(margin <= tie for margin in margins) > allowed_ties:
            return None
    if len(set(sequence[PROMPT_TOKENS:].tolist())) < MIN_DISTINCT_TOKENS:
        return None
    logits = model(sequence)
    greedy = sequence[PROMPT_TOKENS:]
    bfloat16_logits = reference.load(folder, torch.bfloat16)(sequence)
    compared = torch.cat(
        [torch.arange(PROMPT_TOKENS),
         torch.arange(len(sequence) - TAIL_TOKENS, len(sequence))])
    error = (bfloat16_logits - logits)[compared].abs().max() / logits[compared].abs().max()
    agreement = (bfloat16_logits[PROMPT_TOKENS - 1:-1].argmax(dim=-1) == greedy).float().mean()
    return {
        "tokens": tokens.float(), "logits": logits[:PROMPT_TOKENS].float().contiguous(),
        "greedy_tokens": greedy.float(), "greedy_margins": torch.tensor(margins),
        "tail_logits": logits[-TAIL_TOKENS:].float().contiguous(),
        "bfloat16_error": error.float().reshape(1),
        "bfloat16_agreement": agreement.reshape(1)
    }


def order_metadata(path):
    """save_file writes the metadata in an order of chance; here it is always the same, so that
    equal cases are equal files."""
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:end])
    ordered = {"__metadata__": dict(sorted(header.pop("__metadata__").items())), **header}
    text = json.dumps(ordered, separators=(",", ":")).encode()
    path.write_bytes(data[:8] + text.ljust(end - 8) + data[end:])


def make_case(name, reference):
    case, folder = CASES[name], CASES_DIR / name
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
        write_checkpoint(
            folder, case,
            random_weights(reference.shapes(folder), case.config, case.lambda_deviation, generator))
        tokens = torch.randint(0, case.config["vocab_size"], (PROMPT_TOKENS,), generator=generator)
        expected = expectations(reference, folder, tokens,
                                allowed_ties=seed // 10)  # rather a tie than no case
        if expected:
            break
    else:
        raise SystemExit(f"{name}: no seed gives a lively continuation")
    save_file(expected, folder / "expected.safetensors",
              metadata={"reference": reference.name(case.config), "family": family(name)})
    order_metadata(folder / "expected.safetensors")
    for path in folder.iterdir():
        path.chmod(0o644)
    kib = sum(path.stat().st_size for path in folder.iterdir()) / 1024
    print(
        f"{name}: seed {seed}, least margin "
        f"{float(expected['greedy_margins'].min() / expected['logits'].abs().max()):.1e}, "
        f"bfloat16 error {float(expected['bfloat16_error']):.2e}, agreement "
        f"{float(expected['bfloat16_agreement']):.3f}, "
        f"{kib:.0f} KiB", flush=True)


def chosen_cases(description):
    """What the command line asks for: (name, reference) of each case."""
    parser = argparse.ArgumentParser(description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unilm", type=pathlib.Path, help="checkout of microsoft/unilm")
    parser.add_argument("--motif", type=pathlib.Path,
                        help="checkout of MotifTechnologies/vllm, branch motif")
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    references = {}
    if arguments.unilm:
        from references.unilm import Unilm
        references["unilm_v1"] = references["unilm_v2"] = Unilm(arguments.unilm)
    if arguments.motif:
        from references.motif import Motif
        references["motif"] = references["motif_gda"] = Motif(arguments.motif)
    names = arguments.cases or [
        name for name in CASES if family(name) in references or family(name) in ("diff", "llama")
    ]
    if any(family(name) in ("diff", "llama") for name in names):
        from references.hugging_face import HuggingFace
        references["diff"] = references["llama"] = HuggingFace()
    for name in names:
        if name not in CASES:
            raise SystemExit(f"no case is called {name}")
        if family(name) not in references:
            raise SystemExit(f"{name}: needs --{family(name).split('_')[0]}")
    return [(name, references[family(name)]) for name in names]


if __name__ == "__main__":
    for chosen in chosen_cases(__doc__):
        make_case(*chosen)
