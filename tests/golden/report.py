"""Measures how exactly the golden cases are reproduced and writes the table of it into README.md.

    python3 tests/golden/report.py           runs build/release/tests/golden_fidelity and rewrites
                                             the table
    python3 tests/golden/report.py --check   runs nothing; exits 1 if the table is not about the
                                             cases that are in the tree
    python3 tests/golden/report.py --print   writes the table and the figures of lambda to standard
                                             output instead

Only the standard library is needed. The table stands in README.md between <!-- fidelity --> and
<!-- /fidelity -->.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "release" / "tests" / "golden_fidelity"
README = ROOT / "README.md"
CASES_DIR = ROOT / "tests" / "golden" / "cases"
BEGIN, END = "<!-- fidelity -->", "<!-- /fidelity -->"
FAMILIES = {
    "diff": "DiffLlama", "unilm_v1": "Diff Transformer (unilm V1)",
    "unilm_v2": "Diff Transformer V2 (unilm)", "motif": "Motif (2.6B's form)",
    "motif_gda": "Motif-2 (grouped)", "phi4flash": "Phi-4-mini-flash", "llama": "Llama"
}
# Format of linear layers, and which of the two levels.
COLUMNS = (("float32", 0), ("float16", 0), ("bfloat16", 0), ("bfloat16", 1), ("int8", 0),
           ("int4", 0))


class Trouble(Exception):
    """Something the caller can put right; the text is one line."""


def measure():
    """golden_fidelity's JSON."""
    if not PROGRAM.exists():
        raise Trouble(
            f"{PROGRAM} is not there: build the target golden_fidelity of the preset release first")
    done = subprocess.run([PROGRAM], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Trouble(f"{PROGRAM} ended with code {done.returncode}")
    return json.loads(done.stdout)


def cases_in_tree():
    """{family: sorted case names}, from the metadata of the expectations."""
    families = {}
    for path in sorted(CASES_DIR.glob("*/expected.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        if "family" not in header.get("__metadata__", {}):
            raise Trouble(f"{path} does not say its family: make the case again")
        families.setdefault(header["__metadata__"]["family"], []).append(path.parent.name)
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        raise Trouble(f"report.py has no title for the family {unknown[0]}")
    return families


def reference_code(cases):
    """What made the numbers, without what follows the first comma."""
    names = sorted({case["reference"].split(",")[0] for case in cases})
    return " and ".join(names)


def row(family, isas, cases):
    """One line of the table: worst of the family's cases."""
    cells = [f"{FAMILIES[family]}, {len(cases)} cases"]
    for name, level in COLUMNS:
        runs = [(run, case) for case in cases for run in case["runs"][1:]
                if (run["format"], run["isa"]) == (name, isas[level])]
        agreement = min((run["equal"] + run["ties"]) / run["steps"] for run, _ in runs)
        cell = f"{max(run['error'] for run, _ in runs):.1e}, {percent(agreement)}"
        if name == "bfloat16":
            share = max(run["error"] / case["reference_bfloat16_error"] for run, case in runs)
            cell += f" ({share:.2f})"
        cells.append(cell)
    error = max(case["reference_bfloat16_error"] for case in cases)
    agreement = min(case["reference_bfloat16_agreement"] for case in cases)
    return "| " + " | ".join([*cells, f"{error:.1e}, {percent(agreement)}"]) + " |"


def percent(share):
    return "100 %" if share == 1 else f"{100 * share:.1f} %"


def table(measured):
    by_family = {}
    for case in measured["cases"]:
        by_family.setdefault(case["family"], []).append(case)
    families = [family for family in FAMILIES if family in by_family]
    isas = measured["isas"]
    titles = [name + (f", {isas[level]}" if name == "bfloat16" else "") for name, level in COLUMNS]
    lines = ["| family | " + " | ".join(titles) + " | the reference's own in bfloat16 |",
             "|---" * (len(COLUMNS) + 2) + "|"]
    lines += [row(family, isas, by_family[family]) for family in families]
    runs = [run for case in measured["cases"] for run in case["runs"][1:]]
    ties = sum(run["ties"] for run in runs if run["format"] == "float32")
    same = all(run["same_bits"] for run in runs)
    references = "; ".join(f"{FAMILIES[family]}: {reference_code(by_family[family])}"
                           for family in families)
    lines += [
        "",
        "Each cell: worst logit error of the family's cases, max\\|a - b\\| / max\\|b\\| against "
        "the reference in float32, and the least share of 256 tokens that are chosen as the "
        "reference chooses, given its tokens before"
        + (f" ({ties} ties among all float32 runs are counted as equal)" if ties else "") +
        "; in brackets the most that a case's error is of the reference's own. Where no level is "
        f"named it is {isas[0]}.",
        "In one chunk, in chunks of 7, one by one, after a preemption and after a prefix hit: " +
        ("the same bits" if same else "**different bits**") + " in each format and level.",
        f"References: {references}."
    ]
    return lines


def marker(families):
    """The invisible line by which --check knows what the table is about."""
    return "<!-- cases: " + " ".join(name for family in sorted(families)
                                     for name in families[family]) + " -->"


def split_readme():
    """README.md before the table, the table, and after it."""
    text = README.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise Trouble(
            f"{README} needs {BEGIN} and {END}, once each and in this order, around the place of "
            f"the table"
        )
    head, rest = text.split(BEGIN)
    old, tail = rest.split(END)
    return head, old, tail


def check():
    families = cases_in_tree()
    _, old, _ = split_readme()
    claimed = re.search(r"<!-- cases: (.*?) -->", old)
    claimed = set(claimed.group(1).split()) if claimed else set()
    there = {name for names in families.values() for name in names}
    if claimed != there:
        differing = sorted(claimed ^ there)
        raise Trouble(
            f"README.md's fidelity table is about other cases than tests/golden/cases "
            f"({len(differing)} differ, "
            f"the first is {differing[0]}): run tests/golden/report.py")
    for family, names in families.items():
        if f"| {FAMILIES[family]}, {len(names)} cases |" not in old:
            raise Trouble(
                f"README.md's fidelity table has no row for the {len(names)} cases of "
                f"{FAMILIES[family]}"
            )


def lambda_lines(measured):
    """How far the originals' bfloat16 lambda is from ours, by family."""
    worst = {}
    for case in measured["cases"]:
        if "lambda_difference" in case:
            family = FAMILIES[case["family"]]
            absolute, relative = worst.get(family, (0, 0))
            worst[family] = (max(absolute, case["lambda_difference"]),
                             max(relative, case["lambda_relative_difference"]))
    return [
        f"lambda, {family}: at most {absolute:.1e} from the originals' rounding to bfloat16, "
        f"{relative:.1e} of the larger exp"
        for family, (absolute, relative) in worst.items()
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--print", action="store_true", dest="show")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            check()
            print("1 passed, 0 failed")
            return 0
        if not arguments.show:
            head, _, tail = split_readme()
        families = cases_in_tree()
        measured = measure()
        lines = table(measured)
        print("\n".join((lines if arguments.show else []) + lambda_lines(measured)))
        if not arguments.show:
            README.write_text(head + "\n".join([BEGIN, marker(families), *lines, END]) + tail)
    except Trouble as trouble:
        print(f"report.py: {trouble}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
