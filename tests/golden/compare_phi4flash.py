# SPDX-License-Identifier: Apache-2.0
"""Asks a checkpoint of Phi-4-mini-flash-reasoning the same with its authors' code and with
diffserve, and says where the answers differ. For a machine with a GPU.

    python tests/golden/compare_phi4flash.py MODEL_DIR [--prompt TEXT | --tokens 1,2,3]
        [--new-tokens 32] [--device cuda] [--dtype bfloat16] [--diffserve build/diffserve]

Needs the packages that the authors' code was released with: torch 2.6.0, transformers 4.46.1,
flash-attn 2.7.4.post1, mamba-ssm 2.2.4 and causal-conv1d 1.5.0.post8. The Python files of MODEL_DIR
are executed, and diffserve's process runs when the other has freed the GPU's memory.
Three things are compared:
  the tokens that `generate` of transformers chooses greedily, with the authors' cache, and those of
      `diffserve generate`
  the logits of prompt and the authors' continuation, one forward pass without a cache, and those of
      `diffserve logits`
  what each of the two rows of logits would choose
Both sides round to bfloat16, in other places, so equal bits cannot be had. A choice is far from a
tie if the authors' margin is larger than the worst logit error; exits 1 if such a choice differs.

Any model that transformers loads can be compared so, on a CPU too. Tried were a tiny DiffLlama on a
CPU, and of a tiny phi4flash the authors' half: the released files in transformers 4.46.1 on a CPU,
with stand-ins for their kernels. Neither the real checkpoint nor the kernels have been tried.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import torch

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPT = "Solve 3*x^2 - 12*x + 9 = 0 and say which root is larger."


def prompt_tokens(arguments):
    if arguments.tokens:
        return [int(token) for token in arguments.tokens.split(",")]
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(arguments.model_dir, trust_remote_code=True)
    rendered = tokenizer.apply_chat_template([{"role": "user", "content": arguments.prompt}],
                                             add_generation_prompt=True, tokenize=False)
    return tokenizer.encode(rendered, add_special_tokens=False)


@torch.no_grad()
def ask_authors(arguments, prompt):
    """The tokens chosen, and float32 logits [prompt + tokens, vocab]."""
    from transformers import AutoModelForCausalLM
    model = AutoModelForCausalLM.from_pretrained(arguments.model_dir, trust_remote_code=True,
                                                 torch_dtype=getattr(torch, arguments.dtype))
    model = model.to(arguments.device).eval()
    inputs = torch.tensor([prompt], device=arguments.device)
    # Nothing ends the continuation but its length.
    output = model.generate(inputs, attention_mask=torch.ones_like(inputs), do_sample=False,
                            max_new_tokens=arguments.new_tokens, eos_token_id=None,
                            pad_token_id=0)
    logits = model(input_ids=output, use_cache=False).logits[0].float().cpu()
    return output[0, len(prompt):].tolist(), logits


def read_npy(path):
    """The float32 matrix of `diffserve logits`."""
    data = path.read_bytes()
    begin = 10 + int.from_bytes(data[8:10], "little")
    header = data[10:begin].decode()
    rows, columns = (int(n) for n in header.split("(")[1].split(")")[0].split(","))
    values = torch.frombuffer(bytearray(data[begin:]), dtype=torch.float32)
    return values.reshape(rows, columns)


def ask_diffserve(arguments, prompt, continuation):
    """The tokens it chooses, and its logits of the prompt and `continuation`."""
    flags = ["--device", arguments.device, "--dtype", arguments.dtype]

    def run(command, tokens, *more):
        file = folder / "tokens"
        file.write_text(" ".join(str(token) for token in tokens) + "\n")
        line = [arguments.diffserve, command, arguments.model_dir, "--tokens", f"@{file}", *flags,
                *more]
        done = subprocess.run(line, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"diffserve {command} ended with code {done.returncode}")
        return done.stdout

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        answer = json.loads(run("generate", prompt, "--max-tokens", str(arguments.new_tokens),
                                "--ignore-eos", "--json"))
        run("logits", prompt + continuation, "--output", folder / "logits.npy")
        return answer["token_ids"], read_npy(folder / "logits.npy")


def report(prompt, authors, diffserve):
    """Prints what differs; returns the number of choices that differ and are far from a tie."""
    (tokens, logits), (our_tokens, our_logits) = authors, diffserve
    if our_logits.shape != logits.shape:
        raise SystemExit(f"the authors' logits are {list(logits.shape)}, diffserve's "
                         f"{list(our_logits.shape)}")
    errors = (our_logits - logits).abs().amax(-1)
    largest, worst = float(logits.abs().max()), float(errors.max())
    print(f"prompt of {len(prompt)} tokens, authors:   {tokens}")
    print(f"{'':>22} diffserve: {our_tokens}")
    same = next((i for i, (a, b) in enumerate(zip(tokens, our_tokens)) if a != b), len(tokens))
    print(f"the first {same} of {len(tokens)} tokens are equal")
    print(f"largest difference of a logit, of the largest logit {largest:.2f}: "
          f"{worst / largest:.2e} (position {int(errors.argmax())}), of the median position "
          f"{float(errors.median()) / largest:.2e}")
    best = logits.topk(2)
    margins = best.values[:, 0] - best.values[:, 1]
    chosen = our_logits.argmax(-1)
    differing = (chosen != best.indices[:, 0]).nonzero().flatten().tolist()
    print(f"{len(differing)} of {len(logits)} positions choose another token given the same ones "
          f"before")
    for row in differing:
        print(f"    position {row}: {int(best.indices[row, 0])} by {float(margins[row]):.3f}, "
              f"diffserve {int(chosen[row])}")
    return sum(float(margins[row]) > worst for row in differing)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir")
    parser.add_argument("--prompt", default=PROMPT)
    parser.add_argument("--tokens", help="ids of the prompt instead, separated by commas")
    parser.add_argument("--new-tokens", type=int, default=32)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--diffserve", default=str(ROOT / "build" / "diffserve"))
    arguments = parser.parse_args()
    prompt = prompt_tokens(arguments)
    authors = ask_authors(arguments, prompt)
    if arguments.device == "cuda":
        torch.cuda.empty_cache()
    far = report(prompt, authors, ask_diffserve(arguments, prompt, authors[0]))
    return 1 if far else 0


if __name__ == "__main__":
    sys.exit(main())
