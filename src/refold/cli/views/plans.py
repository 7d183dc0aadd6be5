"""Tables of plans: the best plans, the breakdown of the best one, why others were rejected, and advice."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.inputs import format_layout, format_rate, format_step_time
from refold.cli.views.output import COLUMN_GAP, Column, Table, draw_bar, format_percent, output_width, plural

if TYPE_CHECKING:
    from refold.model import Plan
    from refold.perf import Estimate, TrainingSetup
    from refold.plans import PlanSearch, RejectedPlans

DEFAULT_VALUES = {
    "tensor": 1,
    "pipeline": 1,
    "interleave": 1,
    "sequence_parallel": False,
    "zero": 0,
    "offload": False,
    "recompute": "none",
    "host": 0.0,
}
"""Default values: a column in which all plans have the default is hidden."""

MIN_SHARE = 0.0005
"""Parts with a smaller share are not shown."""

DEGREES = (
    "data",
    "tensor",
    "pipeline",
    "interleave",
    "sequence_parallel",
    "zero",
    "offload",
    "recompute",
    "micro_batches",
)
"""Columns whose values the text of a plan contains as well."""

BAR_WIDTH = 20
"""Width of the longest bar in characters."""

STEP_PARTS = {
    "compute": "forward and backward pass",
    "recompute": "repeated forward pass",
    "launch": "kernel launch overhead",
    "tensor": "tensor-parallel communication",
    "pipeline": "communication between pipeline stages",
    "bubble": "pipeline fill and drain",
    "data": "communication of gradients and weights, not overlapped",
    "optimizer": "weight update",
    "offload": "transfers to and from the host",
}
"""Descriptions of the parts of a step."""

UNUSED_PARTS = {"free": "", "unusable": "fragmentation of the allocator"}
"""Descriptions of the unused parts of memory."""


def plan_title(setting: TrainingSetup) -> str:
    """Format the title: 'llama-2-7b on 8 × A100-80GB, 1 node: 8 samples of 2,048 tokens per step, megatron'."""
    shape, machines = setting.model, setting.machines
    each = "" if shape.opaque else f" of {setting.sequence:,} tokens"
    return (
        f"{shape.name} on {machines.gpus:,} × {machines.gpu.name}, {format_layout(machines.gpus_on_node)}: "
        f"{plural(setting.batch, 'sample')}{each} per step, {setting.engine.name}"
    )


def micro_batch(setting: TrainingSetup, plan: Plan) -> float:
    """Return the micro-batch size in samples."""
    return setting.batch / (plan.data * plan.accumulation)


def plan_tables(setting: TrainingSetup, search: PlanSearch) -> list[Table]:
    """Return the tables for a search that found plans that fit."""
    best = search.best[0]
    tables = [_best_table(setting, search), _step_table(best), _memory_table(setting, best)]
    if search.rejected:
        tables.append(Table("Rejected plans", _REJECTED, [_rejected_row(one) for one in search.rejected]))
    return tables


def _best_table(setting: TrainingSetup, search: PlanSearch) -> Table:
    from refold.perf import USABLE_MEMORY_SHARE
    from refold.plans import TIE_FACTOR

    rows = [_row(setting, rank, estimate) for rank, estimate in enumerate(search.best, 1)]
    columns = _columns(f"GiB of {setting.machines.gpu.memory_gib * USABLE_MEMORY_SHARE:.1f}")
    hidden = {key for key, default in DEFAULT_VALUES.items() if all(row[key] == default for row in rows)}
    hidden |= {"tokens"} if setting.model.opaque else set()
    per_degree = {key: column for key, column in columns.items() if key not in {*hidden, "plan"}}
    compact = {key: column for key, column in columns.items() if key not in {*hidden, *DEGREES}}
    ties = f"plans within {TIE_FACTOR - 1:.0%} count as equally fast, the simplest first"
    after = f"best of {plural(search.considered, 'plan')}; {ties.replace('%', ' %')}"
    return Table(plan_title(setting), per_degree if _fits_one_line(per_degree, rows) else compact, rows, after=[after])


def _fits_one_line(columns: Mapping[str, Column], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all columns fit on one line."""
    texts = {key: [*column.title.split(), *(column.text(row[key]) for row in rows)] for key, column in columns.items()}
    return sum(max(map(len, column)) for column in texts.values()) + COLUMN_GAP * (len(texts) - 1) <= output_width()


def _row(setting: TrainingSetup, rank: int, estimate: Estimate) -> dict[str, Any]:
    from msgspec.structs import asdict

    plan = estimate.plan
    return asdict(plan) | {
        "rank": rank,
        "plan": str(plan),
        "micro_batches": f"{plan.accumulation:,} × {micro_batch(setting, plan):,.4g}",
        "step": estimate.step_seconds,
        "samples": estimate.samples_per_second,
        "tokens": estimate.tokens_per_second,
        "mfu": estimate.mfu,
        "memory": estimate.memory_gib,
        "host": estimate.host_gib,
    }


