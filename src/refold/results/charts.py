"""Line and bar charts as SVG text. Colours are CSS classes, which the style sheet of the page defines.

A chart includes its data, from which the script of the page builds tooltips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10
from typing import Any, Literal

import numpy as np

from refold.model import DAY, HOUR, MINUTE, format_duration
from refold.packing import Floats
from refold.results import svg

FULL_WIDTH, HALF_WIDTH = 1200.0, 720.0
"""Widths of a chart that takes the full page width, and of one of two side by side."""

SERIES_COLOURS = 8
"""Number of series colours; further series use the same colours with dashed lines."""

FIRST_NON_POLICY_SERIES = 1024
"""Series from this number on are not policies: colours start again, and their legend entries are independent."""

AxisKind = Literal["time", "duration", "share", "count"]
"""The scale of an axis: time since the start, duration (logarithmic), share of a total (percent), or count."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its scale, range and title."""

    kind: AxisKind
    low: float
    high: float
    title: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class ChartLine:
    """A line: its series (which determines the colour), name and points; `marked` is highlighted with a circle."""

    series: int
    name: str
    x: Floats
    y: Floats
    marked: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The area between two lines, in the colour of a series."""

    series: int
    x: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """A horizontal line at a value, with a name."""

    value: float
    name: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart as SVG, safe to insert into HTML, and the data for its tooltips."""

    svg: str
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """The size of a chart and the margins around its plot area, in SVG units."""

    width: float
    height: float
    left: float = 62
    right: float = 22
    top: float = 14
    bottom: float = 28

    @property
    def plot_width(self) -> float:
        """Width of the plot area."""
        return self.width - self.left - self.right

    @property
    def right_edge(self) -> float:
        """X coordinate of the right edge of the plot area."""
        return self.width - self.right

    @property
    def bottom_edge(self) -> float:
        """Y coordinate of the bottom edge of the plot area."""
        return self.height - self.bottom

    @property
    def plot_height(self) -> float:
        """Height of the plot area."""
        return self.height - self.top - self.bottom


def line_chart(
    lines: Sequence[ChartLine],
    x: Axis,
    y: Axis,
    *,
    label: str,
    wide: bool = False,
    time_mark: tuple[float, str] | None = None,
    reference_lines: Sequence[ReferenceLine] = (),
    band: Band | None = None,
) -> Chart:
    """Draw a line chart. `time_mark` is a vertical line with a name; `label` is the accessible name of the chart."""
    frame = Frame(FULL_WIDTH if wide else HALF_WIDTH, 290)
    parts = _grid(frame, x, y)
    if time_mark is not None:
        parts += _time_mark(frame, x, *time_mark)
    if band is not None:
        parts.append(_band(frame, x, y, band))
    for reference in reference_lines:
        parts += _reference_line(frame, y, reference)
    for line in lines:
        parts += _line(frame, x, y, line, filled=len(lines) == 1 and band is None)
    parts.append(svg.tag("line", class_="crosshair", y1=frame.top, y2=frame.bottom_edge, visibility="hidden"))
    return Chart(
        svg.drawing(frame.width, frame.height, label, parts, "wide" if wide else "plot"),
        _tooltip_data(frame, lines, x, y),
    )


def _line(frame: Frame, x: Axis, y: Axis, line: ChartLine, *, filled: bool) -> list[str]:
    x_coordinates, y_coordinates = _x_coordinates(frame, x, line.x), _y_coordinates(frame, y, line.y)
    path, parts = _path(x_coordinates, y_coordinates), []
    if filled:
        area = f"{path}V{svg.format_number(frame.bottom_edge)}H{svg.format_number(x_coordinates[0])}Z"
        parts.append(svg.tag("path", class_=f"area {series_class(line.series)}", d=area))
    parts.append(svg.tag("path", class_=f"line {series_class(line.series)}", d=path))
    if line.marked is not None:
        left = float(_x_coordinates(frame, x, np.array(line.marked[:1]))[0])
        top = float(_y_coordinates(frame, y, np.array(line.marked[1:]))[0])
        parts.append(svg.tag("circle", class_=f"mark {series_class(line.series)}", cx=left, cy=top, r=4))
    return parts


