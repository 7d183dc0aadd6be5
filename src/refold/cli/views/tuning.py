"""Tables of `refold tune`: the trade-off on the report part, and the settings of its points."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views.output import plural
from refold.cli.views.tables import Column, Table
from refold.model import format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from refold.simulator.tuning import Gain, Interval, ReportPolicy, ReportRow, TuningReport, TuningResult

CHOSEN_MARK = "*"
ORACLE_MARK = "†"


def tuning_tables(title: str, result: TuningResult) -> list[Table]:
    """Return the trade-off on the report part, and the settings of each point."""
    report = result.report
    return [_trade_off(title, result), *([_settings(report)] if any(row.policy.number for row in report.rows) else [])]


def _trade_off(title: str, result: TuningResult) -> Table:
    from refold.simulator.tuning import MEASURES

    report = result.report
    columns: list[Column[ReportRow]] = [
        Column("policy", lambda row: _name(row.policy, report.chosen), whole=True),
        Column("score", lambda row: "1" if row.policy.kind == "default" else format_ratio(row.score), number=True),
    ]
    columns += [_measure_column(name) for name in MEASURES if name in report.rows[0].values]
    return Table(f"{title}: {describe_parts(result)}", columns, list(report.rows), _notes(report))


def _measure_column(name: str) -> Column[ReportRow]:
    from refold.simulator.results import format_value
    from refold.simulator.tuning import MEASURES

    measure = MEASURES[name]

    def cell(row: ReportRow) -> str:
        value = format_value(row.values[name], measure.unit) if measure.unit else f"{row.values[name]:.2f}"
        return value if row.policy.kind == "default" else f"{value} · {format_ratio(row.ratios[name])}"

    return Column(measure.title, cell, number=True)


def _name(policy: ReportPolicy, chosen: int | None) -> str:
    if policy.kind == "oracle":
        return f"{policy.name} {ORACLE_MARK}"
    return f"{policy.name} {CHOSEN_MARK}" if policy.number is not None and policy.number == chosen else policy.name


def format_ratio(ratio: Interval) -> str:
    """Format '0.87 (0.80–0.95)'."""
    return f"{ratio.value:.2f} ({ratio.low:.2f}–{ratio.high:.2f})"


def describe_parts(result: TuningResult) -> str:
    """Describe the jobs and blocks of the report part."""
    report = result.report
    blocks = f"{report.blocks} resampled blocks of {format_duration(report.block_seconds)}"
    tried = f"{plural(result.tried, 'setting')} tried, {result.finalists} of them on the whole tuning part"
    return f"{report.jobs:,} later jobs, {blocks}; {tried}"


def _notes(report: TuningReport) -> list[str]:
    notes = [
        "ratios to the default settings, with 95 % confidence intervals; below 1 is better",
        f"score: weighted geometric mean of the ratios ({report.objective})",
    ]
    if report.chosen is not None:
        notes.append(f"{CHOSEN_MARK} chosen on the tuning part, or by --pick")
    if any(row.policy.kind == "oracle" for row in report.rows):
        notes.append(f"{ORACLE_MARK} knows run times in advance: a bound, not an alternative")
    return notes


def _settings(report: TuningReport) -> Table:
    points = [row for row in report.rows if row.policy.number is not None]
    names = list(dict.fromkeys(name for row in points for name in row.policy.settings))
    columns: list[Column[ReportRow]] = [Column("point", lambda row: str(row.policy.number), whole=True)]
    columns += [_setting_column(name) for name in names]
    return Table("Settings", columns, points)


def _setting_column(name: str) -> Column[ReportRow]:
    from refold.simulator.tuning import format_setting

    return Column(name, lambda row: format_setting(row.policy.settings.get(name, "")), number=True)


def describe_verdict(report: TuningReport) -> str:
    """Say in a sentence whether the chosen settings are recommended, and why."""
    if doubt := report.doubt:
        return (
            "No recommendation: not enough jobs. The best settings differ from the default ones in "
            f"{plural(doubt.parts, 'part')} of the tuning jobs, and are better in {doubt.wins}; "
            f"expected {doubt.needed}. Use a longer history."
        )
    if report.chosen is None:
        return "No recommendation: no settings were better than the default ones on the tuning part."
    required = [gain for gain in report.gains if gain.required]
    failed = {"worse than": "worse", "not clearly better than": "no clear difference"}
    over = {
        words: _list([gain for gain in required if gain.relation == relation]) for words, relation in failed.items()
    }
    reasons = [f"{words} {others}" for words, others in over.items() if others]
    if reasons:
        return f"No recommendation: on the later jobs, point {report.chosen} is {' and '.join(reasons)}."
    return f"Recommended: point {report.chosen}. On the later jobs, its score is better than that of {_list(required)}."


def _list(gains: Sequence[Gain]) -> str:
    """Format 'fifo [0.54 (0.25–1.38)], easy [0.82 (0.43–2.42)]'."""
    return ", ".join(f"{gain.over} [{format_ratio(gain.score)}]" for gain in gains)
