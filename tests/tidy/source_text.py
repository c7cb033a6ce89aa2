# SPDX-License-Identifier: Apache-2.0
"""What tidy.py reads out of the text of a source file."""

import ast
import functools
import re

LITERAL = r"""R"(\w*)\(.*?\)\1"|//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.[^'\n]*|[^'\\\n])'"""


def line_of(text, position):
    return text.count("\n", 0, position) + 1


@functools.cache
def blank(text, code):
    """`text` with comments and string contents as spaces; `code` also blanks preprocessor lines.
    Lines stay where they are."""
    for pattern in [LITERAL] + [r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*"] * code:
        text = re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match.group()), text,
                      flags=re.S | re.M)
    return text


@functools.cache
def brace_functions(text):
    """(first line, last line) of each outermost function of C++, CUDA or Rust text."""
    return list(found_functions(text))


def found_functions(text):
    text = blank(text, code=True)
    stack, start, inside = [], 0, 0
    for match in re.finditer(r"[{};]", text):
        if match.group() == "{" and inside:
            inside += 1
            stack.append(("inner", match.start()))
        elif match.group() == "{":
            raw = text[start:match.start()].lstrip()
            head = re.sub(r"^template\s*<.*?>\s*(?=\w)", "", raw, flags=re.S).rstrip()
            container = re.match(
                r"(\w+(\(\w+\))?\s+)?(class|struct|union|enum|namespace|impl|trait|mod|extern)\b",
                head)
            returns = re.search(r"\)\s*(const|noexcept|override|final|->.*|\s)*$", head, re.S)
            function = ")" in head and not head.endswith("=") and (returns or not container)
            kind = "function" if function else "container"
            inside += kind == "function"
            stack.append((kind, match.start() - len(raw)))
        elif match.group() == "}" and stack:
            kind, begin = stack.pop()
            inside -= kind != "container"
            if kind == "function":
                yield line_of(text, begin), line_of(text, match.start())
        if not inside:
            start = match.end()


@functools.cache
def python_tree(text):
    return ast.parse(text)


def statements(node):
    """Those of a Python tree at any depth. What lies in expressions is passed over."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(node, name, ())
        for each in below if isinstance(below, list) else ():
            yield each
            yield from statements(each)


def functions(path, text):
    """(first line, last line) of each function; of C++, CUDA and Rust the outermost ones."""
    if not path.endswith(".py"):
        return brace_functions(text)
    return [(node.lineno, node.end_lineno) for node in statements(python_tree(text))
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
