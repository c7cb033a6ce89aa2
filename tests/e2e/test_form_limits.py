# SPDX-License-Identifier: Apache-2.0
"""Forms at their limits over every API: an answer that its form ends is final for clients, and
1,024 tools can be required."""

import json
import unittest

import parrot_model
from server_process import ServerProcess

HARD = "(((a{1,30}){20,30}){20,30}){20,30}"  # its work is too much after some tokens
HARD_SCHEMA = {"type": "string", "pattern": f"^{HARD}$"}
PARSERS = ("hermes", "llama3_json", "mistral", "qwen_xml")


def tool(number: int) -> dict:
    member = {"type": "integer", "minimum": 0, "maximum": 9}
    schema = {"type": "object", "description": "What it does. " * 20, "required": [f"n{number}"],
              "properties": {f"n{number}": member}, "additionalProperties": False}
    return {"type": "function", "function": {"name": f"tool_{number}", "parameters": schema}}


class AnswerThatItsFormEndsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(ServerProcess("--served-model-name", "m"))

    def post(self, path, **body):
        reply = self.server.post(path, {"model": "m", "temperature": 0, **body})
        self.assertEqual(reply.status, 200, reply.body)
        return reply

    def test_each_api_gives_the_tokens_and_a_reason_that_is_final(self):
        before = self.server.metric("diffserve_requests_cut_by_form_total")
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 400,
                "structured_outputs": {"regex": HARD}}
        whole = self.post("/v1/chat/completions", **chat).json()
        choice, usage = whole["choices"][0], whole["usage"]
        text = choice["message"]["content"]
        self.assertEqual((choice["finish_reason"], set(text)), ("length", {"a"}))
        self.assertTrue(0 < usage["completion_tokens"] < 400)
        stream = self.post("/v1/chat/completions", stream=True, **chat).body.decode()
        lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
        events = [json.loads(line) for line in lines]
        streamed = "".join(event["choices"][0]["delta"].get("content") or "" for event in events)
        self.assertEqual((streamed, events[-1]["choices"][0]["finish_reason"]), (text, "length"))
        self.assertTrue(stream.rstrip().endswith("[DONE]"))

        plain = self.post("/v1/completions", prompt="Hi", max_tokens=400,
                          structured_outputs={"regex": HARD}).json()["choices"][0]
        self.assertEqual((plain["finish_reason"], set(plain["text"])), ("length", {"a"}))

        form = {"type": "json_schema", "name": "x", "schema": HARD_SCHEMA}
        answer = self.post("/v1/responses", input="Hi", max_output_tokens=400,
                           text={"format": form}).json()
        self.assertEqual((answer["status"], answer["incomplete_details"]),
                         ("incomplete", {"reason": "max_output_tokens"}))

        message = self.post("/v1/messages", max_tokens=400, messages=chat["messages"],
                            output_config={"format": {"type": "json_schema",
                                                      "schema": HARD_SCHEMA}}).json()
        self.assertEqual(message["stop_reason"], "max_tokens")
        self.assertEqual(self.server.metric("diffserve_requests_cut_by_form_total"), before + 5)
        self.assertIn("answer_cut_by_form", self.server.stderr())
        self.assertIn("too many expressions", self.server.stderr())

    def test_server_stays_ready(self):
        for _ in range(10):
            self.post("/v1/completions", prompt="Hi", max_tokens=400,
                      structured_outputs={"regex": HARD})
        self.assertEqual(self.server.get("/health").status, 200)
        self.assertEqual(self.server.metric("diffserve_requests_finished_total", reason="error"), 0)


class ManyToolsTest(unittest.TestCase):
    def test_a_thousand_tools_with_each_parser(self):
        many = [tool(number) for number in range(1024)]
        named = {"type": "function", "function": {"name": "tool_1023"}}
        for parser in PARSERS:
            server = self.enterContext(
                ServerProcess("--served-model-name", "m", "--tool-call-parser", parser,
                              model=parrot_model.directory(["anything"])))
            for choice, parallel in (("required", False), ("required", True), (named, True)):
                with self.subTest(parser=parser, choice=choice, parallel=parallel):
                    reply = server.post("/v1/chat/completions", {
                        "model": "m", "messages": [{"role": "user", "content": "Hi"}],
                        "tools": many, "tool_choice": choice, "parallel_tool_calls": parallel,
                        "max_tokens": 100, "temperature": 0})
                    self.assertEqual(reply.status, 200, reply.body[:500])
            reply = server.post("/v1/messages", {
                "model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 100,
                "tool_choice": {"type": "any"}, "temperature": 0,
                "tools": [{"name": each["function"]["name"],
                           "input_schema": each["function"]["parameters"]} for each in many]})
            self.assertEqual(reply.status, 200, reply.body[:500])


if __name__ == "__main__":
    unittest.main()
