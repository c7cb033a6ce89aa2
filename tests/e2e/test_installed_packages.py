# SPDX-License-Identifier: Apache-2.0
"""The Python package beside others: with its twin for a GPU, and with NVIDIA's cuBLASLt. A script
that prints one variable stands for the program."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from server_process import REPOSITORY

PROGRAM = """#!/bin/sh
echo "${LD_LIBRARY_PATH:-none}"
"""
COMMAND = "from diffserve.command import main; main()"
OWN_SERVER = "import diffserve; diffserve.LLM('demo')"


class InstalledPackagesTest(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.site = self.folder / "site"
        package = self.site / "diffserve"
        shutil.copytree(REPOSITORY / "deploy" / "python" / "diffserve", package)
        (package / "bin").mkdir()
        (package / "bin" / "diffserve").write_text(PROGRAM)
        (package / "bin" / "diffserve").chmod(0o755)

    def install(self, *names: str):
        for name in names:
            (self.site / f"{name}-0.2.0.dist-info").mkdir()

    def add_cublas(self, site: Path) -> Path:
        path = site / "nvidia" / "cu13" / "lib" / "libcublasLt.so.13"
        path.parent.mkdir(parents=True)
        path.touch()
        return path.parent

    def run_python(self, code: str, *more: Path, **environment: str):
        path = os.pathsep.join(map(str, (self.site, *more)))
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": path, **environment}
        return subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True,
                              text=True, timeout=60)

    def test_two_distributions_with_the_same_files_are_refused_in_one_line(self):
        self.install("diffserve", "diffserve_cuda", "diffserve_other")
        words = (f"diffserve and diffserve_cuda are both installed in {self.site} and have "
                 "overwritten each other: pip uninstall diffserve diffserve_cuda, then install one "
                 "of them")
        done = self.run_python(COMMAND)
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (1, "", f"diffserve: {words}\n"))
        done = self.run_python(OWN_SERVER)
        self.assertEqual(done.stderr.splitlines()[-1], f"diffserve.errors.DiffserveError: {words}")

    def test_each_by_itself_runs(self):
        for name in ("diffserve", "diffserve_cuda"):
            with self.subTest(name=name):
                self.install(name)
                done = self.run_python(COMMAND)
                self.assertEqual((done.returncode, done.stdout), (0, "none\n"), done.stderr)
                (self.site / f"{name}-0.2.0.dist-info").rmdir()

    def test_cublaslt_of_another_folder_is_handed_to_the_program(self):
        self.install("diffserve_cuda")
        system = self.folder / "system"
        elsewhere = self.add_cublas(system)
        self.assertEqual(self.run_python(COMMAND, system).stdout, f"{elsewhere}\n")
        self.assertEqual(self.run_python(COMMAND, system, LD_LIBRARY_PATH="/a:/b").stdout,
                         f"/a:/b:{elsewhere}\n")
        # Beside the package the program finds it by itself.
        self.add_cublas(self.site)
        self.assertEqual(self.run_python(COMMAND, system).stdout, "none\n")

    def test_the_package_for_a_cpu_looks_for_none(self):
        self.install("diffserve")
        system = self.folder / "system"
        self.add_cublas(system)
        self.assertEqual(self.run_python(COMMAND, system).stdout, "none\n")


if __name__ == "__main__":
    unittest.main()
