#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JSON Schema's own test suites (drafts 4, 7, 2019-09, 2020-12) against what response_format
enforces.

Each schema is refused, by a keyword of it that is named and with a reason, or compiled, and then no
spelling of an instance that the suite calls invalid may be accepted. Valid ones that are not
accepted are counted: a constraint may be stricter than its schema (properties in its order, formats
asserted). generated.json has schemas as generators write them: all are enforced, and instances are
accepted as the package jsonschema judges them. The last line is `N passed, N failed` (schemas).

    run.py                  the suite
    run.py --list           and each schema's outcome
    run.py --times FILE     and how long schemas took to compile, as JSON
"""

import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("DIFFSERVE_SCHEMA_SUITE",
                              REPOSITORY / "build/dev/tests/schema_suite"))
SUITES = "json/tests/"
DRAFTS = {"draft4": "http://json-schema.org/draft-04/schema#",
          "draft7": "http://json-schema.org/draft-07/schema#",
          "draft2019-09": "https://json-schema.org/draft/2019-09/schema",
          "draft2020-12": "https://json-schema.org/draft/2020-12/schema"}
# Formats are annotations; these are asserted as well.
FORMATS = ("date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid",
           "uri")
# What no text satisfies is refused without a keyword; then no instance may be valid.
NOTHING = ("no text satisfies it", "nothing satisfies it", "Unsatisfiable schema", "contradict")


@dataclass
class Case:
    file: str
    name: str
    schema: object
    valid: list[str] = field(default_factory=list)  # JSON texts
    invalid: list[tuple[str, ...]] = field(default_factory=list)  # spellings of each
    is_exact: bool = False  # what is valid is accepted


def archive() -> Path:
    """The pinned package that carries the suite; deploy/install_deps.sh --test fetches it."""
    requirement, _, digest = (Path(__file__).parent / "requirements.txt").read_text().partition(
        " --hash=sha256:")
    path = REPOSITORY / ".venv/json-schema-suite" / f"{requirement.replace('==', '-')}.tar.gz"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest.strip():
        raise SystemExit(f"{path} has sha256 {found}, not {digest.strip()}")
    return path


def spellings(value) -> tuple[str, ...]:
    plain = json.dumps(value, ensure_ascii=False)
    found = [plain, json.dumps(value), json.dumps(value, ensure_ascii=False,
                                                  separators=(",", ":")),
             json.dumps(value, ensure_ascii=False, indent=2)]
    return tuple(dict.fromkeys(text for text in found if is_text(text)))


def is_text(text: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in text)


def is_asserted(file: str) -> bool:
    is_annotation = "optional/format/" in file and Path(file).stem not in FORMATS
    return not is_annotation and not file.endswith("optional/content.json")


def cases() -> list[Case]:
    found = []
    with tarfile.open(archive()) as tar:
        for member in sorted(tar.getmembers(), key=lambda member: member.name):
            _, _, name = member.name.partition("/")
            file = name.removeprefix(SUITES)
            draft = DRAFTS.get(file.partition("/")[0])
            if draft is None or not name.endswith(".json") or not is_asserted(file):
                continue
            for group in json.load(tar.extractfile(member)):
                case = Case(file, group["description"], of_draft(group["schema"], draft))
                for test in group["tests"]:
                    texts = spellings(test["data"])
                    if test["valid"]:
                        case.valid.append(texts[0])
                    else:
                        case.invalid.append(texts)
                found.append(case)
    return found


def generated() -> list[Case]:
    found = []
    for row in json.loads((Path(__file__).parent / "generated.json").read_text()):
        case = Case("generated.json", row["generator"], row["schema"], is_exact=True)
        judge = jsonschema.validators.validator_for(
            row["schema"], default=jsonschema.Draft202012Validator)(row["schema"])
        for instance in row["instances"]:
            if judge.is_valid(instance):
                case.valid.append(spellings(instance)[0])
            else:
                case.invalid.append(spellings(instance))
        found.append(case)
    return found


def of_draft(schema, draft: str):
    """Earlier drafts' suites leave it to their folder to say which draft they are."""
    return {"$schema": draft, **schema} if isinstance(schema, dict) else schema


