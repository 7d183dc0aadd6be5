"""Plans as tables for people: the best, what the very best is made of, why the others lost, and what would help."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refold.cli.inputs import layout_text, rate_text, seconds_text
from refold.cli.views.output import GAP, Column, Table, bar, output_width, percent, plural

if TYPE_CHECKING:
    from refold.model import Plan
    from refold.perf import Estimate, Setting
    from refold.plans import RejectedPlans, Search

NOTHING_MORE = {
    "tensor": 1,
    "pipeline": 1,
    "interleave": 1,
    "sequence_parallel": False,
    "zero": 0,
    "offload": False,
    "recompute": "none",
    "host": 0.0,
}
"""A column in which all plans have this says nothing, and is left out."""

SMALLEST_PART = 0.0005
"""Parts of less than this are not shown."""

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
"""What the text of a plan says as well."""

BAR = 20
"""Characters of the longest bar."""

SECONDS = {
    "compute": "forward and backward",
    "recompute": "forward again",
    "launch": "GPUs wait for kernels to be started",
    "tensor": "traffic of tensor parallelism",
    "pipeline": "traffic between stages",
    "bubble": "filling and draining the pipeline",
    "data": "traffic of gradients and weights, not hidden",
    "optimizer": "updating weights",
    "offload": "to the host and back",
}
"""What each part of a step is."""

SPARE = {"left": "", "not usable": "lost between blocks of the allocator"}
"""What nothing is in."""


def title_of(setting: Setting) -> str:
    """What was asked: 'llama-2-7b on 8 × A100-80GB, 1 node: 8 samples of 2,048 tokens a step, megatron'."""
    shape, machines = setting.model, setting.machines
    each = "" if shape.opaque else f" of {setting.sequence:,} tokens"
    return (
        f"{shape.name} on {machines.gpus:,} × {machines.gpu.name}, {layout_text(machines.gpus_on_node)}: "
        f"{plural(setting.batch, 'sample')}{each} a step, {setting.engine.name}"
    )


def micro_batch(setting: Setting, plan: Plan) -> float:
    """Samples that a replica computes at once."""
    return setting.batch / (plan.data * plan.accumulation)


def plan_tables(setting: Setting, search: Search) -> list[Table]:
    """The answer, where something fits."""
    best = search.best[0]
    tables = [_best_table(setting, search), _step_table(best), _memory_table(setting, best)]
    if search.lost:
        tables.append(Table("Why not another", _LOST, [_lost_row(one) for one in search.lost]))
    return tables


def _best_table(setting: Setting, search: Search) -> Table:
    from refold.perf import USABLE
    from refold.plans import NEARLY

    rows = [_row(setting, place, one) for place, one in enumerate(search.best, 1)]
    columns = _columns(f"GiB of {setting.machines.gpu.memory_gib * USABLE:.1f}")
    dull = {key for key, nothing in NOTHING_MORE.items() if all(row[key] == nothing for row in rows)}
    dull |= {"tokens"} if setting.model.opaque else set()
    apart = {key: column for key, column in columns.items() if key not in {*dull, "plan"}}
    together = {key: column for key, column in columns.items() if key not in {*dull, *DEGREES}}
    near = f"those within {NEARLY - 1:.0%} count as equally fast, the simplest first"
    after = f"of {plural(search.considered, 'plan')}; {near.replace('%', ' %')}"
    return Table(title_of(setting), apart if _on_one_line(apart, rows) else together, rows, after=[after])


def _on_one_line(columns: Mapping[str, Column], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether there is room for all columns side by side."""
    texts = {key: [*column.title.split(), *(column.text(row[key]) for row in rows)] for key, column in columns.items()}
    return sum(max(map(len, column)) for column in texts.values()) + GAP * (len(texts) - 1) <= output_width()


def _row(setting: Setting, place: int, found: Estimate) -> dict[str, Any]:
    from msgspec.structs import asdict

    plan = found.plan
    return asdict(plan) | {
        "place": place,
        "plan": str(plan),
        "micro_batches": f"{plan.accumulation:,} × {micro_batch(setting, plan):,.4g}",
        "step": found.step_seconds,
        "samples": found.samples_per_second,
        "tokens": found.tokens_per_second,
        "mfu": found.mfu,
        "memory": found.memory_gib,
        "host": found.host_gib,
    }


