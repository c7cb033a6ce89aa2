# SPDX-License-Identifier: Apache-2.0
"""What else is installed: the other package with this one's files, and NVIDIA's cuBLASLt."""

import importlib.util
import os
from typing import Dict, List, Optional

SITE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CUBLAS = os.path.join("cu13", "lib", "libcublasLt.so.13")  # in the package nvidia


def distributions() -> List[str]:
    """Those in this folder that have the files of this package."""
    entries = os.listdir(SITE)
    return [name for name in ("diffserve", "diffserve_cuda") if any(
        entry.startswith(f"{name}-") and entry.endswith(".dist-info") for entry in entries)]


def conflict() -> Optional[str]:
    """Two distributions with the same files: pip lets the second overwrite the first."""
    found = distributions()
    if len(found) < 2:
        return None
    return (f"{' and '.join(found)} are both installed in {SITE} and have overwritten each other: "
            f"pip uninstall {' '.join(found)}, then install one of them")


def with_cublas(environment: Dict[str, str]) -> Dict[str, str]:
    """With the folder of a cuBLASLt that is in reach of Python, but not beside this package where
    the program looks: the system's, for a virtual environment that sees the system's packages."""
    if "diffserve_cuda" not in distributions() or os.path.isfile(
            os.path.join(SITE, "nvidia", CUBLAS)):
        return environment
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or () if spec else ()):
        path = os.path.join(folder, CUBLAS)
        if os.path.isfile(path):
            given = environment.get("LD_LIBRARY_PATH")
            folders = [*([given] if given else []), os.path.dirname(path)]
            return {**environment, "LD_LIBRARY_PATH": ":".join(folders)}
    return environment
