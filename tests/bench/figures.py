# SPDX-License-Identifier: Apache-2.0
"""What the scripts that keep figures in tests/bench/results have in common."""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs"))

import blocks  # noqa: E402

RESULTS = ROOT / "tests/bench/results"


def stored(name):
    """The results of each machine."""
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(f"{name}_*.json"))]


def machine(kind):
    """KIND of the command line in words, with the CPU's name."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()).group(1)
    return f"{kind.replace('_', ' ')} ({cpu})"


def about_run(arguments):
    """How a part was measured, to be stored with it."""
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, check=True,
                            stdout=subprocess.PIPE, text=True).stdout.strip()
    return {"rounds": arguments.rounds, "commit": commit, "beside": arguments.note}


def heading(result):
    return f"**{result['machine'][0].upper()}{result['machine'][1:]}.**"


def measured(part, text):
    """`text`, and how the part was measured."""
    beside = f" Beside: {part['beside']}." if part["beside"] else ""
    return blocks.paragraph(f"{text} Medians of {part['rounds']}, commit {part['commit']}.{beside}")


def parser(description, commands, rounds):
    """The command line of such a script; it can add to it."""
    made = argparse.ArgumentParser(description=description,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("command", nargs="?", choices=commands)
    made.add_argument("kind", nargs="?")
    made.add_argument("--rounds", type=int, default=rounds)
    made.add_argument("--directory", default="/var/tmp")
    made.add_argument("--note", default="")
    made.add_argument("--check", action="store_true")
    return made


def run(command_line, commands, outputs):
    """Runs what the command line says: commands[name](arguments), then the block is rewritten or
    checked. Returns the exit code."""
    arguments = command_line.parse_args()
    if arguments.command:
        if not arguments.kind:
            command_line.error(f"KIND is missing after {arguments.command}")
        commands[arguments.command](arguments)
    return blocks.settle(outputs(), arguments.check)
