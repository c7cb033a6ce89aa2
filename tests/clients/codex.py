# SPDX-License-Identifier: Apache-2.0
"""codex itself, `codex exec`, against the Responses API of this server.

| answers text | with its own tools of all types in the request |
| runs a command | reasoning, a call, its output sent back with the reasoning item |
| continues | `codex exec resume --last` |
| keeps to a format | `--output-schema FILE`, together with its tools |
| sees errors | context overflow of the bundled model, wrong key, unknown model |
"""

import json
import os
import pathlib
import subprocess
import tempfile

from checks import DEMO, KEYED, SCRIPTED, check, run, same, true

PROGRAM = next((pathlib.Path(os.environ["INSTALLED"])
                / "node_modules/@openai/codex-linux-x64/vendor").glob("*/bin/codex"))
HOME = pathlib.Path(tempfile.mkdtemp(prefix="codex-", dir=os.environ["HOME"]))
FOLDER = HOME / "work"
FOLDER.mkdir()
CONFIG = """\
model = "{model}"
model_provider = "diffserve"
check_for_update_on_startup = false
[analytics]
enabled = false
[model_providers.diffserve]
name = "diffserve"
base_url = "{url}/v1"
wire_api = "responses"
{access}
request_max_retries = 0
stream_max_retries = 0
"""
KEY = 'env_key = "DIFFSERVE_KEY"'
# With a command for the key, Codex asks for the provider's models.
COMMAND = 'auth = { command = "echo", args = ["none"] }'


def run_codex(*arguments, url=SCRIPTED, model="scripted", key="none", access=KEY):
    (HOME / "config.toml").write_text(CONFIG.format(model=model, url=url, access=access))
    environment = {**os.environ, "CODEX_HOME": str(HOME), "DIFFSERVE_KEY": key}
    return subprocess.run([PROGRAM, "exec", "--skip-git-repo-check", "--json", *arguments],
                          env=environment, cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=50)


def codex(*arguments, **options):
    """The events of one run, parsed."""
    done = run_codex(*arguments, **options)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def items(events, kind):
    return [e["item"] for e in events if e["type"] == "item.completed"
            and e["item"]["type"] == kind]


def failure(events):
    failed = [e for e in events if e["type"] == "turn.failed"]
    true(failed, f"the turn did not fail: {events[-1]}")
    return failed[0]["error"]["message"]


def text(events):
    true(events[-1]["type"] == "turn.completed", f"codex says: {events[-1]}")
    return items(events, "agent_message")[-1]["text"]


@check
def answers_text():
    same(text(codex("say #hello#")), "Hello there! Grüße, 世界 🙂.")


@check
def runs_a_command_and_sends_its_output():
    events = codex("do #codex#", "--sandbox", "danger-full-access")
    same(text(events), "The file says by-codex.")
    ran = items(events, "command_execution")
    same([(r["exit_code"], r["aggregated_output"]) for r in ran], [(0, "by-codex\n")])
    true(events[-1]["usage"]["reasoning_output_tokens"] > 0, f"usage: {events[-1]['usage']}")


@check
def continues_a_session():
    codex("say #hello#")
    same(text(codex("resume", "--last", "and again")), "And hello again.")


@check
def is_held_to_a_schema():
    schema = {"type": "object", "properties": {"text": {"type": "string", "enum": ["yes", "no"]}},
              "required": ["text"], "additionalProperties": False}
    (HOME / "schema.json").write_text(json.dumps(schema))
    said = text(codex("answer", "--output-schema", str(HOME / "schema.json")))
    true(json.loads(said)["text"] in ("yes", "no"), said)


@check
def knows_the_model_from_the_list():
    done = run_codex("say #hello#", access=COMMAND)
    said = done.stdout + done.stderr
    for words in ("failed to refresh", "Model metadata", "fallback"):
        true(words not in said, f"codex says: {said}")
    cached = json.loads((HOME / "models_cache.json").read_text())["models"]
    same([model["slug"] for model in cached], ["scripted"])


@check
def sees_that_the_prompt_is_too_long():
    message = failure(codex("hello", url=DEMO, model="diff"))
    true("ran out of room in the model's context window" in message, f"codex says: {message}")


@check
def sees_that_the_key_is_wrong():
    true("401" in (message := failure(codex("hello", url=KEYED, model="diff"))), message)


@check
def sees_that_the_model_is_unknown():
    message = failure(codex("hello", model="gpt-none"))
    true("gpt-none" in message, f"codex says: {message}")


run()
