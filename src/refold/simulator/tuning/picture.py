"""The report of `refold tune` as an HTML page: a chart of the trade-off on the report part, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from refold.simulator.results import IntervalChart, IntervalRow, Ratio, html_page
from refold.simulator.tuning.bootstrap import Interval
from refold.simulator.tuning.report import ReportRow, TuningReport, format_setting
from refold.simulator.tuning.trade_off import MEASURES

TITLES = {
    "delay": "mean delay",
    "tail": "p99 of delays",
    "wide": "wide jobs",
    "fairness": "fairness, p99",
    "preemptions": "preemptions",
}
"""Short titles of the panels."""

SERIES = {"point": 0, "baseline": 1, "oracle": 2}


def render_trade_off(report: TuningReport, title: str, description: str, verdict: str, command: str) -> str:
    """Return the page."""
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
