"""The rule for what people read: phrases to avoid, and what to write instead.

It yields (path, line, message), as the rules of tidy.py do.
"""

import re

CODE = (".h", ".cc", ".cu", ".cuh", ".rs")
PROSE = CODE + (".py", ".sh", ".md", ".proto", ".yaml", ".yml", ".cmake", ".toml", ".js", ".html",
                "CMakeLists.txt")
UNITS = ("bytes|[KMG]iB|numbers|floats|scales?|tokens|lines?|once|one|values|threads?|copies|rows"
         "|steps|kernels?|pages?")
THINGS = ("token|step|row|head|layer|request|line|family|page|slot|sequence|tile|group|warp"
          "|thread|block|draw|column|prompt|file")

# What not to write, and what to write.
PHRASES = [(re.compile(pattern), advice) for pattern, advice in [
    (r"(?:^ *|[.;:] |// |/// |# |\* )Of (?!course\b)[a-z]",
     'begin with the subject, not with "Of"'),
    (r"\b[Ww]hoever\b", 'name who it is, instead of "whoever"'),
    (r"\b[Nn]obody\b", 'name who it is, instead of "nobody"'),
    (r"\b(?:is|are|was|were|be|been|being|get|gets) told\b", "write logged, reported or returned"),
    (r"\bbefall", 'write "happens to"'),
    (r"\b(?:[Ii]t|[Tt]hat|which|[Tt]here|line|text|file|who|and) stands?\b(?! for| alone)",
     'write "is" or "lies"'),
    (r"\bso many\b", "write N"),
    (r"\bto the bit\b", 'write "bitwise" or "the same bits"'),
    (r"\b(?:is|are|be|being|been) gone on with\b", 'write "is continued"'),
    (r"\bit may concern\b", "name who it is"),
    (rf"\b(?:{UNITS}) an? (?:{THINGS})\b", 'write "per" instead of "a"'),
    (r"\w*(?:LetGo|StandsAt|Befall|WaitingLine|LineState|Untold)\w*|\b\w*Wish(?:es)?(?=[A-Z_]|\b)"
     r"|\bTell[A-Z]\w*|\bk?(?:Least|Most)[A-Z]\w*|\w*(?:Is|Are)Told\w*|\b\w*Whoever\w*"
     r"|\b\w+Nobody\w*|\bNobody\w+",
     "use the field's word: Release, Activity, Options, Report, Queue, Min, Max"),
]]

# Where the phrases are refused: what users and newcomers read, and what has been revised since.
REVISED = ("docs/", "deploy/", "proto/", ".github/", ".devcontainer/", "tests/tidy/", "README.md",
           "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "THIRD_PARTY.md",
           "CMakeLists.txt")


def phrases(tree):
    own = ("tests/tidy/language.py", "tests/tidy/tidy_test.py")
    for path in tree.look(p for p in tree.select(PROSE, REVISED) if p not in own):
        for number, line in enumerate(tree.files[path].split("\n"), 1):
            tree.lines += 1
            for pattern, advice in PHRASES:
                if found := pattern.search(line):
                    yield path, number, f'"{found.group().strip()}": {advice}'


RULES = [phrases]
