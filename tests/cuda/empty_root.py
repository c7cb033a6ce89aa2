#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks an archive of deploy/gpu_check.sh into a root of its own that holds glibc and Python 3.12
and nothing else, and runs it there without network.

    empty_root.py ARCHIVE [ARGUMENT...]   arguments of deploy/gpu_check/run.py
    empty_root.py --python       the folder of the Python 3.12 that it takes

Needs root and namespaces. Prints `N passed, N failed, N skipped` last; exit code 1 if anything
failed.
"""

import fcntl
import json
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

LIBRARIES = re.compile(r"ld-linux|lib(python3\.12|c|m|dl|rt|pthread|util|resolv|z|lzma|ffi)\.so")
UNUSED = shutil.ignore_patterns("test", "site-packages", "idlelib", "tkinter", "ensurepip",
                                "turtledemo", "__pycache__", "config-*", "*.a")
LOOPBACK_FLAGS, UP = 0x8914, 1  # SIOCSIFFLAGS, IFF_UP


def python_prefix():
    """The folder of a Python 3.12 of this machine."""
    found = [shutil.which("python3.12"), *Path.home().glob(".pyenv/versions/3.12*/bin/python3.12")]
    for program in filter(None, found):
        done = subprocess.run([program, "-c", "import sys; print(sys.base_prefix)"],
                              capture_output=True, text=True)
        if done.returncode == 0:
            return Path(done.stdout.strip())
    raise FileNotFoundError("there is no Python 3.12")


def needed(file):
    """The libraries of a program or module, by their paths; None if some are not for this root."""
    text = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
    paths = [Path(path) for path in re.findall(r"(/\S+) \(0x", text)]
    return paths if all(LIBRARIES.match(path.name) for path in paths) else None


def add_python(prefix, root):
    """Python and its modules that need no other library; and glibc, for all."""
    to = root / prefix.relative_to("/")
    shutil.copytree(prefix / "lib/python3.12", to / "lib/python3.12", ignore=UNUSED)
    (to / "bin").mkdir()
    shutil.copy2(prefix / "bin/python3.12", to / "bin")
    for file in [to / "bin/python3.12", *to.glob("lib/python3.12/lib-dynload/*.so")]:
        paths = needed(file)
        if paths is None:
            file.unlink()
            continue
        for path in paths:
            copy = root / path.relative_to("/")
            copy.parent.mkdir(parents=True, exist_ok=True)
            if not copy.exists():
                shutil.copy2(path, copy)
    # The program needs two of glibc's that Python does not.
    for path in Path("/lib/x86_64-linux-gnu").iterdir():
        if re.match(r"lib(dl|rt|pthread|resolv)\.so\.\d$", path.name):
            shutil.copy2(path, root / "lib/x86_64-linux-gnu")


def add_system(root):
    for folder in ("tmp", "proc", "dev/shm"):
        (root / folder).mkdir(parents=True)
    subprocess.run(["mount", "-t", "proc", "proc", root / "proc"], check=True)
    for device in ("null", "zero", "urandom"):
        (root / "dev" / device).touch()
        subprocess.run(["mount", "--bind", f"/dev/{device}", root / "dev" / device], check=True)
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, LOOPBACK_FLAGS, struct.pack("16sh", b"lo", UP))


def inside(root, archive, arguments):
    """In namespaces of its own, whose end takes all mounts with it."""
    prefix = python_prefix()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", root], check=True)
    add_python(prefix, root)
    add_system(root)
    shutil.copy2(archive, root / "tmp")
    python = [shutil.which("chroot"), root, prefix / "bin/python3.12"]

    def run(*arguments):
        return subprocess.run([*python, *arguments], env={}, stdout=subprocess.PIPE, text=True)

    run("-m", "tarfile", "-e", f"/tmp/{archive.name}", "/tmp/gpu").check_returncode()
    output = run("/tmp/gpu/deploy/gpu_check/run.py", *arguments, "--out", "/tmp/out").stdout
    print(output, flush=True)
    result = json.loads(output.splitlines()[-1])
    print(", ".join(f"{result[kind]} {kind}" for kind in ("passed", "failed", "skipped")))
    return 1 if result["failed"] or not result["passed"] else 0


def main():
    if sys.argv[1:] == ["--python"]:
        print(python_prefix())
        return 0
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    if sys.argv[1] == "--inside":
        root, archive, *arguments = sys.argv[2:]
        return inside(Path(root), Path(archive), arguments)
    with tempfile.TemporaryDirectory() as root:
        archive = Path(sys.argv[1]).resolve()
        return subprocess.run(["unshare", "--mount", "--net", "--pid", "--fork", sys.executable,
                               __file__, "--inside", root, archive, *sys.argv[2:]]).returncode


if __name__ == "__main__":
    sys.exit(main())
