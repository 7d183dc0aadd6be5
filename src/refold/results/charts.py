"""Pictures as SVG text: axes with ticks people like, lines, bars. Colours are classes; the page's style gives them.

A picture carries its numbers along as plain data, so that the page's script can answer a pointer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, Literal

import numpy as np

from refold.model import DAY, HOUR, MINUTE, text_from_seconds
from refold.packing import Floats
from refold.results import svg

WIDE, HALF = 1200.0, 720.0
"""How wide a picture is that has the page to itself, and one of two."""

COLOURS = 8
"""How many colours tell series apart; from there on they come again, dashed."""

APART = 1024
"""Series from here on are no policies: they have the same colours, from the first on, and are chosen on their own."""

Kind = Literal["time", "duration", "part", "count"]
"""What an axis counts: time since the start, how long (logarithmic), a part of a whole, or things."""


@dataclass(frozen=True, slots=True)
class Axis:
    """From where to where, in what, and its title."""

    kind: Kind
    low: float
    high: float
    title: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ChartLine:
    """A line: its series (which gives the colour), its name and its points; `marked` is a point to show."""

    series: int
    name: str
    x: Floats
    y: Floats
    marked: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """What lies between two lines, in the colour of a series."""

    series: int
    x: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class Level:
    """A value that means something by itself, drawn across the picture with its name."""

    at: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """An SVG drawing, safe to put into a page as it is, and the numbers behind it."""

    svg: str
    numbers: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """The drawing area within a picture, in its own units."""

    width: float
    height: float
    left: float = 62
    right: float = 22
    top: float = 14
    bottom: float = 28

    @property
    def across(self) -> float:
        """How wide the drawing area is."""
        return self.width - self.left - self.right

    @property
    def right_edge(self) -> float:
        """Where it ends to the right."""
        return self.width - self.right

    @property
    def bottom_edge(self) -> float:
        """Where it ends below."""
        return self.height - self.bottom

    @property
    def down(self) -> float:
        """How high it is."""
        return self.height - self.top - self.bottom


def line_picture(
    lines: Sequence[ChartLine],
    x: Axis,
    y: Axis,
    *,
    label: str,
    wide: bool = False,
    rule: tuple[float, str] | None = None,
    levels: Sequence[Level] = (),
    band: Band | None = None,
) -> Chart:
    """Lines over axes. `rule` is a vertical line with a name; `label` says what is seen, for those who do not see."""
    frame = Frame(WIDE if wide else HALF, 290)
    parts = _grid(frame, x, y)
    if rule is not None:
        parts += _rule(frame, x, *rule)
    if band is not None:
        parts.append(_band(frame, x, y, band))
    for level in levels:
        parts += _level(frame, y, level)
    for line in lines:
        parts += _line(frame, x, y, line, alone=len(lines) == 1 and band is None)
    parts.append(svg.tag("line", class_="crosshair", y1=frame.top, y2=frame.bottom_edge, visibility="hidden"))
    return Chart(
        svg.drawing(frame.width, frame.height, label, parts, "wide" if wide else "plot"), _numbers(frame, lines, x, y)
    )


def _line(frame: Frame, x: Axis, y: Axis, line: ChartLine, *, alone: bool) -> list[str]:
    along, up = _along(frame, x, line.x), _upwards(frame, y, line.y)
    path, parts = _path(along, up), []
    if alone:
        ground = f"{path}V{svg.number(frame.bottom_edge)}H{svg.number(along[0])}Z"
        parts.append(svg.tag("path", class_=f"area {series_class(line.series)}", d=ground))
    parts.append(svg.tag("path", class_=f"line {series_class(line.series)}", d=path))
    if line.marked is not None:
        left = float(_along(frame, x, np.array(line.marked[:1]))[0])
        top = float(_upwards(frame, y, np.array(line.marked[1:]))[0])
        parts.append(svg.tag("circle", class_=f"mark {series_class(line.series)}", cx=left, cy=top, r=4))
    return parts


def _band(frame: Frame, x: Axis, y: Axis, band: Band) -> str:
    there = _path(_along(frame, x, band.x), _upwards(frame, y, band.high))
    back = _path(_along(frame, x, band.x[::-1]), _upwards(frame, y, band.low[::-1]))
    return svg.tag("path", class_=f"area {series_class(band.series)}", d=f"{there}L{back[1:]}Z")


def _level(frame: Frame, y: Axis, level: Level) -> list[str]:
    top = float(_upwards(frame, y, np.array([level.at]))[0])
    name = svg.words(level.name, frame.right_edge - 5, top - 8, "rule-name", text_anchor="end")
    return [svg.across(frame.left, frame.right_edge, top, "rule"), name]


def _numbers(frame: Frame, lines: Sequence[ChartLine], x: Axis, y: Axis) -> dict[str, Any]:
    return {
        "frame": [frame.left, frame.right_edge, frame.width],
        "x": [x.kind, x.low, x.high],
        "y": y.kind,
        "lines": [
            {"series": line.series, "name": line.name, "x": _short(line.x), "y": _short(line.y)} for line in lines
        ],
    }


def _short(values: Floats) -> list[float]:
    """Four digits are more than a pointer can tell apart, and make a page smaller."""
    return [float(f"{value:.5g}") for value in values.tolist()]


@dataclass(frozen=True, slots=True)
class Bars:
    """One group of bars: its name, and a value with its text per series (None: nothing to draw)."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]


BAR, BAR_GAP, GROUP_GAP = 13.0, 2.0, 14.0


