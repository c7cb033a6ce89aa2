# SPDX-License-Identifier: Apache-2.0
"""Weights are replaced, cut or removed at a random moment while a program loads them: it answers
as one of the two models does, or ends with one line. tests/e2e/test_replaced_model.py tests
servers that have loaded their model. Weights that are overwritten in place are not tested: a
half-written file that does not change while it is read looks like any other."""

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import tiny_model
from server_process import BINARY

CONFIG = tiny_model.CONFIG | {"intermediate_size": 8192, "num_hidden_layers": 4}
WEIGHTS = "model.safetensors"
GENERATE = ("--prompt", "once upon a time", "--max-tokens", "12", "--ignore-eos")


def rename_over(weights: Path, other: Path) -> None:
    shutil.copy(other, weights.with_name("new"))
    os.replace(weights.with_name("new"), weights)


def cut(weights: Path, _) -> None:
    os.truncate(weights, weights.stat().st_size // 2)


def remove(weights: Path, _) -> None:
    weights.unlink()


def start(model: Path) -> subprocess.Popen:
    return subprocess.Popen([BINARY, "generate", model, *GENERATE], stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def models(folder: Path) -> tuple[Path, Path]:
    """Two models of the same shape with other weights, and their answers."""
    for seed, name in ((1, "first"), (2, "second")):
        tiny_model.write(folder / name, CONFIG)
        (folder / name / WEIGHTS).write_bytes(
            tiny_model.safetensors_bytes(tiny_model.weights(CONFIG, seed)))
    return folder / "first", folder / "second"


def change_while_loading(model: Path, other: Path, change, rng: random.Random,
                         load_s: float) -> tuple[int, bytes, str]:
    """Returns exit code, answer and error."""
    process = start(model)
    time.sleep(rng.random() * load_s)
    change(model / WEIGHTS, other / WEIGHTS)
    answer, error = process.communicate(timeout=60)
    return process.returncode, answer, error.decode()


def run(arguments) -> dict:
    ends, problems = Counter(), []
    times = 10 if arguments.quick else 100
    with tempfile.TemporaryDirectory() as directory:
        first, second = models(Path(directory))
        begin = time.monotonic()
        answers = {start(model).communicate()[0]: model.name for model in (first, second)}
        load_s = (time.monotonic() - begin) / 2
        if len(answers) != 2:
            raise AssertionError("both models answer the same")
        for change in (rename_over, cut, remove):
            for number in range(times):
                model = Path(directory) / "model"
                shutil.copytree(first, model)
                code, answer, error = change_while_loading(model, second, change,
                                                           random.Random(number), load_s)
                if code == 0 and answer in answers:
                    ends[f"{change.__name__}: the {answers[answer]} model's answer"] += 1
                elif code == 1 and answer == b"" and len(error.splitlines()) == 1:
                    ends[f"{change.__name__}: refused"] += 1
                else:
                    problems.append(f"{change.__name__}: exit code {code}, {answer!r}, {error!r}")
                shutil.rmtree(model)
    return {"loads": 3 * times, "ends": dict(sorted(ends.items())), "problems": problems}