def _band(frame: Frame, x: Axis, y: Axis, band: Band) -> str:
    upper = _path(_x_coordinates(frame, x, band.x), _y_coordinates(frame, y, band.high))
    lower = _path(_x_coordinates(frame, x, band.x[::-1]), _y_coordinates(frame, y, band.low[::-1]))
    return svg.tag("path", class_=f"area {series_class(band.series)}", d=f"{upper}L{lower[1:]}Z")


def _reference_line(frame: Frame, y: Axis, reference: ReferenceLine) -> list[str]:
    top = float(_y_coordinates(frame, y, np.array([reference.value]))[0])
    name = svg.label_text(reference.name, frame.right_edge - 5, top - 8, "rule-name", text_anchor="end")
    return [svg.horizontal_line(frame.left, frame.right_edge, top, "rule"), name]


def _tooltip_data(frame: Frame, lines: Sequence[ChartLine], x: Axis, y: Axis) -> dict[str, Any]:
    return {
        "frame": [frame.left, frame.right_edge, frame.width],
        "x": [x.kind, x.low, x.high],
        "y": y.kind,
        "lines": [
            {"series": line.series, "name": line.name, "x": _round_digits(line.x), "y": _round_digits(line.y)}
            for line in lines
        ],
    }


def _round_digits(values: Floats) -> list[float]:
    """Round to five significant digits, which is enough for tooltips and keeps the page small."""
    return [float(f"{value:.5g}") for value in values.tolist()]


@dataclass(frozen=True, slots=True)
class BarGroup:
    """A group of bars: its name, and a value with its text per series (None: no bar)."""

    name: str
    values: Sequence[float | None]
    texts: Sequence[str]


BAR_HEIGHT, BAR_GAP, GROUP_GAP = 13.0, 2.0, 14.0


def bar_chart(groups: Sequence[BarGroup], *, label: str) -> Chart:
    """Draw a horizontal bar chart with grouped bars; the text of each value is at the end of its bar."""
    group_height = max((len(group.values) for group in groups), default=0) * (BAR_HEIGHT + BAR_GAP)
    frame = Frame(FULL_WIDTH, (group_height + GROUP_GAP) * len(groups) + 8, left=150, right=100, top=4, bottom=4)
    maximum = max((value for group in groups for value in group.values if value is not None), default=0.0) or 1.0
    parts: list[str] = []
    for index, group in enumerate(groups):
        top = frame.top + index * (group_height + GROUP_GAP) + GROUP_GAP / 2
        parts.append(svg.label_text(truncate(group.name, 20), frame.left - 10, top + group_height / 2, "name"))
        parts.append(svg.vertical_line(frame.left, top - 2, top + group_height, "axis"))
        for series, (value, text) in enumerate(zip(group.values, group.texts, strict=True)):
            if value is not None:
                width, bar_top = max(1.0, value / maximum * frame.plot_width), top + series * (BAR_HEIGHT + BAR_GAP)
                parts.append(_bar(frame.left, bar_top, width, text, series))
    return Chart(svg.drawing(frame.width, frame.height, label, parts, "wide"), {})


def _bar(left: float, top: float, width: float, text: str, series: int) -> str:
    bar = svg.tag("rect", class_="bar", x=left, y=top, width=width, height=BAR_HEIGHT, rx=2)
    return svg.group(
        [bar, svg.label_text(text, left + width + 6, top + BAR_HEIGHT / 2, "value")], class_=series_class(series)
    )


def series_class(series: int) -> str:
    """Return the CSS classes of a series: its colour, its number, and dashes if the colour is reused."""
    return f"s{series % SERIES_COLOURS} p{series}" + (
        " dashed" if series % FIRST_NON_POLICY_SERIES >= SERIES_COLOURS else ""
    )


