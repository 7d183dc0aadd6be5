"""Pictures of results that stand alone as SVG files, in the colours of the reports, by day and by night."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from refold.results import COLOURS, STYLE, Frame, cut, nice_top, series_class, svg

WIDTH = 1000.0
MORE_STYLE = """
.bar { fill: currentColor; }
.published .bar { fill: none; stroke: currentColor; stroke-width: 1.3; }
.name { font-size: 13px; fill: var(--ink); text-anchor: end; }
.panel { font-size: 14px; font-weight: 600; fill: var(--ink); }
.value { font-size: 11.5px; fill: var(--ink); }
.dot { fill: currentColor; }
.end { font-size: 13px; fill: currentColor; }
.lead { stroke: currentColor; stroke-width: 1; opacity: .6; }
"""


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


# --- bars -----------------------------------------------------------------------------------------------------

BAR, ROW = 11.0, 32.0


@dataclass(frozen=True, slots=True)
class Pair:
    """One policy in one panel: what came out, and what was published; None: nothing was."""

    ours: float | None
    published: float | None = None


@dataclass(frozen=True, slots=True)
class Panel:
    """A column of bars, one pair for each of the picture's names."""

    title: str
    pairs: Sequence[Pair]


@dataclass(frozen=True, slots=True)
class BarsPicture:
    """Panels side by side, with the names of the policies at the left. `unit` stands behind each value."""

    title: str
    about: str
    names: Sequence[str]
    panels: Sequence[Panel]
    keys: tuple[str, str]
    unit: str

    def svg(self) -> str:
        """The picture as a file of its own."""
        left, top, gap = 110.0, 128.0, 64.0
        wide = (WIDTH - left - gap * len(self.panels)) / len(self.panels)
        most = max(value for panel in self.panels for pair in panel.pairs for value in _values(pair))
        parts = self._key()
        for place, name in enumerate(self.names):
            parts.append(svg.words(name, left - 10, top + ROW * (place + 0.5), "name"))
        for column, panel in enumerate(self.panels):
            at = left + column * (wide + gap)
            parts.append(svg.words(panel.title, at, top - 16, "panel"))
            parts.append(svg.upright(at, top - 2, top + ROW * len(self.names), "axis"))
            for place, pair in enumerate(panel.pairs):
                parts += self._pair(pair, at, top + ROW * place, wide / most)
        return _page(top + ROW * len(self.names) + 20, self.title, self.about, parts)

    def _pair(self, pair: Pair, left: float, top: float, scale: float) -> list[str]:
        both = [(pair.ours, "s0", 0.0), (pair.published, "s1 published", BAR + 2)]
        if pair.published is None:
            both = [(pair.ours, "s0", BAR / 2)]
        parts = []
        for value, colour, down in both:
            if value is None:
                continue
            at, long = top + down + (ROW - 2 * BAR - 2) / 2, max(1.0, value * scale)
            bar = svg.tag("rect", class_="bar", x=left, y=at, width=long, height=BAR, rx=2)
            text = svg.words(f"{value:.2f} {self.unit}", left + long + 6, at + BAR / 2, "value")
            parts.append(svg.group([bar, text], class_=colour))
        return parts

    def _key(self) -> list[str]:
        parts = []
        for text, colour, left in zip(self.keys, ("s0", "s1 published"), (28.0, 200.0), strict=True):
            swatch = svg.tag("rect", class_="bar", x=left, y=74, width=22, height=10, rx=2)
            parts += [svg.group([swatch], class_=colour), svg.words(text, left + 30, 79, "key")]
        return parts


def _values(pair: Pair) -> list[float]:
    return [value for value in (pair.ours, pair.published) if value is not None]


# --- lines ----------------------------------------------------------------------------------------------------

ROOM = Frame(WIDTH, 540.0, left=70, right=215, top=96, bottom=56)
LABEL = 17.0
"""How far apart the names at the ends of lines are."""


