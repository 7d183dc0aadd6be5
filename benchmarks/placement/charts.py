"""Line charts with confidence bands, as standalone SVG files in the colours of the HTML report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from benchmarks.scheduling.charts import spread_labels
from refold.results import COLOURS, STYLE, Frame, series_class, svg, truncate

WIDTH, HEIGHT = 1000.0, 540.0
FRAME = Frame(WIDTH, HEIGHT, left=70, right=215, top=96, bottom=56)
CHART_STYLE = """
.band { fill: currentColor; opacity: .15; }
.dot { fill: currentColor; }
.end { font-size: 13px; fill: currentColor; }
.lead { stroke: currentColor; stroke-width: 1; opacity: .6; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, its values, and half the width of the confidence interval of each value."""

    name: str
    values: Sequence[float]
    halves: Sequence[float]


@dataclass(frozen=True, slots=True)
class BandChart:
    """Lines with confidence bands over common x values; each line has its name at the end.

    `x_labels`: a label for each x value; empty: no tick.
    """

    title: str
    subtitle: str
    x_title: str
    y_title: str
    x_values: Sequence[float]
    x_labels: Sequence[str]
    series: Sequence[Series]

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        axis = _ValueAxis(
            min(value - half for one in self.series for value, half in zip(one.values, one.halves, strict=True)),
            max(value + half for one in self.series for value, half in zip(one.values, one.halves, strict=True)),
        )
        parts = self._axes(axis)
        ends = spread_labels([axis.y(one.values[-1]) for one in self.series], FRAME.top, FRAME.bottom_edge)
        for number, (one, end) in enumerate(zip(self.series, ends, strict=True)):
            parts.append(svg.group(self._line(one, axis, end), class_=series_class(number)))
        return _document(self.title, self.subtitle, parts)

    def _x(self, value: float) -> float:
        first, last = self.x_values[0], self.x_values[-1]
        return FRAME.left + 14 + (value - first) / (last - first) * (FRAME.plot_width - 28)

    def _axes(self, axis: _ValueAxis) -> list[str]:
        parts = [svg.label_text(self.y_title, 28, FRAME.top - 18, "axis-title")]
        for value in axis.ticks:
            y = axis.y(value)
            parts.append(svg.horizontal_line(FRAME.left, FRAME.right_edge, y, "grid"))
            parts.append(svg.label_text(f"{value:g}", FRAME.left - 8, y, "tick y"))
        parts.append(svg.horizontal_line(FRAME.left, FRAME.right_edge, FRAME.bottom_edge, "axis"))
        for value, text in zip(self.x_values, self.x_labels, strict=True):
            if text:
                x = self._x(value)
                parts.append(svg.vertical_line(x, FRAME.bottom_edge, FRAME.bottom_edge + 4, "axis"))
                parts.append(svg.label_text(text, x, FRAME.bottom_edge + 15, "tick x"))
        return [*parts, svg.label_text(self.x_title, FRAME.left + FRAME.plot_width / 2, HEIGHT - 16, "axis-title x")]

    def _line(self, one: Series, axis: _ValueAxis, end: float) -> list[str]:
        xs = [self._x(value) for value in self.x_values]
        middle = list(zip(xs, (axis.y(value) for value in one.values), strict=True))
        above = [(x, axis.y(value + half)) for x, value, half in zip(xs, one.values, one.halves, strict=True)]
        below = [(x, axis.y(value - half)) for x, value, half in zip(xs, one.values, one.halves, strict=True)]
        parts = [
            svg.tag("path", class_="band", d=_path([*above, *reversed(below)]) + "Z"),
            svg.tag("path", class_="line", d=_path(middle)),
        ]
        left, top = middle[-1]
        lead = svg.tag("line", class_="lead", x1=left + 5, y1=top, x2=FRAME.right_edge + 14, y2=end)
        return [*parts, lead, svg.label_text(f"{one.name}  {one.values[-1]:.3g}", FRAME.right_edge + 18, end, "end")]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{svg.format_number(left)} {svg.format_number(top)}" for left, top in points)


def _document(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """Return the SVG document with a title and a subtitle."""
    heading = [
        svg.tag("rect", class_="page", width=WIDTH, height=HEIGHT),
        svg.label_text(truncate(title, 90), 28, 30, "title"),
        svg.label_text(truncate(subtitle, 150), 28, 54, "about"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}" role="img" aria-label="{escape(title)}">'
    )
    return f"{head}<style>{STYLE}{COLOURS}{CHART_STYLE}</style>{''.join([*heading, *parts])}</svg>\n"


class _ValueAxis:
    """The y axis, from the lowest to the highest value, with ticks at multiples of 1, 2 or 5 times a power of ten."""

    MAX_STEPS = 6

    def __init__(self, low: float, high: float) -> None:
        rough = max(high - low, 1e-9) / self.MAX_STEPS
        power = 10.0 ** floor(log10(rough))
        step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
        self._low, self._high = step * floor(low / step), step * ceil(high / step)
        count = round((self._high - self._low) / step)
        self.ticks = [round(self._low + step * number, 10) for number in range(count + 1)]

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        return FRAME.bottom_edge - (value - self._low) / (self._high - self._low) * FRAME.plot_height
