"""Chart of the best throughput by allocated resources, as a step curve with the plan of each step.

It is rendered as a self-contained SVG file with light and dark colours, or as an HTML page with tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, log2

from refold.results import svg
from refold.results.charts import Axis, Frame, nice_maximum, series_class, ticks, truncate

WIDTH, HEIGHT = 1000.0, 520.0
FRAME = Frame(WIDTH, HEIGHT, left=74, right=28, top=104, bottom=54)

CHARACTER_WIDTH, LINE_HEIGHT = 6.3, 15.0
"""Approximate size of the characters of a label, used to avoid overlaps."""

MAX_LABEL_LENGTH = 56
MAX_TICKS = 12

STYLE = """
:root { color-scheme: light dark;
  --page: #ffffff; --ink: #1c2128; --soft: #5b6570; --line: #c9d0d6; --grid: #e9ecef;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #b3589a; --s4: #c98a00; --s5: #3fa0d8;
  --s6: #7a5c46; --s7: #5f6770; }
@media (prefers-color-scheme: dark) { :root {
  --page: #1a1e23; --ink: #e7eaee; --soft: #9ca7b3; --line: #44505c; --grid: #262c33;
  --s0: #58aee6; --s1: #ff8a4a; --s2: #35c59b; --s3: #e29acb; --s4: #efb73e; --s5: #9ad7fb;
  --s6: #c9a78e; --s7: #aab4bf; } }
text { font: 12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", Arial, sans-serif; fill: var(--soft); }
.page { fill: var(--page); }
.title { font-size: 20px; font-weight: 650; fill: var(--ink); }
.about, .key { font-size: 13.5px; }
.key { fill: var(--ink); }
.grid { stroke: var(--grid); }
.axis { stroke: var(--line); }
.tick.y, .axis-title.y { text-anchor: end; }
.tick.x, .axis-title.x { text-anchor: middle; }
.line { fill: none; stroke: currentColor; stroke-width: 2.5; stroke-linejoin: round; }
.linear { stroke: currentColor; stroke-width: 1.2; stroke-dasharray: 2 5; opacity: .75; }
.dashed .line { stroke-dasharray: 8 4; }
.step { fill: var(--page); stroke: currentColor; stroke-width: 2.5; }
.swatch { fill: currentColor; }
.label { fill: currentColor; font-size: 11.5px; }
.label { paint-order: stroke; stroke: var(--page); stroke-width: 4px; stroke-linejoin: round; }
"""
COLOURS = "".join(f".s{number} {{ color: var(--s{number}); }}\n" for number in range(8))


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
        """Return the chart as a self-contained SVG file."""
        x, y = self._axes()
        parts = [*self._texts(), *_grid(y), *_x_axis(x)]
        parts += [svg.group(_linear(curve, x, y), class_=series_class(index)) for index, curve in self._with_linear()]
        parts += [
            svg.group(_steps(curve, x, y, self.resource), class_=series_class(index)) for index, curve in self._drawn()
        ]
        parts += _labels([(series_class(index), curve) for index, curve in self._drawn()], x, y)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
            f'height="{HEIGHT:g}" role="img" aria-label="{escape(self.title)}">'
        )
        return f"{head}<style>{STYLE}{COLOURS}</style>{''.join(parts)}</svg>\n"

    def _drawn(self) -> list[tuple[int, StepCurve]]:
        return [(index, curve) for index, curve in enumerate(self.curves) if curve.steps]

    def _with_linear(self) -> list[tuple[int, StepCurve]]:
        return self._drawn() if self.linear else []

    def _axes(self) -> tuple[Axis, Axis]:
        highest = max((curve.steps[-1].samples_per_second for _, curve in self._drawn()), default=1.0)
        return Axis("count", 0.0, max(curve.end for curve in self.curves)), Axis("count", 0.0, nice_maximum(highest))

    def _texts(self) -> list[str]:
        middle = FRAME.left + FRAME.plot_width / 2
        parts = [
            svg.tag("rect", class_="page", width=WIDTH, height=HEIGHT),
            svg.label_text(truncate(self.title, 90), 28, 30, "title"),
            svg.label_text(truncate(self.description, 140), 28, 54, "about"),
            svg.label_text(self.resource, middle, HEIGHT - 16, "axis-title x"),
            svg.label_text("samples/s", FRAME.left - 8, FRAME.top - 18, "axis-title y"),
        ]
        left = FRAME.left + 24
        for index, curve in self._drawn():
            swatch = svg.tag("rect", class_="swatch", x=left, y=76, width=18, height=4, rx=2)
            parts.append(svg.group([swatch], class_=series_class(index)))
            parts.append(svg.label_text(curve.name, left + 25, 78, "key"))
            left += 60 + 8 * len(curve.name)
        if self.linear and self._drawn():
            parts.append(svg.group([svg.horizontal_line(left, left + 18, 78, "linear")], class_="s7"))
            parts.append(svg.label_text("linear scaling from the most efficient step", left + 25, 78, "key"))
        return parts


def render_page(charts: Sequence[CurveChart]) -> str:
    """Return an HTML page with the charts, each followed by a table of its steps."""
    content = "".join(f"{chart.svg()}{_table(chart)}" for chart in charts)
    style = (
        "body { margin: 24px auto; max-width: 1000px; font: 14px system-ui, sans-serif; color-scheme: light dark; }"
        "svg { max-width: 100%; height: auto; } table { border-collapse: collapse; margin: 8px 28px 32px; }"
        "td, th { padding: 3px 16px 3px 0; text-align: right; } td:first-child, td:last-child { text-align: left; }"
    )
    title = escape(charts[0].title)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{style}</style></head>\n<body>{content}</body></html>\n"
    )


def _table(chart: CurveChart) -> str:
    rows = "".join(
        f"<tr><td>{escape(curve.name)}</td><td>{step.amount:,.6g}</td><td>{step.samples_per_second:,.4g}</td>"
        f"<td>{escape(step.plan)}</td></tr>\n"
        for curve in chart.curves
        for step in curve.steps
    )
    return f"<table><tr><th></th><th>{chart.resource}</th><th>samples/s</th><th></th></tr>\n{rows}</table>"


def _grid(y: Axis) -> list[str]:
    parts = []
    for value, text in ticks(y):
        top = _y(y, value)
        parts += [
            svg.horizontal_line(FRAME.left, FRAME.right_edge, top, "grid"),
            svg.label_text(text, FRAME.left - 8, top, "tick y"),
        ]
    return parts


def _x_axis(x: Axis) -> list[str]:
    """Draw the x axis; tick distances are powers of two, as are typical numbers of GPUs and CPUs."""
    parts = [svg.horizontal_line(FRAME.left, FRAME.right_edge, FRAME.bottom_edge, "axis")]
    tick_distance = 2 ** max(0, ceil(log2(x.high / MAX_TICKS)))
    for value in range(0, int(x.high) + 1, tick_distance):
        left = _x(x, value)
        parts.append(svg.vertical_line(left, FRAME.bottom_edge, FRAME.bottom_edge + 4, "axis"))
        parts.append(svg.label_text(f"{value:,}", left, FRAME.bottom_edge + 15, "tick x"))
    return parts


def _x(x: Axis, value: float) -> float:
    return FRAME.left + value / x.high * FRAME.plot_width


def _y(y: Axis, value: float) -> float:
    return FRAME.bottom_edge - value / y.high * FRAME.plot_height


def _linear(curve: StepCurve, x: Axis, y: Axis) -> list[str]:
    """Draw the linear scaling line through the step with the highest throughput per unit."""
    per_unit = max(step.samples_per_second / step.amount for step in curve.steps)
    end = min(curve.end, y.high / per_unit)
    right, top = _x(x, end), _y(y, end * per_unit)
    return [svg.tag("line", class_="linear", x1=FRAME.left, y1=FRAME.bottom_edge, x2=right, y2=top)]


def _steps(curve: StepCurve, x: Axis, y: Axis, resource: str) -> list[str]:
    first, *others = curve.steps
    path = f"M{_point(x, y, first)}"
    for step in others:
        path += f"H{svg.format_number(_x(x, step.amount))}V{svg.format_number(_y(y, step.samples_per_second))}"
    path += f"H{svg.format_number(_x(x, curve.end))}"
    parts = [svg.tag("path", class_="line", d=path)]
    for step in curve.steps:
        tooltip = f"{step.amount:,.6g} {resource}: {step.samples_per_second:,.4g} samples/s, {step.plan}"
        left, top = _x(x, step.amount), _y(y, step.samples_per_second)
        dot = f'<circle class="step" cx="{svg.format_number(left)}" cy="{svg.format_number(top)}" r="4">'
        parts.append(f"{dot}{svg.tag('title', f'{curve.name}, {tooltip}')}</circle>")
    return parts


def _point(x: Axis, y: Axis, step: CurveStep) -> str:
    return f"{svg.format_number(_x(x, step.amount))} {svg.format_number(_y(y, step.samples_per_second))}"


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


def _labels(curves: Sequence[tuple[str, StepCurve]], x: Axis, y: Axis) -> list[str]:
    """Label the first step of each plan, highest steps first, where the label does not overlap others."""
    steps = [
        (colour, step, _x(x, step.amount), _y(y, step.samples_per_second)) for colour, step in _plan_changes(curves)
    ]
    taken = [_Box(left - 6, top - 6, left + 6, top + 6) for _, _, left, top in steps]
    parts = []
    for colour, step, left, top in steps:
        text = truncate(step.plan, MAX_LABEL_LENGTH)
        box = _label_box(left, top, CHARACTER_WIDTH * len(text))
        if box is None or any(box.overlaps(other) for other in taken):
            continue
        taken.append(box)
        left_of_step = box.right < left
        text_x, anchor = (box.right, "end") if left_of_step else (box.left, "start")
        parts.append(svg.label_text(text, text_x, (box.top + box.bottom) / 2, f"label {colour}", text_anchor=anchor))
    return parts


def _plan_changes(curves: Sequence[tuple[str, StepCurve]]) -> list[tuple[str, CurveStep]]:
    """Return the steps at which the plan changes, highest first."""
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
