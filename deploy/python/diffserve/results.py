# SPDX-License-Identifier: Apache-2.0
"""What the methods of a client return. Their reprs are one line, however large the arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence

from .shown import few

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .array_types import FloatArray, IntArray


@dataclass(frozen=True)
class Answer:
    """One continuation of a prompt or conversation."""

    text: str
    token_ids: List[int] = field(repr=False)
    finish_reason: str  # stop, length or tool_calls
    # As the server sent it: tool calls, reasoning, log-probabilities.
    choice: Dict[str, Any] = field(repr=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, eq=False)
class Logprobs:
    """How probable each token of a text is after those before it. Row i describes token i; the
    first follows nothing, so its numbers are NaN and its top tokens -1."""

    tokens: IntArray  # [tokens]
    texts: List[str]
    logprobs: FloatArray  # [tokens], natural logarithms
    top_tokens: IntArray  # [tokens, top], the most probable first
    top_logprobs: FloatArray  # [tokens, top]

    def __repr__(self) -> str:
        return f"Logprobs({len(self.texts)} tokens, top {self.top_tokens.shape[1]})"


@dataclass(frozen=True, eq=False)
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

    def __repr__(self) -> str:
        maps = "map1" if self.map2 is None else "map1, map2"
        return (f"Attention({maps} {list(self.map1.shape)}: layers {few(self.layers)}, "
                f"heads {few(self.heads)}, positions {few(self.positions)}, "
                f"{len(self.tokens)} tokens)")

    def plot(self, layer: int, head: int) -> Figure:
        """A figure of map 1, map 2 and their difference: one row per position, one column per
        token. `layer` and `head` are numbers of the model, among `layers` and `heads`. Needs
        matplotlib."""
        from . import plots

        return plots.of_head(self, layer, head)
