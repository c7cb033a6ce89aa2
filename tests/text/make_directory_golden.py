# SPDX-License-Identifier: Apache-2.0
"""Writes tests/text/data/directories.json: the model directories of directory_cases.py and
transformers' results for them.

Run once with transformers 4.57 and once with 5 installed (no torch is needed); each run replaces
the results of its own version. The tests only read the file:
    python tests/text/make_directory_golden.py
"""

import json
import shutil
import tempfile
from pathlib import Path

import transformers
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

import directory_cases

DATA = Path(__file__).parent / "data"
GOLDEN = DATA / "directories.json"
MESSAGES = [{"role": "user", "content": "Hi"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "", "parameters": {}}}]
TEXT = "the <s>one</s> <|user|><tool> the<|new|> <|pad|><|end|>other"


def write(directory: Path, case: dict) -> None:
    shutil.copyfile(DATA / "byte_bpe" / "tokenizer.json", directory / "tokenizer.json")
    for path, text in case["files"].items():
        (directory / path).parent.mkdir(exist_ok=True)
        (directory / path).write_bytes(text.encode())


def rendered(tokenizer, **more) -> str | None:
    """None: transformers refuses."""
    try:
        return tokenizer.apply_chat_template(MESSAGES, tokenize=False, **more)
    except ValueError:
        return None


def encoded(tokenizer) -> list[int] | None:
    """None: the class cannot use this vocabulary."""
    try:
        return tokenizer.encode(TEXT, add_special_tokens=False)
    except Exception as error:  # the library raises no other
        assert "not found in the vocabulary" in str(error)
        return None


def generation_ends(directory: Path) -> list[int]:
    """The end tokens by the model's files."""
    try:
        config = GenerationConfig.from_pretrained(directory)
    except OSError:
        config = GenerationConfig.from_model_config(AutoConfig.from_pretrained(directory))
    ends = config.eos_token_id
    return [] if ends is None else ends if isinstance(ends, list) else [ends]


def answer(case: dict) -> dict | None:
    """None: this version refuses the directory."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        write(directory, case)
        try:
            tokenizer = AutoTokenizer.from_pretrained(directory)
        except (AttributeError, ImportError, TypeError):
            return None
        tokens = tokenizer.added_tokens_decoder
        return {
            "class":
            type(tokenizer).__name__,
            "plain":
            rendered(tokenizer),
            "tools":
            rendered(tokenizer, tools=TOOLS),
            "additional_special_tokens":
            tokenizer.special_tokens_map.get("additional_special_tokens", []),
            "eos":
            tokenizer.eos_token_id,
            "ids": encoded(tokenizer),
            "special":
            sorted(i for i, token in tokens.items() if token.special),
            "generation_eos":
            generation_ends(directory),
        }


def main() -> None:
    version = transformers.__version__.partition(".")[0]
    kept = {}
    if GOLDEN.exists():
        kept = {
            case["name"]: case
            for case in json.loads(GOLDEN.read_text(encoding="utf-8"))["cases"]
        }
    lines = []
    for case in directory_cases.cases():
        before = kept.get(case["name"], {})
        results = before.get("results", {}) if before.get("files") == case["files"] else {}
        results[version] = answer(case)
        line = {**case, "results": dict(sorted(results.items()))}
        lines.append(json.dumps(line, ensure_ascii=False))
    head = json.dumps({"messages": MESSAGES, "tools": TOOLS, "text": TEXT})[:-1]
    GOLDEN.write_text(head + ', "cases": [\n' + ",\n".join(lines) + "\n]}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
