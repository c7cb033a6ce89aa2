# SPDX-License-Identifier: Apache-2.0
"""openai-python's own parsing of answers into pydantic models, over chat and responses, and its
streamed tools, on the bundled model. The model is tiny, so its output is forced."""

import unittest
from enum import Enum
from typing import Literal

import openai
from pydantic import BaseModel, Field

from server_process import DEMO_MODEL, ServerProcess

QUESTION = "The magic number of Lisbon is 48213. What is the magic number of Lisbon?"
ASKED = [{"role": "user", "content": QUESTION}]


class Kind(str, Enum):
    magic = "magic"
    plain = "plain"


class City(BaseModel):
    name: str = Field(max_length=12)
    country: Literal["Portugal", "Norway"]


class Fact(BaseModel):
    """What an answer is made of."""
    city: City
    number: int = Field(ge=0, le=99999)
    kind: Kind
    tags: list[Literal["a", "b"]] = Field(max_length=2)
    note: str | None = Field(max_length=8)


class Weather(BaseModel):
    """The weather of a city."""
    unit: Literal["C", "F"]
    days: int = Field(ge=1, le=7)


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", model=DEMO_MODEL))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


class ChatParseTest(unittest.TestCase):
    def test_pydantic_model_is_parsed(self):
        for temperature in (0, 1.5):
            choice = client.chat.completions.parse(model="diff", messages=ASKED, seed=3,
                                                   temperature=temperature, max_tokens=900,
                                                   response_format=Fact).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            self.assertIsInstance(choice.message.parsed, Fact)
            self.assertEqual(Fact.model_validate_json(choice.message.content),
                             choice.message.parsed)

    def test_cut_answer_is_reported(self):
        with self.assertRaises(openai.LengthFinishReasonError):
            client.chat.completions.parse(model="diff", messages=ASKED, temperature=0,
                                          max_tokens=3, response_format=Fact)

    def test_parsed_tool(self):
        tool = openai.pydantic_function_tool(Weather)
        choice = client.chat.completions.parse(
            model="diff", messages=ASKED, temperature=0, max_tokens=600, tools=[tool],
            tool_choice={"type": "function", "function": {"name": "Weather"}}).choices[0]
        call, = choice.message.tool_calls
        self.assertIsInstance(call.function.parsed_arguments, Weather)
        self.assertEqual(choice.finish_reason, "tool_calls")

    def test_stream_parses_to_the_same(self):
        whole = client.chat.completions.parse(model="diff", messages=ASKED, temperature=0,
                                              max_tokens=900, response_format=Fact)
        with client.chat.completions.stream(model="diff", messages=ASKED, temperature=0,
                                            max_tokens=900, response_format=Fact) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_completion()
        self.assertLessEqual({"chunk", "content.delta", "content.done"}, kinds)
        self.assertEqual(final.choices[0].message.parsed, whole.choices[0].message.parsed)

    def test_streamed_tools_come_in_deltas(self):
        tool = openai.pydantic_function_tool(Weather)
        with client.chat.completions.stream(
                model="diff", messages=ASKED, temperature=0, max_tokens=600, tools=[tool],
                tool_choice="required", parallel_tool_calls=False) as stream:
            events = [event for event in stream if event.type.startswith("tool_calls")]
            final = stream.get_final_completion().choices[0]
        deltas = [event.arguments_delta for event in events
                  if event.type == "tool_calls.function.arguments.delta"]
        done, = (event for event in events if event.type == "tool_calls.function.arguments.done")
        self.assertGreater(len(deltas), 2)
        self.assertEqual("".join(deltas), done.arguments)
        self.assertEqual(done.parsed_arguments, Weather.model_validate_json(done.arguments))
        self.assertEqual((done.name, final.finish_reason), ("Weather", "tool_calls"))


class ResponsesParseTest(unittest.TestCase):
    def test_pydantic_model_is_parsed(self):
        response = client.responses.parse(model="diff", input=QUESTION, temperature=0,
                                          max_output_tokens=900, text_format=Fact)
        self.assertIsInstance(response.output_parsed, Fact)
        self.assertEqual(response.status, "completed")

    def test_stream_parses_to_the_same(self):
        options = dict(model="diff", input=QUESTION, temperature=0, max_output_tokens=900,
                       text_format=Fact)
        with client.responses.stream(**options) as stream:
            final = stream.get_final_response()
        self.assertEqual(final.output_parsed, client.responses.parse(**options).output_parsed)

    def test_call_is_answered_with_previous_response_id(self):
        tool = {"type": "function", "name": "weather", "strict": True,
                "description": Weather.__doc__, "parameters": openai.pydantic_function_tool(
                    Weather)["function"]["parameters"]}
        options = dict(model="diff", temperature=0, max_output_tokens=150, tools=[tool])
        first = client.responses.create(input=QUESTION, tool_choice="required",
                                        parallel_tool_calls=False, **options)
        call, = first.output
        self.assertEqual((call.type, call.name), ("function_call", "weather"))
        Weather.model_validate_json(call.arguments)
        second = client.responses.create(
            previous_response_id=first.id, tool_choice="none", input=[{
                "type": "function_call_output", "call_id": call.call_id, "output": "21"}],
            **options)
        self.assertEqual(second.previous_response_id, first.id)
        self.assertEqual(second.output[0].type, "message")
        self.assertGreater(second.usage.input_tokens, first.usage.input_tokens)
        with client.responses.stream(input="And then?", previous_response_id=second.id,
                                     tool_choice="none", **options) as stream:
            third = stream.get_final_response()
        self.assertGreater(third.usage.input_tokens, second.usage.total_tokens)


if __name__ == "__main__":
    unittest.main()
