# SPDX-License-Identifier: Apache-2.0
"""Client: the methods of a server, the same for one of its own (LLM) and for one that runs
(connect)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from numbers import Integral
from typing import (TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence,
                    TypeVar, Union, cast, overload)

from .results import Answer, Attention, Logprobs
from .transport import Transport

if TYPE_CHECKING:
    from .arrays import FloatArray

Prompt = Union[str, Sequence[int]]  # a text or its token ids
Messages = Sequence[Mapping[str, Any]]  # a conversation: [{"role": "user", "content": "Hi"}]
Input = Union[Prompt, Messages]
T = TypeVar("T")

AT_ONCE = 64  # requests of a list that are under way together


def is_conversation(given: Sequence[Any]) -> bool:
    return not isinstance(given, str) and len(given) > 0 and isinstance(given[0], Mapping)


def is_one(given: Sequence[Any]) -> bool:
    """Whether this is a text, token ids or a conversation, and not a list of these."""
    return (isinstance(given, str) or is_conversation(given) or
            (len(given) > 0 and isinstance(given[0], Integral)))


def each(function: Callable[[Any], T], given: Sequence[Any]) -> Union[T, List[T]]:
    """The result for one input, or those for a list of inputs, in order."""
    if is_one(given):
        return function(given)
    if not len(given):
        return []
    pool = ThreadPoolExecutor(min(AT_ONCE, len(given)))
    try:
        return list(pool.map(function, given))
    finally:
        pool.shutdown(cancel_futures=True)


def ids_or_text(prompt: Prompt) -> Union[str, List[int]]:
    return prompt if isinstance(prompt, str) else [int(token) for token in prompt]


def members(given: Input, text: str, ids: str) -> Dict[str, Any]:
    """The member of a body that has the input: `text`, `ids` or messages."""
    if is_conversation(given):
        return {"messages": list(given)}
    return {text if isinstance(given, str) else ids: ids_or_text(cast(Prompt, given))}


class Client:
    """A method that takes a list of inputs sends up to 64 at once and returns the results in order.
    `fields` are those of the server's route, such as max_tokens, temperature and stop. Any thread
    may call any method."""

    def __init__(self, transport: Transport, model: Optional[str] = None):
        self._transport = transport
        self._model = {} if model is None else {"model": model}

    def _post(self, path: str, *bodies: Mapping[str, Any]) -> Dict[str, Any]:
        return self._transport.post(path, self._body(*bodies))

    def _body(self, *bodies: Mapping[str, Any]) -> Dict[str, Any]:
        whole: Dict[str, Any] = dict(self._model)
        for body in bodies:
            whole.update(body)
        if whole.get("n", 1) != 1:
            raise ValueError("n is not offered here; repeat the prompt in a list")
        return whole

    @overload
    def generate(self, prompts: Prompt, **fields: Any) -> Answer: ...

    @overload
    def generate(self, prompts: Sequence[Prompt], **fields: Any) -> List[Answer]: ...

    def generate(self, prompts: Union[Prompt, Sequence[Prompt]],
                 **fields: Any) -> Union[Answer, List[Answer]]:
        """Continues one text (or its token ids) or each of a list; fields of /v1/completions."""
        def one(prompt: Prompt) -> Answer:
            choice = self._post("/v1/completions", fields, {
                "prompt": ids_or_text(prompt), "return_token_ids": True})["choices"][0]
            return Answer(choice["text"], choice["token_ids"], choice["finish_reason"], choice)
        return each(one, prompts)

    @overload
    def chat(self, messages: Messages, **fields: Any) -> Answer: ...

    @overload
    def chat(self, messages: Sequence[Messages], **fields: Any) -> List[Answer]: ...

    def chat(self, messages: Union[Messages, Sequence[Messages]],
             **fields: Any) -> Union[Answer, List[Answer]]:
        """Answers one conversation or each of a list; fields of /v1/chat/completions."""
        def one(conversation: Messages) -> Answer:
            choice = self._post("/v1/chat/completions", fields, {
                "messages": list(conversation), "return_token_ids": True})["choices"][0]
            return Answer(choice["message"]["content"] or "", choice["token_ids"],
                          choice["finish_reason"], choice)
        return each(one, messages)

    def stream(self, given: Input, **fields: Any) -> Iterator[str]:
        """The pieces of an answer's text as they are made, for a prompt or a conversation. An
        iterator that is closed or dropped ends the answer."""
        prompt = members(given, "prompt", "prompt")
        path = "/v1/chat/completions" if "messages" in prompt else "/v1/completions"
        for event in self._transport.events(path, self._body(fields, prompt, {"stream": True})):
            for choice in event["choices"]:
                text = choice["delta"].get("content") if "delta" in choice else choice["text"]
                if text:
                    yield text

    def embed(self, texts: Union[Prompt, Sequence[Prompt]], **fields: Any) -> FloatArray:
        """Vectors of unit length: [width] of one text, [texts, width] of a list; fields of
        /v1/embeddings."""
        from . import arrays

        def one(text: Prompt) -> FloatArray:
            reply = self._post("/v1/embeddings", fields, {
                "input": ids_or_text(text), "encoding_format": "base64"})
            return arrays.from_base64(reply["data"][0]["embedding"])
        rows = each(one, texts)
        return arrays.stack(rows) if isinstance(rows, list) else rows

    @overload
    def logprobs(  # type: ignore[overload-overlap]
            self, prompts: Prompt, top: int = 0) -> Logprobs: ...

    @overload
    def logprobs(self, prompts: Sequence[Prompt], top: int = 0) -> List[Logprobs]: ...

    def logprobs(self, prompts: Union[Prompt, Sequence[Prompt]],
                 top: int = 0) -> Union[Logprobs, List[Logprobs]]:
        """How probable each token of a text is after those before it, and the `top` most probable
        ones in its place."""
        from . import arrays

        def one(prompt: Prompt) -> Logprobs:
            reply = self._post("/v1/completions", {
                "prompt": ids_or_text(prompt), "max_tokens": 0, "prompt_logprobs": top,
                "echo": True, "logprobs": 0, "return_token_ids": True})
            return arrays.logprobs_of(reply["choices"][0], top)
        return each(one, prompts)

    def attention(self, given: Input, layers: Optional[Sequence[int]] = None,
                  heads: Optional[Sequence[int]] = None,
                  positions: Union[Sequence[int], str, None] = None) -> Attention:
        """Both attention maps of a text, its token ids or a conversation. Lists choose layers,
        heads and positions, negative numbers from the end; by default all layers and heads, and the
        last position. positions="all" gives every position."""
        from . import arrays

        body = members(given, "text", "tokens")
        if positions == "all":
            body = {"tokens": self._tokens(given)}
            positions = range(len(body["tokens"]))
        for name, chosen in (("layers", layers), ("heads", heads), ("positions", positions)):
            if chosen is not None:
                body[name] = [int(index) for index in chosen]
        return arrays.attention_of(self._post("/v1/attention", body))

    def hidden_states(self, given: Input) -> FloatArray:
        """The final normalised state of each token: [tokens, width]."""
        from . import arrays

        reply = self._post("/pooling", members(given, "input", "input"), {
            "task": "token_embed", "use_activation": False, "encoding_format": "base64"})
        return arrays.states_of(reply["data"][0]["data"], reply["usage"]["prompt_tokens"])

    def _tokens(self, given: Input) -> List[int]:
        body = members(given, "prompt", "tokens")
        if "messages" in body:
            body["add_generation_prompt"] = False
        tokens: List[int] = body.get("tokens") or self._post("/tokenize", body)["tokens"]
        return tokens

    def tokenize(self, text: str, **fields: Any) -> List[int]:
        """The token ids of a text; fields of /tokenize."""
        tokens: List[int] = self._post("/tokenize", fields, {"prompt": text})["tokens"]
        return tokens

    def detokenize(self, tokens: Sequence[int]) -> str:
        """The text of token ids."""
        return str(self._post("/detokenize", {"tokens": ids_or_text(tokens)})["prompt"])


def connect(url: str, api_key: Optional[str] = None, model: Optional[str] = None,
            timeout: Optional[float] = None) -> Client:
    """A client of a running server: http://HOST:PORT, https://HOST or unix:PATH. `model` chooses
    one of several served names. `timeout`: seconds without any byte from the server; None: no
    limit."""
    return Client(Transport(url, api_key, timeout), model)
