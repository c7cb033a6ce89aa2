# SPDX-License-Identifier: Apache-2.0
"""Rules for what people read: phrases, names of types, the licence line.

Each rule yields (path, line, message), as those of tidy.py do.
"""

import fnmatch
import re

from source_text import line_of

CODE = (".h", ".cc", ".cu", ".cuh", ".rs")
PROSE = CODE + (".py", ".sh", ".md", ".proto", ".yaml", ".yml", ".cmake", ".toml", ".js", ".html",
                "CMakeLists.txt")
UNITS = ("bytes|[KMG]iB|numbers|floats|scales?|tokens|lines?|once|one|values|threads?|copies|rows"
         "|steps|kernels?|pages?|requests")
THINGS = ("token|step|row|head|layer|request|line|family|page|slot|sequence|tile|group|warp"
          "|thread|block|draw|column|prompt|file|pod|client")

# What not to write: texts of which one is in each match, which are quick to look for; the pattern;
# and what to write.
PHRASES = [(texts, re.compile(pattern), advice) for texts, pattern, advice in [
    (["Of "], r"(?:^ *|[.;:] |// |/// |# |\* )Of (?!course\b)[a-z]",
     'begin with the subject, not with "Of"'),
    (["hoever"], r"\b[Ww]hoever\b", 'name who it is, instead of "whoever"'),
    (["obody"], r"\b[Nn]obody\b", 'name who it is, instead of "nobody"'),
    ([" told"], r"\b(?:is|are|was|were|be|been|being|get|gets) told\b",
     "write logged, reported or returned"),
    (["befall"], r"\bbefall", 'write "happens to"'),
    ([" stand"],
     r"\b(?:[Ii]t|[Tt]hat|which|[Tt]here|line|text|file|who|and) stands?\b(?! for| alone)",
     'write "is" or "lies"'),
    (["so many"], r"\bso many\b", "write N"),
    (["to the bit"], r"\bto the bit\b", 'write "bitwise" or "the same bits"'),
    (["gone on with"], r"\b(?:is|are|be|being|been) gone on with\b", 'write "is continued"'),
    (["it may concern"], r"\bit may concern\b", "name who it is"),
    ([" go of"], r"\b(?:[Ll]ets?|letting) go of\b", 'write "release"'),
    ([" a ", " an "], rf"\b(?:{UNITS}) an? (?:{THINGS})\b", 'write "per" instead of "a"'),
    (["LetGo", "StandsAt", "Befall", "WaitingLine", "LineState", "Told", "Untold", "Wish", "Tell",
      "Least", "Most", "Whoever", "Nobody"],
     r"\w*(?:LetGo|StandsAt|Befall|WaitingLine|LineState|Untold)\w*|\b\w*Wish(?:es)?(?=[A-Z_]|\b)"
     r"|\bTell[A-Z]\w*|\bk?(?:Least|Most)[A-Z]\w*|\w*(?:Is|Are)Told\w*|\b\w*Whoever\w*"
     r"|\b\w+Nobody\w*|\bNobody\w+",
     "use the field's word: Release, Activity, Options, Report, Queue, Min, Max"),
]]

TYPE = re.compile(r"^(?:template <[^\n]*>\n)?(?:class|struct|enum(?: class| struct)?|union) "
                  r"(?:alignas\([^)]*\) )?(\w+)(?: final)?(?: :[^;{]*)?\s*\{", re.M)
# Files that give the same name to the same thing: a CPU file and its CUDA twin, and the levels of
# SIMD, in namespaces of their own.
TWIN = re.compile(r"_cuda(?=\.\w+$)|(?<=simd)_\w+(?=\.h$)")
# The definition of a test in C++, a reference to one or to several, and words that a name lacks.
TEST = re.compile(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", re.M)
TEST_REFERENCE = re.compile(r"\b(\w+Test)\.((?:[A-Z]|\*)[\w*]*)")
TEST_WORDS = re.compile(r"^(?:An?|The)(?=[A-Z])|Company|Stands|Told|ToTheBit|Whatever")
SPDX = "SPDX-License-Identifier: Apache-2.0"


def lines_with(texts, text):
    """(number, line) of the lines that contain one of `texts`."""
    for number, line in enumerate(text.split("\n"), 1):
        if any(each in line for each in texts):
            yield number, line


def phrases(tree):
    # The last holds the sentences that the bundled model was trained on.
    own = ("tests/tidy/language.py", "tests/tidy/tidy_test.py", "models/demo/needle_samples.py")
    for path in tree.look(p for p in tree.select(PROSE) if p not in own):
        text = tree.files[path]
        tree.lines += text.count("\n") + 1
        for texts, pattern, advice in PHRASES:
            if any(each in text for each in texts):
                for number, line in lines_with(texts, text):
                    if found := pattern.search(line):
                        yield path, number, f'"{found.group().strip()}": {advice}'


def type_names(tree):
    """A type of the product has its name to itself, and so has one of a test's header. Types that
    one test file keeps to itself are free."""
    owners = {}
    for path in tree.select(CODE[:4]):
        if path.startswith("tests/") and not path.endswith((".h", ".cuh")):
            continue
        for match in tree.look(TYPE.finditer(tree.files[path])):
            line = line_of(tree.files[path], match.start(1))
            owners.setdefault(match.group(1), []).append((path, line))
    for name, places in owners.items():
        if len({TWIN.sub("", path) for path, _ in places}) > 1:
            for path, line in places[1:]:
                yield path, line, f"{name} is also a type of {places[0][0]}"


def test_names(tree):
    """The name of a test is a statement, the subject first. Where a document, a script or a comment
    names tests, there are some."""
    tests = [(path, line_of(tree.files[path], found.start()), *found.groups())
             for path in tree.select(PROSE) if "TEST" in tree.files[path]
             for found in TEST.finditer(tree.files[path])]
    for path, line, _, name in tree.look(tests):
        if found := TEST_WORDS.search(name):
            yield path, line, f'"{found.group()}" in {name}: begin with the subject, in plain words'
    for path in tree.select((".sh", ".md", ".cmake") + CODE):
        text = tree.files[path]
        for found in TEST_REFERENCE.finditer(text) if "Test." in text else ():
            suite, name = found.groups()
            if path != "CHANGELOG.md" and not any(
                    suite == of and fnmatch.fnmatchcase(test, name) for *_, of, test in tests):
                line = line_of(text, found.start())
                yield path, line, f"no test is called {found.group()}"


def licence(tree):
    for path in tree.look(tree.select(CODE + (".py", ".sh", ".proto", ".js", "CMakeLists.txt"))):
        if SPDX not in "\n".join(tree.files[path].split("\n", 3)[:3]):
            yield path, 1, f"one of the first three lines says {SPDX}"


RULES = [phrases, type_names, test_names, licence]
