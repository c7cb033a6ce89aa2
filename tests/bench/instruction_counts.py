# SPDX-License-Identifier: Apache-2.0
"""Multiply-adds per instruction of the inner loops of the ARM kernels, as the compiler made them:
the table of docs/decisions/20-per-isa-kernels.md. Says nothing of time.

    instruction_counts.py   reads build/arm64/kernels, of the preset `arm64`
"""
import collections
import pathlib
import re
import subprocess

OBJECTS = pathlib.Path(__file__).resolve().parents[2] / "build" / "arm64" / "kernels"
# Multiply-adds of an instruction on a whole register.
MULTIPLY_ADDS = {"fmla": 4, "bfdot": 8, "sdot": 16, "usdot": 16, "smull": 8, "smull2": 8,
                 "smlal": 8, "smlal2": 8}
LEVELS = ("neon", "neon_dot", "neon_bf16")
# What is multiplied, by how many rows; files, of which a level has one or none; the function.
LOOPS = (
    ("float32 weights, 6 tokens", ("linear",), r"WholeDepth<.*Float32Weights, 6, 1>"),
    ("bfloat16 weights, 6 tokens", ("linear_dot", "linear"),
     r"BFloat16Tile<6, 1, true>|WholeDepth<.*BFloat16Weights, 6, 1>"),
    ("int8 weights, 1 token", ("linear_dot",), r"IntegerTile<.*Int8Codes, 1, true>"),
    ("int8 weights, 6 tokens", ("linear_dot",), r"IntegerTile<.*Int8Codes, 6, true>"),
    ("int4 weights, 1 token", ("linear_dot",), r"IntegerTile<.*Int4Codes, 1, true>"),
    ("int4 weights, 6 tokens", ("linear_dot",), r"IntegerTile<.*Int4Codes, 6, true>"),
    ("q and float32 K, 6 queries", ("diff_attention_float",), r"::Scores<.*Float32Codec, 6, 1>"),
    ("q and bfloat16 K, 6 queries", ("diff_attention_bfloat16",), r"::Scores<.*, 6, 1>"),
    ("q and int8 K, 6 queries", ("diff_attention_codes",), r"::CodeScores<.*Int8Codec, 6, 1>"),
    ("q and int4 K, 6 queries", ("diff_attention_codes",), r"::CodeScores<.*Int4Codec, 6, 1>"),
    ("p and bfloat16 V, 6 outputs", ("diff_attention_bfloat16",), r"::AddColumns<.*, 6, 2>"),
    ("p and int8 V, 6 outputs", ("diff_attention_codes",), r"AddCodeColumns<.*Int8Codec, 6, 2>"),
)


def functions(path):
    """{name: [(address, mnemonic, operands)]} of an object file."""
    text = subprocess.run(("aarch64-linux-gnu-objdump", "-d", "-C", "--no-show-raw-insn", path),
                          capture_output=True, text=True, check=True).stdout
    found = {}
    for line in text.splitlines():
        if name := re.match(r"^[0-9a-f]+ <(.*)>:$", line):
            code = found[name[1]] = []
        elif code_line := re.match(r"^\s*([0-9a-f]+):\s+(\S+)\s*(.*)$", line):
            code.append((int(code_line[1], 16), code_line[2], code_line[3]))
    return found


def inner_loops(code):
    """A Counter of mnemonics for each loop that has none inside."""
    place = {address: i for i, (address, _, _) in enumerate(code)}
    loops = []
    for i, (_, mnemonic, operands) in enumerate(code):
        target = re.search(r"\b([0-9a-f]+) <", operands)
        if re.match(r"b$|b\.|cbn?z|tbn?z", mnemonic) and target:
            begin = place.get(int(target[1], 16), i + 1)
            if begin <= i:
                loops.append((begin, i))
    for begin, end in loops:
        if not any((begin, end) != (b, e) and begin <= b and e <= end for b, e in loops):
            yield collections.Counter(mnemonic for _, mnemonic, _ in code[begin:end + 1])


def multiply_adds(counts):
    return sum(MULTIPLY_ADDS.get(mnemonic, 0) * n for mnemonic, n in counts.items())


def cell(files, pattern, level):
    """Of the loop with most multiply-adds: how many there are per instruction."""
    for file in files:
        path = OBJECTS / f"{file}.{level}.o"
        loops = [loop for name, code in (functions(path) if path.exists() else {}).items()
                 if re.search(pattern, name) for loop in inner_loops(code)]
        if loops:
            best = max(loops, key=multiply_adds)
            return f"{multiply_adds(best) / best.total():.1f}"
    return ""


def main():
    print("| multiplied | " + " | ".join(f"`{level}`" for level in LEVELS) + " |")
    print("|---|" + "---|" * len(LEVELS))
    for title, files, pattern in LOOPS:
        print(f"| {title} | " + " | ".join(cell(files, pattern, level) for level in LEVELS) + " |")


if __name__ == "__main__":
    main()
