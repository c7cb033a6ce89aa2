# SPDX-License-Identifier: Apache-2.0
"""The rule for refusals: kernels/base/refusal.h words them, and no other source does.

The rule yields (path, line, message), as those of tidy.py do.
"""

import re

from source_text import LITERAL, line_of

HOME = "kernels/base/refusal.cc"
FLOORS = ("kernels/", "models/", "engine/", "server/")
# What says in a text what is allowed, in the words that refusal.h replaced.
BY_HAND = re.compile(
    r"\ballowed(?::| (?:is|are|with|on|after|only|for)\b)|\b(?:is|are) allowed\b"
    r"|[,;] expected\b|\bexpected (?:is|are|an?|one)\b|\bmust be\b"
    r"|; (?:at most|at least|only|exactly) |\b(?:use|give) (?:exactly )?one of them\b"
    r"|\bis (?:out of range|not one of|missing or empty)\b")
# The files with such texts that are no refusals, and how many.
OTHERS = {"server/app/option_table.cc": 1}  # the help of a flag


def refusals(tree):
    """A refusal is worded by a function of refusal.h, which has one form for each kind."""
    found = {path: [line_of(tree.files[path], literal.start())
                    for literal in re.finditer(LITERAL, tree.files[path], re.S | re.M)
                    if literal.group().startswith(('"', "R"))
                    and BY_HAND.search(literal.group())]
             for path in tree.look(tree.select((".h", ".cc", ".cu", ".cuh"), FLOORS))
             if path != HOME}
    for path, lines in found.items():
        if len(lines) != OTHERS.get(path, 0):
            yield path, lines[-1] if lines else 1, (
                f"{len(lines)} refusals worded by hand, {OTHERS.get(path, 0)} expected; use "
                "kernels/base/refusal.h")


RULES = [refusals]