def _columns(memory: str) -> dict[str, Column]:
    """Return all columns: the plan, also in one column per degree, and its estimates."""
    return {
        "rank": Column("", number=True),
        "plan": Column("plan"),
        "data": Column("DP", number=True),
        "tensor": Column("TP", number=True),
        "pipeline": Column("PP", number=True),
        "interleave": Column("interleave", number=True),
        "sequence_parallel": Column("SP", _format_flag),
        "zero": Column("ZeRO", number=True),
        "offload": Column("offload", _format_flag),
        "recompute": Column("recompute", whole=True),
        "micro_batches": Column("micro batches", number=True),
        "step": Column("step", format_step_time, number=True, style=lambda _: "bold"),
        "samples": Column("samples/s", format_rate, number=True),
        "tokens": Column("tokens/s", format_rate, number=True),
        "mfu": Column("MFU", format_percent, number=True),
        "memory": Column(memory, lambda gib: f"{gib:.1f}", number=True),
        "host": Column("host GiB", lambda gib: f"{gib:,.0f}" if gib else "", number=True),
    }


def _format_flag(value: bool) -> str:
    return "yes" if value else ""


def _step_table(estimate: Estimate) -> Table:
    rows = _part_rows(estimate.seconds, STEP_PARTS, estimate.step_seconds, format_step_time)
    return Table(f"Best plan, {estimate.plan}: {format_step_time(estimate.step_seconds)} per step", _PARTS, rows)


def _memory_table(setting: TrainingSetup, estimate: Estimate) -> Table:
    from refold.perf import MEMORY_PART_MEANINGS

    total, used = setting.machines.gpu.memory_gib, estimate.memory_gib
    parts = estimate.memory | {"free": estimate.spare_gib, "unusable": total - used - estimate.spare_gib}
    rows = _part_rows(parts, MEMORY_PART_MEANINGS | UNUSED_PARTS, total, _format_gib)
    after = [f"host memory: {_format_gib(estimate.host_gib)} in total"] if estimate.host_gib else []
    title = f"Memory of the fullest GPU: {_format_gib(used)} of {_format_gib(total)}"
    return Table(title, _PARTS, rows, after)


def _format_gib(amount: float) -> str:
    return f"{amount:,.1f} GiB"


_PARTS = {
    "part": Column("", whole=True),
    "amount": Column("", number=True),
    "share": Column("", format_percent, number=True),
    "bar": Column("", whole=True),
    "meaning": Column("", style=lambda _: "dim"),
}


def _part_rows(
    parts: Mapping[str, float], meanings: Mapping[str, str], total: float, format_amount: Callable[[float], str]
) -> list[dict[str, Any]]:
    def part_bar(part: str, share: float) -> str:
        return "·" * round(BAR_WIDTH * share) if part in UNUSED_PARTS else draw_bar(share, BAR_WIDTH)

    return [
        {
            "part": part,
            "amount": format_amount(amount),
            "share": amount / total,
            "bar": part_bar(part, amount / total),
            "meaning": meanings[part],
        }
        for part, amount in parts.items()
        if amount >= MIN_SHARE * total
    ]


_REJECTED = {"reason": Column("reason"), "plans": Column("number", number=True), "example": Column("example")}


def _rejected_row(rejected: RejectedPlans) -> dict[str, str]:
    return {
        "reason": _rejection_reason(rejected),
        "plans": plural(rejected.plans, "combination" if rejected.reason == "rule" else "plan"),
        "example": str(rejected.example),
    }


def _rejection_reason(rejected: RejectedPlans) -> str:
    from refold.plans import TIE_FACTOR, format_gib

    match rejected.reason:
        case "slower" if rejected.margin < TIE_FACTOR:
            return f"{rejected.name}: as fast, but more complex"
        case "slower":
            return f"{rejected.name}: {format_factor(rejected.margin)} the step time"
        case "memory" | "host memory":
            return f"out of {rejected.name}: at least {format_gib(rejected.margin)} GiB missing"
        case "rule":
            return rejected.explanation


def format_factor(factor: float) -> str:
    """Format a factor as '1.40 ×'."""
    return f"{factor:.2f} ×" if factor < 10 else f"{factor:,.0f} ×"


def rejection_tables(setting: TrainingSetup, search: PlanSearch) -> list[Table]:
    """Return the tables for a search in which no plan fits."""
    title = f"No plan fits: {plan_title(setting)}"
    tables = [_misses_table(title, search)] if search.misses else []
    invalid = [_rejected_row(one) for one in search.rejected if one.reason == "rule"]
    if invalid:
        invalid_title = "Invalid plans" if tables else f"No plan is valid: {plan_title(setting)}"
        tables.append(Table(invalid_title, _REJECTED, invalid))
    advice = search.advice or ("no number of GPUs is enough; try a smaller --batch, --seq or model",)
    return [*tables, Table("What would help", {"advice": Column("")}, [{"advice": line} for line in advice])]


def _misses_table(title: str, search: PlanSearch) -> Table:
    columns = {
        "plan": Column("closest plans"),
        "missing": Column("missing memory", _format_gib, number=True),
        "memory": Column("GPU memory", _format_gib, number=True),
        "host": Column("host memory", lambda gib: _format_gib(gib) if gib else "", number=True),
    }
    rows = [
        {
            "plan": str(one.plan),
            "missing": max(-one.spare_gib, -one.host_spare_gib),
            "memory": one.memory_gib,
            "host": one.host_gib,
        }
        for one in search.misses
    ]
    return Table(title, columns, rows, after=[f"closest of {plural(search.considered, 'plan')}"])
