"""The figures of a report: charts over time, distributions, Gantt charts, and waiting times of groups of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from refold.journal import History, Outcome
from refold.model import format_duration
from refold.placement import Floats
from refold.simulator.results import gantt, power, svg, tables, time_series
from refold.simulator.results.axes import Axis, nice_maximum
from refold.simulator.results.charts import Band, BarGroup, Chart, ChartLine, ReferenceLine, bar_chart, line_chart
from refold.simulator.results.measures import Measures, Spread, midpoints

TIME_INTERVALS = 240
"""Intervals of charts over time; each point is the exact mean of its interval."""

QUANTILES = 240

MAX_TENANTS = 12

MAX_RACKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReportRun:
    """The result of one policy."""

    name: str
    history: History
    measures: Measures
    is_recorded: bool = False
    """It happened, and was not simulated."""
    is_reference: bool = False
    """It is what happened, simulated like the other policies, which are compared with it."""
    is_oracle: bool = False
    """The policy knows run times in advance."""


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A legend entry: the CSS classes of its colour, its name, a remark, and a footnote mark."""

    colour: str
    name: str
    series: int | None = None
    remark: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A chart with its title, caption and legend."""

    title: str
    caption: str
    chart: Chart
    legend: Sequence[LegendEntry] = ()


# Charts over time.


def time_span(runs: Sequence[ReportRun]) -> tuple[float, float]:
    """Return the first submission and the end of the last run over all policies, so that charts share a time axis."""
    first = min(run.history.first_submission for run in runs)
    last = max(float(run.history.run_end.max()) if len(run.history.runs) else run.history.until for run in runs)
    return first, max(last, first + 1.0)


def _time_axis(span: tuple[float, float]) -> Axis:
    return Axis("time", *span)


def _legend(runs: Sequence[ReportRun], remarks: Sequence[str] | None = None) -> list[LegendEntry]:
    remarks = remarks or [""] * len(runs)
    return [LegendEntry(svg.series_class(series), run.name, series, remarks[series]) for series, run in enumerate(runs)]


def _last_submission(runs: Sequence[ReportRun], span: tuple[float, float]) -> tuple[float, str] | None:
    last = max(run.history.last_submission for run in runs)
    return (last, "last submission") if span[0] < last < span[1] else None


def _time_chart(
    runs: Sequence[ReportRun], span: tuple[float, float], values: Sequence[Floats], y: Axis, label: str
) -> Chart:
    x = midpoints(*span, TIME_INTERVALS)
    lines = [ChartLine(series, run.name, x, values[series]) for series, run in enumerate(runs)]
    return line_chart(lines, _time_axis(span), y, label=label, wide=True, time_mark=_last_submission(runs, span))


def _interval_edges(span: tuple[float, float]) -> Floats:
    return np.linspace(*span, TIME_INTERVALS + 1)


def allocation_figure(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    """Return the share of GPUs that were allocated, over time."""
    edges = _interval_edges(span)
    values = [time_series.gpus_allocated(run.history).means(edges) / max(run.history.cluster.gpus, 1) for run in runs]
    remarks = [tables.format_value(run.measures.allocation, "%") for run in runs]
    return Figure(
        "GPU allocation",
        "Share of all GPUs that are allocated to runs. Legend: mean until the last submission.",
        _time_chart(runs, span, values, Axis("share", 0.0, 1.0), "GPU allocation over time, one line per policy"),
        _legend(runs, remarks),
    )


def queue_figure(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    """Return the number of waiting jobs over time."""
    values = [time_series.jobs_waiting(run.history).means(_interval_edges(span)) for run in runs]
    top = nice_maximum(max((float(value.max()) for value in values), default=1.0))
    remarks = [f"max {float(value.max()):,.0f}" for value in values]
    return Figure(
        "Jobs waiting",
        "Jobs that are submitted, not ended and have no run.",
        _time_chart(runs, span, values, Axis("count", 0.0, top), "Jobs waiting over time, one line per policy"),
        _legend(runs, remarks),
    )


def fragmentation_figure(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    values = [time_series.fragmentation(run.history, midpoints(*span, TIME_INTERVALS)) for run in runs]
    top = min(1.0, nice_maximum(max((float(value.max()) for value in values), default=1.0)))
    remarks = [tables.format_value(run.measures.fragmentation, "%") for run in runs]
    return Figure(
        "Fragmentation",
        "Expected share of all GPUs that are free but cannot be used by a typical job of this workload.",
        _time_chart(runs, span, values, Axis("share", 0.0, top), "Fragmentation over time, one line per policy"),
        _legend(runs, remarks),
    )


# Power.


def power_figures(runs: Sequence[ReportRun], span: tuple[float, float]) -> list[Figure]:
    """Return one figure per policy, all with the same y axis."""
    curves = [power.rack_curves(run.history, _interval_edges(span), MAX_RACKS) for run in runs]
    max_watts = max((rack_curves.max_watts for rack_curves in curves if rack_curves is not None), default=0.0)
    y = Axis("count", 0.0, nice_maximum(max_watts / power.WATTS_PER_KILOWATT))
    return [
        _power_figure(run.name, run.measures.power, rack_curves, span, y)
        for run, rack_curves in zip(runs, curves, strict=True)
        if rack_curves is not None and run.measures.power is not None
    ]


def _power_figure(
    name: str, use: power.PowerUse, curves: power.RackCurves, span: tuple[float, float], y: Axis
) -> Figure:
    x, kilo = midpoints(*span, TIME_INTERVALS), power.WATTS_PER_KILOWATT
    lines = [
        ChartLine(svg.FIRST_NON_POLICY_SERIES + index, rack, x, watts / kilo)
        for index, (rack, watts) in enumerate(curves.lines)
    ]
    legend = [LegendEntry(svg.series_class(line.series), line.name, line.series) for line in lines]
    band = None
    if curves.band is not None:
        others = svg.FIRST_NON_POLICY_SERIES + len(lines)
        band = Band(others, x, curves.band[0] / kilo, curves.band[1] / kilo)
        legend.append(
            LegendEntry(svg.series_class(others), f"all {len(use.racks):,} racks", others, "lowest to highest")
        )
    limits = [ReferenceLine(watts / kilo, text) for watts, text in curves.limits]
    label = f"Rack power over time with {name}, and the power limits"
    chart = line_chart(lines, _time_axis(span), y, label=label, wide=True, reference_lines=limits, band=band)
    return Figure(name, _power_caption(use), chart, legend)


def _power_caption(use: power.PowerUse) -> str:
    above = sum(rack.above_limit_seconds > 0 for rack in use.racks)
    limited = sum(rack.limit_watts is not None for rack in use.racks)
    caption = f"In kW; {use.energy_kwh:,.0f} kWh in total"
    if above:
        return f"{caption}; {above:,} of {limited:,} limits exceeded, for {format_duration(use.above_limit_seconds)}"
    return f"{caption}; no limit exceeded" if limited else caption


# Distributions.


def completion_figure(runs: Sequence[ReportRun]) -> Figure:
    values = [_select_finished(run.history, run.history.jobs.ended - run.history.jobs.submitted) for run in runs]
    spreads = [run.measures.completion for run in runs]
    return _distribution("Completion time", "From submission to end.", runs, values, spreads)


def waiting_figure(runs: Sequence[ReportRun]) -> Figure:
    values = []
    for run in runs:
        jobs = run.history.jobs
        waited = np.maximum(jobs.ended - jobs.submitted - run.history.time_running, 0.0)
        values.append(_select_finished(run.history, waited))
    spreads = [run.measures.waiting for run in runs]
    return _distribution("Waiting time", "Completion time minus the time with a run.", runs, values, spreads)


def _select_finished(history: History, values: Floats) -> Floats:
    finished: Floats = values[history.jobs.outcome == Outcome.FINISHED]
    return finished


def _distribution(
    title: str, caption: str, runs: Sequence[ReportRun], values: Sequence[Floats], spreads: Sequence[Spread]
) -> Figure:
    levels = np.linspace(0.0, 1.0, QUANTILES + 1)
    longest = max((spread.max or 0.0 for spread in spreads), default=0.0)
    x = Axis("duration", 1.0, max(longest, 10.0))
    lines = [
        _distribution_line(series, run.name, _quantiles(durations, levels), levels)
        for series, (run, durations) in enumerate(zip(runs, values, strict=True))
        if len(durations)
    ]
    chart = line_chart(lines, x, Axis("share", 0.0, 1.0), label=f"{title}: cumulative distribution by policy")
    remarks = [f"median {tables.format_value(spread.median, 's')}" for spread in spreads]
    caption += " Cumulative share of finished jobs; circles mark medians. Curves further left are better."
    return Figure(title, caption, chart, _legend(runs, remarks))


def _quantiles(values: Floats, levels: Floats) -> Floats:
    """Return what np.quantile does, which loads masked arrays."""
    return np.interp(levels * (len(values) - 1), np.arange(len(values)), np.sort(values))


def _distribution_line(series: int, name: str, durations: Floats, levels: Floats) -> ChartLine:
    """Return the cumulative distribution as a line that begins at the left end of the axis (1 s)."""
    first = max(0, int(np.searchsorted(durations, 1.0, side="right")) - 1)
    median = float(durations[len(levels) // 2])
    marked = (median, 0.5) if median >= 1.0 else None
    return ChartLine(series, name, np.maximum(durations[first:], 1.0), levels[first:], marked)


# GPU allocation over time (Gantt charts).


def gantt_figures(runs: Sequence[ReportRun], span: tuple[float, float]) -> tuple[list[Any], list[Figure]]:
    """Return the job tables for tooltips, each of which several policies may share, and the figures."""
    # A run has at least one block, so histories with many runs need not be counted. The page has a row for each job.
    many = sum(max(len(run.history.runs), len(run.history.jobs)) for run in runs) > gantt.MAX_BLOCKS
    as_image = many or sum(gantt.count_blocks(run.history) for run in runs) > gantt.MAX_BLOCKS
    colours = [gantt.choose_colours(run.history) for run in runs]
    table_of_ids: dict[tuple[str, ...], int] = {}
    tables_of_jobs: list[Any] = []
    figures = []
    for run, colour in zip(runs, colours, strict=True):
        label = f"GPU allocation over time with {run.name}"
        chart = gantt.gantt_chart(run.history, colour, _time_axis(span), as_image=as_image, label=label)
        if not as_image:
            ids = tuple(job.id for job in run.history.jobs.jobs)
            if ids not in table_of_ids:
                table_of_ids[ids] = len(tables_of_jobs)
                tables_of_jobs.append(gantt.job_details(run.history))
            chart.data["jobs"] = table_of_ids[ids]
        used = set(colour.fill_of_job.tolist())
        legend = [LegendEntry(f"f{fill}", name) for fill, name in enumerate(colour.names) if fill in used]
        figures.append(Figure(run.name, _gantt_caption(run.history, colour, as_image), chart, legend))
    return tables_of_jobs, figures


def _gantt_caption(history: History, colour: gantt.JobColours, as_image: bool) -> str:
    every = -(-history.cluster.gpus // gantt.MAX_IMAGE_ROWS)
    sampled = f"; 1 of every {every} GPUs is drawn" if as_image and every > 1 else ""
    return f"Coloured by {colour.attribute}{sampled}."


# Groups.


def group_figure(runs: Sequence[ReportRun], by: str) -> dict[str, Any]:
    """Return the waiting times by tenant or size, with their table."""
    groups = [(run.name, run.measures.tenants if by == "tenant" else run.measures.sizes) for run in runs]
    completion = tables.group_table(groups, "completion", MAX_TENANTS)
    waiting = tables.group_table(groups, "waiting", MAX_TENANTS)
    first = {group.name: group for group in groups[0][1]}
    bars = [
        BarGroup(
            row.name,
            [cell.value for cell in row.cells],
            [f"{cell.text} {run.name}" for run, cell in zip(runs, row.cells, strict=True)],
        )
        for row in waiting.rows
    ]
    label = f"Mean waiting time per {by}, one bar per policy"
    figure = Figure(f"Mean waiting time by {by}", "", bar_chart(bars, label=label), _legend(runs))
    return {"completion": completion, "groups": [first[row.name] for row in completion.rows], "figure": figure}
