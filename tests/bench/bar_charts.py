# SPDX-License-Identifier: Apache-2.0
"""Small charts of horizontal bars, side by side as one SVG that is readable on light and on dark
pages."""

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

from line_charts import CELL_W, COLUMNS, LEFT, WIDTH, style

ROW_H, TOP = 15, 26
LABEL_W, BAR_W = 118, 140  # of a bar's name, and of the longest bar


@dataclass
class Bar:
    label: str
    value: float
    colour: int


@dataclass
class Chart:
    title: str
    bars: list[Bar]


def draw(chart: Chart) -> list[str]:
    out = [f'<text class="title" x="{LEFT - 40}" y="16">{escape(chart.title)}</text>']
    longest = max((bar.value for bar in chart.bars), default=1)
    for row, bar in enumerate(chart.bars):
        y = TOP + row * ROW_H
        width = BAR_W * bar.value / longest
        out.append(f'<text class="axis end" x="{LABEL_W}" y="{y + 9}">{escape(bar.label)}</text>'
                   f'<rect x="{LABEL_W + 5}" y="{y}" width="{width:.1f}" height="11" '
                   f'class="fill{bar.colour}"/>'
                   f'<text class="axis" x="{LABEL_W + width + 9:.1f}" y="{y + 9}">'
                   f'{bar.value:.0f}</text>')
    return out


def svg(charts: list[Chart], caption: str) -> str:
    cell_h = TOP + ROW_H * max(len(chart.bars) for chart in charts) + 12
    height = math.ceil(len(charts) / COLUMNS) * cell_h + 30
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           f'width="{WIDTH}" height="{height}" role="img">',
           f"<title>{escape(caption)}</title><style>{style()}</style>",
           f'<rect width="{WIDTH}" height="{height}" rx="6" class="page"/>']
    for index, chart in enumerate(charts):
        x, y = index % COLUMNS * CELL_W, index // COLUMNS * cell_h + 6
        out.append(f'<g transform="translate({x},{y})">')
        out += draw(chart)
        out.append("</g>")
    out.append(f'<text class="axis" x="{LEFT - 40}" y="{height - 10}">{escape(caption)}</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"
