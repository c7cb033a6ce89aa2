#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the archive that deploy/gpu_check/run.py runs from on another machine.

    collect.py PROGRAM DIR   DIR/gpu_check.tar.xz of the program gpu_check: it and its libraries
                             outside glibc, packages for Python 3.12, test data and scripts

Unpacked, the archive looks like the repository as far as it goes. cuBLASLt is not in it. Exit code
1 if it is larger than 30 MiB. Needs .venv (deploy/install_deps.sh --test) and Python's registry.
"""

import lzma
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SIZE_MIB_MAX = 30
WINDOW_BYTES = 128 << 20  # the whole archive: kernels resemble each other
# Every machine with Python has glibc; an NVIDIA machine has its own cuBLASLt (500 MB).
LEFT_OUT = re.compile(r"ld-linux|linux-vdso|lib(c|m|dl|rt|pthread|resolv|util)\.so|libcublas")
PYTHON_VERSION = "312"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "any")
PACKAGES = ("grpcio", "protobuf", "typing_extensions")
FILES = ("deploy/gpu_check/*.py", "tests/e2e/run.py", "tests/e2e/server_process.py",
         "tests/e2e/grpc_client.py", "tests/e2e/grpc_stubs.py", "tests/e2e/tiny_model.py",
         "tests/e2e/test_bit_exactness.py", "tests/bench/streams.py", "tests/bench/models/*/*",
         "models/demo/diff/*")
CASES = ROOT / "tests/golden/cases"
# For a machine without libstdc++, which the packages need.
SITE = """import ctypes, pathlib
for name in ("libgcc_s.so.1", "libstdc++.so.6"):
    try:
        ctypes.CDLL(name)
    except OSError:
        ctypes.CDLL(str(pathlib.Path(__file__).parents[1] / "lib" / name), ctypes.RTLD_GLOBAL)
"""


def run(*command):
    return subprocess.run([str(part) for part in command], check=True, stdout=subprocess.PIPE,
                          text=True).stdout


def libraries(program):
    """The paths of the shared libraries outside glibc, those of libraries included."""
    for line in run("ldd", program).splitlines():
        name, _, path = line.strip().partition(" => ")
        if LEFT_OUT.match(name) or not path:
            continue
        if not path.startswith("/"):
            raise FileNotFoundError(f"{program} needs {line.strip()}")
        yield Path(path.split(" (")[0])


def add_program(program, tree):
    (tree / "bin").mkdir()
    (tree / "lib").mkdir()
    run("strip", "-o", tree / "bin/gpu_check", program)
    for library in libraries(program):
        run("strip", "--strip-unneeded", "-o", tree / "lib" / library.name, library)


def add_python(folder):
    """Packages for the far machine's Python, and stubs and the model that need more than these."""
    python = ROOT / ".venv/bin/python"
    pins = dict(line.split("==") for line in
                (ROOT / "tests/e2e/requirements.txt").read_text().splitlines() if "==" in line)
    with tempfile.TemporaryDirectory() as wheels:
        run(python, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--python-version", PYTHON_VERSION, "--implementation", "cp",
            *(part for platform in PLATFORMS for part in ("--platform", platform)), "--dest",
            wheels, *(f"{name}=={pins[name]}" for name in PACKAGES))
        for wheel in Path(wheels).iterdir():
            zipfile.ZipFile(wheel).extractall(folder)
    run(python, ROOT / "tests/e2e/grpc_stubs.py", folder)
    (folder / "sitecustomize.py").write_text(SITE)


def golden_cases(program):
    """The files of the cases that have kernels or that a test names."""
    sources = "".join(path.read_text() for folder in ("tests/cuda", "tests/testing")
                      for path in (ROOT / folder).rglob("*.cc"))
    names = set(run(program, "cuda_cases").split())
    names |= {case.name for case in CASES.iterdir() if f'"{case.name}"' in sources}
    return [path for name in names for path in (CASES / name).iterdir()]


def add_files(program, tree):
    files = golden_cases(program)
    for pattern in FILES:
        found = [path for path in ROOT.glob(pattern) if path.is_file()]
        if not found:
            raise FileNotFoundError(f"no file is named {pattern}")
        files += found
    for path in files:
        to = tree / path.relative_to(ROOT)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    run(ROOT / ".venv/bin/python", "-c",
        "import pathlib, sys; sys.path.insert(0, sys.argv[1]); import tiny_model; "
        "tiny_model.write(pathlib.Path(sys.argv[2]))", ROOT / "tests/e2e", tree / "tiny")
    (tree / "commit").write_text(run("git", "-C", ROOT, "-c", "safe.directory=*", "rev-parse",
                                     "--short=12", "HEAD"))


def pack(tree, archive):
    # Instructions of a GPU are 16 bytes, and those of x86-64 have addresses relative to themselves.
    filters = [{"id": lzma.FILTER_X86},
               {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": WINDOW_BYTES, "lc": 2, "lp": 2,
                "pb": 4}]
    with lzma.open(archive, "wb", filters=filters) as packed:
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for path in sorted(tree.rglob("*")):
                if path.is_file() and "__pycache__" not in path.parts:
                    tar.add(path, path.relative_to(tree))


def fits(archive):
    mib = archive.stat().st_size / (1 << 20)
    print(f"{archive}: {mib:.1f} MiB, at most {SIZE_MIB_MAX}")
    return mib <= SIZE_MIB_MAX


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    archive = Path(sys.argv[2]) / "gpu_check.tar.xz"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        (tree / "python").mkdir()
        add_program(Path(sys.argv[1]), tree)
        add_python(tree / "python")
        add_files(Path(sys.argv[1]).resolve(), tree)
        pack(tree, archive)
    return 0 if fits(archive) else 1


if __name__ == "__main__":
    sys.exit(main())
