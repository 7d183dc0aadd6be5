"""Bar charts by policy with a panel for each workload, as standalone SVG files in the colours of the HTML report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from refold.results import COLOURS, STYLE, series_class, svg, truncate

WIDTH = 1000.0
LEFT, TOP, GAP = 176.0, 106.0, 82.0
BAR, ROW, HEAD = 10.0, 16.0, 44.0
MIN_LOG_SHARE = 1e-4
"""Values below this share of the largest value have no length on a logarithmic axis."""

CHART_STYLE = """
.bar { fill: currentColor; }
.name { text-anchor: end; fill: var(--ink); }
.panel { font-size: 13px; font-weight: 600; fill: var(--ink); }
.value { font-size: 11px; fill: var(--ink); }
.level { stroke: var(--ink); stroke-dasharray: 4 3; }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A value for each name of the chart; None: not measured."""

    title: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class PanelChart:
    """Panels in rows of `columns`, with the names to the left of each row. `colours`: the colour index of each name.

    The axis is logarithmic if `logarithmic`. `level` is a value marked by a dashed line.
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

    def svg(self) -> str:
        """Return the chart as an SVG document."""
        width = (WIDTH - LEFT - GAP * self.columns) / self.columns
        height = ROW * len(self.names) + HEAD
        parts: list[str] = []
        for index, panel in enumerate(self.panels):
            row, column = divmod(index, self.columns)
            left, top = LEFT + column * (width + GAP), TOP + row * height
            if not column:
                parts += [
                    svg.label_text(name, LEFT - 10, top + ROW * (line + 0.5), "name")
                    for line, name in enumerate(self.names)
                ]
            parts += self._panel(panel, left, top, width)
        rows = -(-len(self.panels) // self.columns)
        return _document(TOP + rows * height - 14, self.title, self.subtitle, parts)

    def _panel(self, panel: Panel, left: float, top: float, width: float) -> list[str]:
        bottom = top + ROW * len(self.names)
        parts = [svg.label_text(panel.title, left, top - 14, "panel"), svg.vertical_line(left, top - 3, bottom, "axis")]
        scale = self._scale(panel)
        for line, (value, colour) in enumerate(zip(panel.values, self.colours, strict=True)):
            if value is None:
                continue
            y, length = top + ROW * line + (ROW - BAR) / 2, max(1.0, width * scale(value))
            bar = svg.tag("rect", class_="bar", x=left, y=y, width=length, height=BAR, rx=2)
            text = svg.label_text(self.text(value), left + length + 5, y + BAR / 2, "value")
            parts.append(svg.group([bar, text], class_=series_class(colour)))
        if self.level is not None:
            parts.append(svg.vertical_line(left + width * scale(self.level), top - 3, bottom, "level"))
        return parts

    def _scale(self, panel: Panel) -> Callable[[float], float]:
        """Return a function from values to shares of the panel's width. A linear scale is the same in all panels."""
        panels = [panel] if self.logarithmic else self.panels
        values = [value for one in panels for value in one.values if value is not None]
        largest = max([*values, self.level or 0.0, 1e-9])
        if not self.logarithmic:
            return lambda value: min(max(value / largest, 0.0), 1.0)
        smallest = min(value for value in (*values, largest) if value > MIN_LOG_SHARE * largest) / 2
        return lambda value: log10(max(value, smallest) / smallest) / log10(largest / smallest)


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
