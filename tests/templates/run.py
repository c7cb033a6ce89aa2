#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the engine's rendering of chat templates with jinja2 in transformers' environment:
our own expressions and statements, chats/ with many conversations, and Jinja2's own test suite.

Both must give the same text or both must fail; error messages may differ. Known differences are
listed in DIFFERENCES with their reasons. An unlisted difference fails, and so does a listed one
that does not occur. The last line is `N passed, N failed`.

    run.py                  all cases
    run.py --list           all cases, and prints each difference
    run.py --folder FOLDER  the chat templates in FOLDER (*.jinja), each with many conversations
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from conversations import conversations
from differences import DIFFERENCES, REFUSED
from expressions import EXPRESSIONS
from jinja_suite import recorded
from statements import STATEMENTS
from values import KINDS, OF_VALUE, VARIABLES

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("DIFFSERVE_TEMPLATE_SUITE",
                              REPOSITORY / "build/dev/tests/template_suite"))
CHATS = Path(__file__).parent / "chats"
REFUSAL = re.compile(r"the filter '(\w+)' is not there")
ADDRESS = re.compile(r" [ab]t 0x[0-9a-f]{6}", re.IGNORECASE)


@dataclass
class Case:
    template: str
    variables: dict


class Generation(Extension):
    """The tag that marks the assistant's text: a block that gives its own text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller):
        return caller()


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                         extensions=[Generation, loopcontrols])
    made.filters["tojson"] = tojson
    made.globals["raise_exception"] = raise_exception
    made.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return made


def own_cases() -> dict[str, Case]:
    found = {text: Case(text, VARIABLES) for text in STATEMENTS}
    found |= {text: Case("{{ " + text + " }}", VARIABLES) for text in EXPRESSIONS}
    for kind, value in KINDS.items():
        for text in OF_VALUE:
            found[f"{kind}: {text}"] = Case("{% set v = " + value + " %}" + text, VARIABLES)
    return found


def suite_cases() -> dict[str, Case]:
    found, left_out = recorded()
    print(f"{len(found)} templates of Jinja2's own suite, {left_out} left out: JSON cannot hold "
          "their variables")
    return {f"suite: {text} {json.dumps(variables)}": Case(text, {"messages": [], **variables})
            for text, variables in found}


def folder_cases(folder: Path) -> dict[str, Case]:
    return {f"{file.name}: {name}": Case(file.read_text(), variables)
            for file in sorted(folder.glob("*.jinja"))
            for name, variables in conversations().items()}


def expected(env: ImmutableSandboxedEnvironment, case: Case) -> dict:
    # A template can change a list: its `indent` does.
    own = copy.deepcopy(case.variables)
    given = {"tools": None, "documents": None, "add_generation_prompt": False, **own}
    try:
        return {"text": env.from_string(case.template).render(**given)}
    except Exception as error:  # whatever a template can raise
        return {"error": f"{type(error).__name__}: {error}"}


def outcomes(found: dict[str, Case]) -> list[dict]:
    lines = [json.dumps({"template": case.template, "variables": case.variables})
             for case in found.values()]
    ran = subprocess.run([PROGRAM], input="\n".join(lines), capture_output=True, text=True)
    made = [json.loads(line) for line in ran.stdout.split("\n") if line]
    if ran.returncode != 0 or len(made) != len(found):
        at = list(found)[min(len(made), len(found) - 1)]
        raise SystemExit(f"{PROGRAM} ended with {ran.returncode} at {at}\n"
                         f"{ran.stderr[-2000:]}\n0 passed, {len(found)} failed")
    return made


def is_same(right: dict, made: dict) -> bool:
    if "text" in right:
        return "text" in made and right["text"] == made["text"]
    return "error" in made


def refused_filter(made: dict) -> str | None:
    found = REFUSAL.match(made.get("error", ""))
    return found and found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    env = environment()
    found = folder_cases(options.folder) if options.folder else (
        own_cases() | folder_cases(CHATS) | suite_cases())
    known = {} if options.folder else DIFFERENCES
    rights = {name: expected(env, case) for name, case in found.items()}
    unlike = {name: right for name, right in rights.items()
              if ADDRESS.search(right.get("text", ""))}
    compared = {name: case for name, case in found.items() if name not in unlike}
    faults = [f"{name!r} is no case" for name in known if name not in compared]
    named, refused = 0, set()
    for name, made in zip(compared, outcomes(compared)):
        right = rights[name]
        shown = f"{name!r}: jinja2 {right}, here {made}"
        if is_same(right, made):
            if name in known:
                faults.append(f"{shown}: no difference, and one is named")
        elif name in known or refused_filter(made) in REFUSED:
            refused.add(refused_filter(made))
            named += 1
            if options.list:
                print(f"{shown}: {known.get(name) or REFUSED[refused_filter(made)]}")
        else:
            faults.append(shown)
    if not options.folder:
        faults += [f"the filter {name} is not refused" for name in set(REFUSED) - refused]
    for fault in faults:
        print(fault)
    print(f"{len(compared)} templates, {named} named differences, {len(unlike)} left out: their "
          "text has an address of Python's")
    print(f"{len(compared) - len(faults)} passed, {len(faults)} failed")
    return 1 if faults or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