def _columns(memory: str) -> dict[str, Column]:
    """A plan in one column or in a column for each degree, and what it would do."""
    return {
        "place": Column("", number=True),
        "plan": Column("plan"),
        "data": Column("DP", number=True),
        "tensor": Column("TP", number=True),
        "pipeline": Column("PP", number=True),
        "interleave": Column("interleave", number=True),
        "sequence_parallel": Column("SP", _yes),
        "zero": Column("ZeRO", number=True),
        "offload": Column("offload", _yes),
        "recompute": Column("recompute", whole=True),
        "micro_batches": Column("micro batches", number=True),
        "step": Column("step", seconds_text, number=True, style=lambda _: "bold"),
        "samples": Column("samples/s", rate_text, number=True),
        "tokens": Column("tokens/s", rate_text, number=True),
        "mfu": Column("MFU", percent, number=True),
        "memory": Column(memory, lambda gib: f"{gib:.1f}", number=True),
        "host": Column("host GiB", lambda gib: f"{gib:,.0f}" if gib else "", number=True),
    }


def _yes(value: bool) -> str:
    return "yes" if value else ""


def _step_table(found: Estimate) -> Table:
    rows = _shares(found.seconds, SECONDS, found.step_seconds, seconds_text)
    return Table(f"The best, {found.plan}: a step of {seconds_text(found.step_seconds)}", _PARTS, rows)


def _memory_table(setting: Setting, found: Estimate) -> Table:
    from refold.perf import MEANINGS

    whole = setting.machines.gpu.memory_gib
    parts = found.memory | {"left": found.spare_gib, "not usable": whole - found.memory_gib - found.spare_gib}
    rows = _shares(parts, MEANINGS | SPARE, whole, _gib)
    after = [f"and {_gib(found.host_gib)} on all hosts together"] if found.host_gib else []
    return Table(f"Its memory: {_gib(found.memory_gib)} of {_gib(whole)} on the fullest GPU", _PARTS, rows, after)


def _gib(amount: float) -> str:
    return f"{amount:,.1f} GiB"


_PARTS = {
    "part": Column("", whole=True),
    "amount": Column("", number=True),
    "share": Column("", percent, number=True),
    "bar": Column("", whole=True),
    "meaning": Column("", style=lambda _: "dim"),
}


def _shares(
    parts: Mapping[str, float], meanings: Mapping[str, str], whole: float, text: Callable[[float], str]
) -> list[dict[str, Any]]:
    return [
        {
            "part": part,
            "amount": text(amount),
            "share": amount / whole,
            "bar": "·" * round(BAR * amount / whole) if part in SPARE else bar(amount / whole, BAR),
            "meaning": meanings[part],
        }
        for part, amount in parts.items()
        if amount >= SMALLEST_PART * whole
    ]


_LOST = {"because": Column(""), "plans": Column("", number=True), "example": Column("")}


def _lost_row(lost: RejectedPlans) -> dict[str, str]:
    one, more = ("way", "ways") if lost.reason == "rule" else ("plan", "plans")
    return {
        "because": _because(lost),
        "plans": f"{lost.plans:,} {one if lost.plans == 1 else more}",
        "example": str(lost.example),
    }


def _because(lost: RejectedPlans) -> str:
    from refold.plans import NEARLY, gib

    match lost.reason:
        case "slower" if lost.by < NEARLY:
            return f"{lost.name}: as fast, but less simple"
        case "slower":
            return f"{lost.name}: {times_text(lost.by)} as long"
        case "memory" | "host memory":
            return f"out of {lost.name} by {gib(lost.by)} GiB at least"
        case "rule":
            return lost.because


def times_text(factor: float) -> str:
    """'1.40 ×'."""
    return f"{factor:.2f} ×" if factor < 10 else f"{factor:,.0f} ×"


def rejection_tables(setting: Setting, search: Search) -> list[Table]:
    """The answer, where nothing fits."""
    title = f"Nothing fits: {title_of(setting)}"
    tables = [_misses_table(title, search)] if search.misses else []
    broken = [_lost_row(one) for one in search.lost if one.reason == "rule"]
    if broken:
        tables.append(Table("Not possible" if tables else f"No plan is possible: {title_of(setting)}", _LOST, broken))
    advice = search.advice or ("no number of GPUs does; a smaller --batch, --seq or model might",)
    return [*tables, Table("What would help", {"advice": Column("")}, [{"advice": line} for line in advice])]


def _misses_table(title: str, search: Search) -> Table:
    columns = {
        "plan": Column("nearest misses"),
        "missing": Column("missing", _gib, number=True),
        "memory": Column("needs", _gib, number=True),
        "host": Column("on hosts", lambda gib: _gib(gib) if gib else "", number=True),
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
    return Table(title, columns, rows, after=[f"of {plural(search.considered, 'plan')}"])
