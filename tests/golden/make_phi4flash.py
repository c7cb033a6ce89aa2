# SPDX-License-Identifier: Apache-2.0
"""Writes the golden cases of phi4flash (Phi-4-mini-flash-reasoning): tiny checkpoints and what the
authors' own code computes from them.

    python tests/golden/make_phi4flash.py RELEASED EARLIER NVIDIA [CASE ...]
        without CASE: all of phi4flash_cases.py
    RELEASED  folder with modeling_phi4flash.py and configuration_phi4flash.py
    EARLIER   the file modeling_phi3_samba_yocov2_da.py
    NVIDIA    the file test_phi4flash_modeling.py
        references/phi4flash.py and references/phi4flash_witnesses.py say where each is to be had

The expectations in the tree were made with torch 2.15.0, transformers 5.23.0 and einops 0.8.2, on
the CPU. Building and testing need none of this: the results are committed, the code of others is
not. Each case is a folder cases/NAME with the files and tensors that make_golden.py and
make_logit_bits.py describe; what differs is that logits, margins and greedy tokens are those of the
released file in float64, so bfloat16_error is that code's own error against float64.

A case is kept only if
  - in float64, over prompt and continuation, WITNESS_TOLERANCE holds between the released file and
      the earlier one; the released one by way of its cache, token by token; NVIDIA's plain model;
      and the authors' model with transformers' Mamba in its Mamba layers
  - in float32 the released file is within FLOAT32_TOLERANCE of that
  - each mistake of references/phi4flash_traps.py moves the logits by at least FAR tolerances of
      the tests. A residual stream of bfloat16 does so in RESIDUAL_CASE alone, which is made for
      it: BFLOAT16_FAR times the tolerance, which is BFLOAT16_SHARE of the reference's own error
"""
import argparse
import json
import pathlib
import shutil
import zlib

import torch
import transformers
from safetensors.torch import save_file

import make_golden
import make_logit_bits
from make_golden import GREEDY_TOKENS, MIN_DISTINCT_TOKENS, PROMPT_TOKENS, SEEDS, TAIL_TOKENS
from phi4flash_cases import PHI4FLASH, RESIDUAL_CASE, random_weights
from references.phi4flash import RELEASED, Phi4Flash
from references.phi4flash_traps import TRAPS
from references.phi4flash_witnesses import Nvidia, with_mamba_of_transformers

CASES_DIR = pathlib.Path(__file__).resolve().parent / "cases"
WITNESS_TOLERANCE = 1e-12  # as all here, of the largest logit
FLOAT32_TOLERANCE = 1e-5
TEST_TOLERANCE, FAR = 1e-4, 5
BFLOAT16_SHARE, BFLOAT16_FAR = 2, 1.5


def compared(logits):
    """The rows that a case holds, of those of all tokens."""
    return torch.cat([logits[:PROMPT_TOKENS], logits[-TAIL_TOKENS:]]).double()


def error(logits, right):
    return float((compared(logits) - compared(right)).abs().max() / compared(right).abs().max())


class Authors:
    """The code of others, and what it says of a folder."""

    def __init__(self, released, earlier, nvidia):
        configuration = released / "configuration_phi4flash.py"
        self.released = Phi4Flash(released / RELEASED, configuration)
        self.earlier = Phi4Flash(earlier, configuration)
        self.nvidia = Nvidia(nvidia)

    def witnesses(self, folder, tokens):
        """name -> logits [tokens, vocab] in float64."""
        load = self.released.load
        plain = self.nvidia.load(folder, self.released.config(folder))
        return {
            "earlier file": self.earlier.load(folder, torch.float64)(tokens),
            "cache": load(folder, torch.float64).with_cache(tokens, PROMPT_TOKENS),
            "NVIDIA": plain(tokens),
            "Mamba of transformers":
                with_mamba_of_transformers(load(folder, torch.float64))(tokens),
        }

    def agreement(self, name, folder, tokens, right):
        """How far the witnesses and the released file in float32 are from `right`, by name; ends
        the program if they do not agree."""
        figures = {witness: error(logits, right)
                   for witness, logits in self.witnesses(folder, tokens).items()}
        for witness, figure in figures.items():
            if not figure <= WITNESS_TOLERANCE:
                raise SystemExit(f"{name}: {witness} differs by {figure:.1e}")
        figures["float32"] = error(self.released.load(folder, torch.float32)(tokens), right)
        if not figures["float32"] <= FLOAT32_TOLERANCE:
            raise SystemExit(f"{name}: float32 differs by {figures['float32']:.1e}")
        return figures

    def mistakes(self, folder, tokens, right, bfloat16_error):
        """How far each mistake is from `right`, by its name: in tolerances of the tests."""
        figures = {}
        for mistake, (dtype, fall_into) in TRAPS.items():
            model = self.released.load(folder, dtype)
            fall_into(model)
            tolerance = TEST_TOLERANCE
            if dtype == torch.bfloat16:
                tolerance = BFLOAT16_SHARE * bfloat16_error
            figures[mistake] = error(model(tokens), right) / tolerance
        return figures


