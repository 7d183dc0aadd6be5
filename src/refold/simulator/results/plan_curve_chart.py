"""Chart of the best throughput by allocated resources, as a step curve with the plan of each step.

It is rendered as a self-contained SVG file with light and dark colours, or as an HTML page with tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, log2

from refold.simulator.results import svg
from refold.simulator.results.axes import Axis, Frame, Plot, nice_maximum
from refold.simulator.results.svg import html_page

FRAME = Frame(1000.0, 520.0, left=74, right=28, top=104, bottom=54)

CHARACTER_WIDTH, LINE_HEIGHT = 6.3, 15.0
"""Approximate size of the characters of a label, used to avoid overlaps."""

MAX_LABEL_LENGTH = 56
MAX_TICKS = 12

STYLE = """
.linear { stroke: currentColor; stroke-width: 1.2; stroke-dasharray: 2 5; opacity: .75; }
.step { fill: var(--page); stroke: currentColor; stroke-width: 2.5; }
.label { fill: currentColor; font-size: 11.5px; }
.label { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
"""


@dataclass(frozen=True, slots=True)
class CurveStep:
    """The throughput and the plan from this amount of resources on."""

    amount: float
    samples_per_second: float
    plan: str


@dataclass(frozen=True, slots=True)
class StepCurve:
    """A curve: its name, its steps, and the largest amount considered."""

    name: str
    steps: Sequence[CurveStep]
    end: float


@dataclass(frozen=True, slots=True)
class CurveChart:
    """The curves, title and description of a chart; `resource` is the unit of the amounts, such as GPUs."""

    title: str
    description: str
    resource: str
    curves: Sequence[StepCurve]
    linear: bool = True

    def svg(self) -> str:
        plot, drawn = self._plot(), self._drawn()
        parts = [*self._legend(), *plot.draw_axes(), *plot.draw_titles(self.resource, "samples/s")]
        if self.linear:
            parts += [svg.group([_linear(plot, curve)], class_=svg.series_class(index)) for index, curve in drawn]
        parts += [
            svg.group(_steps(plot, curve, self.resource), class_=svg.series_class(index)) for index, curve in drawn
        ]
        parts += _labels(plot, [(svg.series_class(index), curve) for index, curve in drawn])
        return svg.document(FRAME.width, FRAME.height, self.title, self.description, parts, STYLE)

    def _drawn(self) -> list[tuple[int, StepCurve]]:
        return [(index, curve) for index, curve in enumerate(self.curves) if curve.steps]

    def _plot(self) -> Plot:
        """Return the plot area; tick distances are powers of two, as are typical numbers of GPUs and CPUs."""
        highest = max((curve.steps[-1].samples_per_second for _, curve in self._drawn()), default=1.0)
        end = max(curve.end for curve in self.curves)
        distance = 2 ** max(0, ceil(log2(end / MAX_TICKS)))
        marks = [(value, f"{value:,}") for value in range(0, int(end) + 1, distance)]
        return Plot(FRAME, Axis("count", 0.0, end, marks), Axis("count", 0.0, nice_maximum(highest)))

    def _legend(self) -> list[str]:
        left, y = FRAME.left + 24, 78.0
        parts = svg.legend([(svg.series_class(index), curve.name) for index, curve in self._drawn()], left, y)
        if self.linear and self._drawn():
            left += sum(svg.legend_width(curve.name) for _, curve in self._drawn())
            parts.append(svg.group([svg.horizontal_line(left, left + 18, y, "linear")], class_="s7"))
            parts.append(svg.label_text("linear scaling from the most efficient step", left + 25, y, "key"))
        return parts


def render_page(charts: Sequence[CurveChart]) -> str:
    """Return an HTML page with the charts, each followed by a table of its steps."""
    content = "".join(f"{chart.svg()}{_table(chart)}" for chart in charts)
    return html_page(charts[0].title, content)


def _table(chart: CurveChart) -> str:
    rows = "".join(
        f"<tr><td>{escape(curve.name)}</td><td>{step.amount:,.6g}</td><td>{step.samples_per_second:,.4g}</td>"
        f"<td>{escape(step.plan)}</td></tr>\n"
        for curve in chart.curves
        for step in curve.steps
    )
    return f"<table><tr><th></th><th>{chart.resource}</th><th>samples/s</th><th></th></tr>\n{rows}</table>"


def _linear(plot: Plot, curve: StepCurve) -> str:
    """Draw the linear scaling line through the step with the highest throughput per unit."""
    per_unit = max(step.samples_per_second / step.amount for step in curve.steps)
    end = min(curve.end, plot.y_axis.high / per_unit)
    x, y = plot.x(end), plot.y(end * per_unit)
    return svg.tag("line", class_="linear", x1=FRAME.left, y1=FRAME.bottom_edge, x2=x, y2=y)


def _steps(plot: Plot, curve: StepCurve, resource: str) -> list[str]:
    corners = [(plot.x(step.amount), plot.y(step.samples_per_second)) for step in curve.steps]
    path = f"M{' '.join(map(svg.format_number, corners[0]))}"
    path += "".join(f"H{svg.format_number(x)}V{svg.format_number(y)}" for x, y in corners[1:])
    path += f"H{svg.format_number(plot.x(curve.end))}"
    dots = [
        svg.dot(
            *corner,
            4,
            "step",
            f"{curve.name}, {step.amount:,.6g} {resource}: {step.samples_per_second:,.4g} samples/s, {step.plan}",
        )
        for corner, step in zip(corners, curve.steps, strict=True)
    ]
    return [svg.tag("path", class_="line", d=path), *dots]


@dataclass(frozen=True, slots=True)
class _Box:
    left: float
    top: float
    right: float
    bottom: float

    def overlaps(self, other: _Box) -> bool:
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )


def _labels(plot: Plot, curves: Sequence[tuple[str, StepCurve]]) -> list[str]:
    """Label the first step of each plan, highest steps first, where the label does not overlap others."""
    steps = [
        (colour, step, plot.x(step.amount), plot.y(step.samples_per_second)) for colour, step in _plan_changes(curves)
    ]
    taken = [_Box(left - 6, top - 6, left + 6, top + 6) for _, _, left, top in steps]
    parts = []
    for colour, step, left, top in steps:
        text = svg.truncate(step.plan, MAX_LABEL_LENGTH)
        box = _label_box(left, top, CHARACTER_WIDTH * len(text))
        if box is None or any(box.overlaps(other) for other in taken):
            continue
        taken.append(box)
        left_of_step = box.right < left
        text_x, anchor = (box.right, "end") if left_of_step else (box.left, "start")
        parts.append(svg.label_text(text, text_x, (box.top + box.bottom) / 2, f"label {colour}", text_anchor=anchor))
    return parts


def _plan_changes(curves: Sequence[tuple[str, StepCurve]]) -> list[tuple[str, CurveStep]]:
    return [
        (colour, step)
        for colour, curve in curves
        for previous, step in reversed([*pairwise([None, *curve.steps])])
        if step is not None and (previous is None or previous.plan != step.plan)
    ]


def _label_box(left: float, top: float, width: float) -> _Box | None:
    """Return the box of a label: below and right of its step or, if it would leave the chart, above and left."""
    if left + 8 + width <= FRAME.right_edge:
        box = _Box(left + 8, top + 6, left + 8 + width, top + 6 + LINE_HEIGHT)
        return box if box.bottom < FRAME.bottom_edge else None
    box = _Box(left - 8 - width, top - 6 - LINE_HEIGHT, left - 8, top - 6)
    return box if box.left >= FRAME.left else None
