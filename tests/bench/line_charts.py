# SPDX-License-Identifier: Apache-2.0
"""Small line charts side by side as one SVG that is readable on light and on dark pages."""

import math
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

COLUMNS, CELL_W, CELL_H = 3, 320, 172
WIDTH = COLUMNS * CELL_W + 8
LEFT, TOP, PLOT_W, PLOT_H = 50, 26, 254, 104  # of the plot within a cell
SHAPE = """
text{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
.title{font-weight:600;font-size:12px}.axis{font-size:10px}.end{text-anchor:end}\
.middle{text-anchor:middle}
path{fill:none;stroke-width:1.4;stroke-linejoin:round}.area{opacity:.35}.grid{stroke-width:1}
"""
# Page, text, axis, grid; then the lines.
LIGHT = ("#fff", "#1f2328", "#59636e", "#d8dee4", "#1a7f37", "#0969da", "#bc4c00", "#8250df",
         "#cf222e")
DARK = ("#0d1117", "#f0f6fc", "#9198a1", "#2b3138", "#3fb950", "#58a6ff", "#f0883e", "#bc8cff",
        "#ff7b72")
COLOURS = len(LIGHT) - 4


def style() -> str:
    """Colours by class, not by variable: many viewers know no CSS variables."""
    def rules(page, text, axis, grid, *lines):
        fills = "".join(f".line{i}{{stroke:{c}}}.fill{i}{{fill:{c}}}" for i, c in enumerate(lines))
        return (f".page{{fill:{page}}}text{{fill:{text}}}.axis{{fill:{axis}}}"
                f".grid{{stroke:{grid}}}{fills}")
    return f"{SHAPE}{rules(*LIGHT)}\n@media(prefers-color-scheme:dark){{{rules(*DARK)}}}\n"


# Labels of the horizontal axis: the position as a share of the width, and the text.
Ticks = list[tuple[float, str]]


def minutes(length: float) -> Ticks:
    return [(minute / length, f"{minute} min" if minute + 1 > length else str(minute))
            for minute in range(math.floor(length) + 1)]


def evenly(labels: list[str]) -> Ticks:
    """One for each value of a line."""
    return [(index / (len(labels) - 1), label) for index, label in enumerate(labels)]


@dataclass
class Chart:
    title: str
    unit: str  # Grafana's name of it
    stacked: bool
    top: float | None  # of the value axis, if it is fixed
    ticks: Ticks
    lines: dict[str, list[float]] = field(
        default_factory=dict)  # label -> its values, evenly spaced, NaN for none


def nice_step(top: float) -> float:
    """The step of at most four on the way to `top`: 1, 2 or 5 times a power of ten."""
    power = 10 ** math.floor(math.log10(top / 4))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor * 4 >= top * 0.999)


def shown(value: float, unit: str) -> str:
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit == "s" and value:
        factor, name = next(
            ((f, n) for f, n in ((1, "s"), (1e3, "ms"), (1e6, "µs")) if value * f >= 1),
            (1e6, "µs"))
        return f"{value * factor:.3g} {name}"
    number = f"{value / 1000:.3g}k" if value >= 1000 else f"{value:.3g}"
    return number + ("/s" if unit in ("reqps", "suffix: tokens/s") and value else "")


def curve(points: list[tuple[float, float]]) -> str:
    """A path through the points in whole pixels' tenths, with a gap at NaN."""
    path, last = [], None
    for x, y in points:
        if math.isnan(y):
            last = None
            continue
        here = (round(x), round(y * 10) / 10)
        path.append(f"M{here[0]} {here[1]:g}" if last is
                    None else f"l{here[0] - last[0]} {round(here[1] - last[1], 1):g}")
        last = here
    return "".join(path)


def draw(chart: Chart) -> list[str]:
    lines = list(chart.lines.items())
    if chart.stacked:
        below = [0.0] * len(lines[0][1])
        for index, (label, values) in enumerate(lines):
            below = [
                base + (0 if math.isnan(value) else value)
                for base, value in zip(below, values, strict=True)
            ]
            lines[index] = (label, below)
    peak = chart.top or max(
        (v for _, values in lines for v in values if not math.isnan(v)), default=0) or 1
    step = nice_step(peak)
    top = chart.top or step * math.ceil(peak / step * 0.999)

    def y(value: float) -> float:
        return TOP + PLOT_H * (1 - value / top)

    out = [f'<text class="title" x="{LEFT}" y="16">{escape(chart.title)}</text>']
    for tick in range(round(top / step) + 1):
        out.append(
            f'<path class="grid" d="M{LEFT} {y(tick * step):.1f}h{PLOT_W}"/><text class="axis end" '
            f'x="{LEFT - 5}" '
            f'y="{y(tick * step) + 3:.1f}">{shown(tick * step, chart.unit)}</text>')
    for share, label in chart.ticks:
        x = LEFT + PLOT_W * share
        out.append(f'<text class="axis middle" x="{x:.0f}" y="{TOP + PLOT_H + 13}">{label}</text>')
    x, floor = LEFT, [0.0] * len(lines[0][1])
    for index, (label, values) in enumerate(lines):
        colour = index % COLOURS
        xs = [LEFT + PLOT_W * i / (len(values) - 1) for i in range(len(values))]
        path = curve([(a, y(v)) for a, v in zip(xs, values, strict=True)])
        if chart.stacked:
            back = curve([(a, y(v)) for a, v in reversed(list(zip(xs, floor, strict=True)))])
            out.append(f'<path class="area fill{colour}" d="{path}{back.replace("M", "L", 1)}z"/>')
            floor = values
        out.append(f'<path class="line{colour}" d="{path}"/>')
        out.append(
            f'<rect x="{x}" y="{TOP + PLOT_H + 22}" width="9" height="3" class="fill{colour}"/>'
            f'<text class="axis" x="{x + 13}" y="{TOP + PLOT_H + 27}">{escape(label)}</text>')
        x += 24 + round(5.4 * len(label))
    return out


def svg(charts: list[Chart], caption: str) -> str:
    height = math.ceil(len(charts) / COLUMNS) * CELL_H + 30
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
        f'height="{height}" role="img">',
        f"<title>{escape(caption)}</title><style>{style()}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="6" class="page"/>'
    ]
    for index, chart in enumerate(charts):
        out.append(
            f'<g transform="translate({index % COLUMNS * CELL_W},{index // COLUMNS * CELL_H + 6})">'
        )
        out += draw(chart)
        out.append("</g>")
    out.append(f'<text class="axis" x="{LEFT}" y="{height - 10}">{escape(caption)}</text></svg>')
    return "\n".join(out) + "\n"
