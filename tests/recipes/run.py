#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Follows the pages of docs/recipes: runs their own commands with the real programs against the
server that they start, and compares what is printed with what they show.

    run.py [RECIPE...]      DIFFSERVE_BINARY names the server

A line `<!-- not run: tests/recipes/run.sh VERB it -->` before a block says what is done with it:

- `installs`: not executed; each `NAME==VERSION` or `NAME@VERSION` in it must be what is installed.
- `serves`: the server's command. MODEL_DIR is the model of answers.py.
- `starts`: a program that runs until the page ends. It has to listen on its address first.
- `runs`, and a block without such a line: it must end with exit code 0. If a block ```text follows,
  that is what it must print; `...` matches any text.

The ports of a page are replaced by free ones. At the end of a page the server must have generated
tokens and refused nothing.
"""

import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES, BUILD = ROOT / "docs" / "recipes", ROOT / "build"
sys.path[:0] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "clients")]

from scripted_model import write_model
from answers import SCRIPTS
from server_process import ServerProcess, eventually, free_port

LIMIT_S = 300
BLOCK = re.compile(r"(?:^<!-- not run: (?P<reason>.+?) -->\n)?^```(?P<language>\w+)\n"
                   r"(?P<text>.*?)^```$", re.M | re.S)
VERB = re.compile(r"tests/recipes/run\.sh (installs|serves|starts|runs) it")
VERSION = re.compile(r"(?<![\w/])(@?[\w./-]+)(?:\[\w+\])?(?:==|@)(\d[\w.]*)")
PORT = re.compile(r"127\.0\.0\.1:(\d+)")
# Where the programs of a recipe are; of the others in build/recipes/RECIPE.
ENVIRONMENTS = {"langchain": ROOT / ".venv",
                "pydantic-ai": BUILD / "clients" / "venv",
                "instructor": BUILD / "clients" / "instructor-venv"}
NODE_PACKAGES = {"cline": "@cline/cli-linux-x64"}  # the package of a program that holds its binary


class Fault(Exception):
    """What a page says is not what happens."""


def environment(recipe, home):
    """A program's environment: without the machine's settings; nothing phones home."""
    own = ENVIRONMENTS.get(recipe, BUILD / "recipes" / recipe) / "bin"
    off = ("DO_NOT_TRACK HF_HUB_OFFLINE HF_DATASETS_OFFLINE DISABLE_TELEMETRY DISABLE_AUTOUPDATER"
           " CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC LITELLM_LOCAL_MODEL_COST_MAP")
    node = f"{BUILD / 'recipes' / 'bin'}:{BUILD / 'clients' / 'venv' / 'bin'}"
    return {**{name: "1" for name in off.split()}, "HOME": str(home), "LANG": "C.UTF-8",
            "PATH": f"{own}:{node}:/usr/local/bin:/usr/bin:/bin", "OTEL_SDK_DISABLED": "true",
            "LANGSMITH_TRACING": "false", "CONTINUE_TELEMETRY_ENABLED": "0",
            "PYTHONWARNINGS": "ignore", "TMPDIR": str(home)}


def installed(recipe):
    """Versions of the packages that a recipe's programs come from, by name."""
    lock = json.loads((ROOT / "tests/clients/package.json").read_text())["dependencies"]
    python = environment(recipe, ROOT)["PATH"].partition(":")[0] + "/pip"
    if not os.path.exists(python):
        return lock
    listed = subprocess.run([python, "list", "--format", "json", "--disable-pip-version-check"],
                            check=True, capture_output=True, text=True).stdout
    return lock | {package["name"].lower().replace("_", "-"): package["version"]
                   for package in json.loads(listed)}


def blocks(text):
    """(line, verb, language, text, what it prints or None) of each block that does something."""
    found = list(BLOCK.finditer(text))
    for block, following in zip(found, [*found[1:], None]):
        verb = VERB.fullmatch(block["reason"] or "tests/recipes/run.sh runs it")
        if block["language"] in ("bash", "python") and verb:
            shown = following if following and following["language"] == "text" else None
            yield (text.count("\n", 0, block.start("text")), verb[1], block["language"],
                   block["text"], shown and shown["text"])


def as_printed(shown):
    """A pattern for what a page shows: `...` is any text."""
    return re.compile(".*".join(map(re.escape, shown.strip().split("..."))), re.S)


