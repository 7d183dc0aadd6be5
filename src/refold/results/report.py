"""The report: one HTML file that needs no network, with tables, pictures and what it takes to make it again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from refold import __version__
from refold.errors import BadFile, BadValue, MissingExtra
from refold.journal import History, Outcome
from refold.model import Cluster, text_from_seconds
from refold.packing import Floats
from refold.policies import POLICIES
from refold.results import gantt, power, tables, time_series
from refold.results.charts import (
    APART,
    Axis,
    Band,
    Bars,
    Chart,
    ChartLine,
    Level,
    bar_picture,
    line_picture,
    nice_top,
    series_class,
)
from refold.results.measures import Measures, Spread, middles
from refold.results.unfinished import unfinished_text

if TYPE_CHECKING:
    from jinja2 import Environment

SLOTS = 240
"""Into how many slots of time curves are cut; each shows the exact mean of its slot."""

ORACLE = "†"
"""The sign of a policy that knows how long jobs will take."""

QUANTILES = 240
MOST_TENANTS = 12
MOST_RACKS = 8


@dataclass(frozen=True, slots=True, eq=False)
class ReportRun:
    """One policy's part of a report."""

    name: str
    history: History
    measures: Measures


@dataclass(frozen=True, slots=True)
class Key:
    """One entry of a legend: the classes that give its colour, its name, a remark, and the sign of a footnote."""

    colour: str
    name: str
    series: int | None = None
    remark: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """A picture with its title, what to know about it, and its legend."""

    title: str
    note: str
    picture: Chart
    keys: Sequence[Key] = ()


@dataclass(frozen=True, slots=True)
class Card:
    """One headline."""

    title: str
    value: str
    by: str
    remark: str


def write_report(
    path: Path, runs: Sequence[ReportRun], *, title: str, workload: str, command: str, notes: Sequence[str] = ()
) -> None:
    """Write the report of these runs, the first of which the others are compared with.

    `notes` are what a reader should know of the workload; they stand near the top.
    """
    text = report_html(runs, title=title, workload=workload, command=command, notes=notes)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None


def report_html(
    runs: Sequence[ReportRun], *, title: str, workload: str, command: str, notes: Sequence[str] = ()
) -> str:
    """The report as text."""
    if not runs:
        raise BadValue("a report needs at least one run")
    measured = [(run.name, run.measures) for run in runs]
    span = _span(runs)
    unfinished = _unfinished(runs)
    told = {f"{name}: {text}" if name else text for name, text in unfinished}
    jobs, gantts = _gantts(runs, span)
    knows_power = any(run.measures.power is not None for run in runs)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            workload=workload,
            command=command,
            version=__version__,
            fills=gantt.FILLS,
            facts=_facts(runs),
            unfinished=unfinished,
            notes=[note for note in notes if note not in told],
            policies=[
                Key(series_class(series), run.name, series, mark=ORACLE if _is_oracle(run.name) else "")
                for series, run in enumerate(runs)
            ],
            oracle=ORACLE if any(_is_oracle(run.name) for run in runs) else "",
            cards=_cards(measured),
            main=tables.measure_table(measured),
            more=tables.measure_table(measured, _more(measured)),
            over_time=[_allocation(runs, span), _queue(runs, span)],
            distributions=[_completion(runs), _waiting(runs)],
            gantts=gantts,
            jobs=jobs,
            fragmentation=_fragmentation(runs, span),
            power=_power(runs, span) if knows_power else [],
            tenants=_groups(runs, "tenant"),
            sizes=_groups(runs, "size"),
            all_tenants=len(runs[0].measures.tenants),
        )
    )


def _more(measured: Sequence[tuple[str, Measures]]) -> tuple[tables.Measured, ...]:
    """What else there is to compare: power where it is known, promised starts where any were made."""
    power = any(one.power is not None for _, one in measured)
    promised = any(one.promises is not None for _, one in measured)
    return tables.MORE + (tables.POWER if power else ()) + (tables.PROMISES if promised else ())


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("the report", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("refold.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["as_json"] = _as_json
    return environment


def _as_json(value: Any) -> str:
    """JSON that may stand within a <script>: no `<`, so that no name in it can close the script."""
    from markupsafe import Markup

    return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))


# What the page says first.


