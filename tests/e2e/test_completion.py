# SPDX-License-Identifier: Apache-2.0
"""Completion in the shells themselves, and environment variables as flags."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from server_process import BINARY
from terminal import Terminal

# What is typed, and what completes it.
CASES = (
    ("diffserve conv", ["convert"]),
    ("diffserve serve --dty", ["--dtype"]),
    ("diffserve serve --dtype fl", ["float16", "float32"]),
    ("diffserve serve --dtype=fl", ["float16", "float32"]),
    ("diffserve serve --no-u", ["--no-ui"]),
    ("diffserve convert --no-u", []),
    ("diffserve serve mod", ["models"]),
    ("diffserve serve --api-key-file ke", ["keys.txt"]),
    ("diffserve completion f", ["fish"]),
)
BASH = """source <("$1" completion bash)
COMP_WORDS=(${2//=/ = }); COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
_diffserve; printf '%s\\n' "${COMPREPLY[@]}" """
FISH = '"$0" completion fish | source; complete -C "$1"'


class CompletionTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.directory.cleanup)
        (Path(cls.directory.name) / "models").mkdir()
        (Path(cls.directory.name) / "keys.txt").touch()

    def output(self, *command) -> list[str]:
        done = subprocess.run(command, cwd=self.directory.name, capture_output=True, text=True,
                              timeout=60)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split("\n")

    def test_bash_completes_what_is_typed(self):
        for typed, wanted in CASES:
            found = self.output("bash", "-c", BASH, "bash", BINARY, typed)
            self.assertEqual(sorted(filter(None, found)), wanted, typed)

    def test_fish_completes_what_is_typed(self):
        for typed, wanted in CASES:
            script = FISH.replace("$0", str(BINARY)).replace("$1", typed)
            found = {line.split("\t")[0].removeprefix("--dtype=").rstrip("/")
                     for line in self.output("fish", "-c", script)}
            self.assertEqual(sorted(filter(None, found)), wanted, typed)

    def test_zsh_completes_what_is_typed(self):
        environment = {"ZDOTDIR": self.directory.name, "HOME": self.directory.name, "PS1": "> "}
        with Terminal(["/usr/bin/zsh", "-f", "-i"], environment) as shell:
            shell.type(f"cd {self.directory.name}; autoload -Uz compinit && compinit -u -D; "
                       f"source <({BINARY} completion zsh); echo re''ady\n")
            shell.until("ready")
            for typed, rest in (("diffserve conv", "ert"), ("diffserve serve --dty", "pe"),
                                ("diffserve serve --dtype b", "float16"),
                                ("diffserve serve mod", "els")):
                shell.type(typed + "\t")
                shell.until(typed + rest)
                shell.type("\x15")

    def test_other_shells_are_refused(self):
        done = subprocess.run([BINARY, "completion", "csh"], capture_output=True, text=True,
                              timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("allowed: bash, zsh, fish", done.stderr)


class EnvironmentTest(unittest.TestCase):
    def run_with(self, **variables) -> subprocess.CompletedProcess:
        return subprocess.run([BINARY, "generate", "/nonexistent", "--tokens", "1"],
                              env=os.environ | variables, capture_output=True, text=True,
                              timeout=60)

    def test_variable_of_a_flag_is_checked_as_the_flag(self):
        done = self.run_with(DIFFSERVE_THREADS="many")
        self.assertEqual(done.returncode, 2)
        self.assertEqual(done.stderr, 'diffserve: DIFFSERVE_THREADS: --threads is "many"; allowed:'
                         " 0 to 1024\n")

    def test_mistyped_variable_is_warned_of(self):
        done = self.run_with(DIFFSERVE_THRAEDS="2")
        self.assertEqual(done.returncode, 1)
        self.assertIn("diffserve: DIFFSERVE_THRAEDS sets no flag: did you mean"
                      " DIFFSERVE_THREADS?\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
