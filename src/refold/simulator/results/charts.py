"""Line and bar charts as SVG text. Colours are CSS classes, which the style sheet of the page defines.

A chart includes its data, from which the script of the page builds tooltips.

Names of lines are written beside them, away from the other lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from refold.placement import Floats
from refold.simulator.results import svg
from refold.simulator.results.axes import Axis, Frame, Plot

FULL_WIDTH, HALF_WIDTH = 1200.0, 720.0
"""Widths of a chart that takes the full page width, and of one of two side by side."""

BAR_HEIGHT, BAR_GAP, GROUP_GAP = 13.0, 2.0, 14.0

POSITIONS = 48
"""Places along the x axis that are tried for each name, above and below the line."""

CHARACTER_WIDTH, TEXT_HEIGHT = 8.2, 16.0
"""Size of a character in SVG units; an overestimate for most fonts."""

OFFSET = 12.0
"""Distance between a line and the centre of its name."""


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
    """A chart as HTML with SVG, safe to insert into a page, and the data for its tooltips."""

    html: str
    data: dict[str, Any]


def chart_html(frame: Frame, label: str, row_labels: Sequence[str], parts: Sequence[str], class_: str) -> str:
    """Return a chart whose row labels, in the left margin, stay visible when it is scrolled horizontally.

    `label` is the accessible name of the chart.
    """
    share = f"width: {100 * frame.left / frame.width:.3f}%"
    cover = svg.tag("rect", class_="cover", width=frame.left, height=frame.bottom_edge + 4)
    margin = svg.drawing(
        frame.left, frame.height, [cover, *row_labels], class_="row-labels", style=share, aria_hidden="true"
    )
    drawing = svg.drawing(frame.width, frame.height, parts, role="img", aria_label=label)
    return svg.parent("div", [drawing, margin], class_=f"chart {class_}")


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
    plot = Plot(Frame(FULL_WIDTH if wide else HALF_WIDTH, 290), x, y)
    frame, parts = plot.frame, [*plot.draw_grid(), *plot.draw_x_axis()]
    if time_mark is not None:
        parts += _time_mark(plot, *time_mark)
    if band is not None:
        area = plot.band(band.x, band.low, band.high)
        parts.append(svg.tag("path", class_=f"area {svg.series_class(band.series)}", d=area))
    for reference in reference_lines:
        parts += _reference_line(plot, reference)
    for line in lines:
        parts += _line(plot, line, filled=len(lines) == 1 and band is None)
    if len(lines) > 1:
        parts += _line_names(plot, lines)
    parts.append(svg.tag("line", class_="crosshair", y1=frame.top, y2=frame.bottom_edge, visibility="hidden"))
    html = chart_html(frame, label, plot.draw_y_labels(), parts, "wide" if wide else "plot")
    return Chart(html, _tooltip_data(plot, lines))


def _line(plot: Plot, line: ChartLine, *, filled: bool) -> list[str]:
    colour, path, parts = svg.series_class(line.series), plot.path(line.x, line.y), []
    if filled:
        area = f"{path}V{svg.format_number(plot.frame.bottom_edge)}H{svg.format_number(plot.x(line.x[0]))}Z"
        parts.append(svg.tag("path", class_=f"area {colour}", d=area))
    parts.append(svg.tag("path", class_=f"line {colour}", d=path))
    if line.marked is not None:
        x, y = line.marked
        parts.append(svg.tag("circle", class_=f"mark {colour}", cx=plot.x(x), cy=plot.y(y), r=4))
    return parts


def _line_names(plot: Plot, lines: Sequence[ChartLine]) -> list[str]:
    drawn = [DrawnLine(svg.truncate(line.name, 24), *plot.points(line.x, line.y)) for line in lines]
    return [
        svg.label_text(named.name, place.x, place.y, f"line-name {svg.series_class(line.series)}")
        for line, named, place in zip(lines, drawn, place_labels(drawn, plot.frame), strict=True)
        if place is not None
    ]


def _reference_line(plot: Plot, reference: ReferenceLine) -> list[str]:
    y, right = plot.y(reference.value), plot.frame.right_edge
    name = svg.label_text(reference.name, right - 5, y - 8, "rule-name", text_anchor="end")
    return [svg.horizontal_line(plot.frame.left, right, y, "rule"), name]


def _time_mark(plot: Plot, at: float, name: str) -> list[str]:
    frame, x = plot.frame, plot.x(at)
    label_left = x > frame.left + frame.plot_width * 0.75
    label_x, anchor = (x - 5, "end") if label_left else (x + 5, "start")
    return [
        svg.vertical_line(x, frame.top, frame.bottom_edge, "rule"),
        svg.label_text(name, label_x, frame.top + 5, "rule-name", text_anchor=anchor),
    ]


def _tooltip_data(plot: Plot, lines: Sequence[ChartLine]) -> dict[str, Any]:
    frame, x, y = plot.frame, plot.x_axis, plot.y_axis
    xs = {id(line.x): line.x for line in lines}  # lines often share one
    rounded = {key: _round_digits(values) for key, values in xs.items()}
    return {
        "frame": [frame.left, frame.right_edge, frame.width],
        "x": [x.kind, x.low, x.high],
        "y": y.kind,
        "lines": [
            {"series": line.series, "name": line.name, "x": rounded[id(line.x)], "y": _round_digits(line.y)}
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


def bar_chart(groups: Sequence[BarGroup], *, label: str) -> Chart:
    """Draw a horizontal bar chart with grouped bars; the text of each value is at the end of its bar."""
    group_height = max((len(group.values) for group in groups), default=0) * (BAR_HEIGHT + BAR_GAP)
    longest_text = max((len(text) for group in groups for text in group.texts), default=0)
    right = max(100.0, CHARACTER_WIDTH * longest_text)
    frame = Frame(FULL_WIDTH, (group_height + GROUP_GAP) * len(groups) + 8, left=150, right=right, top=4, bottom=4)
    maximum = max((value for group in groups for value in group.values if value is not None), default=0.0) or 1.0
    names: list[str] = []
    parts: list[str] = []
    for index, group in enumerate(groups):
        top = frame.top + index * (group_height + GROUP_GAP) + GROUP_GAP / 2
        names.append(svg.label_text(svg.truncate(group.name, 20), frame.left - 10, top + group_height / 2, "name"))
        parts.append(svg.vertical_line(frame.left, top - 2, top + group_height, "axis"))
        for series, (value, text) in enumerate(zip(group.values, group.texts, strict=True)):
            if value is not None:
                bar_top, length = top + series * (BAR_HEIGHT + BAR_GAP), value / maximum * frame.plot_width
                colour = svg.series_class(series)
                parts.append(svg.labelled_bar(frame.left, bar_top, length, BAR_HEIGHT, text, colour))
    return Chart(chart_html(frame, label, names, parts, "wide"), {})


@dataclass(frozen=True, slots=True, eq=False)
class DrawnLine:
    """A line in SVG units, with x ascending, and its name."""

    name: str
    x: Floats
    y: Floats


@dataclass(frozen=True, slots=True)
class LabelPlace:
    """The centre of a name and its width, in SVG units."""

    x: float
    y: float
    width: float


def place_labels(lines: Sequence[DrawnLine], frame: Frame) -> list[LabelPlace | None]:
    """Return a place for each name. Names do not overlap each other; None if there is no room for a name.

    Among the places with room, one is chosen where the line is far from the others and few lines run through the name.
    """
    placed: list[LabelPlace | None] = []
    for index, line in enumerate(lines):
        width = CHARACTER_WIDTH * len(line.name)
        x, y = _candidates(line, width, frame)
        free = _free(x, y, width, [place for place in placed if place is not None])
        x, y = x[free], y[free]
        best = int(_costs(x, y, width, lines, index).argmin()) if len(x) else None
        placed.append(None if best is None else LabelPlace(float(x[best]), float(y[best]), width))
    return placed


def _candidates(line: DrawnLine, width: float, frame: Frame) -> tuple[Floats, Floats]:
    """Return the places above and below the line that are within the frame."""
    left, right = frame.left + width / 2 + 4, frame.right_edge - width / 2
    x = np.linspace(left, max(left, right), POSITIONS)
    x = np.repeat(x[(line.x[0] <= x) & (x <= line.x[-1])], 2)
    y = np.interp(x, line.x, line.y) + np.tile((-OFFSET, OFFSET), len(x) // 2)
    margin = TEXT_HEIGHT / 2
    inside = (frame.top + margin <= y) & (y <= frame.bottom_edge - margin)
    return x[inside], y[inside]


def _free(x: Floats, y: Floats, width: float, placed: Sequence[LabelPlace]) -> NDArray[np.bool_]:
    """Return at which places a name would not be drawn over another."""
    free = np.ones(len(x), dtype=np.bool_)
    for other in placed:
        free &= (np.abs(x - other.x) >= (width + other.width) / 2) | (np.abs(y - other.y) >= TEXT_HEIGHT)
    return free


def _costs(x: Floats, y: Floats, width: float, lines: Sequence[DrawnLine], own: int) -> Floats:
    """Return costs that rise with the lines through a name, and fall with the distance of its line to the others."""
    across = x[:, np.newaxis] + np.linspace(-width / 2, width / 2, 9)
    heights = np.array([np.interp(across, line.x, line.y) for line in lines])
    crossing = (np.abs(heights - y[:, np.newaxis]).min(axis=2) < TEXT_HEIGHT / 2).sum(axis=0)
    others = np.delete(heights, own, axis=0)
    separation = np.abs(others - heights[own]).min(axis=(0, 2), initial=2 * TEXT_HEIGHT)
    costs: Floats = TEXT_HEIGHT * crossing - separation
    return costs
