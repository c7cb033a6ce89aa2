# SPDX-License-Identifier: Apache-2.0
"""Writes what the authors' own code computes from the golden cases' checkpoints if attention logits
are of few bits, logit_bits.safetensors beside expected.safetensors: the same references, with the
scaled scores of each query, head and map rounded before the softmax
(references/rounded_softmax.py).

    python tests/golden/make_logit_bits.py [--unilm DIR] [--motif DIR] [CASE ...]
        as make_golden.py

All float32; for each scale and number of bits of MODES:
  SCALE_BITS_tokens  [T]            a prompt
  SCALE_BITS_logits  [ROWS, vocab]  of its last tokens
A score near the boundary between two codes may get either of them from kernels that add in another
order. So in these prompts no score of any layer, head and token is nearer to a boundary than TIE of
the largest one there is: of prompts drawn at random the longest up to such a tie is kept up to
there. Tiles differ from rows only beyond the first tile; where no prompt gets there they are left
out.
"""
import zlib

import torch
from safetensors.torch import save_file

from golden_cases import CASES
from make_golden import CASES_DIR, chosen_cases, family, order_metadata
from references.rounded_softmax import TILE_SLOTS, RoundedSoftmax

# With the length of prompts to draw, which is longer than those up to a tie.
MODES = (("row", 8, 32), ("row", 6, 64), ("row", 4, 96), ("tile", 4, 96), ("anchored", 4, 96))
# Beside double precision float32 scores of the transformers cases are within 4e-6 of the largest.
TIE = 5e-6
PROMPTS, LEAST_TOKENS = 200, 5
ROWS = 2


@torch.no_grad()
def longest_prompt(model, vocab, mode, generator):
    """The tokens of the longest prompt, and the logits of its last ROWS tokens."""
    scale, bits, prompt_tokens = mode
    best = torch.empty(0, dtype=torch.int64), None
    for _ in range(PROMPTS):
        tokens = torch.randint(0, vocab, (prompt_tokens,), generator=generator)
        attention = RoundedSoftmax(bits, scale, prompt_tokens)
        with attention.in_place():
            logits = model(tokens)
        count = int((attention.distances > TIE).long().cumprod(0).sum())
        if count > len(best[0]):
            best = tokens[:count], logits[count - ROWS:count]
    return best


def references_of(name, model, vocab):
    """The tensors that the case `name` gets."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name} logit bits".encode()))
    expected = {}
    for scale, bits, prompt_tokens in MODES:
        tokens, logits = longest_prompt(model, vocab, (scale, bits, prompt_tokens), generator)
        least = TILE_SLOTS + 1 if scale == "tile" else LEAST_TOKENS
        print(f"{name}: {scale}, {bits} bits, {len(tokens)} tokens", flush=True)
        if len(tokens) >= least:
            expected[f"{scale}_{bits}_tokens"] = tokens.float()
            expected[f"{scale}_{bits}_logits"] = logits.float().contiguous()
        elif scale != "tile":
            raise SystemExit(f"{name}: no prompt of {least} tokens without a tie")
    return expected


def make_references(name, reference):
    folder, vocab = CASES_DIR / name, CASES[name].config["vocab_size"]
    expected = references_of(name, reference.load(folder, torch.float32), vocab)
    path = folder / "logit_bits.safetensors"
    save_file(expected, path, metadata={"reference": reference.name(CASES[name].config),
                                        "family": family(name)})
    order_metadata(path)
    path.chmod(0o644)


if __name__ == "__main__":
    for chosen in chosen_cases(__doc__):
        make_references(*chosen)
