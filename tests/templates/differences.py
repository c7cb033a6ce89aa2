"""Cases in which the engine is known to differ from jinja2, and why."""

BYTES = "there are no bytes: a chat template makes text"
RANDOM = "a prompt is the same each time, so it is refused by name"
ADDRESS = "the text of a generator has an address of Python's, whose words are counted"
LAZY = "a filter that gives an iterator fails where it stands, not where its items are taken"
FOLDED = "jinja2 makes constants beforehand, and there a wrong slice is an undefined value"
COMPLEX = "there are no complex numbers"
FOR_PAGES = "made for web pages or for people who look for faults, so it is refused by name"
NAMES = "the names of all characters are not carried along"
IDENTIFIER = "Python takes a few symbols as letters of a name"

DIFFERENCES: dict[str, str] = {
    "'abc'.encode('utf-8')": BYTES,
    "words | random is string": RANDOM,
    "lipsum(1) is string": RANDOM,
    "generator: {{ v | wordcount }}": ADDRESS,
    "(1, 'x') | map('length') is integer": LAZY,
    "(5)[1:] is defined": FOLDED,
    "(-3) ** 2.5": COMPLEX,
    "mapping | pprint": FOR_PAGES,
    "'a b.example.org' | urlize": FOR_PAGES,
    "'some words' | wordwrap(4)": FOR_PAGES,
    r"'\N{BULLET}'": NAMES,
    "℘ is undefined": IDENTIFIER,
}
