#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the bill of materials of a build as CycloneDX 1.5: the Debian packages that the program is
linked with or that are compiled in, and the Rust crates, each with its version, licence and package
URL. The same commit gives the same file.

  deploy/sbom.py PROGRAM FILE   PROGRAM: build/release/server/diffserve, or that of build/arm64,
                                which has the packages of deploy/arm64_sysroot.sh
"""

import json
import os
import sys
import uuid
from datetime import datetime, timezone
from pathlib import Path

import third_party


def debian(package: str, version: str, architecture: str) -> dict:
    return {"type": "library", "name": package, "version": version,
            "licenses": [{"license": {"name": third_party.debian_licence(package)}}],
            "purl": f"pkg:deb/debian/{package}@{version.replace('+', '%2B')}?arch={architecture}"}


def cuda_runtime() -> dict:
    """NVIDIA's runtime library, which a build with CUDA has compiled in."""
    packages = next(third_party.ROOT.glob(".cuda/lib/python3*/site-packages"))
    installed = next(packages.glob("nvidia_cuda_runtime-*.dist-info"))
    version = installed.name.removesuffix(".dist-info").rpartition("-")[2]
    return {"type": "library", "name": "nvidia-cuda-runtime", "version": version,
            "licenses": [{"license": {"name": "NVIDIA CUDA Toolkit EULA"}}],
            "purl": f"pkg:pypi/nvidia-cuda-runtime@{version}"}


def components(program: str) -> list[dict]:
    is_for_arm64 = third_party.is_for_arm64(program)
    processor, architecture = ("aarch64", "arm64") if is_for_arm64 else ("x86_64", "amd64")
    found = [debian(package, version, architecture)
             for package, version in sorted(third_party.debian_packages(program).items())]
    for name, version, licence, repository, _ in third_party.crates(processor):
        found.append({"type": "library", "name": name, "version": version,
                      "licenses": [{"expression": licence}],
                      "externalReferences": [{"type": "vcs", "url": repository}],
                      "purl": f"pkg:cargo/{name}@{version.replace('+', '%2B')}"})
    if not is_for_arm64 and "\nbackends: cpu, cuda\n" in third_party.output(program, "--version"):
        found.append(cuda_runtime())
    return [component | {"bom-ref": component["purl"]} for component in found]


def bill(program: str) -> dict:
    version = third_party.output("deploy/version.sh").strip()
    url = f"pkg:generic/diffserve@{version.replace('+', '%2B')}"
    made = int(os.environ.get("SOURCE_DATE_EPOCH") or third_party.output(
        "git", "log", "-1", "--format=%ct"))
    parts = components(program)
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
            "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, url).urn,
            "metadata": {
                "timestamp": datetime.fromtimestamp(made, timezone.utc).isoformat(),
                "component": {"type": "application", "name": "diffserve", "version": version,
                              "licenses": [{"expression": "Apache-2.0"}], "purl": url,
                              "bom-ref": url}},
            "components": parts,
            "dependencies": [{"ref": url, "dependsOn": [part["bom-ref"] for part in parts]}]}


def main() -> int:
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    Path(sys.argv[2]).write_text(json.dumps(bill(sys.argv[1]), indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