def truncate(text: str, max_length: int) -> str:
    """Shorten a text to `max_length` characters."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def _path(x_coordinates: Floats, y_coordinates: Floats) -> str:
    points = zip(x_coordinates.tolist(), y_coordinates.tolist(), strict=True)
    return "M" + "L".join(f"{svg.format_number(left)} {svg.format_number(top)}" for left, top in points)


def _x_coordinates(frame: Frame, axis: Axis, values: Floats) -> Floats:
    low, high = axis.low, axis.high
    if axis.kind == "duration":
        values, low, high = np.log(np.maximum(values, low)), np.log(low), np.log(high)
    coordinates: Floats = frame.left + (values - low) / (high - low) * frame.plot_width
    return coordinates


def _y_coordinates(frame: Frame, axis: Axis, values: Floats) -> Floats:
    coordinates: Floats = frame.bottom_edge - (values - axis.low) / (axis.high - axis.low) * frame.plot_height
    return coordinates


def _grid(frame: Frame, x: Axis, y: Axis) -> list[str]:
    parts = []
    for value, text in ticks(y):
        top = float(_y_coordinates(frame, y, np.array([value]))[0])
        parts.append(svg.horizontal_line(frame.left, frame.right_edge, top, "grid"))
        parts.append(svg.label_text(text, frame.left - 8, top, "tick y"))
    return parts + x_axis(frame, x)


def x_axis(frame: Frame, x: Axis) -> list[str]:
    """Draw the x axis with its ticks and tick labels."""
    bottom = frame.bottom_edge
    parts = [svg.horizontal_line(frame.left, frame.right_edge, bottom, "axis")]
    for value, text in ticks(x):
        left = float(_x_coordinates(frame, x, np.array([value]))[0])
        parts.append(svg.vertical_line(left, bottom, bottom + 4, "axis"))
        parts.append(svg.label_text(text, left, bottom + 15, "tick x"))
    return parts


def _time_mark(frame: Frame, x: Axis, at: float, name: str) -> list[str]:
    left = float(_x_coordinates(frame, x, np.array([at]))[0])
    label_left = left > frame.left + frame.plot_width * 0.75
    return [
        svg.vertical_line(left, frame.top, frame.bottom_edge, "rule"),
        svg.label_text(
            name,
            left - 5 if label_left else left + 5,
            frame.top + 5,
            "rule-name",
            text_anchor="end" if label_left else "start",
        ),
    ]


def ticks(axis: Axis) -> list[tuple[float, str]]:
    """Return the positions and labels of the ticks of an axis."""
    match axis.kind:
        case "duration":
            return [(at, format_duration(at)) for at in _DURATION_TICKS if axis.low <= at <= axis.high]
        case "time":
            step = next((step for step in _TIME_STEPS if (axis.high - axis.low) / step <= 8), _TIME_STEPS[-1])
            if (axis.high - axis.low) / step > 8:
                step = nice_step((axis.high - axis.low) / DAY, 8) * DAY
            return [(axis.low + at, _format_time(at, step)) for at in _multiples(0.0, axis.high - axis.low, step)]
        case "share":
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


def _format_time(at: float, step: float) -> str:
    if not at:
        return "0"
    return f"{at / DAY:g} d" if step >= DAY else format_duration(at)


def nice_step(length: float, max_steps: int) -> float:
    """Return the smallest of 1, 2, 5 × 10ⁿ that divides a length into at most `max_steps` steps."""
    if length <= 0:
        return 1.0
    magnitude = 10.0 ** floor(log10(length / max_steps))
    return next(magnitude * factor for factor in (1, 2, 5, 10, 20) if length / (magnitude * factor) <= max_steps)


def nice_maximum(value: float) -> float:
    """Return a round upper limit for an axis from 0 that must include `value`."""
    step = nice_step(value, 5)
    return step * max(1, -int(-value // step))


def _multiples(low: float, high: float, step: float) -> list[float]:
    first = -int(-low // step)
    last = int(high / step + 1e-9)
    return [round(count * step, 10) for count in range(first, last + 1)]
