#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What answers that are held to a form do to the steps of those that are not.

    constrained_streams.py [--layers 0] [--rounds 5] [--json FILE]

Four plain completions run beside four companions, which are plain too or held to a form. A round
has each kind of companion once. Prints one JSON object: a step's mean time with plain companions
and the time it takes longer with the others, each the median of the rounds; exit code 1 if a
request failed. The bundled model, or a larger one of --layers.
"""

import argparse
import asyncio
import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS / "reliability"), str(TESTS / "e2e")]
import slow_model  # noqa: E402
from http_load import Client  # noqa: E402
from server_process import ServerProcess  # noqa: E402

ANSWERS = 4
TOKENS = 256
# None of them can end before TOKENS.
FORMS = {
    "plain": {},
    "json_schema": {"guided_json": {
        "type": "array", "minItems": 1000, "items": {
            "type": "object", "properties": {
                "name": {"type": "string", "maxLength": 20}, "count": {"type": "integer"},
                "kind": {"enum": ["red", "green", "blue"]}
            }, "required": ["name", "count", "kind"], "additionalProperties": False
        }
    }},
    "regex": {"guided_regex": "([a-z]+@[a-z]+[.](com|org) [0-9]{1,3}(,[0-9]{3})* ){1000}"},
    "grammar": {"guided_grammar": 'start: (WORD " " NUMBER "\\n")+\nWORD: /[A-Z][a-z]+/\n'
                                  'NUMBER: /[1-9][0-9]*/\n'},
}  # yapf: disable


def request(number: int, form: dict) -> dict:
    return {
        "prompt": [5 + (number * 37 + i * 11) % 1700 for i in range(32)], "max_tokens": TOKENS,
        "min_tokens": TOKENS, "temperature": 1, "seed": number, **form
    }


async def steps(client: Client) -> tuple[float, float]:
    """How many, and the seconds of all their phases."""
    text = (await client.get("/metrics")).body.decode()
    found = re.findall(r'^diffserve_step_phase_seconds_(count|sum)\{phase="\w+"\} (\S+)$', text,
                       re.MULTILINE)
    return (max(float(value) for kind, value in found if kind == "count"),
            sum(float(value) for kind, value in found if kind == "sum"))


async def step_ms(client: Client, form: dict, round_number: int) -> float:
    """The mean of the steps in which all eight run or end."""
    first = 100 * round_number
    before = await steps(client)
    replies = await asyncio.gather(*(client.post("/v1/completions", request(
        first + i, form if i < ANSWERS else {})) for i in range(2 * ANSWERS)))
    after = await steps(client)
    for reply in replies:
        if reply.status != 200 or reply.json()["usage"]["completion_tokens"] != TOKENS:
            raise RuntimeError(f"status {reply.status}: {reply.body[:300]!r}")
    return 1000 * (after[1] - before[1]) / (after[0] - before[0])


async def run(port: int, rounds: int) -> dict:
    client = Client(port)
    times = {name: [] for name in FORMS}
    for name in FORMS:  # what is made at the first use
        await step_ms(client, FORMS[name], 1000)
    for round_number in range(rounds):
        for name in FORMS:
            times[name].append(await step_ms(client, FORMS[name], round_number))
    client.close()
    plain = times.pop("plain")
    return {
        "step_ms_beside_plain": round(statistics.median(plain), 3),
        "step_us_more_beside": {
            name: round(1000 * statistics.median(a - b for a, b in zip(of_form, plain)), 1)
            for name, of_form in times.items()
        }, "rounds": rounds
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=0, help="of the model; 0: the bundled one")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        flags, model = ["--log-level", "error"], slow_model.DEMO_MODEL
        if arguments.layers > 0:
            model = slow_model.make(Path(directory) / "model", arguments.layers)
            flags += ["--load-format", "dummy", "--dtype", "bfloat16"]
        with ServerProcess(*flags, model=model) as server:
            result = asyncio.run(run(server.port, arguments.rounds))
    print(json.dumps(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
