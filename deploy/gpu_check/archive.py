# SPDX-License-Identifier: Apache-2.0
"""The unpacked archive, what a wheel replaces of it, and what is this machine's own: cuBLASLt,
NVIDIA's tools, the Python that has PyTorch. Only the standard library is needed."""

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from runner import Suite, list_gtests, read_gtest

CUBLAS = "libcublasLt.so.13"
CUBLAS_FOLDERS = ("/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib",
                  "/usr/lib/x86_64-linux-gnu")
PYTHON_CUBLAS = "import nvidia; print(*(path + '/cu13/lib' for path in nvidia.__path__), sep='\\n')"
HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"


class Archive:
    """A folder with the paths of the repository, and only the files that the check needs."""

    def __init__(self, root):
        self.root = Path(root)
        self.program = str(self.root / "bin/gpu_check")
        self.server = self.program  # whose commands are diffserve's
        self.libraries = [self.root / "lib"]
        self.environment = {
            "DIFFSERVE_SOURCE_DIR": str(self.root), "DIFFSERVE_FUZZ_SECONDS": "30"
        }

    def use_wheel(self, wheel, folder):
        """Takes diffserve from a wheel, which it unpacks."""
        with zipfile.ZipFile(wheel) as packed:
            if "diffserve/bin/diffserve" not in packed.namelist():
                raise FileNotFoundError(f"{wheel} holds no diffserve/bin/diffserve")
            packed.extractall(folder)
        server = Path(folder) / "diffserve/bin/diffserve"
        server.chmod(0o755)
        self.server = str(server)
        self.libraries.append(Path(folder) / "diffserve/lib")

    def link_cublas(self):
        """Puts the machine's own cuBLASLt among the programs' libraries, where their run paths
        look."""
        found = find_cublas()
        if found is None:
            print(f"-- no {CUBLAS} in Python's packages or in {', '.join(CUBLAS_FOLDERS)}")
            return
        for folder in self.libraries:
            folder.mkdir(exist_ok=True)
            if not (folder / CUBLAS).exists():
                (folder / CUBLAS).unlink(missing_ok=True)
                (folder / CUBLAS).symlink_to(found)

    def tests(self, logs):
        return list_gtests([self.program, "cuda_test"], Path(logs) / "list.log")

    def gtest(self, name, limit_s, tests, before=()):
        """A suite of these tests; `before` stands before the program."""
        command = [*before, self.program, "cuda_test", "--gtest_filter=" + ":".join(tests)]
        return Suite(name, command, limit_s, list(tests), self.environment, read_gtest)

    def model(self, name):
        """The directory of a model that has a config.json alone."""
        return self.root / "tests/bench/models" / name

    def changed_model(self, name, folder, **changes):
        """The same with other members in its config.json, in a folder of its own."""
        config = json.loads((self.model(name) / "config.json").read_text())
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / "config.json").write_text(json.dumps(config | changes))
        return Path(folder)


def python_programs():
    return dict.fromkeys(filter(None, (sys.executable, shutil.which("python3"))))


def find_cublas():
    folders = []
    for python in python_programs():
        done = subprocess.run([python, "-c", PYTHON_CUBLAS], capture_output=True, text=True)
        folders += done.stdout.split()
    return next((path for folder in (*folders, *CUBLAS_FOLDERS)
                 if (path := Path(folder) / CUBLAS).exists()), None)


def python_with_torch():
    """A Python of this machine that has PyTorch, or None."""
    return next((python for python in python_programs()
                 if subprocess.run([python, "-c", HAS_TORCH]).returncode == 0), None)


def tool(name):
    """The path of one of NVIDIA's tools, or None."""
    beside = sorted(Path("/usr/local").glob(f"cuda*/bin/{name}"))
    return shutil.which(name) or (str(beside[-1]) if beside else None)