def _facts(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    first = runs[0]
    history, measures = first.history, first.measures
    hours = max(run.measures.gpu_hours for run in runs)
    arriving = measures.busy_window
    return [
        ("cluster", " · ".join(dict.fromkeys(_cluster_text(run.history.cluster) for run in runs))),
        ("jobs", f"{measures.jobs:,} of {len(history.tenants):,} tenant{'s' * (len(history.tenants) != 1)}"),
        ("arriving over", text_from_seconds(arriving[1] - arriving[0]) if arriving else "one moment"),
        ("GPU-hours", f"{hours:,.0f}"),
    ]


def _unfinished(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """How many jobs did not finish, and why: once if that is the same under every policy, else for each."""
    texts = [(run.name, unfinished_text(run.history)) for run in runs]
    if len({text for _, text in texts}) == 1:
        texts = [("", texts[0][1])]
    return [(name, text) for name, text in texts if text]


def _is_oracle(name: str) -> bool:
    """'sjf', 'sjf/best-fit' and 'sjf (simulated)' know what nobody can know."""
    known = POLICIES.get(name.partition("/")[0].partition(" ")[0])
    return known is not None and known.oracle


def _cluster_text(cluster: Cluster) -> str:
    kinds = ", ".join(cluster.type_names)
    nodes = len(cluster.nodes)
    return f"{cluster.gpus:,} GPU{'s' * (cluster.gpus != 1)} on {nodes:,} node{'s' * (nodes != 1)}" + (
        f" ({kinds})" if kinds else ""
    )


def _cards(measured: Sequence[tuple[str, Measures]]) -> list[Card]:
    comparison = tables.measure_table(measured)
    wanted = {
        "completion_mean": "Mean completion",
        "waiting_mean": "Mean waiting",
        "waiting_p99": "Longest waits (p99)",
    }
    wanted |= {"allocation": "GPU allocation"}
    cards = []
    for index, column in enumerate(comparison.columns):
        if column.key in wanted:
            cells = [row.cells[index] for row in comparison.rows]
            best = next((place for place, cell in enumerate(cells) if cell.best), 0)
            by = measured[best][0] if len(measured) > 1 else ""
            remark = _against(column, cells[best], cells[0], measured[0][0]) if best else _no_better(cells)
            cards.append(Card(wanted[column.key], cells[best].text, by, remark))
    return cards


def _no_better(cells: Sequence[tables.Cell]) -> str:
    if len(cells) < 2:
        return ""
    return f"best of {len(cells)}" if cells[0].best else "the same under every policy"


def _against(column: tables.MeasureColumn, best: tables.Cell, first: tables.Cell, name: str) -> str:
    """How much better than the first policy the best one is."""
    if best.value is None or first.value is None:
        return ""
    if column.unit == "%":
        return f"{(best.value - first.value) * 100:+.1f} points against {name}"
    if best.value <= 0 or first.value / best.value >= 100:
        return f"{first.text} under {name}"
    return f"{first.value / best.value:.1f} × shorter than {name}"


# Over time.


def _span(runs: Sequence[ReportRun]) -> tuple[float, float]:
    """From the first submission to the end of the last run, the same for every policy so that pictures compare."""
    first = min(run.history.first_submission for run in runs)
    last = max(float(run.history.run_end.max()) if len(run.history.runs) else run.history.until for run in runs)
    return first, max(last, first + 1.0)


def _time_axis(span: tuple[float, float]) -> Axis:
    return Axis("time", *span)


def _keys(runs: Sequence[ReportRun], remarks: Sequence[str] | None = None) -> list[Key]:
    remarks = remarks or [""] * len(runs)
    return [Key(series_class(series), run.name, series, remarks[series]) for series, run in enumerate(runs)]


def _last_submission(runs: Sequence[ReportRun], span: tuple[float, float]) -> tuple[float, str] | None:
    last = max(run.history.last_submission for run in runs)
    return (last, "last submission") if span[0] < last < span[1] else None


def _curve(
    runs: Sequence[ReportRun], span: tuple[float, float], values: Sequence[Floats], y: Axis, label: str
) -> Chart:
    x = middles(*span, SLOTS)
    lines = [ChartLine(series, run.name, x, values[series]) for series, run in enumerate(runs)]
    return line_picture(lines, _time_axis(span), y, label=label, wide=True, rule=_last_submission(runs, span))


def _slots(span: tuple[float, float]) -> Floats:
    return np.linspace(*span, SLOTS + 1)


def _allocation(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    edges = _slots(span)
    values = [time_series.allocated(run.history).means(edges) / max(run.history.cluster.gpus, 1) for run in runs]
    remarks = [tables.text_of(run.measures.allocation, "%") for run in runs]
    return Figure(
        "GPU allocation",
        "The part of all GPUs that runs hold. In the legend: its mean until the last submission.",
        _curve(runs, span, values, Axis("part", 0.0, 1.0), "GPU allocation over time, one line per policy"),
        _keys(runs, remarks),
    )


def _queue(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    values = [time_series.waiting(run.history).means(_slots(span)) for run in runs]
    top = nice_top(max((float(value.max()) for value in values), default=1.0))
    remarks = [f"at most {float(value.max()):,.0f}" for value in values]
    return Figure(
        "Jobs waiting",
        "Jobs that are submitted, not done and without a run.",
        _curve(runs, span, values, Axis("count", 0.0, top), "Jobs waiting over time, one line per policy"),
        _keys(runs, remarks),
    )


def _fragmentation(runs: Sequence[ReportRun], span: tuple[float, float]) -> Figure:
    values = [time_series.fragmentation(run.history, middles(*span, SLOTS)) for run in runs]
    top = min(1.0, nice_top(max((float(value.max()) for value in values), default=1.0)))
    remarks = [tables.text_of(run.measures.fragmentation, "%") for run in runs]
    return Figure(
        "Fragmentation",
        "Free GPU that a job like those of this history could not be expected to use, as a part of all GPUs.",
        _curve(runs, span, values, Axis("part", 0.0, top), "Fragmentation over time, one line per policy"),
        _keys(runs, remarks),
    )


# Power.


def _power(runs: Sequence[ReportRun], span: tuple[float, float]) -> list[Figure]:
    """One figure per policy, all up to the same height."""
    drawn = [power.curves_of(run.history, _slots(span), MOST_RACKS) for run in runs]
    most = max((found.most_watts for found in drawn if found is not None), default=0.0)
    y = Axis("count", 0.0, nice_top(most / power.WATTS_PER_KILOWATT))
    return [
        _power_figure(run.name, run.measures.power, found, span, y)
        for run, found in zip(runs, drawn, strict=True)
        if found is not None and run.measures.power is not None
    ]


def _power_figure(
    name: str, use: power.PowerUse, drawn: power.RackCurves, span: tuple[float, float], y: Axis
) -> Figure:
    x, kilo = middles(*span, SLOTS), power.WATTS_PER_KILOWATT
    lines = [ChartLine(APART + place, rack, x, watts / kilo) for place, (rack, watts) in enumerate(drawn.lines)]
    keys = [Key(series_class(line.series), line.name, line.series) for line in lines]
    band = None
    if drawn.band is not None:
        others = APART + len(lines)
        band = Band(others, x, drawn.band[0] / kilo, drawn.band[1] / kilo)
        keys.append(Key(series_class(others), f"all {len(use.racks):,} racks", others, "lowest to highest"))
    levels = [Level(watts / kilo, text) for watts, text in drawn.limits]
    label = f"Power of racks over time under {name}, with their limits"
    picture = line_picture(lines, _time_axis(span), y, label=label, wide=True, levels=levels, band=band)
    return Figure(name, _power_note(use), picture, keys)


def _power_note(use: power.PowerUse) -> str:
    above = sum(rack.above_limit_seconds > 0 for rack in use.racks)
    limited = sum(rack.limit_watts is not None for rack in use.racks)
    said = f"In kW; {use.energy_kwh:,.0f} kWh in all"
    if above:
        return f"{said}; {above:,} of {limited:,} limits passed, for {text_from_seconds(use.above_limit_seconds)}"
    return f"{said}; every limit kept" if limited else said


# Distributions.


def _completion(runs: Sequence[ReportRun]) -> Figure:
    values = [_of_finished(run.history, run.history.jobs.ended - run.history.jobs.submitted) for run in runs]
    spreads = [run.measures.completion for run in runs]
    return _distribution("Completion time", "From submission to finish.", runs, values, spreads)


def _waiting(runs: Sequence[ReportRun]) -> Figure:
    values = []
    for run in runs:
        jobs = run.history.jobs
        waited = np.maximum(jobs.ended - jobs.submitted - run.history.time_running, 0.0)
        values.append(_of_finished(run.history, waited))
    spreads = [run.measures.waiting for run in runs]
    return _distribution("Waiting time", "Completion less the time with a run.", runs, values, spreads)


def _of_finished(history: History, values: Floats) -> Floats:
    finished: Floats = values[history.jobs.outcome == Outcome.FINISHED]
    return finished


def _distribution(
    title: str, note: str, runs: Sequence[ReportRun], values: Sequence[Floats], spreads: Sequence[Spread]
) -> Figure:
    levels = np.linspace(0.0, 1.0, QUANTILES + 1)
    most = max((spread.most or 0.0 for spread in spreads), default=0.0)
    x = Axis("duration", 1.0, max(most, 10.0))
    lines = [
        _distribution_line(series, run.name, np.quantile(found, levels), levels)
        for series, (run, found) in enumerate(zip(runs, values, strict=True))
        if len(found)
    ]
    picture = line_picture(lines, x, Axis("part", 0.0, 1.0), label=f"{title}: part of the jobs over time, by policy")
    remarks = [f"median {tables.text_of(spread.median, 's')}" for spread in spreads]
    note += " The part of finished jobs that took no longer; dots are medians. Further left is better."
    return Figure(title, note, picture, _keys(runs, remarks))


def _distribution_line(series: int, name: str, durations: Floats, levels: Floats) -> ChartLine:
    """The line begins where the axis does, with all jobs that took less already behind it."""
    shown = max(0, int(np.searchsorted(durations, 1.0, side="right")) - 1)
    median = float(durations[len(levels) // 2])
    marked = (median, 0.5) if median >= 1.0 else None
    return ChartLine(series, name, np.maximum(durations[shown:], 1.0), levels[shown:], marked)


# GPUs × time.


def _gantts(runs: Sequence[ReportRun], span: tuple[float, float]) -> tuple[list[Any], list[Figure]]:
    """The tables of jobs that pointers ask, each given once however many policies share it; and the figures."""
    # A run is a block or more, so that histories of many runs need not be counted out.
    many = sum(len(run.history.runs) for run in runs) > gantt.MOST_BLOCKS
    as_image = many or sum(gantt.blocks_of(run.history) for run in runs) > gantt.MOST_BLOCKS
    colours = [gantt.colouring(run.history) for run in runs]
    known: dict[tuple[str, ...], int] = {}
    texts: list[Any] = []
    figures = []
    for run, colour in zip(runs, colours, strict=True):
        label = f"Who held which GPU when, under {run.name}"
        picture = gantt.gantt_picture(run.history, colour, _time_axis(span), as_image=as_image, label=label)
        if not as_image:
            ids = tuple(job.id for job in run.history.jobs.jobs)
            if ids not in known:
                known[ids] = len(texts)
                texts.append(gantt.job_texts(run.history))
            picture.numbers["jobs"] = known[ids]
        seen = set(colour.of_job.tolist())
        keys = [Key(f"f{fill}", name) for fill, name in enumerate(colour.names) if fill in seen]
        figures.append(Figure(run.name, _gantt_note(run.history, colour, as_image), picture, keys))
    return texts, figures


def _gantt_note(history: History, colour: gantt.Colouring, as_image: bool) -> str:
    every = -(-history.cluster.gpus // gantt.MOST_ROWS)
    left_out = f"; one GPU of {every} is drawn" if as_image and every > 1 else ""
    return f"coloured by {colour.by}{left_out}"


# Groups.


def _groups(runs: Sequence[ReportRun], by: str) -> dict[str, Any]:
    of = [(run.name, run.measures.tenants if by == "tenant" else run.measures.sizes) for run in runs]
    completion = tables.group_table(of, "completion", MOST_TENANTS)
    waiting = tables.group_table(of, "waiting", MOST_TENANTS)
    first = {group.name: group for group in of[0][1]}
    bars = [
        Bars(row.name, [cell.value for cell in row.cells], [cell.text for cell in row.cells]) for row in waiting.rows
    ]
    label = f"Mean waiting time per {by}, one bar per policy"
    figure = Figure(f"Mean waiting time by {by}", "", bar_picture(bars, label=label), _keys(runs))
    return {"completion": completion, "groups": [first[row.name] for row in completion.rows], "figure": figure}
