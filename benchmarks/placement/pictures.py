"""Lines with how sure one is of them, as SVG files that stand alone, in the colours of the reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from benchmarks.scheduling.pictures import apart
from refold.results import COLOURS, STYLE, Frame, cut, series_class, svg

WIDTH, HEIGHT = 1000.0, 540.0
ROOM = Frame(WIDTH, HEIGHT, left=70, right=215, top=96, bottom=56)
MORE_STYLE = """
.band { fill: currentColor; opacity: .15; }
.dot { fill: currentColor; }
.end { font-size: 13px; fill: currentColor; }
.lead { stroke: currentColor; stroke-width: 1; opacity: .6; }
"""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: its name, its values, and half of the confidence interval of each."""

    name: str
    values: Sequence[float]
    halves: Sequence[float]


@dataclass(frozen=True, slots=True)
class BandsPicture:
    """Lines over the same places, each in the band of its confidence interval and named at its end."""

    title: str
    about: str
    x_title: str
    y_title: str
    places: Sequence[float]
    texts: Sequence[str]
    series: Sequence[Series]

    def svg(self) -> str:
        """The picture as a file of its own."""
        axis = _Upwards(
            min(value - half for one in self.series for value, half in zip(one.values, one.halves, strict=True)),
            max(value + half for one in self.series for value, half in zip(one.values, one.halves, strict=True)),
        )
        parts = self._axes(axis)
        ends = apart([axis.at(one.values[-1]) for one in self.series], ROOM.top, ROOM.bottom_edge)
        for number, (one, end) in enumerate(zip(self.series, ends, strict=True)):
            parts.append(svg.group(self._line(one, axis, end), class_=series_class(number)))
        return _page(self.title, self.about, parts)

    def _along(self, value: float) -> float:
        first, last = self.places[0], self.places[-1]
        return ROOM.left + 14 + (value - first) / (last - first) * (ROOM.across - 28)

    def _axes(self, axis: _Upwards) -> list[str]:
        parts = [svg.words(self.y_title, 28, ROOM.top - 18, "axis-title")]
        for value in axis.ticks:
            at = axis.at(value)
            parts.append(svg.across(ROOM.left, ROOM.right_edge, at, "grid"))
            parts.append(svg.words(f"{value:g}", ROOM.left - 8, at, "tick y"))
        parts.append(svg.across(ROOM.left, ROOM.right_edge, ROOM.bottom_edge, "axis"))
        for value, text in zip(self.places, self.texts, strict=True):
            if text:
                at = self._along(value)
                parts.append(svg.upright(at, ROOM.bottom_edge, ROOM.bottom_edge + 4, "axis"))
                parts.append(svg.words(text, at, ROOM.bottom_edge + 15, "tick x"))
        return [*parts, svg.words(self.x_title, ROOM.left + ROOM.across / 2, HEIGHT - 16, "axis-title x")]

    def _line(self, one: Series, axis: _Upwards, end: float) -> list[str]:
        along = [self._along(place) for place in self.places]
        middle = list(zip(along, (axis.at(value) for value in one.values), strict=True))
        above = [(x, axis.at(value + half)) for x, value, half in zip(along, one.values, one.halves, strict=True)]
        below = [(x, axis.at(value - half)) for x, value, half in zip(along, one.values, one.halves, strict=True)]
        parts = [
            svg.tag("path", class_="band", d=_path([*above, *reversed(below)]) + "Z"),
            svg.tag("path", class_="line", d=_path(middle)),
        ]
        left, top = middle[-1]
        lead = svg.tag("line", class_="lead", x1=left + 5, y1=top, x2=ROOM.right_edge + 14, y2=end)
        return [*parts, lead, svg.words(f"{one.name}  {one.values[-1]:.3g}", ROOM.right_edge + 18, end, "end")]


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{svg.number(left)} {svg.number(top)}" for left, top in points)


def _page(title: str, about: str, parts: Sequence[str]) -> str:
    """The whole file: a title, a line about it, and the parts."""
    words = [
        svg.tag("rect", class_="page", width=WIDTH, height=HEIGHT),
        svg.words(cut(title, 90), 28, 30, "title"),
        svg.words(cut(about, 150), 28, 54, "about"),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}" role="img" aria-label="{escape(title)}">'
    )
    return f"{head}<style>{STYLE}{COLOURS}{MORE_STYLE}</style>{''.join([*words, *parts])}</svg>\n"


class _Upwards:
    """The axis of values, from the lowest to the highest, in steps of 1, 2 or 5."""

    STEPS = 6

    def __init__(self, low: float, high: float) -> None:
        rough = max(high - low, 1e-9) / self.STEPS
        power = 10.0 ** floor(log10(rough))
        step = power * next(factor for factor in (1, 2, 5, 10) if factor * power >= rough)
        self._low, self._high = step * floor(low / step), step * ceil(high / step)
        count = round((self._high - self._low) / step)
        self.ticks = [round(self._low + step * place, 10) for place in range(count + 1)]

    def at(self, value: float) -> float:
        """How far down in the picture."""
        return ROOM.bottom_edge - (value - self._low) / (self._high - self._low) * ROOM.down
