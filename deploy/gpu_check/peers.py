#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What PyTorch and transformers reach on the same card: a matrix product, a copy, the paper's two
ways to differential attention on stock kernels, and the paper's 3B and its twin as transformers
run them.

    peers.py SECONDS

Prints one JSON object with what fitted into that time. Needs PyTorch; transformers for the models.
"""

import json
import signal
import statistics
import sys
import time

BEGIN = time.monotonic()  # what follows takes seconds

try:
    import torch
    from torch.nn import attention
    from torch.nn.functional import scaled_dot_product_attention
except ImportError as error:
    print(json.dumps({"left_out": f"PyTorch does not start: {error}"}))
    sys.exit(0)

ATTEMPT_S, MODEL_S = 2, 8  # what a measurement needs, and that of a model
WIDTH, ROWS, HEADS_TIMES_DIM = 8192, 16384, 1024  # as those of cuda_bench
COPIED_BYTES = 4 << 30
DIMS = {
    "vocab_size": 100288, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
    "num_attention_heads": 24, "num_key_value_heads": 24, "head_dim": 128,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5
}
STEPS = 12


def seconds(work, rounds):
    """The median of some rounds, by the device's own clock."""
    for _ in range(3):
        work()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e-3)
    return statistics.median(times)


def random(*shape):
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def product():
    left, right = random(WIDTH, WIDTH), random(WIDTH, WIDTH)
    return 2 * WIDTH**3 / seconds(lambda: left @ right, 15) * 1e-12


def copy():
    source = torch.ones(COPIED_BYTES, device="cuda", dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / seconds(lambda: target.copy_(source), 15) * 1e-9


def calls(head_dim, backend, split_v):
    """TFLOP/s of both maps, causal, each as a call with V whole or as two with its halves. A pair
    counts as 12 d operations, as in our own figures."""
    heads = HEADS_TIMES_DIM // head_dim
    maps = [[random(1, heads, ROWS, head_dim) for _ in range(2)] for _ in range(2)]
    values = [random(1, heads, ROWS, head_dim) for _ in range(2)]
    values = values if split_v else [torch.cat(values, -1)]

    def work():
        with attention.sdpa_kernel(backend):
            for q, k in maps:
                for v in values:
                    scaled_dot_product_attention(q, k, v, is_causal=True)

    return 12 * head_dim * heads * ROWS * (ROWS + 1) / 2 / seconds(work, 9) * 1e-12


def model(transformers, name):
    """Tokens/s of prompts and of steps of one token each."""
    config = getattr(transformers, name + "Config")(**DIMS)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        network = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="sdpa").eval()
    torch.set_default_dtype(before)

    def forward(tokens, past=None):
        return network(tokens, past_key_values=past, use_cache=True, logits_to_keep=1)

    def tokens(batch, length):
        return torch.randint(0, DIMS["vocab_size"], (batch, length), device="cuda")

    found = {}
    with torch.inference_mode():
        for length in (2048, 4096):
            prompt = tokens(1, length)
            found[f"prefill_{length}_tokens_per_s"] = length / seconds(lambda: forward(prompt), 5)
        for batch, depth in ((1, 2048), (64, 512)):
            past = forward(tokens(batch, depth)).past_key_values
            last = tokens(batch, 1)
            forward(last, past)
            torch.cuda.synchronize()
            begin = time.monotonic()
            for _ in range(STEPS):
                forward(last, past)
            torch.cuda.synchronize()
            found[f"decode_batch{batch}_depth{depth}_tokens_per_s"] = (
                STEPS * batch / (time.monotonic() - begin))
    return found


def models():
    """The name of each and how it is measured; none without transformers."""
    try:
        import transformers
    except ImportError:
        return {}
    return {f"transformers_{name.lower()}_3b_sdpa": lambda name=name: model(transformers, name)
            for name in ("DiffLlama", "Llama") if hasattr(transformers, name + "Config")}


def measurements():
    flash, cudnn = (attention.SDPBackend.FLASH_ATTENTION, attention.SDPBackend.CUDNN_ATTENTION)
    found = {"matmul_8192_tflops": product, "copy_gb_per_s": copy}
    for dim in (128, 64):
        for name, backend in (("flash2", flash), ("cudnn", cudnn)):
            found[f"four_calls_{name}_causal_16384_d{dim}_tflops"] = (
                lambda dim=dim, backend=backend: calls(dim, backend, True))
    found["two_calls_cudnn_causal_16384_d64_v128_tflops"] = lambda: calls(64, cudnn, False)
    return found | models()


def measure(end, result):
    """Adds each measurement that there is time for, and why the others are missing."""
    missing = result["not_measured"]
    for name, work in measurements().items():
        if end - time.monotonic() < (MODEL_S if name.startswith("transformers") else ATTEMPT_S):
            missing[name] = "no time was left"
            continue
        try:
            result[name] = work()
        except Exception as error:  # a kernel that this card or version does not have
            missing[name] = f"{type(error).__name__}: {str(error)[:160]}"
        torch.cuda.empty_cache()


def main():
    if not torch.cuda.is_available():
        print(json.dumps({"left_out": f"PyTorch {torch.__version__} sees no GPU"}))
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    result = {"torch": torch.__version__, "gpu": torch.cuda.get_device_name(0),
              "not_measured": {}}
    try:
        measure(BEGIN + float(sys.argv[1]), result)
    finally:
        print(json.dumps(result), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
