# SPDX-License-Identifier: Apache-2.0
"""Figures of attention maps. The only module that needs matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, List

from .shown import few

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .results import Attention

MAX_LABELS = 64  # along an axis; with more tokens they are numbered


def place(name: str, number: int, among: List[int]) -> int:
    if number not in among:
        raise ValueError(f"{name} is {number}; these maps have {name}s {few(among)}")
    return among.index(number)


def label(axis: Axes, attention: Attention) -> None:
    # Without matplotlib's formulas between dollar signs.
    names = [repr(text).replace("$", r"\$") for text in attention.texts]
    positions = attention.positions
    if len(names) <= MAX_LABELS:
        axis.set_xticks(range(len(names)), names, rotation=90, fontsize="x-small")
    if len(positions) <= MAX_LABELS:
        axis.set_yticks(range(len(positions)), [names[position] for position in positions],
                        fontsize="x-small")


def of_head(attention: Attention, layer: int, head: int) -> Figure:
    at = place("layer", layer, attention.layers), place("head", head, attention.heads)
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("plot() needs matplotlib: pip install matplotlib") from error
    panels = {"map 1": attention.map1}
    if attention.map2 is not None:
        panels.update({"map 2": attention.map2, "map 1 - lambda map 2": attention.difference})
    figure, axes = pyplot.subplots(len(panels), 1, squeeze=False, layout="constrained",
                                   figsize=(10, 2 + 2.5 * len(panels)))
    for axis, (title, maps) in zip(axes[:, 0], panels.items()):
        image = axis.imshow(maps[at], cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
        axis.set_title(title)
        label(axis, attention)
    figure.suptitle(f"layer {layer}, head {head}")
    figure.colorbar(image, ax=axes)
    return figure
