# SPDX-License-Identifier: Apache-2.0
"""openai-python's tools against /v1/chat/completions, and the same over gRPC. The model is tiny, so
calls are forced."""

import json
import unittest

import grpc
import openai

from grpc_client import channel, pb, pb_grpc
from server_process import ServerProcess

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["unit"],
                   "properties": {"unit": {"type": "string", "enum": ["C", "F"]}}}}}
CLOCK = {"type": "function", "function": {"name": "now"}}
QUESTION = [{"role": "user", "content": "How warm is it?"}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def setUpModule():
    global server, client
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "my-model", "--tool-call-parser", "hermes"))
    client = unittest.enterModuleContext(
        openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60))


def chat(messages, **options):
    options = {"temperature": 0, "max_tokens": 200, "tools": [WEATHER, CLOCK]} | options
    return client.chat.completions.create(model="my-model", messages=messages, **options)


class ToolsTest(unittest.TestCase):
    def test_named_functions_arguments_validate(self):
        choice = chat(QUESTION, tool_choice=NAMED).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        call, = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertIn(json.loads(call.function.arguments), [{"unit": "C"}, {"unit": "F"}])

    def test_required_calls_one_of_the_tools(self):
        choice = chat(QUESTION, tool_choice="required", parallel_tool_calls=False).choices[0]
        call, = choice.message.tool_calls
        self.assertIn(call.function.name, ("get_weather", "now"))
        json.loads(call.function.arguments)

    def test_stream_has_the_deltas_of_the_whole(self):
        whole = chat(QUESTION, tool_choice=NAMED).choices[0].message.tool_calls[0].function
        name, arguments, finish = None, "", None
        for chunk in chat(QUESTION, tool_choice=NAMED, stream=True):
            choice = chunk.choices[0]
            finish = choice.finish_reason or finish
            for call in choice.delta.tool_calls or []:
                self.assertEqual(call.index, 0)
                name = call.function.name or name
                arguments += call.function.arguments or ""
        self.assertEqual((name, arguments, finish), (whole.name, whole.arguments, "tool_calls"))

    def test_conversation_continues_with_the_tools_answer(self):
        message = chat(QUESTION, tool_choice=NAMED).choices[0].message
        messages = QUESTION + [message.model_dump(exclude_none=True), {
            "role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21"}]
        choice = chat(messages, tool_choice="none", max_tokens=5).choices[0]
        self.assertIsNone(choice.message.tool_calls)
        self.assertEqual(choice.message.role, "assistant")

    def test_auto_without_a_parser_is_refused(self):
        with ServerProcess("--served-model-name", "my-model", "--tool-call-parser",
                           "none") as plain:
            other = client.with_options(base_url=plain.url + "/v1")
            with self.assertRaises(openai.BadRequestError) as caught:
                other.chat.completions.create(model="my-model", messages=QUESTION, tools=[CLOCK])
        self.assertEqual(caught.exception.param, "tool_choice")


class GrpcToolsTest(unittest.TestCase):
    def setUp(self):
        self.stub = pb_grpc.InferenceStub(self.enterContext(channel(server)))

    def request(self, **choice):
        return pb.GenerateRequest(
            chat=pb.Chat(messages=[pb.ChatMessage(**QUESTION[0])],
                         tools_json=json.dumps([WEATHER, CLOCK])),
            tool_choice=pb.ToolChoice(**choice), sampling=pb.SamplingParams(temperature=0),
            stopping=pb.StoppingParams(max_tokens=200))

    def test_call_is_the_one_over_http(self):
        expected = chat(QUESTION, tool_choice=NAMED).choices[0].message.tool_calls[0].function
        events = list(self.stub.Generate(self.request(function="get_weather")))
        pieces = [piece for event in events for piece in event.delta.tool_calls]
        self.assertTrue(pieces[0].id)
        self.assertEqual([piece.name for piece in pieces if piece.name], ["get_weather"])
        self.assertEqual("".join(piece.arguments for piece in pieces), expected.arguments)
        self.assertEqual("".join(event.delta.text for event in events), "")
        finish, = (event.finish for event in events if event.HasField("finish"))
        self.assertEqual(finish.reason, pb.FINISH_REASON_TOOL_CALLS)

    def test_unknown_function_is_refused(self):
        with self.assertRaises(grpc.RpcError) as caught:
            list(self.stub.Generate(self.request(function="get_time")))
        self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT)
        self.assertIn("get_time", caught.exception.details())


if __name__ == "__main__":
    unittest.main()
