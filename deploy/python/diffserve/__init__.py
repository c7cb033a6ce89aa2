# SPDX-License-Identifier: Apache-2.0
"""diffserve: text, log-probabilities, hidden states and both attention maps of Diff Transformer
models, as Python values and numpy arrays.

`LLM(model)` runs a server of its own; `connect(url)` uses one that runs. Both give the methods of
`Client`. `logits(model, prompt)` runs a command instead. Nothing is imported before it is used, so
that the command `diffserve` starts at once.
"""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client, connect
    from .errors import DiffserveError
    from .llm import LLM
    from .program import logits
    from .results import Answer, Attention, Logprobs

__all__ = ["LLM", "Answer", "Attention", "Client", "DiffserveError", "Logprobs", "connect",
           "logits"]

# Stubs that a program generates from proto/diffserve/v1 are modules of this package.
__path__ = pkgutil.extend_path(__path__, __name__)

_MODULES = {"LLM": "llm", "Client": "client", "connect": "client", "DiffserveError": "errors",
            "logits": "program", "Answer": "results", "Attention": "results", "Logprobs": "results"}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'diffserve' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
