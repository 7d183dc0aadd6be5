"""The plot area of a chart: frame, axes, ticks and grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Literal

import numpy as np

from refold.model import DAY, HOUR, MINUTE, format_duration
from refold.placement import Floats
from refold.simulator.results import svg

AxisKind = Literal["time", "duration", "share", "count", "log"]
"""The scale of an axis: time since the start, duration (logarithmic), share of a total (percent), count, or number
(logarithmic)."""

MAX_LINEAR_RATIO = 6.0
"""Values whose range is larger than this factor are shown on a logarithmic axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: its scale and range. `marks`: positions and labels of the ticks (default: round numbers)."""

    kind: AxisKind
    low: float
    high: float
    marks: Sequence[tuple[float, str]] = ()

    def share(self, values: Floats) -> Floats:
        """Return the positions of values on the axis: 0 for its low end, 1 for its high end."""
        low, high = self.low, self.high
        if self.kind in ("duration", "log"):
            values, low, high = np.log(np.maximum(values, low)), float(np.log(low)), float(np.log(high))
        shares: Floats = (values - low) / (high - low)
        return shares


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
        return self.height - self.top - self.bottom


@dataclass(frozen=True, slots=True)
class Plot:
    """A frame with its two axes: coordinates of values, and the drawn axes."""

    frame: Frame
    x_axis: Axis
    y_axis: Axis

    def x(self, value: float) -> float:
        return float(self._xs(np.array([value]))[0])

    def y(self, value: float) -> float:
        return float(self._ys(np.array([value]))[0])

    def path(self, x_values: Floats, y_values: Floats) -> str:
        """Return the SVG path through the points."""
        xs, ys = self.points(x_values, y_values)
        points = zip(xs.tolist(), ys.tolist(), strict=True)
        text = "".join(f"L{x:.1f} {y:.1f}" for x, y in points).replace(".0L", "L").replace(".0 ", " ")
        return "M" + text[1:].removesuffix(".0")

    def points(self, x_values: Floats, y_values: Floats) -> tuple[Floats, Floats]:
        return self._xs(x_values), self._ys(y_values)

    def band(self, x_values: Floats, low: Floats, high: Floats) -> str:
        """Return the SVG path around the area between two lines."""
        return f"{self.path(x_values, high)}L{self.path(x_values[::-1], low[::-1])[1:]}Z"

    def _xs(self, values: Floats) -> Floats:
        return self.frame.left + self.x_axis.share(values) * self.frame.plot_width

    def _ys(self, values: Floats) -> Floats:
        return self.frame.bottom_edge - self.y_axis.share(values) * self.frame.plot_height

    def draw_axes(self) -> list[str]:
        """Draw both axes: labelled grid lines for the y axis, ticks for the x axis."""
        return [*self.draw_grid(), *self.draw_y_labels(), *self.draw_x_axis()]

    def draw_grid(self) -> list[str]:
        """Draw a horizontal line per tick of the y axis."""
        left, right = self.frame.left, self.frame.right_edge
        return [svg.horizontal_line(left, right, self.y(value), "grid") for value, _ in ticks(self.y_axis)]

    def draw_y_labels(self) -> list[str]:
        x = self.frame.left - 8
        return [svg.label_text(text, x, self.y(value), "tick y") for value, text in ticks(self.y_axis)]

    def draw_x_axis(self) -> list[str]:
        """Draw the x axis with its ticks and labels."""
        bottom = self.frame.bottom_edge
        parts = [svg.horizontal_line(self.frame.left, self.frame.right_edge, bottom, "axis")]
        for value, text in ticks(self.x_axis):
            x = self.x(value)
            parts.append(svg.vertical_line(x, bottom, bottom + 4, "axis"))
            parts.append(svg.label_text(text, x, bottom + 15, "tick x"))
        return parts

    def draw_titles(self, x_title: str, y_title: str) -> list[str]:
        """Draw the titles of the axes: below the x axis, and above the labels of the y axis."""
        middle = self.frame.left + self.frame.plot_width / 2
        return [
            svg.label_text(x_title, middle, self.frame.height - 16, "axis-title x"),
            svg.label_text(y_title, self.frame.left - 8, self.frame.top - 18, "axis-title y"),
        ]


def ticks(axis: Axis) -> list[tuple[float, str]]:
    if axis.marks:
        return list(axis.marks)
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
        case "log":
            return [(at, f"{at:g}") for at in _log_steps(axis.low, axis.high) if axis.low <= at <= axis.high]


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


def value_axis(values: Sequence[float]) -> Axis:
    """Return an axis for positive values: from 0 or, if they differ by more than MAX_LINEAR_RATIO, logarithmic."""
    low, high = min(values), max(values)
    if high <= MAX_LINEAR_RATIO * low:
        return Axis("count", 0.0, nice_maximum(high))
    steps = _log_steps(low, high)
    return Axis("log", max(step for step in steps if step <= low), min(step for step in steps if step >= high))


def range_axis(low: float, high: float) -> Axis:
    """Return a linear axis from at most `low` to at least `high`, with ticks at both ends."""
    step = nice_step(max(high - low, 1e-9), 6)
    first, last = floor(low / step), ceil(high / step)
    marks = [round(step * number, 10) for number in range(first, last + 1)]
    return Axis("count", marks[0], marks[-1], [(at, f"{at:g}") for at in marks])


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


def _log_steps(low: float, high: float) -> list[float]:
    """Return 1, 2, 5 × 10ⁿ from at most `low` to at least `high`."""
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    return [factor * 10.0**power for power in powers for factor in (1, 2, 5)]
