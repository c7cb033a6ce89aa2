# SPDX-License-Identifier: Apache-2.0
"""What the experiments of this folder share: figures in a JSON beside the script, and what is made
of them, a block of a page in docs (docs/blocks.py) named after the script, and a plot beside it.

    SCRIPT measure [--OPTION N]...  measures; needs a built server, run it with .venv/bin/python
    SCRIPT                          rewrites block and plot from the figures
    SCRIPT --check                  exits 1 if block or plot differ from the figures; runs nothing.
                                    Ends with `N passed, N failed`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy: processes share the cores
sys.path[:0] = [str(ROOT / folder) for folder in ("docs", "tests/bench", "tests/e2e",
                                                  "models/demo")]

import blocks  # noqa: E402


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True,
                          text=True)
    return done.stdout


def image(script, alt):
    """The plot of an experiment in its page."""
    path = Path(script).resolve()
    return blocks.image(path.stem, path.with_suffix(".svg"), alt)


def made_by(script, result):
    return f"Made by `{Path(script).resolve().relative_to(ROOT)}` at commit {result['commit']}."


def outputs(script, section, plot, result):
    """The text of each file that follows from the figures."""
    texts = blocks.with_block(script.stem, *section(result))
    if plot is not None:
        texts[script.with_suffix(".svg")] = plot(result)
    return texts


def main(script, doc, options, measure, section, plot=None):
    """An experiment's main: measure(**options) gives the figures; section and plot make the parts
    of the block and the text of the plot from them, the options and the commit."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["measure"])
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true")
    arguments = vars(parser.parse_args())
    check = arguments.pop("check")
    script = Path(script).resolve()
    results = script.with_suffix(".json")
    if arguments.pop("command") == "measure":
        commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
        result = {"commit": commit, **arguments, **measure(**arguments)}
        results.write_text(json.dumps(result, indent=1) + "\n")
    return blocks.settle(outputs(script, section, plot, json.loads(results.read_text())), check)
