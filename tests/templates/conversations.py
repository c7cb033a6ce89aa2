# SPDX-License-Identifier: Apache-2.0
"""Conversations with which a folder of chat templates is rendered."""

USER = {"role": "user", "content": "What is the weather in Paris?"}
ANSWER = {"role": "assistant", "content": "It is sunny.\n"}
SYSTEM = {"role": "system", "content": "Be brief.\n\nBe kind."}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look: "},
                                     {"type": "text", "text": "<b>é</b> 😀"}]}
ARGUMENTS = {"city": "Paris", "days": 3, "exact": True, "note": None, "list": [1.5, "a\"b"]}
CALL = {"id": "call_123456789", "type": "function",
        "function": {"name": "get_weather", "arguments": ARGUMENTS}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
TWO_CALLS = {"role": "assistant", "content": "", "tool_calls": [
    CALL, {**CALL, "id": "call_abcdefghi", "function": {"name": "now", "arguments": {}}}]}
WRITTEN_CALL = {"role": "assistant", "content": "I look.", "tool_calls": [
    {**CALL, "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}]}
RESULT = {"role": "tool", "tool_call_id": "call_123456789", "name": "get_weather",
          "content": "{\"sky\": \"clear\"}"}
THOUGHT = {"role": "assistant", "content": "Sunny.", "reasoning_content": "Let me think.\n"}
WRITTEN_THOUGHT = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSunny."}
TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.\nBy day.",
    "parameters": {"type": "object", "required": ["city"], "properties": {
        "city": {"type": "string", "description": "Its name, e.g. \"Köln\""},
        "days": {"type": ["integer", "null"], "minimum": 1, "default": None},
        "unit": {"enum": ["c", "f"]}, "list": {"type": "array", "items": {"type": "number"}},
        "place": {"type": "object", "properties": {"x": {"type": "number"}}}}}}},
         {"type": "function", "function": {"name": "now", "parameters": {
             "type": "object", "properties": {}}}}]

MESSAGES = {
    "user": [USER], "system": [SYSTEM, USER], "turns": [USER, ANSWER, USER],
    "system and turns": [SYSTEM, USER, ANSWER, USER], "parts": [PARTS],
    "empty content": [{"role": "user", "content": ""}], "spaces": [{"role": "user",
                                                                   "content": "  x \n"}],
    "call": [USER, CALLS, RESULT], "two calls": [SYSTEM, USER, TWO_CALLS, RESULT, RESULT],
    "call and answer": [USER, CALLS, RESULT, ANSWER, USER],
    "written call": [USER, WRITTEN_CALL, RESULT], "thought": [USER, THOUGHT, USER],
    "written thought": [USER, WRITTEN_THOUGHT, USER], "none": [USER, {"role": "assistant",
                                                                     "content": None}],
    "two users": [USER, USER], "answer first": [ANSWER, USER], "answer last": [USER, ANSWER],
    "developer": [{"role": "developer", "content": "Be brief."}, USER],
    "late system": [USER, SYSTEM, USER], "nothing": [],
}


def conversations() -> dict[str, dict]:
    """The variables of each, by name."""
    found = {}
    for name, messages in MESSAGES.items():
        tokens = {"bos_token": "<s>", "eos_token": "</s>"}
        found[name] = {"messages": messages, **tokens}
        found[f"{name}, tools"] = {"messages": messages, "tools": TOOLS, **tokens}
        found[f"{name}, thinking"] = {"messages": messages, "enable_thinking": False, **tokens}
    return found
