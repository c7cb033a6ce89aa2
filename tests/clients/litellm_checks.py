# SPDX-License-Identifier: Apache-2.0
"""litellm, with the providers that its users choose for such servers: `openai/`, `hosted_vllm/`,
`anthropic/`, and its Responses and Messages bridges.

| each provider | completion, stream, tools with its messages sent back, reasoning, a form |
| errors | ContextWindowExceededError, AuthenticationError, NotFoundError, a full server |
| others | acompletion, text_completion, embedding, responses, drop_params |
"""

import http.client
import json
import select
import socket
import threading
import urllib.parse

import litellm
import pydantic

from checks import DEMO, FULL, KEYED, SCRIPTED, check, raises, run, same, true

litellm.suppress_debug_info = True
PROVIDERS = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": ""}
TOOLS = [{"type": "function", "function": {
    "name": name, "description": name, "parameters": {
        "type": "object", "properties": {key: {"type": "string"}}}}}
    for name, key in (("get_weather", "city"), ("get_time", "zone"), ("list_cities", "none"))]
LOOPS = {"weather": "It is 21 degrees in Paris.", "two": "Oslo 3, Lima 18.",
         "chain": "Mild at noon.", "empty": "None.", "plan": "Rome has 30 degrees."}


class Shape(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: bool
    note: str | None = pydantic.Field(max_length=4)


def ask(provider, url=SCRIPTED, model="scripted", content="#hello#", **more):
    arguments = {"model": f"{provider}/{model}", "api_base": url + PROVIDERS[provider],
                 "api_key": "none", "max_retries": 0, "timeout": 50,
                 "messages": [{"role": "user", "content": content}]}
    return litellm.completion(**{**arguments, **more})


def for_each_provider(function):
    for provider in PROVIDERS:
        def one(provider=provider):
            function(provider)
        one.__name__ = f"{provider}_{function.__name__}"
        check(one)


@for_each_provider
def text(provider):
    answer = ask(provider)
    same(answer.choices[0].message.content, "Hello there! Grüße, 世界 🙂.")
    true(answer.usage.completion_tokens > 0, "usage")


@for_each_provider
def stream(provider):
    chunks = list(ask(provider, stream=True, stream_options={"include_usage": True}))
    same("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
         "Hello there! Grüße, 世界 🙂.")


@for_each_provider
def tools(provider):
    for script, said in LOOPS.items():
        messages = [{"role": "user", "content": f"#{script}#"}]
        for _ in range(4):
            message = ask(provider, messages=messages, tools=TOOLS).choices[0].message
            messages.append(message.model_dump())
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                json.loads(call.function.arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "done"})
        same(message.content, said, f"the end of {script}")


@for_each_provider
def reasoning_and_a_second_turn(provider):
    messages = [{"role": "user", "content": "#think#"}]
    message = ask(provider, messages=messages).choices[0].message
    same((message.reasoning_content or "").strip(), "First I think.")
    messages += [message.model_dump(), {"role": "user", "content": "And now?"}]
    same(ask(provider, messages=messages).choices[0].message.content, "Still 4.")


@for_each_provider
def reasoning_cut_off_and_a_second_turn(provider):
    messages = [{"role": "user", "content": "#think#"}]
    message = ask(provider, messages=messages, max_tokens=4).choices[0].message
    messages += [message.model_dump(), {"role": "user", "content": "Go on."}]
    ask(provider, messages=messages)


@check
def reasoning_effort_is_taken():
    for provider in ("openai", "hosted_vllm"):
        answer = ask(provider, content="#think#", reasoning_effort="low")
        same(answer.choices[0].message.content, "The answer is 4.", provider)


@for_each_provider
def form(provider):
    answer = ask(provider, DEMO, "diff", max_tokens=200, response_format=Shape)
    Shape.model_validate_json(answer.choices[0].message.content)


@for_each_provider
def context_overflow(provider):
    raises(litellm.ContextWindowExceededError,
           lambda: ask(provider, DEMO, "diff", "magic " * 3000))


@check
def context_overflow_of_a_responses_stream():
    # For an unknown model, litellm requests no stream and simulates one.
    for knows in (False, True):
        litellm.register_model({"diff": {"litellm_provider": "openai",
                                         "supports_native_streaming": knows}})
        raises(litellm.ContextWindowExceededError, lambda: list(litellm.responses(
            model="openai/diff", api_base=DEMO + "/v1", api_key="none", max_retries=0, stream=True,
            input="magic " * 3000)))


@for_each_provider
def wrong_key(provider):
    raises(litellm.AuthenticationError, lambda: ask(provider, KEYED, "diff"))


@for_each_provider
def unknown_model(provider):
    raises(litellm.NotFoundError, lambda: ask(provider, model="none"))


def fill():
    """Fills FULL until it refuses; returns a function that ends this work."""
    body = json.dumps({"model": "scripted", "prompt": "a", "max_tokens": 8000,
                       "ignore_eos": True, "stream": True})
    address = urllib.parse.urlsplit(FULL)
    held = [http.client.HTTPConnection(address.hostname, address.port) for _ in range(12)]
    unread, statuses = {}, []
    for connection in held:
        connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        unread[connection.sock] = connection
        if connection is held[0]:  # runs, so that no place in the queue becomes free
            select.select([connection.sock], [], [])
    while 429 not in statuses:
        for sock in select.select([*unread], [], [])[0]:
            statuses.append(unread.pop(sock).getresponse().status)
    return lambda: [sock.shutdown(socket.SHUT_RDWR) for sock in unread]


@for_each_provider
def full_server_is_retried(provider):
    release = fill()
    threading.Timer(0.3, release).start()
    answer = ask(provider, FULL, num_retries=6)
    same(answer.choices[0].message.content, "Hello there! Grüße, 世界 🙂.")


@check
async def acompletion_streams():
    pieces = await litellm.acompletion(model="openai/scripted", api_base=f"{SCRIPTED}/v1",
                                       api_key="none", stream=True,
                                       messages=[{"role": "user", "content": "#hello#"}])
    said = [piece.choices[0].delta.content or "" async for piece in pieces]
    same("".join(said), "Hello there! Grüße, 世界 🙂.")


@check
def text_completion():
    answer = litellm.text_completion(model="text-completion-openai/diff", api_base=f"{DEMO}/v1",
                                     api_key="none", prompt="The magic number", max_tokens=3)
    true(answer.choices[0].text, "text")


@check
def embedding():
    for inputs in (["a"], ["a"] * 300):
        answer = litellm.embedding(model="openai/diff", api_base=f"{DEMO}/v1", api_key="none",
                                   input=inputs, encoding_format="float")
        same(len(answer.data), len(inputs))


@check
def responses():
    answer = litellm.responses(model="openai/scripted", api_base=f"{SCRIPTED}/v1", api_key="none",
                               input="#think#")
    same(answer.output[-1].content[0].text, "The answer is 4.")


@check
def messages_bridge_to_chat():
    answer = litellm.anthropic.messages.create(
        model="hosted_vllm/scripted", api_base=f"{SCRIPTED}/v1", api_key="none", max_tokens=99,
        messages=[{"role": "user", "content": "#hello#"}])
    same(answer["content"][0]["text"], "Hello there! Grüße, 世界 🙂.")


run()
