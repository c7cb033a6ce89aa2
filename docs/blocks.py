# SPDX-License-Identifier: Apache-2.0
"""The generated blocks of the pages: what lies between <!-- NAME --> and <!-- /NAME -->.

A block has one page, and one script that makes it from stored figures: `SCRIPT` rewrites the block
(and a plot, if it has one), `SCRIPT --check` compares it and exits 1 if it differs. Neither
measures anything. docs/build.py runs all of them.
"""

import os
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = {  # name: (page, script)
    "fidelity": ("docs/results/fidelity.md", "tests/golden/report.py"),
    "quality": ("docs/results/quantisation.md", "tests/bench/quality.py"),
    "page_formats": ("docs/results/kv-pages.md", "tests/experiments/page_formats.py"),
    "page_speeds": ("docs/results/kv-pages.md", "tests/experiments/page_speeds.py"),
    "logit_bits": ("docs/results/experiments.md", "tests/experiments/logit_bits.py"),
    "needles": ("docs/results/experiments.md", "tests/experiments/needles.py"),
    "many_shot": ("docs/results/experiments.md", "tests/experiments/many_shot.py"),
    "kept_slots": ("docs/results/experiments.md", "tests/experiments/kept_slots.py"),
    "activations": ("docs/results/experiments.md", "tests/experiments/activations.py"),
    "cpu": ("docs/results/speed.md", "tests/bench/report_cpu.py"),
    "hybrid": ("docs/results/hybrid.md", "tests/bench/hybrid.py"),
    "kv_disk": ("docs/results/prefix-cache.md", "tests/bench/kv_disk.py"),
    "speculation": ("docs/results/speculation.md", "tests/bench/speculation.py"),
    "peers": ("docs/results/peers.md", "tests/bench/peers.py"),
    "gpu": ("docs/results/gpu.md", "tests/bench/report_cuda.py"),
    "cli": ("docs/cli.md", "docs/make_cli.py"),
}
COLUMNS = 120


def paragraph(text):
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


def row(cells):
    return "| " + " | ".join(map(str, cells)) + " |"


def table(heads, rows):
    """Each cell as str() shows it."""
    return "\n".join([row(heads), "|---" * len(heads) + "|", *map(row, rows)])


def image(name, path, alt):
    """A picture in the page of block `name`."""
    return f"![{alt}]({os.path.relpath(path, (ROOT / BLOCKS[name][0]).parent)})"


def with_block(name, *parts):
    """{page: its text with these parts, a blank line between them, as block `name`}"""
    page = ROOT / BLOCKS[name][0]
    text = page.read_text()
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise SystemExit(f"{page.relative_to(ROOT)} needs {begin.strip()} and {end.strip()}, once "
                         "each, in this order")
    head, rest = text.split(begin)
    return {page: "\n".join([head + begin, *(part + "\n" for part in parts),
                             end + rest.split(end)[1]])}


def settle(texts, check):
    """Writes {path: text}, or with `check` only compares. Returns the exit code."""
    wrong = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    if not check:
        for path in wrong:
            path.write_text(texts[path])
            print(f"wrote {path.relative_to(ROOT)}")
        return 0
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is not what the figures say")
    print(f"{len(texts) - len(wrong)} passed, {len(wrong)} failed")
    return int(bool(wrong))
