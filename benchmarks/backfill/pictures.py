"""Bars by policy in panels, one for each workload, as an SVG file that stands alone, in the colours of the reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import log10

from refold.results import COLOURS, STYLE, cut, series_class, svg

WIDTH = 1000.0
LEFT, TOP, GAP = 176.0, 106.0, 82.0
BAR, ROW, HEAD = 10.0, 16.0, 44.0
SMALLEST = 1e-4
"""What is less than so much of the largest has no length on a logarithmic axis."""

MORE_STYLE = """
.bar { fill: currentColor; }
.name { text-anchor: end; fill: var(--ink); }
.panel { font-size: 13px; font-weight: 600; fill: var(--ink); }
.value { font-size: 11px; fill: var(--ink); }
.level { stroke: var(--ink); stroke-dasharray: 4 3; }
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """A value for each of the picture's names; None: there is none."""

    title: str
    values: Sequence[float | None]


@dataclass(frozen=True, slots=True)
class PanelsPicture:
    """Panels in rows of `columns`, with the names at the left of each row. `colours`: the series of each name.

    Bars are as long as the logarithms of their values if `logarithmic`; `level` is a value drawn across.
    """

    title: str
    about: str
    names: Sequence[str]
    colours: Sequence[int]
    panels: Sequence[Panel]
    columns: int
    text: Callable[[float], str]
    logarithmic: bool = False
    level: float | None = None

    def svg(self) -> str:
        """The picture as a file of its own."""
        wide = (WIDTH - LEFT - GAP * self.columns) / self.columns
        high = ROW * len(self.names) + HEAD
        parts: list[str] = []
        for place, panel in enumerate(self.panels):
            row, column = divmod(place, self.columns)
            left, top = LEFT + column * (wide + GAP), TOP + row * high
            if not column:
                parts += [
                    svg.words(name, LEFT - 10, top + ROW * (line + 0.5), "name") for line, name in enumerate(self.names)
                ]
            parts += self._panel(panel, left, top, wide)
        rows = -(-len(self.panels) // self.columns)
        return _page(TOP + rows * high - 14, self.title, self.about, parts)

    def _panel(self, panel: Panel, left: float, top: float, wide: float) -> list[str]:
        bottom = top + ROW * len(self.names)
        parts = [svg.words(panel.title, left, top - 14, "panel"), svg.upright(left, top - 3, bottom, "axis")]
        scale = self._scale(panel)
        for line, (value, colour) in enumerate(zip(panel.values, self.colours, strict=True)):
            if value is None:
                continue
            at, long = top + ROW * line + (ROW - BAR) / 2, max(1.0, wide * scale(value))
            bar = svg.tag("rect", class_="bar", x=left, y=at, width=long, height=BAR, rx=2)
            text = svg.words(self.text(value), left + long + 5, at + BAR / 2, "value")
            parts.append(svg.group([bar, text], class_=series_class(colour)))
        if self.level is not None:
            parts.append(svg.upright(left + wide * scale(self.level), top - 3, bottom, "level"))
        return parts

    def _scale(self, panel: Panel) -> Callable[[float], float]:
        """Which part of the panel's width a value takes, 0 to 1; linear axes are the same in all panels."""
        shown = [panel] if self.logarithmic else self.panels
        values = [value for one in shown for value in one.values if value is not None]
        most = max([*values, self.level or 0.0, 1e-9])
        if not self.logarithmic:
            return lambda value: min(max(value / most, 0.0), 1.0)
        least = min(value for value in (*values, most) if value > SMALLEST * most) / 2
        return lambda value: log10(max(value, least) / least) / log10(most / least)


def _page(height: float, title: str, about: str, parts: Sequence[str]) -> str:
    """The whole file: a title, a line about it, and the parts."""
    words = [
        svg.tag("rect", class_="page", width=WIDTH, height=height),
        svg.words(cut(title, 90), 28, 30, "title"),
        svg.words(cut(about, 150), 28, 54, "about"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {height:g}" width="{WIDTH:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}">'
    )
    return f"{head}<style>{STYLE}{COLOURS}{MORE_STYLE}</style>{''.join([*words, *parts])}</svg>\n"
