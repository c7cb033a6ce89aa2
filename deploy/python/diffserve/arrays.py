# SPDX-License-Identifier: Apache-2.0
"""Replies of the server as numpy arrays. The only module that needs numpy."""

from __future__ import annotations

import base64
from typing import Any, Dict, List, Mapping, Optional, Sequence

import numpy as np
import numpy.typing as npt

from .results import Attention, Logprobs

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]


def from_base64(text: str) -> FloatArray:
    return np.frombuffer(base64.b64decode(text), "<f4").astype(np.float32)


def stack(rows: Sequence[FloatArray]) -> FloatArray:
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def states_of(text: str, tokens: int) -> FloatArray:
    return from_base64(text).reshape(tokens, -1)


def logprobs_of(choice: Mapping[str, Any], top: int) -> Logprobs:
    """From a choice of /v1/completions that echoes its prompt, with prompt_logprobs and ids."""
    tokens = np.array(choice["prompt_token_ids"], np.int32)
    scored: List[Optional[Dict[str, Dict[str, Any]]]] = choice["prompt_logprobs"]
    logprobs = np.full(len(tokens), np.nan, np.float32)
    top_tokens = np.full((len(tokens), top), -1, np.int32)
    top_logprobs = np.full((len(tokens), top), np.nan, np.float32)
    for i, entries in enumerate(scored):
        if entries is None:
            continue
        logprobs[i] = entries[str(tokens[i])]["logprob"]
        for token, entry in entries.items():
            if entry["rank"] is not None and entry["rank"] <= top:
                place = (i, entry["rank"] - 1)
                top_tokens[place], top_logprobs[place] = int(token), entry["logprob"]
    return Logprobs(tokens, choice["logprobs"]["tokens"], logprobs, top_tokens, top_logprobs)


def attention_of(reply: Mapping[str, Any]) -> Attention:
    """From a reply of /v1/attention, whose items are ordered by layer, head and position."""
    items = reply["data"]
    layers = sorted({int(item["layer"]) for item in items})
    heads = sorted({int(item["head"]) for item in items})
    positions = sorted({int(item["position"]) for item in items})
    shape = (len(layers), len(heads), len(positions))
    places = [(layers.index(item["layer"]), heads.index(item["head"]),
               positions.index(item["position"])) for item in items]

    def numbers(name: str) -> FloatArray:
        out = np.zeros(shape, np.float32)
        for place, item in zip(places, items):
            out[place] = item[name]
        return out

    def maps(name: str) -> FloatArray:
        out = np.zeros((*shape, len(reply["tokens"])), np.float32)
        for place, item in zip(places, items):
            out[place][:len(item[name])] = item[name]
        return out

    two = reply["maps"] == 2
    return Attention(reply["tokens"], reply["token_texts"], layers, heads, positions, maps("map1"),
                     maps("map2") if two else None, numbers("lambda"), numbers("entropy1"),
                     numbers("entropy2") if two else None, numbers("cancelled"))
