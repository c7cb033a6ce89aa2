#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes THIRD_PARTY.md, the libraries that the program is linked with and their licences, and
deploy/third_party_licences.txt, the licence texts that have to go with what is compiled into it.

  deploy/third_party.py          writes both
  deploy/third_party.py --check  exit code 1 if one differs

Shared libraries are those that the dynamic linker loads, named by their Debian package; headers and
libxxhash.a are compiled in, from packages that deploy/install_deps.sh installs for the build. Rust
crates are those of engine/text/crates/Cargo.lock that end up in the program: the workspace's own
are left out. Needs the built program and cargo.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "THIRD_PARTY.md"
TEXTS = ROOT / "deploy/third_party_licences.txt"
CRATES = ROOT / "engine/text/crates"
PROGRAM = ROOT / "build/dev/server/diffserve"
ARM64_ROOT = ROOT / "build/arm64-root"  # of deploy/arm64_sysroot.sh
COMPILED_IN = ["libboost1.81-dev", "nlohmann-json3-dev", "cppzmq-dev", "libxxhash-dev"]
KERBEROS = ["libgssapi-krb5-2", "libk5crypto3", "libkrb5-3", "libkrb5support0"]
# Where the copyright file has no machine-readable form, or the library has another licence than
# most of its source package.
GCC = "GPL-3+ with GCC Runtime Library Exception"
BY_HAND = {"libc6": "LGPL-2.1+", "libc-ares2": "MIT", "libcom-err2": "MIT", "libgcc-s1": GCC,
           "libgnutls30": "LGPL-2.1+", "libidn2-0": "LGPL-3+ or GPL-2+", "libkeyutils1": "LGPL-2+",
           "librtmp1": "LGPL-2.1+", "libstdc++6": GCC, "libtasn1-6": "LGPL-2.1+",
           **{package: "MIT" for package in KERBEROS}}
OPENING = """# Third-party software

The libraries that the program `diffserve` is linked with. `deploy/third_party.py` makes this page.
Debian ships the licence texts of its packages in `/usr/share/doc/PACKAGE/copyright`, and the image
has them there too. Where a Rust crate offers a choice that includes Apache-2.0, that is the licence
taken; `deploy/third_party_licences.txt` has the texts of the others and of what is compiled in (the
packages named `-dev`), but for Boost, whose licence asks for its text in copies of the source only.
A build with CUDA also holds NVIDIA's CUDA runtime and loads cuBLASLt, under the licence of the CUDA
Toolkit.
"""


def output(*command, folder=ROOT):
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=folder).stdout


def debian_licence(package):
    """The licence of `Files: *` in a package's copyright file, where Debian's machine-readable form
    is used, and no line of BY_HAND names the package."""
    if package in BY_HAND:
        return BY_HAND[package]
    text = Path(f"/usr/share/doc/{package}/copyright").read_text(errors="replace")
    found = re.search(r"^Files: *\n? *\*.*?^License: *(\S[^\n]*)", text, re.M | re.S)
    if not found:
        raise SystemExit(f"deploy/third_party.py: {package} has no machine-readable licence; "
                         "read its copyright file and name it in BY_HAND")
    return found.group(1)


def is_for_arm64(program):
    with open(program, "rb") as file:
        return file.read(20)[18:] == b"\xb7\x00"


def debian_packages(program):
    """The version of each package that a program is linked with or that is compiled in."""
    packages = {}
    for line in output("deploy/libraries.sh", str(program)).splitlines():
        _, package, version = line.split()
        packages[package] = version
    if is_for_arm64(program):
        unpacked = dict(line.split() for line in open(ARM64_ROOT / ".packages"))
        return packages | {package: unpacked[package] for package in COMPILED_IN}
    for package in COMPILED_IN:
        if Path(f"/usr/share/doc/{package}/copyright").is_file():
            packages[package] = output("dpkg-query", "--show", "--showformat=${Version}", package)
    return packages


def debian_rows():
    return [f"| {package} | {debian_licence(package)} |"
            for package in sorted(debian_packages(PROGRAM))]


def crates(processor="x86_64"):
    """(name, version, licence, repository, folder) of each crate in the program."""
    target = f"{processor}-unknown-linux-gnu"
    tree = output("cargo", "tree", "--locked", "--package", "diffserve-text-ffi", "--edges",
                  "normal,no-proc-macro", "--target", target, "--prefix", "none", "--format",
                  "{p}", folder=CRATES)
    linked = {tuple(line.split()[:2]) for line in tree.splitlines()}
    known = json.loads(output("cargo", "metadata", "--locked", "--format-version", "1",
                              "--filter-platform", target, folder=CRATES))
    for crate in sorted(known["packages"], key=lambda crate: crate["name"].lower()):
        name, version = crate["name"], crate["version"]
        if (name, f"v{version}") in linked and not name.startswith("diffserve-"):
            yield (name, version, re.sub(" */ *", " OR ", crate["license"]), crate["repository"],
                   Path(crate["manifest_path"]).parent)


def texts():
    for package in COMPILED_IN:
        if debian_licence(package) != "BSL-1.0":
            yield section(package, Path(f"/usr/share/doc/{package}/copyright"), "copyright")
    for name, version, licence, _, folder in crates():
        if "Apache-2.0" in licence:
            continue
        files = sorted(path for path in folder.rglob("*")
                       if re.match(r"(LICEN[SC]E|COPYING|UNLICENSE)", path.name, re.I))
        if not files:
            raise SystemExit(f"deploy/third_party.py: {name} {version} has no licence file")
        for path in files:
            yield section(f"{name} {version}", path, path.relative_to(folder))


def section(name, path, title):
    lines = [line.rstrip() for line in path.read_text().splitlines()]
    return f"==== {name}: {title} ====\n" + "\n".join(lines).strip() + "\n\n"


def page():
    table = ["| name | licence |", "|---|---|"]
    rows = [f"| [{name}]({repository}) {version} | {licence} |"
            for name, version, licence, repository, _ in crates()]
    return "\n".join([OPENING, "## Debian packages", "", *table, *debian_rows(), "",
                      "## Rust crates", "", *table, *rows]) + "\n"


def main():
    differ = 0
    for path, text in ((PAGE, page()), (TEXTS, "".join(texts()).rstrip() + "\n")):
        if sys.argv[1:] != ["--check"]:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            print(f"{path.relative_to(ROOT)} differs from what the program is linked with: run "
                  "deploy/third_party.py")
            differ += 1
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
