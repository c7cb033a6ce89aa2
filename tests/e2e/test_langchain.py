# SPDX-License-Identifier: Apache-2.0
"""A langchain agent (on langgraph) over ChatOpenAI: the model calls a tool, the agent runs it and
asks again. The model is tiny and its chat template shows no tools, so its first turn is forced to
call."""

import unittest
from typing import Literal

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_model_call
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langgraph.checkpoint.memory import InMemorySaver
from pydantic import BaseModel, ConfigDict, Field

from server_process import DEMO_MODEL, ServerProcess

QUESTION = HumanMessage("How warm is it in Lisbon?")


@tool
def weather(city: Literal["Lisbon", "Oslo"], unit: Literal["C", "F"]) -> str:
    """The temperature of a city."""
    asked.append((city, unit))
    return f"21 {unit} in {city}"


asked: list[tuple[str, str]] = []


@wrap_model_call
def call_at_first(request, handler):
    """Forces a call in the first turn after a user's question; the model chooses in the next."""
    answered = isinstance(request.messages[-1], ToolMessage)
    return handler(request.override(tool_choice="auto" if answered else "weather",
                                    model_settings={"strict": True}))


class Report(BaseModel):
    """What the user gets."""
    model_config = ConfigDict(extra="forbid")
    warm: bool
    degrees: int = Field(ge=-50, le=50)


class Open(BaseModel):
    """Its schema allows properties of any name."""
    city: Literal["Lisbon", "Oslo"]


def setUpModule():
    global model, server
    server = unittest.enterModuleContext(
        ServerProcess("--served-model-name", "diff", model=DEMO_MODEL))
    model = ChatOpenAI(model="diff", base_url=server.url + "/v1", api_key="unused", temperature=0,
                       max_tokens=500, max_retries=0, timeout=60)


class LangchainTest(unittest.TestCase):
    def setUp(self):
        asked.clear()

    def agent(self, **options):
        return create_agent(model, [weather], middleware=[call_at_first], **options)

    def check_turn(self, messages):
        question, call, result, answer = messages
        self.assertIsInstance(question, HumanMessage)
        self.assertIsInstance(call, AIMessage)
        made, = call.tool_calls
        self.assertEqual((made["name"], set(made["args"])), ("weather", {"city", "unit"}))
        self.assertEqual(asked[-1], (made["args"]["city"], made["args"]["unit"]))
        self.assertIsInstance(result, ToolMessage)
        self.assertEqual((result.tool_call_id, result.content),
                         (made["id"], f"21 {asked[-1][1]} in {asked[-1][0]}"))
        self.assertIsInstance(answer, AIMessage)
        self.assertTrue(answer.content)
        self.assertGreater(answer.usage_metadata["input_tokens"],
                           call.usage_metadata["input_tokens"])

    def test_agent_calls_its_tool_and_answers(self):
        self.check_turn(self.agent().invoke({"messages": [QUESTION]})["messages"])
        self.assertEqual(len(asked), 1)

    def test_thread_continues_the_conversation(self):
        agent = self.agent(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        first = agent.invoke({"messages": [QUESTION]}, thread)["messages"]
        self.check_turn(first)
        messages = agent.invoke({"messages": [HumanMessage("And in Oslo?")]}, thread)["messages"]
        self.assertEqual(messages[:4], first)
        self.check_turn(messages[4:])
        self.assertEqual(len(asked), 2)

    def test_streamed_agent_gives_the_same_answer(self):
        whole = self.agent().invoke({"messages": [QUESTION]})["messages"]
        pieces, calls = "", AIMessageChunk("")
        for chunk, _ in self.agent().stream({"messages": [QUESTION]}, stream_mode="messages"):
            if not isinstance(chunk, AIMessageChunk):
                continue
            if chunk.tool_call_chunks:
                calls += chunk
            pieces += chunk.text
        self.assertEqual(pieces, whole[-1].content)
        self.assertEqual([call["args"] for call in calls.tool_calls],
                         [call["args"] for call in whole[1].tool_calls])

    def test_agent_that_chooses_by_itself_is_served(self):
        answer = create_agent(model, [weather]).invoke({"messages": [QUESTION]})["messages"][-1]
        self.assertIsInstance(answer, AIMessage)
        bound = model.bind_tools([weather]).invoke([QUESTION])
        self.assertEqual(bound.content, answer.content)

    def test_embeddings_are_of_the_texts(self):
        embeddings = OpenAIEmbeddings(model="diff", base_url=server.url + "/v1", api_key="unused",
                                      check_embedding_ctx_length=False)
        expected = server.post("/v1/embeddings", {"input": "Lisbon"}).json()["data"][0]
        for found, number in zip(embeddings.embed_query("Lisbon"), expected["embedding"],
                                 strict=True):
            self.assertAlmostEqual(found, number, places=6)

    def test_structured_output_is_a_pydantic_object(self):
        for method in ("json_schema", "function_calling"):
            made = model.with_structured_output(Report, method=method).invoke([QUESTION])
            self.assertIsInstance(made, Report, method)

    def test_strict_function_calling_ends_though_the_model_writes_on(self):
        made = model.with_structured_output(Open, method="function_calling",
                                            strict=True).invoke([QUESTION])
        self.assertIsInstance(made, Open)


if __name__ == "__main__":
    unittest.main()
