"""The report of `refold tune` as an HTML page: a chart of the trade-off on the report part, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite

from refold.simulator.results import Axis, Frame, Plot, html_page, svg
from refold.simulator.tuning.report import Interval, ReportRow, TuningReport, format_setting
from refold.simulator.tuning.trade_off import MEASURES

WIDTH = 1000.0
LEFT, TOP, ROW_HEIGHT, GAP = 168.0, 112.0, 24.0, 22.0
LOW, HIGH = 0.25, 4.0
"""The range of the axes, which are logarithmic; what lies beyond is drawn at the end."""

MARKS = ((LOW, "¼"), (0.5, "½"), (1.0, "1"), (2.0, "2"), (HIGH, "4"))

STYLE = """
.one { stroke: var(--soft); stroke-dasharray: 3 3; }
.whisker { stroke: currentColor; stroke-width: 2; }
.chosen { font-weight: 700; }
.panel { font-size: 12.5px; font-weight: 600; fill: var(--ink); text-anchor: middle; }
.clear .dot { fill: currentColor; } .dot { fill: var(--page); stroke: currentColor; stroke-width: 2; }
"""

Ratio = tuple[float, float, float]
"""A ratio, and the ends of its confidence interval."""

TITLES = {
    "delay": "mean delay",
    "tail": "p99 of delays",
    "wide": "wide jobs",
    "fairness": "fairness, p99",
    "preemptions": "preemptions",
}
"""Short titles of the panels."""

SERIES = {"point": 0, "baseline": 1, "oracle": 2}


@dataclass(frozen=True, slots=True)
class IntervalRow:
    """A policy and its ratios, one per panel; None: undefined. `series`: number of its colour."""

    name: str
    series: int
    ratios: Sequence[Ratio | None]
    chosen: bool = False


@dataclass(frozen=True, slots=True)
class IntervalChart:
    """The chart. Dots are filled if the interval does not contain 1."""

    title: str
    description: str
    panels: Sequence[str]
    rows: Sequence[IntervalRow]

    def svg(self) -> str:
        height = TOP + ROW_HEIGHT * len(self.rows) + 48
        parts = [
            svg.label_text(
                svg.truncate(row.name, 24), LEFT - 12, self._y(number), "name chosen" if row.chosen else "name"
            )
            for number, row in enumerate(self.rows)
        ]
        for column in range(len(self.panels)):
            parts += self._panel(column, height)
        return svg.document(WIDTH, height, self.title, self.description, parts, STYLE)

    def _y(self, row: int) -> float:
        return TOP + ROW_HEIGHT * (row + 0.5)

    def _panel(self, column: int, height: float) -> list[str]:
        width = (WIDTH - LEFT - 20 - GAP * (len(self.panels) - 1)) / len(self.panels)
        left = LEFT + column * (width + GAP)
        frame = Frame(WIDTH, height, left, WIDTH - left - width, TOP, 48)
        plot = Plot(frame, Axis("log", LOW, HIGH, MARKS), Axis("count", 0.0, 1.0))
        parts = [
            svg.label_text(self.panels[column], left + width / 2, TOP - 16, "panel"),
            *plot.draw_x_axis(),
            svg.vertical_line(plot.x(1.0), TOP, frame.bottom_edge, "one"),
        ]
        for number, row in enumerate(self.rows):
            if (ratio := row.ratios[column]) is not None:
                tooltip = f"{row.name}, {self.panels[column]}: {ratio[0]:.2f} ({ratio[1]:.2f}–{ratio[2]:.2f})"
                parts.append(_interval(plot, self._y(number), ratio, svg.series_class(row.series), tooltip))
        return parts


def _interval(plot: Plot, y: float, ratio: Ratio, class_: str, tooltip: str) -> str:
    value, low, high = (plot.x(min(max(one, LOW), HIGH) if isfinite(one) else HIGH) for one in ratio)
    clear = " clear" if ratio[1] > 1 or ratio[2] < 1 else ""
    return svg.group(
        [svg.horizontal_line(low, high, y, "whisker"), svg.dot(value, y, 4.5, "dot", tooltip)], class_=class_ + clear
    )


def render_trade_off(report: TuningReport, title: str, description: str, verdict: str, command: str) -> str:
    measures = [name for name in MEASURES if name in report.rows[0].values]
    rows = [_row(row, measures, report.chosen) for row in report.rows if row.policy.kind != "default"]
    chart = IntervalChart(title, description, ["score", *(TITLES[name] for name in measures)], rows)
    notes = (
        "Ratios to the default settings on the later jobs, with 95 % confidence intervals; left of the line is better, "
        "filled dots are clearly better or worse. The chosen point is bold."
    )
    content = (
        f"<p><strong>{escape(verdict)}</strong></p>{chart.svg()}<p>{escape(notes)}</p>"
        f"{_settings_table(report)}<p><code>{escape(command)}</code></p>"
    )
    return html_page(title, content)


def _row(row: ReportRow, measures: Sequence[str], chosen: int | None) -> IntervalRow:
    number = row.policy.number
    ratios = [_plain(row.score), *(_plain(row.ratios[name]) if name in row.ratios else None for name in measures)]
    return IntervalRow(row.policy.name, SERIES[row.policy.kind], ratios, number is not None and number == chosen)


def _plain(interval: Interval) -> Ratio:
    return interval.value, interval.low, interval.high


def _settings_table(report: TuningReport) -> str:
    points = [row.policy for row in report.rows if row.policy.number is not None]
    names = list(dict.fromkeys(name for point in points for name in point.settings))
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    lines = "".join(
        f"<tr><td>{escape(point.name)}</td>"
        + "".join(f"<td>{escape(format_setting(point.settings.get(name, '')))}</td>" for name in names)
        + "</tr>\n"
        for point in points
    )
    return f"<table><tr>{head}</tr>\n{lines}</table>" if points else ""
