# SPDX-License-Identifier: Apache-2.0
"""Claude Code itself, `claude -p`, against the Messages API of this server.

| answers text | plain, as JSON, streamed as JSON; in a second turn of the session |
| runs its tools | Bash and Read, results sent back by it, until the last answer |
| loads a deferred tool | ToolSearch; its `tool_reference` blocks go back |
| thinks | a `thinking` block, sent back in the next turn with its signature |
| keeps its prefix | another prompt finds the instructions whose billing header differs |
| sees errors as its vendor's | prompt too long for the bundled model, wrong key, unknown model |
"""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import urllib.request

from checks import DEMO, KEYED, SCRIPTED, check, run, same, true

PROGRAM = (pathlib.Path(os.environ["INSTALLED"]) / "node_modules/@anthropic-ai"
           / "claude-code-linux-x64" / "claude")
FOLDER = pathlib.Path(tempfile.mkdtemp(prefix="claude-", dir=os.environ["HOME"]))


def claude(prompt, *flags, url=SCRIPTED, model="scripted", key="none"):
    """The events of one run, parsed; the last one is the result."""
    environment = {**os.environ, "ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key,
                   "ANTHROPIC_MODEL": model, "ANTHROPIC_SMALL_FAST_MODEL": model,
                   "CLAUDE_CODE_MAX_RETRIES": "0"}
    done = subprocess.run([PROGRAM, "-p", prompt, "--output-format", "stream-json", "--verbose",
                           *flags], env=environment, cwd=FOLDER, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=50)
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused():
    """How many of its requests SCRIPTED has refused; Claude Code retries with changed requests."""
    with urllib.request.urlopen(f"{SCRIPTED}/metrics") as reply:
        text = reply.read().decode()
    return sum(float(n) for n in re.findall(
        r'^diffserve_http_requests_total\{.*code="4\d\d".*\} (\S+)', text, re.M))


def result(events, refused_before):
    last = events[-1]
    true(not last["is_error"], f"Claude Code says: {last.get('result')}")
    same(refused(), refused_before, "refused requests")
    return last["result"]


def blocks(events, kind):
    found = []
    for event in events:
        content = event.get("message", {}).get("content", [])
        found += [b for b in content if isinstance(b, dict) and b.get("type") == kind]
    return found


@check
def answers_text():
    before = refused()
    same(result(claude("say #hello#"), before), "Hello there! Grüße, 世界 🙂.")


@check
def answers_in_a_second_turn_of_the_session():
    before = refused()
    claude("say #hello#")
    same(result(claude("and again", "--continue"), before), "And hello again.")


@check
def runs_its_tools_and_sends_their_results():
    before = refused()
    events = claude("do #claude#", "--allowedTools", "Bash", "Read")
    same(result(events, before), "The file says by-claude.")
    same([b["name"] for b in blocks(events, "tool_use")], ["Bash", "Read"])
    results = blocks(events, "tool_result")
    true("by-claude" in str(results[0]["content"]), f"result of Bash: {results[0]}")
    same(len(results), 2)


@check
def loads_a_deferred_tool():
    before = refused()
    same(result(claude("do #search#"), before), "The tool is loaded.")


@check
def thinks_and_sends_the_thinking_back():
    before = refused()
    events = claude("do #think#")
    same(result(events, before), "The answer is 4.")
    same([b["thinking"].strip() for b in blocks(events, "thinking")], ["First I think."])
    same(result(claude("and now?", "--continue"), before), "Still 4.")


@check
def finds_its_instructions_in_the_prefix_cache():
    claude("say #hello#")
    usage = claude("another prompt, another billing header: #hello#")[-1]["usage"]
    true(usage["cache_read_input_tokens"] >= 192, f"usage: {usage}")


@check
def is_held_to_a_schema():
    schema = {"type": "object", "properties": {"text": {"type": "string", "enum": ["yes", "no"]}},
              "required": ["text"], "additionalProperties": False}
    last = claude("answer #form#", "--json-schema", json.dumps(schema))[-1]
    same(last.get("structured_output"), {"text": "yes"}, f"of {last}: structured_output")


@check
def says_that_the_prompt_is_too_long():
    last = claude("hello", url=DEMO, model="diff")[-1]
    true(last["is_error"] and last["result"].startswith("Prompt is too long"),
         f"Claude Code says: {last['result']}")


@check
def says_that_the_key_is_wrong():
    last = claude("hello", url=KEYED, model="diff")[-1]
    same(last.get("api_error_status"), 401)


@check
def says_that_the_model_is_unknown():
    last = claude("hello", model="claude-none")[-1]
    same(last.get("api_error_status"), 404)


@check
def counts_the_tokens_of_what_it_sends():
    body = {"model": "scripted", "system": [{"type": "text", "text": "Be brief."}],
            "messages": [{"role": "user", "content": "hello"}], "betas": [],
            "tools": [{"name": "Bash", "input_schema": {"type": "object", "properties": {}}}]}
    request = urllib.request.Request(f"{SCRIPTED}/v1/messages/count_tokens?beta=true",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as reply:
        true(json.load(reply)["input_tokens"] > 0, "input_tokens")


run()
