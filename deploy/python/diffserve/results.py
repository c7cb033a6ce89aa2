# SPDX-License-Identifier: Apache-2.0
"""What the methods of a client return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Dict, List, Optional

if TYPE_CHECKING:
    from .arrays import FloatArray, IntArray


@dataclass(frozen=True)
class Answer:
    """One continuation of a prompt or conversation."""

    text: str
    token_ids: List[int]
    finish_reason: str  # stop, length or tool_calls
    choice: Dict[str, Any]  # as the server sent it: tool calls, reasoning, log-probabilities

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Logprobs:
    """How probable each token of a text is after those before it. Row i describes token i; the
    first follows nothing, so its numbers are NaN and its top tokens -1."""

    tokens: IntArray  # [tokens]
    texts: List[str]
    logprobs: FloatArray  # [tokens], natural logarithms
    top_tokens: IntArray  # [tokens, top], the most probable first
    top_logprobs: FloatArray  # [tokens, top]


@dataclass(frozen=True)
class Attention:
    """Both maps of chosen layers and heads, from chosen positions to the slots before them. Slots
    after a position are 0. A model without a second map has None where it would be."""

    tokens: List[int]
    texts: List[str]  # [tokens]
    layers: List[int]
    heads: List[int]
    positions: List[int]
    map1: FloatArray  # [layers, heads, positions, tokens]
    map2: Optional[FloatArray]
    lambdas: FloatArray  # [layers, heads, positions]: the weight of map 2
    entropy1: FloatArray  # [layers, heads, positions], in nats
    entropy2: Optional[FloatArray]
    cancelled: FloatArray  # [layers, heads, positions]: the share of map 1 that is removed

    @property
    def difference(self) -> FloatArray:
        """map1 - lambda map2, which the model reads its values with."""
        if self.map2 is None:
            return self.map1
        return self.map1 - self.lambdas[..., None] * self.map2
