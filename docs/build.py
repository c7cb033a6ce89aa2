#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the generated blocks of the pages (blocks.py) from stored figures. Measures nothing.

    docs/build.py          rewrites all of them
    docs/build.py --check  exits 1 if a block differs from its figures, is missing, or has no script

The last line of --check is `N passed, N failed`: the scripts, and one for the markers of all pages.
docs/make_cli.py and deploy/third_party.py ask the built program. docs/make_openapi.py needs the
Python of .venv, so run this with it.
"""

import re
import subprocess
import sys

from blocks import BLOCKS, ROOT

PAGES = ["deploy/third_party.py", "docs/make_openapi.py"]  # make whole files, in the same form
MARKER = re.compile(r"^<!-- (/?)(\w+) -->$", re.M)


def pages():
    return [*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")]


def wrong_markers():
    for page in pages():
        name = str(page.relative_to(ROOT))
        found = MARKER.findall(page.read_text())
        opened = [block for slash, block in found if not slash]
        if found != [marker for block in opened for marker in (("", block), ("/", block))]:
            yield f"{name}: its blocks do not each have a begin and an end: {found}"
        for block in opened:
            if block not in BLOCKS or BLOCKS[block][0] != name:
                yield f"{name}: docs/blocks.py does not have the block {block} of this page"
            elif not (ROOT / BLOCKS[block][1]).exists():
                yield f"{name}: there is no {BLOCKS[block][1]}, which makes the block {block}"


def run(script, *flags):
    """Whether it succeeded; what it printed is shown if not."""
    done = subprocess.run([sys.executable, ROOT / script, *flags], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, check=False, text=True)
    if done.returncode:
        print(f"{script}: exit code {done.returncode}\n{done.stdout.strip()}")
    return done.returncode == 0


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    scripts = dict.fromkeys([*(script for _, script in BLOCKS.values()), *PAGES])
    # Where a script is missing, its block in a page is the failure.
    results = [run(script, *sys.argv[1:]) for script in scripts if (ROOT / script).exists()]
    wrong = list(wrong_markers())
    print("".join(f"{line}\n" for line in wrong), end="")
    results.append(not wrong)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return int(not all(results))


if __name__ == "__main__":
    sys.exit(main())
