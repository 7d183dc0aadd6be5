"""Charts of the result pages, as standalone SVG files in the colours of the HTML report: lines, and panels of bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log10

import numpy as np

from refold.simulator.results import Axis, Frame, Plot, range_axis, svg, value_axis

WIDTH = 1000.0

# --- lines ----------------------------------------------------------------------------------------------------

FRAME = Frame(WIDTH, 540.0, left=70, right=215, top=96, bottom=56)
LABEL_HEIGHT = 17.0
"""Minimum distance between the labels at the ends of lines."""

LINE_STYLE = """
.band { fill: currentColor; opacity: .15; }
.end { font-size: 13px; fill: currentColor; }
.lead { stroke: currentColor; stroke-width: 1; opacity: .6; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, and a value for each x value. `halves`: half the width of each confidence interval."""

    name: str
    values: Sequence[float]
    halves: Sequence[float] = ()

    def bounds(self) -> tuple[list[float], list[float]]:
        """Return the lower and upper ends of the confidence intervals."""
        pairs = list(zip(self.values, self.halves, strict=True))
        return [value - half for value, half in pairs], [value + half for value, half in pairs]


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over common x values, each with its name and last value at the end.

    `x_labels`: a label for each x value; empty: no tick. With confidence intervals, lines have bands, and the y axis
    covers only the bands; without, values are dots, and the y axis begins at 0 or is logarithmic.
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
        plot = Plot(FRAME, self._x_axis(), self._y_axis())
        parts = [*plot.draw_axes(), *plot.draw_titles(self.x_title, self.y_title)]
        ends = spread_labels([plot.y(one.values[-1]) for one in self.series], FRAME.top, FRAME.bottom_edge)
        for number, (one, end) in enumerate(zip(self.series, ends, strict=True)):
            parts.append(svg.group(self._line(plot, one, end), class_=svg.series_class(number)))
        return svg.document(WIDTH, FRAME.height, self.title, self.subtitle, parts, LINE_STYLE)

    def _x_axis(self) -> Axis:
        """Return the x axis, with a margin of 14 units at both ends."""
        first, last = self.x_values[0], self.x_values[-1]
        margin = 14 / (FRAME.plot_width - 28) * (last - first)
        marks = [(value, text) for value, text in zip(self.x_values, self.x_labels, strict=True) if text]
        return Axis("count", first - margin, last + margin, marks)

    def _y_axis(self) -> Axis:
        values = [value for one in self.series for value in one.values]
        bounds = [value for one in self.series if one.halves for ends in one.bounds() for value in ends]
        return range_axis(min(bounds), max(bounds)) if bounds else value_axis(values)

    def _line(self, plot: Plot, one: Series, end: float) -> list[str]:
        x_values, values = np.array(self.x_values), np.array(one.values)
        parts = [svg.tag("path", class_="line", d=plot.path(x_values, values))]
        if one.halves:
            low, high = one.bounds()
            parts.insert(0, svg.tag("path", class_="band", d=plot.band(x_values, np.array(low), np.array(high))))
        else:
            for x, value, text in zip(self.x_values, one.values, self.x_labels, strict=True):
                tooltip = f"{one.name}, {text}: {value:.3g} {self.y_title}"
                parts.append(svg.dot(plot.x(x), plot.y(value), 3.2, "dot", tooltip))
        x, y = plot.x(self.x_values[-1]), plot.y(one.values[-1])
        lead = svg.tag("line", class_="lead", x1=x + 5, y1=y, x2=FRAME.right_edge + 14, y2=end)
        return [*parts, lead, svg.label_text(f"{one.name}  {one.values[-1]:.3g}", FRAME.right_edge + 18, end, "end")]


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


# --- bars -----------------------------------------------------------------------------------------------------

LEFT, TOP, GAP = 176.0, 106.0, 82.0
BAR, BAR_GAP, ROW_GAP, HEAD = 10.0, 2.0, 6.0, 44.0
MIN_LOG_SHARE = 1e-4
"""Values below this share of the largest value have no length on a logarithmic axis."""

PANEL_STYLE = """
.published .bar, .published .swatch { fill: none; stroke: currentColor; stroke-width: 1.3; }
.panel { font-size: 13px; font-weight: 600; fill: var(--ink); }
.value { font-size: 11px; }
.level { stroke: var(--ink); stroke-dasharray: 4 3; }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A value for each name of the chart (None: no value), and optionally a published value to compare with."""

    title: str
    values: Sequence[float | None]
    published: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class PanelChart:
    """Panels of bars in rows of `columns`, with the names to the left of each row.

    `colours`: the colour index of each name. The axis is logarithmic if `logarithmic`. `level` is a value marked by a
    dashed line. `legend`: names of our and of the published values.
    """

    title: str
    subtitle: str
    names: Sequence[str]
    colours: Sequence[int]
    panels: Sequence[Panel]
    columns: int
    text: Callable[[float], str]
    logarithmic: bool = False
    level: float | None = None
    legend: tuple[str, str] | None = None

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        width = (WIDTH - LEFT - GAP * self.columns) / self.columns
        first, height = TOP + (24 if self.legend else 0), self._row * len(self.names) + HEAD
        parts: list[str] = []
        if self.legend:
            parts += svg.legend(list(zip(("s0", "s1 published"), self.legend, strict=True)), 28, 79, BAR)
        for index, panel in enumerate(self.panels):
            row, column = divmod(index, self.columns)
            left, top = LEFT + column * (width + GAP), first + row * height
            if not column:
                parts += [
                    svg.label_text(name, LEFT - 10, top + self._row * (line + 0.5), "name")
                    for line, name in enumerate(self.names)
                ]
            parts += self._panel(panel, left, top, width)
        rows = -(-len(self.panels) // self.columns)
        return svg.document(WIDTH, first + rows * height - 14, self.title, self.subtitle, parts, PANEL_STYLE)

    @property
    def _row(self) -> float:
        """The height of a row: one bar, or two with published values."""
        return ROW_GAP + BAR + (BAR_GAP + BAR if self.legend else 0.0)

    def _panel(self, panel: Panel, left: float, top: float, width: float) -> list[str]:
        bottom = top + self._row * len(self.names)
        parts = [svg.label_text(panel.title, left, top - 14, "panel"), svg.vertical_line(left, top - 3, bottom, "axis")]
        scale = self._scale(panel)
        for line in range(len(self.names)):
            bars = [(value, class_) for value, class_ in self._bars(panel, line) if value is not None]
            y = top + self._row * (line + 0.5) - (len(bars) * (BAR + BAR_GAP) - BAR_GAP) / 2
            for value, class_ in bars:
                parts.append(svg.labelled_bar(left, y, width * scale(value), BAR, self.text(value), class_))
                y += BAR + BAR_GAP
        if self.level is not None:
            parts.append(svg.vertical_line(left + width * scale(self.level), top - 3, bottom, "level"))
        return parts

    def _bars(self, panel: Panel, line: int) -> list[tuple[float | None, str]]:
        """Return our and the published value of a name, with the CSS classes of their bars."""
        published = panel.published[line] if panel.published else None
        return [(panel.values[line], svg.series_class(self.colours[line])), (published, "s1 published")]

    def _scale(self, panel: Panel) -> Callable[[float], float]:
        """Return a function from values to shares of the panel's width. A linear scale is the same in all panels."""
        panels = [panel] if self.logarithmic else self.panels
        values = [value for one in panels for value in (*one.values, *one.published) if value is not None]
        largest = max([*values, self.level or 0.0, 1e-9])
        if not self.logarithmic:
            return lambda value: min(max(value / largest, 0.0), 1.0)
        smallest = min(value for value in (*values, largest) if value > MIN_LOG_SHARE * largest) / 2
        return lambda value: log10(max(value, smallest) / smallest) / log10(largest / smallest)