def bar_picture(groups: Sequence[Bars], *, label: str) -> Chart:
    """Bars to the right, in groups, longest value to the edge, each with its value written at its end."""
    together = max((len(group.values) for group in groups), default=0) * (BAR + BAR_GAP)
    frame = Frame(WIDE, (together + GROUP_GAP) * len(groups) + 8, left=150, right=100, top=4, bottom=4)
    most = max((value for group in groups for value in group.values if value is not None), default=0.0) or 1.0
    parts: list[str] = []
    for place, group in enumerate(groups):
        top = frame.top + place * (together + GROUP_GAP) + GROUP_GAP / 2
        parts.append(svg.words(cut(group.name, 20), frame.left - 10, top + together / 2, "name"))
        parts.append(svg.upright(frame.left, top - 2, top + together, "axis"))
        for series, (value, text) in enumerate(zip(group.values, group.texts, strict=True)):
            if value is not None:
                long, at = max(1.0, value / most * frame.across), top + series * (BAR + BAR_GAP)
                parts.append(_bar(frame.left, at, long, text, series))
    return Chart(svg.drawing(frame.width, frame.height, label, parts, "wide"), {})


def _bar(left: float, top: float, long: float, text: str, series: int) -> str:
    bar = svg.tag("rect", class_="bar", x=left, y=top, width=long, height=BAR, rx=2)
    return svg.group([bar, svg.words(text, left + long + 6, top + BAR / 2, "value")], class_=series_class(series))


def series_class(series: int) -> str:
    """The classes that give a series its colour, and its dashes once colours come again."""
    return f"s{series % COLOURS} p{series}" + (" again" if series % APART >= COLOURS else "")


def cut(text: str, most: int) -> str:
    """A name, cut to what there is room for."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _path(along: Floats, up: Floats) -> str:
    points = zip(along.tolist(), up.tolist(), strict=True)
    return "M" + "L".join(f"{svg.number(left)} {svg.number(top)}" for left, top in points)


def _along(frame: Frame, axis: Axis, values: Floats) -> Floats:
    low, high = axis.low, axis.high
    if axis.kind == "duration":
        values, low, high = np.log(np.maximum(values, low)), np.log(low), np.log(high)
    along: Floats = frame.left + (values - low) / (high - low) * frame.across
    return along


def _upwards(frame: Frame, axis: Axis, values: Floats) -> Floats:
    up: Floats = frame.bottom_edge - (values - axis.low) / (axis.high - axis.low) * frame.down
    return up


def _grid(frame: Frame, x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in ticks(y):
        top = float(_upwards(frame, y, np.array([value]))[0])
        parts.append(svg.across(frame.left, frame.right_edge, top, "grid"))
        parts.append(svg.words(text, frame.left - 8, top, "tick y"))
    return parts + bottom_axis(frame, x)


def bottom_axis(frame: Frame, x: Axis) -> list[str]:
    """The line along the bottom, with its ticks and texts."""
    bottom = frame.bottom_edge
    parts = [svg.across(frame.left, frame.right_edge, bottom, "axis")]
    for value, text in ticks(x):
        left = float(_along(frame, x, np.array([value]))[0])
        parts.append(svg.upright(left, bottom, bottom + 4, "axis"))
        parts.append(svg.words(text, left, bottom + 15, "tick x"))
    return parts


def _rule(frame: Frame, x: Axis, at: float, name: str) -> list[str]:
    left = float(_along(frame, x, np.array([at]))[0])
    before = left > frame.left + frame.across * 0.75
    return [
        svg.upright(left, frame.top, frame.bottom_edge, "rule"),
        svg.words(
            name, left - 5 if before else left + 5, frame.top + 5, "rule-name", text_anchor="end" if before else "start"
        ),
    ]


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Where an axis has ticks, and what stands there."""
    match axis.kind:
        case "duration":
            return [(at, text_from_seconds(at)) for at in _DURATION_TICKS if axis.low <= at <= axis.high]
        case "time":
            step = next((step for step in _TIME_STEPS if (axis.high - axis.low) / step <= 8), _TIME_STEPS[-1])
            if (axis.high - axis.low) / step > 8:
                step = nice_step((axis.high - axis.low) / DAY, 8) * DAY
            return [(axis.low + at, _time_text(at, step)) for at in _multiples(0.0, axis.high - axis.low, step)]
        case "part":
            step = nice_step(axis.high - axis.low, 6)
            digits = 0 if step >= 0.01 else 1
            return [(at, f"{at * 100:.{digits}f} %") for at in _multiples(axis.low, axis.high, step)]
        case "count":
            step = max(nice_step(axis.high - axis.low, 6), 1.0 if axis.high >= 3 else 0.0)
            return [(at, f"{at:,.0f}" if step >= 1 else f"{at:g}") for at in _multiples(axis.low, axis.high, step)]


_DURATION_TICKS = (1.0, 10.0, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY)
_TIME_STEPS = tuple(
    [1.0, 2.0, 5.0, 10.0, 30.0]
    + [count * MINUTE for count in (1, 2, 5, 10, 30)]
    + [count * HOUR for count in (1, 2, 3, 6, 12)]
    + [count * DAY for count in (1, 2, 5, 7, 14, 28)]
)


def _time_text(at: float, step: float) -> str:
    if not at:
        return "0"
    return f"{at / DAY:g} d" if step >= DAY else text_from_seconds(at)


def nice_step(length: float, most: int) -> float:
    """The smallest of 1, 2, 5 × 10ⁿ that divides a length into at most so many parts."""
    if length <= 0:
        return 1.0
    power = 10.0 ** floor(log10(length / most))
    return next(power * factor for factor in (1, 2, 5, 10, 20) if length / (power * factor) <= most)


def nice_top(value: float) -> float:
    """A good end for an axis that begins at 0 and has to show `value`."""
    step = nice_step(value, 5)
    return step * max(1, -int(-value // step))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = -int(-low // step)
    last = int(high / step + 1e-9)
    return [round(count * step, 10) for count in range(first, last + 1)]