class Recipe:
    """One page being followed. Programs that it started end with `with`."""

    def __init__(self, page, scripted):
        self.page, self.scripted, self.server = page, scripted, None
        self.text = page.read_text()
        self.ports = {port: str(free_port()) for port in {"8000", *PORT.findall(self.text)}}
        self.stack = contextlib.ExitStack()
        self.home = Path(self.stack.enter_context(tempfile.TemporaryDirectory(
            prefix=f"recipe-{page.stem}-", ignore_cleanup_errors=True)))
        self.work = self.home / "work"
        self.work.mkdir()
        for folder in ("deploy", "models"):  # the pages' commands are for the repository's root
            (self.work / folder).symlink_to(ROOT / folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def here(self, text):
        """A page's text with the ports of this run."""
        for port, other in self.ports.items():
            text = re.sub(rf"(?<=127\.0\.0\.1:){port}\b|(?<=--port ){port}\b", other, text)
        return text

    def installs(self, text, _shown, _language):
        have = installed(self.page.stem)
        versions = VERSION.findall(text)
        for name, version in versions:
            got = have.get(NODE_PACKAGES.get(name, name.lower().replace("_", "-")))
            if got != version:
                raise Fault(f"{name} {got} is installed; the page says {version}")
        if not versions:
            raise Fault("names no version")

    def serves(self, text, _shown, _language):
        program, command, model, *flags = shlex.split(text.replace("\\\n", " "))
        if (program, command) != ("build/diffserve", "serve"):
            raise Fault(f"not a server's command: {text}")
        model = self.scripted if model == "MODEL_DIR" else ROOT / model
        ports = (int(self.ports["8000"]), 0)
        self.server = self.stack.enter_context(ServerProcess(*flags, model=model, ports=ports))

    def command(self, text, language):
        text = self.here(text)
        return ["python", "-c", text] if language == "python" else [
            "bash", "-euo", "pipefail", "-c", text]

    def starts(self, text, _shown, language):
        port = int(next(self.ports[port] for port in self.ports if port != "8000" and port in text))
        log = open(self.home / "log", "w+")
        process = subprocess.Popen(self.command(text, language), cwd=self.work, stdout=log,
                                   stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                                   env=environment(self.page.stem, self.home))
        self.stack.callback(self.end, process, log)

        def listens():
            if process.poll() is not None:
                raise AssertionError("the program has ended")
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0
        try:
            eventually(listens, f"it listens on port {port}", LIMIT_S)
        except AssertionError as error:
            log.seek(0)
            raise Fault(f"{error}\n{log.read()[-2000:]}") from None

    def end(self, process, log):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        log.close()

    def runs(self, text, shown, language):
        process = subprocess.Popen(self.command(text, language), cwd=self.work, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   stdin=subprocess.DEVNULL, start_new_session=True,
                                   env=environment(self.page.stem, self.home))
        try:
            printed, errors = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, errors = process.communicate()
            raise Fault(f"over {LIMIT_S} s: {printed[-1000:]}{errors[-1000:]}") from None
        if process.returncode:
            raise Fault(f"exit code {process.returncode}: {printed[-1000:]}{errors[-2000:]}")
        if shown and not as_printed(self.here(shown)).fullmatch(printed.strip()):
            raise Fault(f"printed {printed.strip()[:2000]!r}\n{errors[-1000:]}")

    def check_server(self):
        """The server worked, and refused nothing."""
        if self.server is None:
            raise Fault("the page starts no server")
        samples = self.server.metrics()
        refused = {name: value for name, value in samples.items() if value
                   and re.match(r'diffserve_http_requests_total\{.*code="[45]\d\d"', name)}
        if refused:
            raise Fault(f"the server refused requests: {refused}\n{self.server.stderr()[-1000:]}")
        if not samples["diffserve_generation_tokens_total"]:
            raise Fault("the server generated no token")


def follow(page, scripted):
    """Prints a line per block and one for the server; returns (passed, failed)."""
    passed = failed = 0
    name, began = page.stem, time.monotonic()
    with Recipe(page, scripted) as recipe:
        steps = [(f"{name}:{line} {verb}", getattr(recipe, verb), (text, shown, language))
                 for line, verb, language, text, shown in blocks(recipe.text)]
        for what, step, arguments in [*steps, (f"{name} refused nothing", recipe.check_server, ())]:
            try:
                step(*arguments)
                passed += 1
                print(f"ok {what}", flush=True)
            except (Fault, AssertionError) as fault:
                failed += 1
                print(f"not ok {what}: {fault}", flush=True)
                break  # the next block needs this one
    print(f"== {name}: {passed} passed, {failed} failed ({time.monotonic() - began:.0f} s)",
          flush=True)
    return passed, failed


def table_rows():
    """{recipe: its row's cells} of the table in docs/recipes/README.md."""
    rows = re.findall(r"^\| \[[^]]+\]\(([\w-]+)\.md\) \| (.+) \|$",
                      (PAGES / "README.md").read_text(), re.M)
    return {name: cells.split(" | ") for name, cells in rows}


def check_table(pages):
    """Each page has a row, which has a version that the page installs."""
    rows = table_rows()
    if set(rows) != {page.stem for page in pages}:
        raise Fault(f"the table has {sorted(rows)}")
    for page in pages:
        version = rows[page.stem][0]
        if version not in page.read_text():
            raise Fault(f"{page.stem}: the table has version {version}, the page has not")


def main(names):
    pages = [page for page in sorted(PAGES.glob("*.md")) if page.name != "README.md"]
    unknown = set(names) - {page.stem for page in pages}
    if unknown:
        sys.exit(f"no recipe is called {', '.join(unknown)}; there are "
                 f"{', '.join(page.stem for page in pages)}")
    check_table(pages)
    scripted = write_model(BUILD / "recipes" / "models" / "scripted", SCRIPTS, mark="")
    results = [(1, 0)]  # the table
    results += [follow(page, scripted) for page in pages if not names or page.stem in names]
    passed, failed = (sum(column) for column in zip(*results))
    print(f"{passed} passed, {failed} failed")
    return failed == 0


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
