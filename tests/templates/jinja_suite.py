# SPDX-License-Identifier: Apache-2.0
"""The templates of Jinja2's own test suite, except those that a chat template cannot have."""

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def archive() -> Path:
    """The pinned package that carries the suite; deploy/install_deps.sh --test fetches it."""
    requirement, _, digest = (Path(__file__).parent / "requirements.txt").read_text().partition(
        " --hash=sha256:")
    path = REPOSITORY / ".venv/jinja2-suite" / f"{requirement.replace('==', '-')}.tar.gz"
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != digest.strip():
        raise SystemExit(f"{path} has sha256 {found}, not {digest.strip()}")
    return path


def recorded() -> tuple[list[tuple[str, dict]], int]:
    """Pairs (template, variables), and the number of templates with variables that JSON cannot
    represent."""
    with tempfile.TemporaryDirectory() as folder, tarfile.open(archive()) as tar:
        tar.extractall(folder, filter="data")
        [source] = Path(folder).iterdir()
        record = Path(folder) / "recorded.json"
        paths = os.pathsep.join([str(Path(__file__).parent), str(source / "src")])
        command = [sys.executable, "-m", "pytest", "-q", "-p", "recorder", "-p",
                   "no:cacheprovider", "tests"]
        ran = subprocess.run(command, cwd=source, capture_output=True, text=True,
                             env={**os.environ, "PYTHONPATH": paths,
                                  "RECORDED_TEMPLATES": str(record)})
        if ran.returncode != 0:
            raise SystemExit(f"Jinja2's own tests ended with {ran.returncode}:\n"
                             f"{(ran.stdout + ran.stderr)[-2000:]}\n0 passed, 1 failed")
        made = json.loads(record.read_text())
    return [(template, variables) for template, variables in made["cases"]], made["left_out"]
