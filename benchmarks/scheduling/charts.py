"""Bar and line charts as standalone SVG files in the colours of the HTML report, light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from refold.results import COLOURS, STYLE, Frame, nice_maximum, series_class, svg, truncate

WIDTH = 1000.0
CHART_STYLE = """
.bar { fill: currentColor; }
.published .bar { fill: none; stroke: currentColor; stroke-width: 1.3; }
.name { font-size: 13px; fill: var(--ink); text-anchor: end; }
.panel { font-size: 14px; font-weight: 600; fill: var(--ink); }
.value { font-size: 11.5px; fill: var(--ink); }
.dot { fill: currentColor; }
.end { font-size: 13px; fill: currentColor; }
.lead { stroke: currentColor; stroke-width: 1; opacity: .6; }
"""


def _document(height: float, title: str, subtitle: str, parts: Sequence[str]) -> str:
    """Return the SVG document with a title and a subtitle."""
    heading = [
        svg.tag("rect", class_="page", width=WIDTH, height=height),
        svg.label_text(truncate(title, 90), 28, 30, "title"),
        svg.label_text(truncate(subtitle, 150), 28, 54, "about"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">'
    )
    return f"{head}<style>{STYLE}{COLOURS}{CHART_STYLE}</style>{''.join([*heading, *parts])}</svg>\n"


# --- bars -----------------------------------------------------------------------------------------------------

BAR, ROW = 11.0, 32.0


@dataclass(frozen=True, slots=True)
class Pair:
    """Our value and the published value of one policy in one panel; None: there is no value."""

    ours: float | None
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A column of bars, with a pair for each name of the chart."""

    title: str
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class BarChart:
    """Panels side by side, with the policy names at the left. `legend`: names of our and of the published values."""

    title: str
    subtitle: str
    names: Sequence[str]
    panels: Sequence[Panel]
    legend: tuple[str, str]
    unit: str

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        left, top, gap = 110.0, 128.0, 64.0
        width = (WIDTH - left - gap * len(self.panels)) / len(self.panels)
        largest = max(value for panel in self.panels for pair in panel.pairs for value in _values(pair))
        parts = self._legend()
        for row, name in enumerate(self.names):
            parts.append(svg.label_text(name, left - 10, top + ROW * (row + 0.5), "name"))
        for column, panel in enumerate(self.panels):
            x = left + column * (width + gap)
            parts.append(svg.label_text(panel.title, x, top - 16, "panel"))
            parts.append(svg.vertical_line(x, top - 2, top + ROW * len(self.names), "axis"))
            for row, pair in enumerate(panel.pairs):
                parts += self._pair(pair, x, top + ROW * row, width / largest)
        return _document(top + ROW * len(self.names) + 20, self.title, self.subtitle, parts)

    def _pair(self, pair: Pair, left: float, top: float, scale: float) -> list[str]:
        bars = [(pair.ours, "s0", 0.0), (pair.published, "s1 published", BAR + 2)]
        if pair.published is None:
            bars = [(pair.ours, "s0", BAR / 2)]
        parts = []
        for value, colour, offset in bars:
            if value is None:
                continue
            y, length = top + offset + (ROW - 2 * BAR - 2) / 2, max(1.0, value * scale)
            bar = svg.tag("rect", class_="bar", x=left, y=y, width=length, height=BAR, rx=2)
            text = svg.label_text(f"{value:.2f} {self.unit}", left + length + 6, y + BAR / 2, "value")
            parts.append(svg.group([bar, text], class_=colour))
        return parts

    def _legend(self) -> list[str]:
        parts = []
        for text, colour, left in zip(self.legend, ("s0", "s1 published"), (28.0, 200.0), strict=True):
            swatch = svg.tag("rect", class_="bar", x=left, y=74, width=22, height=10, rx=2)
            parts += [svg.group([swatch], class_=colour), svg.label_text(text, left + 30, 79, "key")]
        return parts


def _values(pair: Pair) -> list[float]:
    return [value for value in (pair.ours, pair.published) if value is not None]


# --- lines ----------------------------------------------------------------------------------------------------

