# SPDX-License-Identifier: Apache-2.0
"""Rules for Markdown: how long a page is, how wide, and where its links lead.

Each rule yields (path, line, message), as those of tidy.py do.
"""

import re
from pathlib import PurePosixPath

PAGE_LINES = {"README.md": 180, "ARCHITECTURE.md": 150, "CHANGELOG.md": 500}
GENERATED = ("THIRD_PARTY.md", "docs/cli.md")  # as long as what they list
OTHER_PAGE_LINES, COLUMNS, ROW_COLUMNS = 250, 120, 160
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def page_size(tree):
    for path in tree.look(tree.select((".md",))):
        lines = tree.files[path].split("\n")
        limit = PAGE_LINES.get(path, OTHER_PAGE_LINES)
        if len(lines) - 1 > limit and path not in GENERATED:
            yield path, limit, f"{len(lines) - 1} lines, at most {limit}"
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= line.startswith("```")
            columns = ROW_COLUMNS if line.startswith("|") and not fenced else COLUMNS
            if len(line) > columns and "](http" not in line and not line.startswith("<!-- "):
                yield path, number, f"{len(line)} columns, at most {columns}"


def anchor(heading):
    """The name by which GitHub links to a heading."""
    return re.sub(r"[^\w\- ]", "", re.sub(r"[`*]", "", heading).strip().lower()).replace(" ", "-")


def links(tree):
    anchors = {}
    for path in tree.select((".md",)):
        text = re.sub(r"^```.*?^```", "", tree.files[path], flags=re.S | re.M)
        anchors[path] = {anchor(h) for h in re.findall(r"^#+ (.*)", text, re.M)}
    folders = {str(parent) for path in tree.files for parent in PurePosixPath(path).parents}
    for path in tree.select((".md",)):
        for number, line in enumerate(tree.files[path].split("\n"), 1):
            for match in tree.look(LINK.finditer(line)):
                target = match.group(1) or match.group(2)
                if re.match(r"[a-z]+:", target):
                    continue
                page, _, name = target.partition("#")
                parts = []
                for part in (PurePosixPath(path).parent / page).parts if page else [path]:
                    parts = parts[:-1] if part == ".." else parts + [part]
                full = "/".join(parts)
                if full not in tree.files and full not in folders:
                    yield path, number, f"{target}: there is no such file"
                elif name and name not in anchors.get(full, ()):
                    yield path, number, f"{target}: {full} has no such heading"


RULES = [page_size, links]
