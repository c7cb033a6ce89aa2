#!/usr/bin/env python3
"""Chat templates as the engine renders them against jinja2 itself, in transformers' environment.

Both make the same text, or both fail: the words of an error are each one's own. A difference that
is known is named in DIFFERENCES with its reason; one that is not named fails, and so does a name
without a difference. The last line is `N passed, N failed`.

    run.py                  all cases
    run.py --list           and each difference as it is
"""

import argparse
import copy
import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from differences import DIFFERENCES
from expressions import EXPRESSIONS
from statements import STATEMENTS
from values import KINDS, OF_VALUE, VARIABLES

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAM = Path(os.environ.get("DIFFSERVE_TEMPLATE_SUITE",
                              REPOSITORY / "build/release/tests/template_suite"))
ADDRESS = re.compile(r" [ab]t 0x[0-9a-f]{6}", re.IGNORECASE)


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


def templates() -> dict[str, str]:
    """By name."""
    found = {text: text for text in STATEMENTS}
    found |= {text: "{{ " + text + " }}" for text in EXPRESSIONS}
    for kind, value in KINDS.items():
        for text in OF_VALUE:
            found[f"{kind}: {text}"] = "{% set v = " + value + " %}" + text
    return found


def variables() -> dict:
    """Those that the engine gives every template, and the cases' own."""
    own = copy.deepcopy(VARIABLES)  # a template can change a list: its `indent` does
    return {"documents": None, "add_generation_prompt": False, **own}


def expected(env: ImmutableSandboxedEnvironment, template: str) -> dict:
    try:
        return {"text": env.from_string(template).render(**variables())}
    except Exception as error:  # whatever a template can raise
        return {"error": f"{type(error).__name__}: {error}"}


def outcomes(found: dict[str, str]) -> list[dict]:
    lines = [json.dumps({"template": text, "variables": VARIABLES}) for text in found.values()]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    env = environment()
    found = templates()
    rights = {name: expected(env, text) for name, text in found.items()}
    unlike = {name: right for name, right in rights.items()
              if ADDRESS.search(right.get("text", ""))}
    compared = {name: text for name, text in found.items() if name not in unlike}
    faults = [f"{name!r} is no case" for name in DIFFERENCES if name not in compared]
    named = 0
    for name, made in zip(compared, outcomes(compared)):
        right = rights[name]
        shown = f"{name!r}: jinja2 {right}, here {made}"
        if is_same(right, made):
            if name in DIFFERENCES:
                faults.append(f"{shown}: no difference, and one is named")
        elif name in DIFFERENCES:
            named += 1
            if options.list:
                print(f"{shown}: {DIFFERENCES[name]}")
        else:
            faults.append(shown)
    for fault in faults:
        print(fault)
    print(f"{len(compared)} templates, {named} named differences, {len(unlike)} left out: their "
          "text has an address of Python's")
    print(f"{len(compared) - len(faults)} passed, {len(faults)} failed")
    return 1 if faults or not compared else 0


if __name__ == "__main__":
    sys.exit(main())
