"""What the experiments of this folder share: figures in a JSON beside the script, and what is made
of them, a section of README.md between markers of the script's name and a plot beside the script.

    SCRIPT [--OPTION N]...  measures; needs a built server, run it with .venv/bin/python
    SCRIPT --check          exits 1 if README.md or the plot says something else than the figures;
                            runs nothing. Ends with `N passed, N failed`.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy: processes share the cores
sys.path[:0] = [str(ROOT / folder) for folder in ("tests/bench", "tests/e2e", "models/demo")]

import line_charts  # noqa: E402


def run(*command):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, check=True,
                          text=True)
    return done.stdout


def image(script, alt):
    """The plot of an experiment in README.md."""
    path = Path(script).resolve().with_suffix(".svg").relative_to(ROOT)
    return f'<img src="{path}" alt="{alt}" width="{line_charts.WIDTH}">'


def outputs(script, section, plot, result):
    """The text of each file that follows from the figures."""
    begin, end = (f"<!-- {slash}{script.stem} -->" for slash in ("", "/"))
    before, rest = README.read_text().split(begin)
    texts = {README: f"{before}{begin}\n{section(result)}\n{end}{rest.split(end)[1]}"}
    if plot is not None:
        texts[script.with_suffix(".svg")] = plot(result)
    return texts


def check(texts, results):
    wrong = [path for path, text in texts.items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        print(f"{path.relative_to(ROOT)} is not what {results.name} says")
    print(f"{len(texts) - len(wrong)} passed, {len(wrong)} failed")
    return int(bool(wrong))


def main(script, doc, options, measure, section, plot=None):
    """An experiment's main: measure(**options) gives the figures; section and plot make texts of
    them, of the options and of the commit."""
    parser = argparse.ArgumentParser(description=doc,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in options.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--check", action="store_true")
    arguments = vars(parser.parse_args())
    script = Path(script).resolve()
    results = script.with_suffix(".json")
    if arguments.pop("check"):
        return check(outputs(script, section, plot, json.loads(results.read_text())), results)
    commit = run("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
    result = {"commit": commit, **arguments, **measure(**arguments)}
    results.write_text(json.dumps(result, indent=1) + "\n")
    for path, text in outputs(script, section, plot, json.loads(results.read_text())).items():
        path.write_text(text)
    return 0
