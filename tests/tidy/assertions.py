# SPDX-License-Identifier: Apache-2.0
"""Every test can fail by an assertion: its body has one, or calls a function of the tests that has
one, in its own file or in those that it includes or imports. A function Expect... asserts."""

import ast
import re
from pathlib import PurePath

from source_text import blank, brace_functions, python_tree, statements

CPP = (".cc", ".h", ".cu", ".cuh")
TEST = re.compile(r"(?:TYPED_)?TEST(?:_F|_P)?$")
ASSERTS = re.compile(r"\b(?:(?:EXPECT|ASSERT)_\w+|FAIL|ADD_FAILURE\w*|Expect[A-Z]\w*)\s*[(<]")
CALLED = re.compile(r"\b(\w+)\s*(?:<[^<>();]*>\s*)?\(")
ASSERTION = ""  # among the names that a function calls


class Functions:
    """Those of one file of tests. A function is the set of the names that it calls."""

    def __init__(self):
        self.tests = []  # (line, name, function)
        self.others = []  # (name, function)
        self.uses = set()  # files, as they are named in this one


def cpp_functions(text, includes):
    file = Functions()
    file.uses = {name for _, name, _ in includes}
    lines = blank(text, code=True).split("\n")
    for first, last in brace_functions(text):
        body = "\n".join(lines[first - 1:last])
        called = CALLED.findall(body)
        function = set(called) | ({ASSERTION} if ASSERTS.search(body) else set())
        if called and TEST.match(called[0]):
            file.tests.append((first, " ".join(body.split("{")[0].split()), function))
        elif called:
            file.others.append((called[0], function))
    return file


def is_assertion(node):
    if isinstance(node, ast.Raise):
        return node.exc is not None and "AssertionError" in ast.dump(node.exc)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return bool(re.match(r"assert[A-Z_]|fail$", node.func.attr))
    return isinstance(node, ast.Assert)


def name_in(node):
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def collect(node, enclosing, found):
    """Into `found`, for each function of a Python tree, at any depth, the names in it."""
    if isinstance(node, ast.FunctionDef):
        enclosing = [*enclosing, found.setdefault(node, set())]
    name = name_in(node)
    for names in enclosing:
        if name is not None:
            names.add(name)
        if isinstance(node, (ast.Raise, ast.Call, ast.Assert)) and is_assertion(node):
            names.add(ASSERTION)
    for field in node._fields:
        below = getattr(node, field, None)
        for each in below if isinstance(below, list) else (below,):
            if isinstance(each, ast.AST):
                collect(each, enclosing, found)


def python_functions(text):
    file, functions = Functions(), {}
    tree = python_tree(text)
    collect(tree, [], functions)
    file.others = [(function.name, names) for function, names in functions.items()]
    for node in statements(tree):
        if isinstance(node, ast.Import):
            file.uses |= {name.name.split(".")[-1] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            file.uses.add((node.module or "").split(".")[-1])
        elif isinstance(node, ast.ClassDef):
            file.tests += [(each.lineno, each.name, functions[each]) for each in node.body
                           if isinstance(each, ast.FunctionDef) and each.name.startswith("test_")]
    return file


def asserting(functions):
    """The names of the functions that assert, or call one that does, at any depth."""
    found = {ASSERTION}
    while more := {name for name, called in functions if name not in found and called & found}:
        found |= more
    return found


def reached(path, files, paths_of, seen):
    if path in files and path not in seen:
        seen.add(path)
        for name in files[path].uses | {re.sub(r"\.h$", ".cc", path)}:
            for other in paths_of(name):
                reached(other, files, paths_of, seen)
    return seen


def tests(files, paths_of):
    """(path, line, name, whether it asserts) of each test."""
    for path in (path for path in files if files[path].tests):
        found = asserting([function for other in reached(path, files, paths_of, set())
                           for function in files[other].others])
        for line, name, function in files[path].tests:
            yield path, line, name, bool(function & found)


def assertions(tree):
    cpp = {path: cpp_functions(tree.files[path], tree.includes[path])
           for path in tree.select(CPP, ["tests/"])}
    python, modules = {}, {}
    for path in tree.select(".py", ["tests/"]):
        python[path] = python_functions(tree.files[path])
        modules.setdefault(PurePath(path).stem, []).append(path)
    found = [*tests(cpp, lambda name: [name]), *tests(python, lambda name: modules.get(name, []))]
    for path, line, name, asserts in tree.look(found):
        if not asserts:
            yield path, line, f"{name} asserts nothing"


RULES = [assertions]