@dataclass(frozen=True, slots=True)
class Series:
    """A line: a name, and a value for each of the picture's places."""

    name: str
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class LinesPicture:
    """Lines over the same places, each named at its end. Where values differ much, the axis is logarithmic."""

    title: str
    about: str
    x_title: str
    y_title: str
    places: Sequence[float]
    texts: Sequence[str]
    series: Sequence[Series]

    def svg(self) -> str:
        """The picture as a file of its own."""
        up = _Upwards([value for one in self.series for value in one.values])
        parts = self._axes(up)
        ends = apart([up.at(one.values[-1]) for one in self.series], ROOM.top, ROOM.bottom_edge)
        for number, (one, end) in enumerate(zip(self.series, ends, strict=True)):
            parts.append(svg.group(self._line(one, up, end), class_=series_class(number)))
        return _page(ROOM.height, self.title, self.about, parts)

    def _along(self, value: float) -> float:
        first, last = self.places[0], self.places[-1]
        return ROOM.left + 14 + (value - first) / (last - first) * (ROOM.across - 28)

    def _axes(self, up: _Upwards) -> list[str]:
        parts = [svg.words(self.y_title, 28, ROOM.top - 18, "axis-title")]
        for value in up.ticks:
            at = up.at(value)
            parts += [
                svg.across(ROOM.left, ROOM.right_edge, at, "grid"),
                svg.words(f"{value:g}", ROOM.left - 8, at, "tick y"),
            ]
        parts.append(svg.across(ROOM.left, ROOM.right_edge, ROOM.bottom_edge, "axis"))
        for value, text in zip(self.places, self.texts, strict=True):
            at = self._along(value)
            parts.append(svg.upright(at, ROOM.bottom_edge, ROOM.bottom_edge + 4, "axis"))
            parts.append(svg.words(text, at, ROOM.bottom_edge + 15, "tick x"))
        middle = ROOM.left + ROOM.across / 2
        return [*parts, svg.words(self.x_title, middle, ROOM.height - 16, "axis-title x")]

    def _line(self, one: Series, up: _Upwards, end: float) -> list[str]:
        points = [(self._along(x), up.at(y)) for x, y in zip(self.places, one.values, strict=True)]
        path = "M" + "L".join(f"{svg.number(left)} {svg.number(top)}" for left, top in points)
        parts = [svg.tag("path", class_="line", d=path)]
        for (left, top), value, text in zip(points, one.values, self.texts, strict=True):
            dot = f'<circle class="dot" cx="{svg.number(left)}" cy="{svg.number(top)}" r="3.2">'
            parts.append(f"{dot}{svg.tag('title', f'{one.name}, {text}: {value:.3g} h')}</circle>")
        left, top = points[-1]
        lead = svg.tag("line", class_="lead", x1=left + 5, y1=top, x2=ROOM.right_edge + 14, y2=end)
        return [*parts, lead, svg.words(f"{one.name}  {one.values[-1]:.3g}", ROOM.right_edge + 18, end, "end")]


class _Upwards:
    """The axis of values: from 0, or logarithmic if the largest is many times the smallest."""

    MANY = 6.0

    def __init__(self, values: Sequence[float]) -> None:
        low, high = min(values), max(values)
        self._log = high > self.MANY * low
        if not self._log:
            self._low, self._high = 0.0, nice_top(high)
            self.ticks = [self._high * part / 5 for part in range(6)]
            return
        steps = [
            factor * 10.0**power for power in range(floor(log10(low)), ceil(log10(high)) + 1) for factor in (1, 2, 5)
        ]
        first = max(step for step in steps if step <= low)
        last = min(step for step in steps if step >= high)
        self.ticks = [step for step in steps if first <= step <= last]
        self._low, self._high = log10(first), log10(last)

    def at(self, value: float) -> float:
        """How far down in the picture."""
        where = log10(value) if self._log else value
        return ROOM.bottom_edge - (where - self._low) / (self._high - self._low) * ROOM.down


def apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Near where each wants to be, in the same order, none too close to the next."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    lowest = top
    for rank, index in enumerate(order):
        still = bottom - LABEL * (len(order) - 1 - rank)
        places[index] = min(max(wanted[index], lowest), max(still, lowest))
        lowest = places[index] + LABEL
    return places
