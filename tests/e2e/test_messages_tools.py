# SPDX-License-Identifier: Apache-2.0
"""anthropic-python's tools against /v1/messages, on the bundled model, which is forced to call."""

import unittest

import anthropic

from server_process import DEMO_MODEL, ServerProcess

ASKED = [{"role": "user", "content": "How warm is it in Lisbon?"}]
WEATHER = {
    "name": "get_weather",
    "description": "The weather of a city.",
    "input_schema": {
        "type": "object", "additionalProperties": False, "required": ["unit", "city"],
        "properties": {"unit": {"enum": ["C", "F"]}, "city": {"enum": ["Lisbon", "Oslo"]}}
    }
}
CLOCK = {"name": "now", "input_schema": {"type": "object", "properties": {},
                                         "additionalProperties": False}}
NAMED = {"type": "tool", "name": "get_weather"}


def setUpModule():
    global client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", "--tool-call-parser", "hermes",
                      model=DEMO_MODEL))
    client = unittest.enterModuleContext(
        anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60))


def options(**changes):
    return {"model": "diff", "messages": ASKED, "max_tokens": 500, "tools": [WEATHER, CLOCK],
            "extra_body": {"temperature": 0}} | changes


class MessagesToolsTest(unittest.TestCase):
    def check_use(self, block):
        self.assertEqual((block.type, block.name), ("tool_use", "get_weather"))
        self.assertIn(block.input["city"], ("Lisbon", "Oslo"))
        self.assertIn(block.input["unit"], ("C", "F"))

    def test_named_tool_is_used_with_its_schema(self):
        message = client.messages.create(**options(tool_choice=NAMED))
        self.assertEqual(message.stop_reason, "tool_use")
        block, = message.content
        self.check_use(block)

    def test_any_uses_one_of_the_tools(self):
        message = client.messages.create(**options(
            tool_choice={"type": "any", "disable_parallel_tool_use": True}))
        block, = message.content
        self.assertIn(block.name, ("get_weather", "now"))

    def test_stream_has_the_input_in_pieces(self):
        whole, = client.messages.create(**options(tool_choice=NAMED)).content
        pieces = []
        with client.messages.stream(**options(tool_choice=NAMED)) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            final = stream.get_final_message()
        self.assertGreater(len(pieces), 2)
        block, = final.content
        self.check_use(block)
        self.assertEqual((block.input, final.stop_reason), (whole.input, "tool_use"))

    def test_conversation_continues_with_the_result(self):
        used = client.messages.create(**options(tool_choice=NAMED)).content
        messages = ASKED + [
            {"role": "assistant", "content": [block.model_dump() for block in used]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used[0].id,
                                          "content": "21"}]}]
        answer = client.messages.create(**options(messages=messages, max_tokens=20))
        self.assertEqual(answer.content[0].type, "text")
        counted = client.messages.count_tokens(model="diff", messages=messages,
                                               tools=[WEATHER, CLOCK]).input_tokens
        usage = answer.usage
        self.assertEqual(counted, usage.input_tokens + usage.cache_read_input_tokens)

    def test_output_format_is_kept_to(self):
        message = client.messages.create(**options(tools=[], extra_body={
            "temperature": 0, "output_config": {"format": {
                "type": "json_schema", "schema": WEATHER["input_schema"]}}}))
        self.assertRegex(message.content[0].text, r'^\{\s*"unit"\s*:\s*"[CF]"\s*,\s*"city"')


if __name__ == "__main__":
    unittest.main()
