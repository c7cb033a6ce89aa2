# SPDX-License-Identifier: Apache-2.0
"""Replies of the server as numpy arrays."""

from __future__ import annotations

import base64
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence

import numpy as np

from .array_types import FloatArray
from .results import Attention, Logprobs

MAX_NUMBERS = 1 << 22  # in the maps of one reply of /v1/attention


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


class AttentionMaps:
    """The maps of some positions, filled from replies of /v1/attention. `first` is a reply that has
    the layers, heads and tokens."""

    def __init__(self, first: Mapping[str, Any], positions: List[int]):
        items = first["data"]
        self._tokens, self._texts = first["tokens"], first["token_texts"]
        self._layers = sorted({int(item["layer"]) for item in items})
        self._heads = sorted({int(item["head"]) for item in items})
        self._positions = positions
        self._places = [{number: place for place, number in enumerate(numbers)}
                        for numbers in (self._layers, self._heads, positions)]
        shape = (len(self._layers), len(self._heads), len(positions))
        maps = ["map1", "map2"][:first["maps"]]
        self._maps = {name: np.zeros((*shape, len(self._tokens)), np.float32) for name in maps}
        entropies = ["entropy1", "entropy2"][:first["maps"]]
        self._figures = {name: np.zeros(shape, np.float32)
                         for name in ("lambda", "cancelled", *entropies)}

    def parts(self) -> Iterator[Dict[str, List[int]]]:
        """Layers, heads and positions whose maps fit into one reply each: all of them, or some
        layers, or some heads of a layer, or some positions of a head."""
        slots = np.cumsum([max(position, 0) + 1 for position in self._positions]) * len(self._maps)
        heads = max(1, min(len(self._heads), MAX_NUMBERS // int(slots[-1])))
        layers = max(1, MAX_NUMBERS // (int(slots[-1]) * len(self._heads)))
        for layer in range(0, len(self._layers), layers):
            for head in range(0, len(self._heads), heads):
                begin = 0
                while begin < len(slots):
                    before = slots[begin - 1] if begin > 0 else 0
                    end = max(begin + 1,
                              int(np.searchsorted(slots, before + MAX_NUMBERS, side="right")))
                    yield {"layers": self._layers[layer:layer + layers],
                           "heads": self._heads[head:head + heads],
                           "positions": self._positions[begin:end]}
                    begin = end

    def add(self, reply: Mapping[str, Any]) -> None:
        for item in reply["data"]:
            place = tuple(places[item[name]] for places, name in zip(
                self._places, ("layer", "head", "position")))
            for name, figures in self._figures.items():
                figures[place] = item[name]
            for name, maps in self._maps.items():
                maps[place][:len(item[name])] = item[name]

    def whole(self) -> Attention:
        maps, figures = self._maps, self._figures
        return Attention(self._tokens, self._texts, self._layers, self._heads, self._positions,
                         maps["map1"], maps.get("map2"), figures["lambda"], figures["entropy1"],
                         figures.get("entropy2"), figures["cancelled"])
