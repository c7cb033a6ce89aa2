# SPDX-License-Identifier: Apache-2.0
"""The program `diffserve`: where it is, what its flags are in Python, and its command `logits`."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Dict, List, Sequence, Union

from .errors import DiffserveError, of_ended
from .installed import conflict, with_cublas

if TYPE_CHECKING:
    from .array_types import FloatArray

MAX_TEXT_BYTES = 100_000  # of an argument of a program, below what Linux allows


def find_binary() -> str:
    """The program in the package; else what DIFFSERVE_BINARY names; else the one on PATH."""
    reason = conflict()
    if reason is not None:
        raise DiffserveError(reason)
    packaged = Path(__file__).parent / "bin" / "diffserve"
    if packaged.is_file():
        return str(packaged)
    found = os.environ.get("DIFFSERVE_BINARY") or shutil.which("diffserve")
    if found is None:
        raise DiffserveError(f"there is no program diffserve: not {packaged}, not in "
                             "DIFFSERVE_BINARY, not on PATH")
    return found


def child_environment() -> Dict[str, str]:
    """This process's. The socket is this user's alone, so the server asks for no key; errors are
    read from a log of plain lines."""
    hidden = ("DIFFSERVE_API_KEY_FILE", "DIFFSERVE_LOG_FORMAT")
    return with_cublas({name: value for name, value in os.environ.items() if name not in hidden})


def flag_arguments(flags: Dict[str, Any]) -> List[str]:
    """max_model_len=4096 as --max-model-len 4096; ui=False as --no-ui; None is left out."""
    arguments: List[str] = []
    for name, value in flags.items():
        dashed = name.replace("_", "-")
        if value is True or value is False:
            arguments.append(f"--{dashed}" if value else f"--no-{dashed}")
        elif isinstance(value, (list, tuple)) and all(isinstance(part, str) for part in value):
            arguments += [f"--{dashed}={part}" for part in value]
        elif isinstance(value, (list, tuple)):
            arguments.append(f"--{dashed}={','.join(map(str, value))}")
        elif value is not None:
            arguments.append(f"--{dashed}={value}")
    return arguments


def logits(model: Any, prompt: Union[str, Sequence[int]], **flags: Any) -> FloatArray:
    """The logits after each token of a text or of token ids: [tokens, vocabulary], not normalised.
    Runs `diffserve logits`, which loads the model each time; keywords are its flags, such as
    dtype="float32"."""
    import numpy as np

    with tempfile.TemporaryDirectory(prefix="diffserve-") as folder:
        output = f"{folder}/logits.npy"
        if isinstance(prompt, str) and len(prompt.encode()) > MAX_TEXT_BYTES:
            raise ValueError(f"the text has {len(prompt.encode())} bytes; allowed: at "
                             f"most {MAX_TEXT_BYTES}; give its token ids")
        if isinstance(prompt, str):
            given = f"--prompt={prompt}"
        else:
            Path(f"{folder}/tokens").write_text(" ".join(str(int(token)) for token in prompt))
            given = f"--tokens=@{folder}/tokens"
        ran = subprocess.run(
            [find_binary(), "logits", os.fspath(model), given, "--output", output,
             *flag_arguments({"log_level": "warning", **flags})],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=child_environment())
        if ran.returncode != 0:
            raise of_ended("diffserve logits failed", ran.returncode,
                           ran.stderr.decode(errors="replace"))
        rows: FloatArray = np.load(output)
        return rows
