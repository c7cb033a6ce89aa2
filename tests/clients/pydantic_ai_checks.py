# SPDX-License-Identifier: Apache-2.0
"""pydantic-ai: agents over its OpenAI chat, OpenAI Responses and Anthropic models.

| each model | run, stream, tools in one step and several, reasoning, a second turn |
| forms | tool output, native output, prompted output, output beside tools |
| errors | ModelHTTPError of 400, 401, 404; a retry after output that does not fit |
"""

import pydantic
from anthropic import AsyncAnthropic
from openai import AsyncOpenAI
from pydantic_ai import Agent, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from checks import DEMO, KEYED, SCRIPTED, check, run, same, true

SETTINGS = {"max_tokens": 400, "seed": 1}


def openai(kind):
    def model(url, name, key="none"):
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
        return kind(name, provider=OpenAIProvider(openai_client=client))
    return model


def anthropic(url, name, key="none"):
    client = AsyncAnthropic(base_url=url, api_key=key, max_retries=0)
    return AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


MODELS = {"chat": openai(OpenAIChatModel), "responses": openai(OpenAIResponsesModel),
          "messages": anthropic}


class City(pydantic.BaseModel):
    city: str
    degrees: int


class Other(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: None


class Shape(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    kind: bool
    size: int = pydantic.Field(ge=0, le=9)


def agent_with_tools(model, **more):
    """An agent and the recorded inputs of its tools; calls of one step run concurrently."""
    agent, asked = Agent(model, **more), []

    @agent.tool_plain
    def get_weather(city: str) -> dict:
        """The weather of a city."""
        asked.append(city)
        return {"city": city, "degrees": 3}

    @agent.tool_plain
    def get_time(zone: str | None = None) -> str:
        asked.append(zone)
        return "12:00"

    @agent.tool_plain
    def list_cities() -> list[str]:
        asked.append("list")
        return []

    return agent, asked


LOOPS = {"weather": (["Paris"], "It is 21 degrees in Paris."),
         "two": (["Oslo", "Lima"], "Oslo 3, Lima 18."),
         "chain": (["Bonn", "CET"], "Mild at noon."), "empty": (["list"], "None."),
         "plan": (["Rome"], "Rome has 30 degrees.")}


def for_each_model(function):
    for name, model in MODELS.items():
        async def one(model=model):
            await function(model)
        one.__name__ = f"{name}_{function.__name__}"
        check(one)


@for_each_model
async def text_and_a_second_turn(model):
    agent = Agent(model(SCRIPTED, "scripted"), instructions="Be brief.")
    first = await agent.run("#hello#")
    same(first.output, "Hello there! Grüße, 世界 🙂.")
    second = await agent.run("Again", message_history=first.all_messages())
    same(second.output, "And hello again.")


@for_each_model
async def stream(model):
    async with Agent(model(SCRIPTED, "scripted")).run_stream("#hello#") as answer:
        same(await answer.get_output(), "Hello there! Grüße, 世界 🙂.")


@for_each_model
async def tools(model):
    for script, (cities, said) in LOOPS.items():
        agent, asked = agent_with_tools(model(SCRIPTED, "scripted"))
        answer = await agent.run(f"#{script}#")
        same([answer.output, sorted(asked)], [said, sorted(cities)], script)


@for_each_model
async def tools_streamed(model):
    for script, (cities, said) in LOOPS.items():
        agent, asked = agent_with_tools(model(SCRIPTED, "scripted"))
        async with agent.iter(f"#{script}#") as steps:
            async for node in steps:
                if Agent.is_model_request_node(node):
                    async with node.stream(steps.ctx) as events:
                        async for _ in events:
                            pass
        same([steps.result.output, sorted(asked)], [said, sorted(cities)], script)


@for_each_model
async def reasoning_and_a_second_turn(model):
    agent = Agent(model(SCRIPTED, "scripted"))
    first = await agent.run("#think#")
    thought = [part for message in first.all_messages() for part in message.parts
               if part.part_kind == "thinking"]
    true("First I think." in str(thought), f"thinking parts: {thought}")
    second = await agent.run("And now?", message_history=first.all_messages())
    same(second.output, "Still 4.")


@for_each_model
async def output_as_a_tool(model):
    agent = Agent(model(DEMO, "diff"), output_type=ToolOutput(Shape), model_settings=SETTINGS)
    true(isinstance((await agent.run("Who are you?")).output, Shape), "a Shape")


@for_each_model
async def output_of_a_union(model):
    agent = Agent(model(DEMO, "diff"), output_type=[Shape, Other], model_settings=SETTINGS)
    await agent.run("Who are you?")


async def output_beside_tools(model, output):
    agent, asked = agent_with_tools(model(SCRIPTED, "scripted"), output_type=output)
    answer = await agent.run("#report#")
    same([answer.output, asked], [City(city="Kyiv", degrees=9), ["Kyiv"]])


@check
async def chat_native_output_beside_tools():
    await output_beside_tools(MODELS["chat"], NativeOutput(City))


@check
async def responses_native_output_beside_tools():
    await output_beside_tools(MODELS["responses"], NativeOutput(City))


@for_each_model
async def prompted_output_beside_tools(model):
    await output_beside_tools(model, PromptedOutput(City))


@for_each_model
async def errors_have_their_status(model):
    for url, name, prompt, status in ((DEMO, "diff", "magic " * 3000, 400),
                                      (KEYED, "diff", "a", 401), (DEMO, "none", "a", 404)):
        try:
            await Agent(model(url, name)).run(prompt)
        except ModelHTTPError as error:
            same(error.status_code, status)
        else:
            raise AssertionError(f"no error where {status} is expected")


run()
