"""Chart of ratios with confidence intervals: a row per policy, a panel per measure, and a line at 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

from refold.simulator.results import svg
from refold.simulator.results.axes import Axis, Frame, Plot

WIDTH = 1000.0
LEFT, TOP, ROW_HEIGHT, GAP = 168.0, 112.0, 24.0, 22.0
LOW, HIGH = 0.25, 4.0
"""The range of the axes, which are logarithmic; what lies beyond is drawn at the end."""

MARKS = ((LOW, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (HIGH, "4"))

STYLE = """
.one { stroke: var(--soft); stroke-dasharray: 3 3; }
.whisker { stroke: currentColor; stroke-width: 2; }
.chosen { font-weight: 700; }
.panel { font-size: 12.5px; font-weight: 600; fill: var(--ink); text-anchor: middle; }
.clear .dot { fill: currentColor; } .dot { fill: var(--page); stroke: currentColor; stroke-width: 2; }
"""

Ratio = tuple[float, float, float]
"""A ratio, and the ends of its confidence interval."""


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A policy and its ratios, one per panel; None: undefined. `series`: number of its colour."""

    name: str
    series: int
    ratios: Sequence[Ratio | None]
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """The chart. Dots are filled if the interval does not contain 1."""

    title: str
    description: str
    panels: Sequence[str]
    rows: Sequence[IntervalRow]

    def svg(self) -> str:
        """Return the chart as a self-contained SVG file."""
        height = TOP + ROW_HEIGHT * len(self.rows) + 48
        parts = [
            svg.label_text(
                svg.truncate(row.name, 24), LEFT - 12, self._y(number), "name chosen" if row.chosen else "name"
            )
            for number, row in enumerate(self.rows)
        ]
        for column in range(len(self.panels)):
            parts += self._panel(column, height)
        return svg.document(WIDTH, height, self.title, self.description, parts, STYLE)

    def _y(self, row: int) -> float:
        return TOP + ROW_HEIGHT * (row + 0.5)

    def _panel(self, column: int, height: float) -> list[str]:
        width = (WIDTH - LEFT - 20 - GAP * (len(self.panels) - 1)) / len(self.panels)
        left = LEFT + column * (width + GAP)
        frame = Frame(WIDTH, height, left, WIDTH - left - width, TOP, 48)
        plot = Plot(frame, Axis("log", LOW, HIGH, MARKS), Axis("count", 0.0, 1.0))
        parts = [
            svg.label_text(self.panels[column], left + width / 2, TOP - 16, "panel"),
            *plot.draw_x_axis(),
            svg.vertical_line(plot.x(1.0), TOP, frame.bottom_edge, "one"),
        ]
        for number, row in enumerate(self.rows):
            if (ratio := row.ratios[column]) is not None:
                tooltip = f"{row.name}, {self.panels[column]}: {ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})"
                parts.append(_interval(plot, self._y(number), ratio, svg.series_class(row.series), tooltip))
        return parts


def _interval(plot: Plot, y: float, ratio: Ratio, class_: str, tooltip: str) -> str:
    value, low, high = (plot.x(min(max(one, LOW), HIGH) if isfinite(one) else HIGH) for one in ratio)
    clear = " clear" if ratio[1] > 1 or ratio[2] < 1 else ""
    return svg.group(
        [svg.horizontal_line(low, high, y, "whisker"), svg.dot(value, y, 4.5, "dot", tooltip)], class_=class_ + clear
    )
