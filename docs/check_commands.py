#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands in the documents: each block ```bash and ```python of README.md,
CONTRIBUTING.md and docs/, beside a server of the bundled model. Commands run in the repository's
root, Python in a folder that goes away, with the package of deploy/python. Where a block ```text
follows at once, that is what must be printed; `...` matches any text.

    PYTHON docs/check_commands.py [--check NAME] [--installed] [PAGE...]
                                                    PYTHON: .venv/bin/python

A block that cannot run here has the line `<!-- not run: REASON -->` before it and counts as
skipped. With --check only those run whose reason is `tests/long.sh NAME runs it`. The pages name
the ports 8000 and 8001; the blocks run with those of the server started here. DIFFSERVE_BINARY
names the server; else it is the release build. With --installed the package is the one that PYTHON
has, with its own program. Prints `N passed, N failed, N skipped` last; exit code 1 on a failure.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAM = os.environ.get("DIFFSERVE_BINARY", str(ROOT / "build/diffserve"))
LIMIT_S = 300
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>bash|python)\n"
                   r"(?P<text>.*?)^```$(?:\n\n```text\n(?P<shown>.*?)^```$)?", re.M | re.S)


def pages(names):
    if names:
        return [Path(name).resolve() for name in names]
    listed = subprocess.run(["git", "-c", "safe.directory=*", "ls-files", "README.md",
                             "CONTRIBUTING.md", "docs/*.md"],
                            cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [ROOT / name for name in listed]


def start_server():
    """The server and the two addresses that stand for those in the pages."""
    server = subprocess.Popen([PROGRAM, "serve", "models/demo/diff", "--port", "0", "--grpc-port",
                               "0", "--log-level", "error"],
                              cwd=ROOT, stdout=subprocess.PIPE, text=True)
    ready = server.stdout.readline()
    found = re.match(r"ready http=(\S+) grpc=(\S+)", ready)
    if not found:
        raise SystemExit(f"docs/check_commands.py: the server did not start: {ready!r}")
    return server, found.group(1), found.group(2)


def environment(scratch, installed):
    """Of a block. `mktemp` gives it files that go away afterwards."""
    own = os.environ | {"PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}", "TMPDIR": scratch}
    if installed:
        return own
    return own | {"PYTHONPATH": str(ROOT / "deploy/python"), "DIFFSERVE_BINARY": PROGRAM}


def run(language, text, shown, env):
    """What went wrong with a block, or None."""
    python = language == "python"
    command = [sys.executable, "-c", text] if python else ["bash", "-euo", "pipefail", "-c", text]
    try:
        done = subprocess.run(command, cwd=env["TMPDIR"] if python else ROOT, capture_output=True,
                              text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, env=env)
    except subprocess.TimeoutExpired:
        return f"took more than {LIMIT_S} s"
    if done.returncode:
        return f"exit code {done.returncode}: " + (done.stderr or done.stdout).strip()[-600:]
    pattern = ".*".join(map(re.escape, (shown or "...").strip().split("...")))
    if not re.fullmatch(pattern, done.stdout.strip(), re.S):
        return f"printed {done.stdout.strip()[:2000]!r}"
    return None


def blocks(names):
    """(place, language, text, what it prints or None, why it cannot run here or None) of each."""
    for page in pages(names):
        text = page.read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start("text"))
            yield (f"{page.relative_to(ROOT)}:{line}", block["language"], block["text"],
                   block["shown"], block["reason"])


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check")
    parser.add_argument("--installed", action="store_true")
    parser.add_argument("pages", nargs="*")
    asked = parser.parse_args()
    runs_now = asked.check and f"tests/long.sh {asked.check} runs it"
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    found = list(blocks(asked.pages))
    server, http, grpc = start_server()
    with tempfile.TemporaryDirectory() as scratch:
        for place, language, text, shown, reason in found:
            if runs_now and not (reason and reason.endswith(runs_now)):
                continue
            if reason and not runs_now:
                counts["skipped"] += 1
                print(f"skip {place}: {reason}")
                continue
            text = text.replace("127.0.0.1:8000", http).replace("127.0.0.1:8001", grpc)
            fault = run(language, text, shown, environment(scratch, asked.installed))
            counts["failed" if fault else "passed"] += 1
            print(f"FAIL {place}: {fault}" if fault else f"ok   {place}", flush=True)
    server.terminate()
    server.wait()
    print(", ".join(f"{number} {name}" for name, number in counts.items()))
    return 1 if counts["failed"] or not counts["passed"] else 0


if __name__ == "__main__":
    sys.exit(main())
