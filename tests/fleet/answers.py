# SPDX-License-Identifier: Apache-2.0
"""Requests to a router and to a replica, and their answers without what differs between
requests."""

import json

from fleet import CHAT, COMPLETIONS, DEMO_MODEL

PROMPT = "The magic number of Lisbon is 48213. What is the magic number of Lisbon?"
MESSAGES = [{"role": "system", "content": "You are brief."},
            {"role": "user", "content": "Who are you?"}]
SEEDED = {
    "temperature": 0.7, "seed": 7, "top_p": 0.9, "top_k": 40, "min_p": 0.05,
    "repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.1, "ignore_eos": True
}
GREEDY = {"temperature": 0, "ignore_eos": True}


def completion(**fields):
    return COMPLETIONS, {"model": DEMO_MODEL.name, "prompt": PROMPT, "max_tokens": 8, **fields}


def chat(**fields):
    return CHAT, {"model": DEMO_MODEL.name, "messages": MESSAGES, "max_tokens": 8, **fields}


ANSWERED = {
    "greedy": completion(**GREEDY, logprobs=5, max_tokens=24),
    "seeded": completion(**SEEDED, logprobs=2, max_tokens=24),
    "two choices": completion(**SEEDED, logprobs=1, n=2),
    "a seed of 63 bits": completion(temperature=1, seed=2**62 + 12345, logprobs=1),
    "two prompts": completion(**GREEDY, prompt=[PROMPT, "Who are you?"], logprobs=1),
    "token ids": completion(**GREEDY, prompt=[5, 6, 7, 8], logprobs=1),
    "stop strings": completion(**GREEDY, stop=["e", "1"], include_stop_str_in_output=True,
                               min_tokens=2, logprobs=0),
    "logit bias": completion(**GREEDY, logit_bias={"100": 5.5, "200": -100}, logprobs=1),
    "cache salt": completion(**GREEDY, cache_salt="a", logprobs=1),
    "chat": chat(temperature=0, logprobs=True, top_logprobs=3, max_tokens=24),
    "seeded chat": chat(**SEEDED, logprobs=True, top_logprobs=1, max_tokens=24),
    "chat of parts": chat(
        temperature=0, messages=[{
            "role": "user", "content": [{"type": "text", "text": "Who are"},
                                        {"type": "text", "text": " you?"}]
        }]),
    "a response format": chat(temperature=0, response_format={"type": "json_object"},
                              logprobs=True, max_tokens=12),
    "max_completion_tokens": chat(temperature=0, max_completion_tokens=5, logprobs=True),
}
NOT_STREAMED = {
    "echo": completion(**GREEDY, echo=True, logprobs=1),
    "prompt log-probabilities": completion(**GREEDY, prompt_logprobs=1),
}
REFUSED = {  # by a replica; what a router refuses by rules of its own is in OWN_RULES
    "a prompt that is too long": completion(prompt="word " * 4000),
    "a chat that is too long": chat(messages=[{"role": "user", "content": "word " * 4000}]),
    "too many tokens asked for": completion(max_tokens=400000),
    "a tool's name that is none": chat(tools=[{
        "type": "function", "function": {"name": "f g", "parameters": {}}}]),
    "a schema that is none": chat(response_format={
        "type": "json_schema", "json_schema": {"name": "f", "schema": {"type": "nothing"}}
    }),
    "a salt that is a number": completion(cache_salt=5),
}
OWN_RULES = {
    "no such model": completion(model="unknown"),
    "a negative temperature": completion(temperature=-1.0),
    "top_p above 1": completion(top_p=2.0),
    "too many choices": completion(n=5000),
    "too many log-probabilities": completion(logprobs=500),
    "an unknown role": chat(messages=[{"role": "robot", "content": "x"}]),
    "no message": chat(messages=[]),
    "too many stop strings": completion(stop=["a"] * 100),
    "no prompt": (COMPLETIONS, {"model": DEMO_MODEL.name, "max_tokens": 4}),
}


def stripped(value):
    """A reply without ids and times of this request, and without what depends on the cache."""
    if isinstance(value, dict):
        return {
            k: stripped(v)
            for k, v in value.items() if k not in ("id", "created", "prompt_tokens_details")
        }
    return [stripped(item) for item in value] if isinstance(value, list) else value


def whole(response):
    return response.status, stripped(response.json())


def streamed(response):
    """A stream joined by choice: text, log-probabilities and finish. Chunk borders are not part of
    it."""
    choices, usage, done = {}, None, False
    for line in response.body.decode().split("\n"):
        if line == "data: [DONE]":
            done = True
        elif line.startswith("data: "):
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk.get("choices", ()):
                _add(
                    choices.setdefault(choice["index"],
                                       {"text": "", "logprobs": [], "finish": None}), choice)
    return response.status, choices, stripped(usage), done


def _add(to: dict, choice: dict) -> None:
    to["text"] += choice.get("text") or choice.get("delta", {}).get("content") or ""
    logprobs = choice.get("logprobs") or {}
    if "content" in logprobs:
        to["logprobs"] += logprobs["content"]
    elif logprobs:
        to["logprobs"] += zip(logprobs["tokens"], logprobs["token_logprobs"],
                              logprobs["top_logprobs"] or logprobs["tokens"])
    if choice.get("finish_reason"):
        to["finish"] = choice["finish_reason"], choice.get("stop_reason")
