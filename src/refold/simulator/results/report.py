"""The HTML report: one self-contained file with tables, charts and the command that reproduces it."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from refold import __version__
from refold.errors import BadFile, BadValue, MissingExtra
from refold.model import Cluster, PreemptionOutlook, format_count, format_duration
from refold.simulator.results import gantt, svg, tables
from refold.simulator.results.figures import (
    LegendEntry,
    ReportRun,
    allocation_figure,
    completion_figure,
    fragmentation_figure,
    gantt_figures,
    group_figure,
    power_figures,
    queue_figure,
    time_span,
    waiting_figure,
)
from refold.simulator.results.measures import Measures
from refold.simulator.results.recorded import Headline, find_headlines, find_reference
from refold.simulator.results.tables import Recorded, describe_unfinished

if TYPE_CHECKING:
    from jinja2 import Environment


ORACLE = "†"
"""Marks policies that know run times in advance."""


def write_report(
    path: Path,
    runs: Sequence[ReportRun],
    *,
    title: str,
    workload: str,
    command: str,
    notes: Sequence[str] = (),
    outlook: PreemptionOutlook | None = None,
    recorded: Recorded | None = None,
) -> None:
    """Write the report of these runs. `notes` about the workload are shown near the top.

    `recorded`: how long jobs have waited, if there is no run of that.
    """
    text = report_html(
        runs, title=title, workload=workload, command=command, notes=notes, outlook=outlook, recorded=recorded
    )
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadFile(path, f"cannot be written: {error.strerror}") from None


def report_html(
    runs: Sequence[ReportRun],
    *,
    title: str,
    workload: str,
    command: str,
    notes: Sequence[str] = (),
    outlook: PreemptionOutlook | None = None,
    recorded: Recorded | None = None,
) -> str:
    if not runs:
        raise BadValue("a report needs at least one run")
    measured = [(run.name, run.measures) for run in runs]
    span = time_span(runs)
    unfinished = _unfinished(runs)
    unfinished_notes = {f"{name}: {text}" if name else text for name, text in unfinished}
    jobs, gantts = gantt_figures(runs, span)
    has_power = any(run.measures.power is not None for run in runs)
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            title=title,
            workload=workload,
            command=command,
            version=__version__,
            light_series=svg.series_variables(svg.LIGHT_SERIES),
            dark_series=svg.series_variables(svg.DARK_SERIES),
            series_rules=svg.SERIES_RULES,
            fills=gantt.FILLS,
            facts=_facts(runs),
            unfinished=unfinished,
            notes=[note for note in notes if note not in unfinished_notes],
            outlook=outlook and {"policy": outlook.policy, "table": tables.outlook_table(outlook)},
            policies=[
                LegendEntry(svg.series_class(series), run.name, series, mark=ORACLE if run.is_oracle else "")
                for series, run in enumerate(runs)
            ],
            recorded=recorded and LegendEntry("", recorded.name),
            oracle=ORACLE if any(run.is_oracle for run in runs) else "",
            cards=compare_with_record(runs, recorded),
            main=tables.measure_table(measured, recorded=recorded),
            more=tables.measure_table(measured, _more_measures(measured)),
            over_time=[allocation_figure(runs, span), queue_figure(runs, span)],
            distributions=[completion_figure(runs), waiting_figure(runs)],
            gantts=gantts,
            jobs=jobs,
            fragmentation=fragmentation_figure(runs, span),
            power=power_figures(runs, span) if has_power else [],
            tenants=group_figure(runs, "tenant"),
            sizes=group_figure(runs, "size"),
            all_tenants=len(runs[0].measures.tenants),
        )
    )


def _more_measures(measured: Sequence[tuple[str, Measures]]) -> tuple[tables.MeasureDefinition, ...]:
    """Return the further measures, with power if known and start estimates if any were given."""
    has_power = any(measures.power is not None for _, measures in measured)
    has_estimates = any(measures.start_estimates is not None for _, measures in measured)
    return (
        tables.MORE_MEASURES
        + (tables.POWER_MEASURES if has_power else ())
        + (tables.TOPOLOGY_MEASURES if any(measures.topology is not None for _, measures in measured) else ())
        + (tables.START_ESTIMATE_MEASURES if has_estimates else ())
    )


def _environment() -> Environment:
    try:
        import jinja2
    except ImportError:
        raise MissingExtra("the report", "report") from None
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("refold.simulator.results", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"as_json": _as_json, "script_hash": _script_hash}
    return environment


def _as_json(value: Any) -> str:
    """Return JSON that is safe within <script>: `<` is escaped, so that no name in it can close the element."""
    from markupsafe import Markup

    return Markup(msgspec.json.encode(value).decode().replace("<", "\\u003c"))


def _script_hash(script: str) -> str:
    """Return the hash by which a content security policy allows a script."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


# Header and cards.


def _facts(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    first = runs[0]
    history, measures = first.history, first.measures
    hours = max(run.measures.gpu_hours for run in runs)
    window = measures.submission_window
    return [
        ("cluster", " · ".join(dict.fromkeys(_describe_cluster(run.history.cluster) for run in runs))),
        ("jobs", f"{measures.jobs:,} of {format_count(len(history.tenants), 'tenant')}"),
        ("submitted over", format_duration(window[1] - window[0]) if window else "0 s"),
        ("GPU-hours", f"{hours:,.0f}"),
    ]


def _unfinished(runs: Sequence[ReportRun]) -> list[tuple[str, str]]:
    """Describe the jobs that did not finish: once if the text is the same for all policies, else for each policy."""
    texts = [(run.name, describe_unfinished(run.history)) for run in runs]
    if len({text for _, text in texts}) == 1:
        texts = [("", texts[0][1])]
    return [(name, text) for name, text in texts if text]


def _describe_cluster(cluster: Cluster) -> str:
    size = f"{format_count(cluster.gpus, 'GPU')} on {format_count(len(cluster.nodes), 'node')}"
    return f"{size} ({', '.join(cluster.type_names)})" if cluster.type_names else size


def compare_with_record(runs: Sequence[ReportRun], recorded: Recorded | None = None) -> list[Headline]:
    """Return the best values of policies that do not know run times in advance, compared with what was recorded.

    Without a record, they are compared with a usual baseline.
    """
    if recorded is None:
        first = sorted(runs, key=lambda run: (not run.is_reference, not run.is_recorded))[0]
        recorded_run = first.name if first.is_reference or first.is_recorded else None
        recorded = find_reference([(run.name, run.measures) for run in runs], recorded_run)
    simulated = [run for run in runs if not run.is_recorded] or runs
    fair = [run for run in simulated if not run.is_oracle] or simulated
    marked = {run.name: f"{run.name} {ORACLE}" for run in fair if run.is_oracle}
    return [
        headline._replace(policy=marked.get(headline.policy, headline.policy))
        for headline in find_headlines([(run.name, run.measures) for run in fair], recorded)
    ]