FRAME = Frame(WIDTH, 540.0, left=70, right=215, top=96, bottom=56)
LABEL_HEIGHT = 17.0
"""Minimum distance between the labels at the ends of lines."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name, and a value for each x value of the chart."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over common x values, each with its name at the end. The y axis is logarithmic if values differ widely."""

    title: str
    subtitle: str
    x_title: str
    y_title: str
    x_values: Sequence[float]
    x_labels: Sequence[str]
    series: Sequence[Series]

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        axis = _ValueAxis([value for one in self.series for value in one.values])
        parts = self._axes(axis)
        ends = spread_labels([axis.y(one.values[-1]) for one in self.series], FRAME.top, FRAME.bottom_edge)
        for number, (one, end) in enumerate(zip(self.series, ends, strict=True)):
            parts.append(svg.group(self._line(one, axis, end), class_=series_class(number)))
        return _document(FRAME.height, self.title, self.subtitle, parts)

    def _x(self, value: float) -> float:
        first, last = self.x_values[0], self.x_values[-1]
        return FRAME.left + 14 + (value - first) / (last - first) * (FRAME.plot_width - 28)

    def _axes(self, axis: _ValueAxis) -> list[str]:
        parts = [svg.label_text(self.y_title, 28, FRAME.top - 18, "axis-title")]
        for value in axis.ticks:
            y = axis.y(value)
            parts += [
                svg.horizontal_line(FRAME.left, FRAME.right_edge, y, "grid"),
                svg.label_text(f"{value:g}", FRAME.left - 8, y, "tick y"),
            ]
        parts.append(svg.horizontal_line(FRAME.left, FRAME.right_edge, FRAME.bottom_edge, "axis"))
        for value, text in zip(self.x_values, self.x_labels, strict=True):
            x = self._x(value)
            parts.append(svg.vertical_line(x, FRAME.bottom_edge, FRAME.bottom_edge + 4, "axis"))
            parts.append(svg.label_text(text, x, FRAME.bottom_edge + 15, "tick x"))
        middle = FRAME.left + FRAME.plot_width / 2
        return [*parts, svg.label_text(self.x_title, middle, FRAME.height - 16, "axis-title x")]

    def _line(self, one: Series, axis: _ValueAxis, end: float) -> list[str]:
        points = [(self._x(x), axis.y(y)) for x, y in zip(self.x_values, one.values, strict=True)]
        path = "M" + "L".join(f"{svg.format_number(left)} {svg.format_number(top)}" for left, top in points)
        parts = [svg.tag("path", class_="line", d=path)]
        for (left, top), value, text in zip(points, one.values, self.x_labels, strict=True):
            dot = f'<circle class="dot" cx="{svg.format_number(left)}" cy="{svg.format_number(top)}" r="3.2">'
            parts.append(f"{dot}{svg.tag('title', f'{one.name}, {text}: {value:.3g} h')}</circle>")
        left, top = points[-1]
        lead = svg.tag("line", class_="lead", x1=left + 5, y1=top, x2=FRAME.right_edge + 14, y2=end)
        return [*parts, lead, svg.label_text(f"{one.name}  {one.values[-1]:.3g}", FRAME.right_edge + 18, end, "end")]


class _ValueAxis:
    """The y axis: linear from 0, or logarithmic if the largest value is more than MAX_LINEAR_RATIO × the smallest."""

    MAX_LINEAR_RATIO = 6.0

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        self._log = high > self.MAX_LINEAR_RATIO * low
        if not self._log:
            self._low, self._high = 0.0, nice_maximum(high)
            self.ticks = [self._high * part / 5 for part in range(6)]
            return
        steps = [
            factor * 10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1) for factor in (1, 2, 5)
        ]
        first = max(step for step in steps if step <= low)
        last = min(step for step in steps if step >= high)
        self.ticks = [step for step in steps if first <= step <= last]
        self._low, self._high = log10(first), log10(last)

    def y(self, value: float) -> float:
        """Return the y coordinate of a value."""
        scaled = log10(value) if self._log else value
        return FRAME.bottom_edge - (scaled - self._low) / (self._high - self._low) * FRAME.plot_height


def spread_labels(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Return label positions near the wanted ones, in the same order, at least LABEL_HEIGHT apart."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    positions = [0.0] * len(wanted)
    min_y = top
    for rank, index in enumerate(order):
        max_y = bottom - LABEL_HEIGHT * (len(order) - 1 - rank)
        positions[index] = min(max(wanted[index], min_y), max(max_y, min_y))
        min_y = positions[index] + LABEL_HEIGHT
    return positions
