# SPDX-License-Identifier: Apache-2.0
"""The tables of one GPU for docs/results/gpu.md, from what deploy/gpu_check/run.py measured there.
A part that was not measured has no table; a figure that is missing in a part is shown as "-"."""

import blocks

PAPER = {  # forward, tokens/s on an H100 (arXiv 2410.05258, table 7): (Transformer, Diff)
    ("3b", 2048): (51228, 46811), ("3b", 4096): (48762, 44521), ("13b", 2048): (14346, 13653)}
SERVED = {
    "serving": "Diff-3B of the paper", "serving_batch_invariant": "the same, `--batch-invariant`",
    "serving_prompt_lookup": "the same, and `--speculative prompt-lookup`",
    "serving_motif_2_12_7b": "the shape of Motif-2-12.7B", "serving_bundled": "the bundled model"}


def number(value, digits=0):
    return "-" if value is None else f"{value:,.{digits}f}"


def figure(result, run, name, field="tokens_per_s"):
    """The median of `diffserve bench`'s figure `name` ("prefill 2048"), or None."""
    for found in result.get(run, {}).get(name.split()[0], []):
        if found["name"] == name:
            return found[field]["median"] if isinstance(found[field], dict) else found[field]
    return None


def over(value, base, digits=2):
    return "-" if value is None or base is None else f"{value / base:.{digits}f}"


def change(value, base):
    return "-" if value is None or base is None else f"{100 * (value / base - 1):+.1f} %"


def forward(result):
    peers = result.get("peers", {})
    rows = []
    for (size, tokens), (paper_twin, paper_diff) in PAPER.items():
        name = f"prefill {tokens}"
        diff, twin = (figure(result, f"{kind}_{size}", name) for kind in ("diff", "transformer"))
        other = peers.get(f"transformers_diffllama_{size}_sdpa", {})
        rows.append([
            f"{size.upper()}, {tokens:,}", number(diff), number(twin), change(diff, twin),
            over(figure(result, f"diff_{size}", name, "ratio_to_probe"), 1),
            number(other.get(f"prefill_{tokens}_tokens_per_s")),
            f"{paper_diff:,} / {paper_twin:,}", change(paper_diff, paper_twin)
        ])
    return blocks.table(["model, tokens", "Diff", "its Transformer twin", "Diff over twin",
                         "Diff, share of cuBLAS", "transformers, Diff", "paper, H100, Diff / twin",
                         "paper, Diff over twin"], rows)


def decode(result):
    rows = []
    for batch in (1, 64):
        name = f"decode depth 2048 batch {batch}"
        diff, twin = (figure(result, run, name) for run in ("diff_3b", "transformer_3b"))
        rows.append([f"{batch}", number(diff), number(twin), change(diff, twin),
                     over(figure(result, "diff_3b", name, "ratio_to_probe"), 1)])
    return blocks.table(["streams", "Diff-3B", "its Transformer twin", "Diff over twin",
                         "Diff, share of the read probe"], rows)


def sweep(result):
    prefill = [(entry["name"].split()[1], entry) for entry in result["diff_3b"]["prefill"]]
    batches = [(str(entry["batch"]), entry) for entry in result["diff_3b"]["decode"]
               if " depth 512 " in entry["name"]]

    def one(head, entries):
        return blocks.table([head, *(f"{int(name):,}" for name, _ in entries)], [
            ["tokens/s", *(number(entry["tokens_per_s"]["median"]) for _, entry in entries)],
            ["share", *(f"{entry['ratio_to_probe']['median']:.2f}" for _, entry in entries)]
        ])
    return one("prompt of N tokens", prefill), one("decode after 512 tokens, N streams", batches)


def formats(result, head, base, runs):
    """Speeds over those of the run `base`, for the figures that each of `runs` has."""
    runs = {title: run for title, run in runs.items() if run in result}
    every = [entry["name"] for kind in ("prefill", "decode") for entry in result[base][kind]]
    names = [name for name in every if all(figure(result, run, name) for run in runs.values())]
    shown = [name.replace(" batch", ",").replace("depth", "after") for name in names]
    return blocks.table([head, *shown], [
        [title, *(over(figure(result, run, name), figure(result, base, name)) for name in names)]
        for title, run in runs.items()])


def weights(result):
    runs = {kind: f"quarter_{kind}" for kind in ("int8", "int4", "fp8")}
    return formats(result, "`--quantization`", "quarter",
                   runs | {"none, `--batch-invariant`": "quarter_batch_invariant"})


