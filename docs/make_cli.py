#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the generated block of docs/cli.md, commands and flags, from `diffserve --help`.

  docs/make_cli.py           rewrites the block
  docs/make_cli.py --check   exit code 1, with the first line that differs, if the page is stale

DIFFSERVE_BINARY names the program; by default it is build/diffserve.
"""

import collections
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "cli.md"
BINARY = os.environ.get("DIFFSERVE_BINARY", str(REPOSITORY / "build" / "diffserve"))
BEGIN, END = "<!-- cli -->", "<!-- /cli -->"
ENTRY = re.compile(r"  (?P<head>diffserve [a-z-]+(?: [A-Z_]+)*|--\S+(?: [A-Z]+(?:,[A-Z]+)*)?)"
                   r"(?: +(?P<text>.*))?")
FLAG = re.compile(r"(?P<what>.*?)(?: \(default (?P<default>.*)\))? \[(?P<commands>[^][]*)\]$")
SPACE = "\x01"  # a space where no line may end
# A build without the CUDA backend does not list `cuda`; the page is of both.
DEVICES = "auto, cpu, and in a build with the CUDA backend cuda, auto:N, cuda:N"

Flag = collections.namedtuple("Flag", "head what default commands")


def entries(help_text: str) -> list[tuple[str, list[tuple[str, str]]]]:
    """Groups of (name or argument list, text); a head that is too wide has its text a line
    below."""
    groups = [("", [])]
    for line in help_text.splitlines()[1:]:
        if not line or line.startswith("Documents: "):
            continue
        if not line.startswith(" "):
            groups.append((line, []))
        elif line.startswith("   "):
            head, text = groups[-1][1].pop()
            groups[-1][1].append((head, " ".join((text, line.strip())).strip()))
        elif match := ENTRY.fullmatch(line):
            groups[-1][1].append((match["head"], (match["text"] or "").strip()))
    return groups


def flag_of(head: str, text: str) -> Flag:
    match = FLAG.fullmatch(text)
    if not match:
        sys.exit(f"docs/make_cli.py: cannot read the help of {head}: {text!r}")
    what = match["what"]
    if head.startswith("--device "):
        what = re.sub(r"auto, cpu(, cuda, auto:N, cuda:N)?$", DEVICES, what)
    return Flag(head, what, match["default"], match["commands"])


def group_lines(name: str, rows: list[tuple[str, str]]) -> list[str]:
    flags = [flag_of(head, text) for head, text in rows]
    counts = collections.Counter(flag.commands for flag in flags)
    usual = counts.most_common(1)[0][0]
    lines = [f"### {name} ({usual})"]
    for flag in flags:
        text = f"`{flag.head.replace(' ', SPACE)}`: {flag.what.replace('*', chr(92) + '*')}."
        if flag.default:
            text += f" Default {flag.default}."
        if flag.commands != usual:
            text += f" ({flag.commands})"
        lines += textwrap.wrap(text, 120, initial_indent="- ", subsequent_indent="  ",
                               break_on_hyphens=False, break_long_words=False)
    return [line.replace(SPACE, " ") for line in lines] + [""]


def block() -> list[str]:
    help_text = subprocess.run([BINARY, "--help"], capture_output=True, text=True,
                               check=True).stdout
    groups = entries(help_text)
    commands = [row for row in groups[0][1] if row[0].startswith("diffserve ")]
    lines = ["", "### Commands", "", "| command | what it does |", "|---|---|"]
    lines += [f"| `{head}` | {text} |" for head, text in commands]
    lines.append("")
    for name, rows in groups[1:]:
        lines += group_lines(name, rows)
    count = sum(len(rows) for _, rows in groups[1:])
    if len(commands) < 8 or count < 60:
        sys.exit(f"docs/make_cli.py: found {len(commands)} commands and {count} flags in the help;"
                 " its form has changed")
    return lines


def main() -> int:
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    page = PAGE.read_text().split("\n")
    begin, end = page.index(BEGIN), page.index(END)
    made = block()
    if sys.argv[1:]:
        for found, wanted in zip(page[begin + 1:end] + [END], made + [END]):
            if found != wanted:
                print(f"docs/cli.md differs from `diffserve --help`; run docs/make_cli.py\n"
                      f"page: {found}\nhelp: {wanted}")
                return 1
        print(f"docs/cli.md: {len(made)} lines as `diffserve --help` says")
        return 0
    PAGE.write_text("\n".join(page[:begin + 1] + made + page[end:]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
