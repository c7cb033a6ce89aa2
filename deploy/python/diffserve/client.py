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
    from .array_types import FloatArray

Prompt = Union[str, Sequence[int]]  # a text or its token ids
Messages = Sequence[Mapping[str, Any]]  # a conversation: [{"role": "user", "content": "Hi"}]
Chat = Union[str, Messages]  # a user's message, or a conversation
Input = Union[Prompt, Messages]
Indices = Union[Sequence[int], str, None]  # of layers, heads or positions; a str is "all"
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


def conversation_fields(given: Input, add_generation_prompt: Optional[bool],
                        continue_final_message: bool) -> Dict[str, Any]:
    """Where a conversation ends: by default where its answer begins."""
    if not is_conversation(given):
        if add_generation_prompt is not None or continue_final_message:
            raise ValueError("add_generation_prompt and continue_final_message are for a "
                             "conversation; this is a text or token ids")
        return {}
    if add_generation_prompt is None:
        add_generation_prompt = not continue_final_message
    return {"add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message}


def indices(name: str, chosen: Union[Sequence[int], str]) -> Union[List[int], str]:
    if isinstance(chosen, str) and chosen != "all":
        raise ValueError(f'{name} is {chosen!r}; allowed: a list of integers, "all"')
    return chosen if isinstance(chosen, str) else [int(index) for index in chosen]


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
    def chat(self, messages: Chat, **fields: Any) -> Answer: ...

    @overload
    def chat(self, messages: Sequence[Chat], **fields: Any) -> List[Answer]: ...

    def chat(self, messages: Union[Chat, Sequence[Chat]],
             **fields: Any) -> Union[Answer, List[Answer]]:
        """Answers one conversation or each of a list; a text is a user's message. Fields of
        /v1/chat/completions."""
        def one(chat: Chat) -> Answer:
            whole = [{"role": "user", "content": chat}] if isinstance(chat, str) else list(chat)
            choice = self._post("/v1/chat/completions", fields, {
                "messages": whole, "return_token_ids": True})["choices"][0]
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

    def attention(self, given: Input, layers: Indices = None, heads: Indices = None,
                  positions: Indices = None, *, add_generation_prompt: Optional[bool] = None,
                  continue_final_message: bool = False) -> Attention:
        """Both attention maps of a text, its token ids or a conversation. Lists choose layers,
        heads and positions, negative numbers from the end, and "all" all of them; by default all
        layers and heads, and the last position. A conversation ends where its answer begins, or as
        the keywords say, which are fields of the chat route. Maps that are too large for one reply
        come in several."""
        from . import arrays

        body = members(given, "text", "tokens")
        body.update(conversation_fields(given, add_generation_prompt, continue_final_message))
        body.update({name: indices(name, chosen) for name, chosen in (
            ("layers", layers), ("heads", heads)) if chosen is not None})
        # Which layers and heads there are, and how many tokens: one token is computed for that.
        first = self._post("/v1/attention", body, {"positions": [0], "top_k": 0})
        count = len(first["tokens"])
        asked = indices("positions", [-1] if positions is None else positions)
        wanted = range(count) if asked == "all" else sorted({int(i) % count for i in asked})
        if asked != "all" and not (asked and all(-count <= int(i) < count for i in asked)):
            self._post("/v1/attention", body, {"positions": asked})  # the server refuses it
        maps = arrays.AttentionMaps(first, list(wanted))
        for part in maps.parts():
            maps.add(self._post("/v1/attention", {"tokens": first["tokens"], **part}))
        return maps.whole()

    def hidden_states(self, given: Input, *, add_generation_prompt: Optional[bool] = None,
                      continue_final_message: bool = False) -> FloatArray:
        """The final normalised state of each token: [tokens, width]. A conversation ends as in
        attention()."""
        from . import arrays

        reply = self._post("/pooling", members(given, "input", "input"), conversation_fields(
            given, add_generation_prompt, continue_final_message), {
            "task": "token_embed", "use_activation": False, "encoding_format": "base64"})
        return arrays.states_of(reply["data"][0]["data"], reply["usage"]["prompt_tokens"])

    def tokenize(self, given: Chat, **fields: Any) -> List[int]:
        """The token ids of a text or of a conversation; fields of /tokenize."""
        tokens: List[int] = self._post("/tokenize", fields,
                                       members(given, "prompt", "prompt"))["tokens"]
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