def pages(result):
    # A run of bfloat16 pages of its own, where there is one, was measured beside the others.
    base = "quarter_pages_bfloat16" if "quarter_pages_bfloat16" in result else "quarter"
    return formats(result, "`--kv-cache-dtype`", base, {
        "int8": "quarter_pages_int8", "int4": "quarter_pages_int4", "fp8_e4m3": "quarter_pages_fp8"
    })


def serving(result):
    rows = []
    for name, title in SERVED.items():
        for load in result.get(name, {}).get("loads", []):
            rows.append([
                title, f"{load['streams']}", f"{load['in']:,} / {load['out']:,}",
                number(load["out_tokens_per_s"]), number(load["total_tokens_per_s"]),
                f"{load['ttft_ms_p50']:,.0f} / {load['ttft_ms_p99']:,.0f}",
                number(load["per_token_ms_p50"], 2)
            ])
            title = ""
    return blocks.table(["model", "streams", "tokens in / out", "out, tokens/s",
                         "in and out, tokens/s", "first token, ms, p50 / p99",
                         "between tokens, ms"], rows)


def attention(result):
    """One layer's attention of 16,384 causal tokens, TFLOP/s by the operations that it needs."""
    figures, peers = result["kernels"]["figures"], result.get("peers", {})
    rows = []
    for head_dim in (128, 64):
        def peer(name, of=""):
            found = peers.get(f"{name}_causal_16384_d{head_dim}{of}_tflops")
            return number(found) if isinstance(found, float) else "-"
        rows.append([f"{head_dim}",
                     number(figures.get(f"prefill_v1_d{head_dim}_causal_16384_tflop_per_s")),
                     peer("two_calls_cudnn", f"_v{2 * head_dim}"), peer("four_calls_cudnn"),
                     peer("four_calls_flash2")])
    return blocks.table(["head dims", "diffserve, one call", "cuDNN, two calls",
                         "cuDNN, four calls", "FlashAttention 2, four calls"], rows)


def beside(result):
    peers = result["peers"]
    other = peers.get("transformers_diffllama_3b_sdpa", {})
    rows = []
    for depth, batch in ((2048, 1), (512, 64)):
        ours = figure(result, "diff_3b", f"decode depth {depth} batch {batch}")
        theirs = other.get(f"decode_batch{batch}_depth{depth}_tokens_per_s")
        rows.append([f"{batch} after {depth:,}", number(ours), number(theirs),
                     over(ours, theirs, 1)])
    return blocks.table(["decode of Diff-3B, streams", "diffserve", "transformers",
                         "diffserve over transformers"], rows)


def proofs(result):
    rows = [[label, *result["proofs"][name]] for label, name in (
        ("tests of the backend", "backend"), ("bit equality end to end", "end_to_end"),
        ("tests under compute-sanitizer", "sanitizer"))]
    return blocks.table(["what", "passed", "failed", "skipped"], rows)


def tables(result):
    """The parts of a page, one after the other: headings, sentences and tables."""
    parts = []
    for needs, heading, text, made in SECTIONS:
        if needs in result:
            found = made(result)
            parts += [f"### {heading}", blocks.paragraph(text),
                      *([found] if isinstance(found, str) else found)]
    return parts


SECTIONS = [
    ("proofs", "Proofs", "Tests that ran on the card:", proofs),
    ("diff_3b", "Whole models: a prompt",
     "The paper's table 7, tokens/s of the forward pass; `transformers` ran on the same card:",
     forward),
    ("diff_3b", "Whole models: decode", "Tokens/s after 2,048 tokens:", decode),
    ("diff_3b", "By length and by number of streams",
     "Diff-3B; the share of a prompt is of cuBLAS's arithmetic, that of decode of the read probe:",
     sweep),
    ("quarter_int8", "Formats of weights",
     "Tokens/s over those of bfloat16 in the same run, a quarter of Diff-3B's layers:", weights),
    ("quarter_pages_int8", "Formats of pages", "The same for the KV cache:", pages),
    ("serving", "The server", "Streams that start together, over HTTP, greedy:", serving),
    ("peers", "Beside other programs on the same card",
     "One layer's attention over 16,384 causal tokens, TFLOP/s. Other libraries compute a Diff "
     "Transformer's attention by two or four plain calls:", attention),
    ("peers", "Beside transformers", "Tokens/s, PyTorch's scaled-dot-product attention:", beside),
]
