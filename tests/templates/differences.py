# SPDX-License-Identifier: Apache-2.0
"""Cases in which the engine is known to differ from jinja2, and why."""

BYTES = "there are no bytes: a chat template makes text"
RANDOM = "a prompt is the same each time, so it is refused by name"
ADDRESS = "the text of a generator has an address of Python's, whose words are counted"
LAZY = "a filter that returns an iterator fails when it is called, not when its items are read"
FOLDED = "jinja2 makes constants beforehand, and there a wrong slice is an undefined value"
COMPLEX = "there are no complex numbers"
FOR_PAGES = "made for web pages, so it is refused by name"
SETS = "there are no sets, so the keys of a dict are none"
TYPES = "a type is only called"
TABLE = "a table of translate is a dict"
NAMES = "the names of all characters are not carried along"

MEMBERS = "Python has attributes of its own on an undefined value"

# Filters that are refused by name.
REFUSED = {"random": RANDOM, "urlize": FOR_PAGES}

DIFFERENCES: dict[str, str] = {
    "'abc'.encode('utf-8')": BYTES,
    "lipsum(1) is string": RANDOM,
    "generator: {{ v | wordcount }}": ADDRESS,
    "(1, 'x') | map('length') is integer": LAZY,
    "(5)[1:] is defined": FOLDED,
    "(-3) ** 2.5": COMPLEX,
    r"'\N{BULLET}'": NAMES,
    "mapping.keys() - ['a']": SETS,
    "mapping.keys() >= mapping.keys()": SETS,
    "dict[1:] is defined": TYPES,
    "'abc'.translate('x')": TABLE,
    'suite: {{ foo.bar["baz"]._undefined_name }} {"foo": {"bar": 42}}': MEMBERS,
}