def unseen(name, figures):
    """The mistakes that the case `name` should show and does not."""
    def least(dtype):
        return FAR if dtype != torch.bfloat16 else BFLOAT16_FAR if name == RESIDUAL_CASE else 0

    return [mistake for mistake, (dtype, _) in TRAPS.items() if figures[mistake] < least(dtype)]


def draw_case(name, authors, seed):
    """Writes the checkpoint and returns (expected tensors, figures of agreement, of mistakes), or
    None if another seed is needed."""
    case, folder, reference = PHI4FLASH[name], CASES_DIR / name, authors.released
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) + seed)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(case.config, indent=2) + "\n")
    weights = random_weights(name, reference.shapes(folder), case, generator)
    make_golden.write_checkpoint(folder, case, weights)
    prompt = torch.randint(0, case.config["vocab_size"], (PROMPT_TOKENS,), generator=generator)
    # Without a cache, as expectations are made, the same takes much longer.
    begun = reference.load(folder, torch.float64).continuation(prompt, GREEDY_TOKENS)
    if len(begun.unique()) < MIN_DISTINCT_TOKENS:
        return None
    expected = make_golden.expectations(reference, folder, prompt, seed // 10, torch.float64)
    if not expected:
        return None
    tokens = torch.cat([prompt, expected["greedy_tokens"].long()])
    right = reference.load(folder, torch.float64)(tokens)
    agreement = authors.agreement(name, folder, tokens, right)
    mistakes = authors.mistakes(folder, tokens, right, float(expected["bfloat16_error"]))
    if missing := unseen(name, mistakes):
        print(f"{name}: seed {seed} does not show that {missing[0]}", flush=True)
        return None
    return expected, agreement, mistakes


def save(path, expected, authors):
    save_file(expected, path, metadata={"reference": authors.released.name(path.parent),
                                        "family": "phi4flash"})
    make_golden.order_metadata(path)
    for file in path.parent.iterdir():
        file.chmod(0o644)


def write_logit_bits(name, authors):
    folder, vocab = CASES_DIR / name, PHI4FLASH[name].config["vocab_size"]
    model = authors.released.load(folder, torch.float64)
    expected = make_logit_bits.references_of(name, model, vocab)
    save(folder / "logit_bits.safetensors", expected, authors)


def make_case(name, authors):
    """Returns the figures of agreement and of mistakes."""
    folder = CASES_DIR / name
    for seed in range(SEEDS):
        if drawn := draw_case(name, authors, seed):
            break
    else:
        raise SystemExit(f"{name}: no seed gives a lively continuation that shows every mistake")
    expected, agreement, mistakes = drawn
    save(folder / "expected.safetensors", expected, authors)
    write_logit_bits(name, authors)
    kib = sum(file.stat().st_size for file in folder.iterdir()) / 1024
    different = len(set(expected["greedy_tokens"].tolist()))
    print(f"{name}: seed {seed}, {different} different tokens in {GREEDY_TOKENS}, least margin "
          f"{float(expected['greedy_margins'].min() / expected['logits'].abs().max()):.1e}, "
          f"bfloat16 error {float(expected['bfloat16_error']):.2e}, agreement "
          f"{float(expected['bfloat16_agreement']):.3f}, {kib:.0f} KiB")
    for witness, figure in agreement.items():
        print(f"    {witness}: {figure:.1e}")
    for mistake, figure in mistakes.items():
        print(f"    {figure:.1f} tolerances if {mistake}", flush=True)
    return agreement, mistakes


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("released", "earlier", "nvidia"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("cases", nargs="*")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    for name in arguments.cases:
        if name not in PHI4FLASH:
            raise SystemExit(f"no case is called {name}")
    authors = Authors(arguments.released, arguments.earlier, arguments.nvidia)
    figures = [make_case(name, authors) for name in arguments.cases or PHI4FLASH]
    print("worst of all cases")
    for witness in figures[0][0]:
        print(f"    {witness}: {max(agreement[witness] for agreement, _ in figures):.1e}")
    for mistake in figures[0][1]:
        least = min(mistakes[mistake] for _, mistakes in figures)
        print(f"    {least:.1f} tolerances at least if {mistake}")


if __name__ == "__main__":
    main()