def outcomes(suite: list[Case]) -> list[dict]:
    lines = []
    for case in suite:
        instances = case.valid + [text for texts in case.invalid for text in texts]
        lines.append(json.dumps({"schema": json.dumps(case.schema), "instances": instances}))
    ran = subprocess.run([PROGRAM], input="\n".join(lines), capture_output=True, text=True)
    made = [json.loads(line) for line in ran.stdout.splitlines()]
    if ran.returncode != 0 or len(made) != len(suite):
        at = suite[min(len(made), len(suite) - 1)]
        raise SystemExit(f"{PROGRAM} ended with {ran.returncode} at {at.file}: {at.name}\n"
                         f"{ran.stderr[-2000:]}\n0 passed, {len(suite)} failed")
    return made


def names_in(schema) -> set[str]:
    """Every name of a member, at any depth."""
    if isinstance(schema, list):
        return set().union(*map(names_in, schema)) if schema else set()
    if isinstance(schema, dict):
        return set(schema).union(*map(names_in, schema.values()))
    return set()


def fault_of_refusal(case: Case, reason: str) -> str | None:
    if any(text in reason for text in NOTHING):
        return f"has a valid instance, {case.valid[0]}: {reason}" if case.valid else None
    if any(name in reason for name in names_in(case.schema)):
        return None
    return f"is refused without a keyword: {reason}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--times", type=Path)
    options = parser.parse_args()
    suite = cases() + generated()
    made = outcomes(suite)
    enforced, refused, faults = 0, 0, []
    accepted, total, stricter = 0, 0, collections.Counter()
    for case, outcome in zip(suite, made):
        if "refused" in outcome:
            refused += 1
            fault = fault_of_refusal(case, outcome["refused"])
            if case.is_exact:
                fault = f"is refused: {outcome['refused']}"
            shown = "refused: " + outcome["refused"]
        else:
            taken = iter(outcome["accepted"])
            valid = [next(taken) for _ in case.valid]
            wrong = [text for texts in case.invalid for text in texts if next(taken)]
            fault = f"accepts {wrong}, which is invalid" if wrong else None
            if case.is_exact and not all(valid):
                fault = f"does not accept all of {case.valid}"
            enforced += fault is None
            accepted, total = accepted + sum(valid), total + len(valid)
            stricter[case.file] += len(valid) - sum(valid)
            missed = [text for text, was in zip(case.valid, valid) if not was]
            shown = f"enforced, {sum(valid)} of {len(valid)} valid" + (f"; not {missed}" * bool(
                missed))
        if fault:
            faults.append(f"{case.file}: {case.name}: {json.dumps(case.schema)} {fault}")
        if options.list:
            print(f"{case.file}: {case.name}: {shown}")
    print(f"stricter than the suite, instances by keyword: "
          f"{', '.join(f'{name} {count}' for name, count in stricter.items() if count)}")
    for fault in faults:
        print(fault)
    silent = sum("which is invalid" in fault for fault in faults)
    print(f"{enforced} enforced, {refused} refused by name, {silent} silently ignored, "
          f"{accepted} of {total} valid instances accepted")
    if options.times:
        write_times(options.times, [outcome["milliseconds"] for outcome in made])
    print(f"{len(suite) - len(faults)} passed, {len(faults)} failed")
    return 1 if faults or not suite else 0


def write_times(path: Path, times: list[float]) -> None:
    times = sorted(times)
    figures = {"schemas": len(times), "median_ms": times[len(times) // 2],
               "p99_ms": times[len(times) * 99 // 100], "worst_ms": times[-1]}
    path.write_text(json.dumps({name: round(value, 3) for name, value in figures.items()}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
