# SPDX-License-Identifier: Apache-2.0
"""How exactly the golden cases are reproduced: a block of docs/results/fidelity.md, and its figures
in tests/golden/fidelity.json.

    report.py measure  runs build/dev/tests/golden_fidelity, rewrites figures and block, prints
                       how far the originals' bfloat16 lambda is from ours
    report.py          rewrites the block
    report.py --check  exits 1 if the block differs from the figures, or the figures are of other
                       cases than those in the tree; runs nothing. Ends with `N passed, N failed`.

Only the standard library is needed.
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402

PROGRAM = ROOT / "build" / "release" / "tests" / "golden_fidelity"
CASES_DIR = ROOT / "tests" / "golden" / "cases"
RESULTS = ROOT / "tests" / "golden" / "fidelity.json"
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
    """golden_fidelity's JSON, of each run the worst schedule."""
    if not PROGRAM.exists():
        raise Trouble(
            f"{PROGRAM} is not there: build the target golden_fidelity of the preset dev first")
    done = subprocess.run([PROGRAM], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise Trouble(f"{PROGRAM} ended with code {done.returncode}")
    measured = json.loads(done.stdout)
    for case in measured["cases"]:
        case["runs"] = [worst(case, name, isa) for name, level in COLUMNS if level == 0
                        for isa in measured["isas"]]
    return measured


def worst(case, name, isa):
    """The schedules of a format and a level as one."""
    runs = [run for run in case["runs"][1:] if (run["format"], run["isa"]) == (name, isa)]
    return {"format": name, "isa": isa, "error": max(run["error"] for run in runs),
            "agreement": min((run["equal"] + run["ties"]) / run["steps"] for run in runs),
            "ties": sum(run["ties"] for run in runs),
            "same_bits": all(run["same_bits"] for run in runs)}


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


def rows_of(family, isas, cases):
    """A row of the errors' table and one of the agreement's: the worst of the family's cases."""
    errors, agreements = [f"{FAMILIES[family]}, {len(cases)} cases"], [FAMILIES[family]]
    for name, level in COLUMNS:
        runs = [(run, case) for case in cases for run in case["runs"]
                if (run["format"], run["isa"]) == (name, isas[level])]
        error = f"{max(run['error'] for run, _ in runs):.1e}"
        if name == "bfloat16":
            share = max(run["error"] / case["reference_bfloat16_error"] for run, case in runs)
            error += f" ({share:.2f})"
        errors.append(error)
        agreements.append(percent(min(run["agreement"] for run, _ in runs)))
    errors.append(f"{max(case['reference_bfloat16_error'] for case in cases):.1e}")
    agreements.append(percent(min(case["reference_bfloat16_agreement"] for case in cases)))
    return errors, agreements


def percent(share):
    return "100 %" if share == 1 else f"{100 * share:.1f} %"


def section(measured):
    by_family = {}
    for case in measured["cases"]:
        by_family.setdefault(case["family"], []).append(case)
    families = [family for family in FAMILIES if family in by_family]
    isas = measured["isas"]
    titles = [name + (f", {isas[level]}" if name == "bfloat16" else "") for name, level in COLUMNS]
    runs = [run for case in measured["cases"] for run in case["runs"]]
    ties = sum(run["ties"] for run in runs if run["format"] == "float32")
    same = all(run["same_bits"] for run in runs)
    heads = ["family", *titles, "reference in bfloat16"]
    errors, agreements = zip(*(rows_of(family, isas, by_family[family]) for family in families))
    return [
        blocks.paragraph(
            "The largest logit error of the family's cases, `max|a - b| / max|b|`, against the "
            "reference in float32. In brackets: the largest error of a case divided by that of the "
            f"reference's own bfloat16 run. Where no level is named it is {isas[0]}."),
        blocks.table(heads, errors),
        blocks.paragraph(
            "The smallest share of 256 tokens that are chosen as the reference in float32 chooses, "
            "given its tokens before"
            + (f" ({ties} ties among all float32 runs are counted as equal)" if ties else "") +
            ":"),
        blocks.table(heads, agreements),
        blocks.paragraph(
            ("The same bits" if same else "**Different bits**") + " in each format and level: in "
            "one chunk, in chunks of 7, one by one, after a preemption and after a prefix hit."),
        "References:",
        "\n".join(f"- {FAMILIES[family]}: {reference_code(by_family[family])}"
                  for family in families)
    ]


def check_cases(measured):
    there = {name for names in cases_in_tree().values() for name in names}
    if differing := sorted({case["case"] for case in measured["cases"]} ^ there):
        raise Trouble(
            f"{RESULTS.name} is about other cases than tests/golden/cases ({len(differing)} "
            f"differ, the first is {differing[0]}): run tests/golden/report.py measure")


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
    parser.add_argument("command", nargs="?", choices=["measure"])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    try:
        if arguments.command == "measure":
            measured = measure()
            cases = ",\n".join(json.dumps(case) for case in measured["cases"])
            RESULTS.write_text(
                f'{{"isas": {json.dumps(measured["isas"])}, "cases": [\n{cases}\n]}}\n')
            print("\n".join(lambda_lines(measured)))
        measured = json.loads(RESULTS.read_text())
        check_cases(measured)
    except Trouble as trouble:
        print(f"report.py: {trouble}", file=sys.stderr)
        return 1
    return blocks.settle(blocks.with_block("fidelity", *section(measured)), arguments.check)


if __name__ == "__main__":
    sys.exit(main())
