# SPDX-License-Identifier: Apache-2.0
"""The rule that no folders include each other, at any depth of any floor.

In every folder, each subfolder is a room, and so is each pair of header and source beside them. No
circle of rooms goes through a subfolder: a reader can enter the rooms of a folder in one order.
Files of one folder may know each other. In the Python package each module is a room, and imports
for type checkers do not count.
"""

import re
from collections import defaultdict

from source_text import line_of

FLOORS = ("kernels/", "models/", "engine/", "server/", "deploy/")
PACKAGE = "deploy/python/"
TYPE_CHECKING = re.compile(r"^( *)if TYPE_CHECKING:\n(?:\1 +.*\n|\n)*", re.M)
IMPORT = re.compile(r"^ *from \.(\w*) import (\w+)", re.M)


def includes(tree):
    """(path, line, included path), of all floors."""
    for path in tree.includes:
        for line, name, _ in tree.includes[path] if path.startswith(FLOORS) else ():
            if name in tree.files:
                yield path, line, name
    for path in tree.select(".py", [PACKAGE]):
        text, folder = tree.files[path], path.rpartition("/")[0]
        hints = [match.span() for match in TYPE_CHECKING.finditer(text)]
        for match in IMPORT.finditer(text):
            name = f"{folder}/{match.group(1) or match.group(2)}.py"
            if name in tree.files and not any(a <= match.start() < b for a, b in hints):
                yield path, line_of(text, match.start()), name


def room_of(path, folder):
    """The room of `folder` that holds a file below it: "name/", or "name" of a file's own."""
    first, slash, _ = path.removesuffix(".py").removeprefix(folder).partition("/")
    return first + "/" if slash or path.endswith(".py") else re.sub(r"(\.isa)?\.\w+$", "", first)


def reached(room, arrows):
    found, left = set(), [room]
    while left:
        new = set(arrows.get(left.pop(), ())) - found
        found |= new
        left += new
    return found


def circles(tree):
    arrows = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))  # by folder and rooms
    for path, line, name in tree.look(includes(tree)):
        parts = path.split("/")[:-1]
        for depth in range(len(parts) + 1):
            folder = "".join(part + "/" for part in parts[:depth])
            rooms = room_of(path, folder), room_of(name, folder)
            if not name.startswith(folder) or rooms[0] == rooms[1]:
                continue
            arrows[folder][rooms[0]][rooms[1]].append((path, line, name))
    for folder in sorted(arrows):
        known, begins = set(), sorted(arrows[folder])
        reaches = {room: reached(room, arrows[folder]) for room in begins}
        for room in begins:
            circle = {other for other in reaches[room] if room in reaches.get(other, ())}
            if room in known or not any(other.endswith("/") for other in circle):
                continue
            known |= circle
            uses = [arrows[folder][a][b] for a in circle for b in circle if arrows[folder][a][b]]
            path, line, name = min(min(uses, key=lambda found: (len(found), found)))
            yield path, line, f"includes {name}: {sorted(circle)} in {folder or '.'} are a circle"


RULES = [circles]
