"""Claude Code itself, `claude -p`, against the Messages API of this server.

| answers text                 | plain, as JSON, streamed as JSON; in a second turn of the session      |
| runs its tools               | Bash and Read, results sent back by it, until the last answer          |
| loads a deferred tool        | ToolSearch; its `tool_reference` blocks go back                        |
| thinks                       | a `thinking` block, sent back in the next turn with its signature      |
| keeps the prefix cache       | a second run finds the first one's prompt in spite of its changed      |
|                              | billing header                                                         |
| sees errors as its vendor's  | prompt too long for the bundled model, wrong key, unknown model        |
"""

import json
import os
import pathlib
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


def result(events):
    last = events[-1]
    true(not last["is_error"], f"Claude Code says: {last.get('result')}")
    return last["result"]


def blocks(events, kind):
    found = []
    for event in events:
        content = event.get("message", {}).get("content", [])
        found += [b for b in content if isinstance(b, dict) and b.get("type") == kind]
    return found


@check
def answers_text():
    same(result(claude("say #hello#")), "Hello there! Grüße, 世界 🙂.")


@check
def answers_in_a_second_turn_of_the_session():
    claude("say #hello#")
    same(result(claude("and again", "--continue")), "And hello again.")


@check
def runs_its_tools_and_sends_their_results():
    events = claude("do #claude#", "--allowedTools", "Bash", "Read")
    same(result(events), "The file says by-claude.")
    same([b["name"] for b in blocks(events, "tool_use")], ["Bash", "Read"])
    results = blocks(events, "tool_result")
    true("by-claude" in str(results[0]["content"]), f"result of Bash: {results[0]}")
    same(len(results), 2)


@check
def loads_a_deferred_tool():
    same(result(claude("do #search#")), "The tool is loaded.")


@check
def thinks_and_sends_the_thinking_back():
    events = claude("do #think#")
    same(result(events), "The answer is 4.")
    same([b["thinking"].strip() for b in blocks(events, "thinking")], ["First I think."])
    same(result(claude("and now?", "--continue")), "Still 4.")


@check
def finds_the_prompt_of_another_run_in_the_prefix_cache():
    claude("say #hello#")
    usage = claude("say #hello#")[-1]["usage"]
    true(usage["cache_read_input_tokens"] > usage["input_tokens"], f"usage: {usage}")


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
