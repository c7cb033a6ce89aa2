# SPDX-License-Identifier: Apache-2.0
"""A model directory without weights, for `--load-format dummy`: the bundled model's tokenizer, and
a decoder large enough that a step takes milliseconds, so that one core can request many times
what another one serves."""

import json
import shutil
from pathlib import Path

DEMO_MODEL = Path(__file__).resolve().parents[2] / "models" / "demo" / "diff"


def make(directory: Path, layers: int = 12) -> Path:
    shutil.copytree(DEMO_MODEL, directory, ignore=shutil.ignore_patterns("*.safetensors"),
                    dirs_exist_ok=True)
    config = json.loads((DEMO_MODEL / "config.json").read_text())
    config |= {"hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": layers,
               "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 64}
    (directory / "config.json").write_text(json.dumps(config))
    return directory
