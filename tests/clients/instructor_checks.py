# SPDX-License-Identifier: Apache-2.0
"""instructor: answers as pydantic models, in each of its modes that this server supports.

| modes | tools, strict tools, schema, JSON, Markdown JSON, Responses' tools, parallel tools |
| models | nested, optional, unions, enums, bounds, lists, dates, constrained strings, iterables |
| others | partial streams, a validation error sent back as the mode does it |
"""

import datetime
import decimal
import enum
import typing
import uuid

import instructor
import pydantic
from openai import OpenAI

from checks import DEMO, SCRIPTED, check, run, same, true

MODES = ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA", "RESPONSES_TOOLS"]


class Closed(pydantic.BaseModel):
    """Forbids other properties, so that an answer ends."""
    model_config = pydantic.ConfigDict(extra="forbid")


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Part(Closed):
    yes: bool


class Form(Closed):
    colour: Colour
    parts: list[Part] = pydantic.Field(max_length=2)
    size: int = pydantic.Field(ge=1, le=5)
    ratio: float = pydantic.Field(gt=0, lt=1)
    kind: typing.Literal["a", "b"]
    more: Part | None = None


class Formats(Closed):
    day: datetime.date
    at: datetime.datetime
    id: uuid.UUID
    code: str = pydantic.Field(pattern=r"^[A-Z]{2}\d$")
    pair: tuple[bool, bool]


class Prices(Closed):
    price: decimal.Decimal
    by_name: dict[str, bool] = pydantic.Field(max_length=1)


class City(pydantic.BaseModel):
    city: str

    @pydantic.field_validator("city")
    @classmethod
    def is_lima(cls, value):
        if value != "Lima":
            raise ValueError("the city must be Lima")
        return value


class get_weather(pydantic.BaseModel):
    city: str


def client(url, mode):
    return instructor.from_openai(OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0),
                                  mode=instructor.Mode[mode])


def ask(mode, model, url=DEMO, name="diff", prompt="Who are you?", **more):
    limit = "max_output_tokens" if mode.startswith("RESPONSES") else "max_tokens"
    return client(url, mode).chat.completions.create(
        model=name, response_model=model, max_retries=0, **{limit: 600}, **more,
        messages=[{"role": "user", "content": prompt}])


def for_each_mode(function):
    for mode in MODES:
        def one(mode=mode):
            function(mode)
        one.__name__ = f"{mode.lower()}_{function.__name__}"
        check(one)


@for_each_mode
def nested_form(mode):
    true(isinstance(ask(mode, Form), Form), "a Form")


@for_each_mode
def formats(mode):
    true(isinstance(ask(mode, Formats), Formats), "a Formats")


@for_each_mode
def decimal_and_mapping_are_taken(mode):
    try:
        ask(mode, Prices)
    except Exception as error:  # unbounded names may be cut off; the schema must be accepted
        true("Error code: 4" not in str(error), str(error))


@check
def json_mode_takes_its_form_from_a_script():
    for mode in ("JSON", "MD_JSON"):
        same(ask(mode, Part, SCRIPTED, "scripted", "#part#").yes, True, mode)


@check
def error_of_validation_is_sent_back():
    answer = client(SCRIPTED, "MD_JSON").chat.completions.create(
        model="scripted", response_model=City, max_retries=2, max_tokens=200,
        messages=[{"role": "user", "content": "#mend#"}])
    same(answer.city, "Lima")


@check
def parallel_calls():
    answers = client(SCRIPTED, "PARALLEL_TOOLS").chat.completions.create(
        model="scripted", response_model=typing.Iterable[get_weather], max_retries=0,
        messages=[{"role": "user", "content": "#two#"}])
    same([answer.city for answer in answers], ["Oslo", "Lima"])


@check
def partial_stream():
    last = None
    for last in client(DEMO, "JSON_SCHEMA").chat.completions.create_partial(
            model="diff", response_model=Part, max_retries=0,
            messages=[{"role": "user", "content": "Who are you?"}]):
        pass
    true(last.yes in (True, False), "the last partial answer is whole")


run()
