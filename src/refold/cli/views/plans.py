"""Tables of plans: the best plans, the breakdown of the best one, why others were rejected, and advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

import typer

from refold.cli.views.output import draw_bar, format_percent, output_width, plural, print_line, printable
from refold.cli.views.tables import COLUMN_GAP, Column, Table
from refold.model import format_duration

if TYPE_CHECKING:
    from refold.model import Plan
    from refold.planning.perf import Estimate, FormulaLine, ModelShape, Section, Training, TrainingSetup
    from refold.planning.plans import PlanSearch, RejectedPlans


def print_section(section: Section) -> None:
    """Print the lines of a section: formulas, numbers inserted, values and their meanings."""
    print_line()
    print_line(section.title, fg="bold")
    names = max(len(line.name) for line in section.lines)
    values = max(len(_format_line_value(line)) for line in section.lines)
    for line in section.lines:
        redundant = {"", f"{line.value:.6g}"}
        formulas = [text for text in dict.fromkeys((line.formula, line.numbers)) if text not in redundant]
        for index, text in enumerate(formulas):
            _print_wrapped(line.name if not index else "", names, text)
        typer.secho(f"  {'' if formulas else line.name:<{names}} = {_format_line_value(line):<{values}}  ", nl=False)
        typer.secho(printable(line.meaning), dim=True)


def _print_wrapped(name: str, names: int, text: str) -> None:
    for index, part in enumerate(wrap(text, max(40, output_width() - names - 5), break_long_words=False)):
        print_line(f"  {name if not index else '':<{names}} {'=' if not index else ' '} {part}")


def _format_line_value(line: FormulaLine) -> str:
    return f"{line.value:.6g} {line.unit}".strip()


DEFAULT_VALUES = {
    "tensor": 1,
    "pipeline": 1,
    "context": 1,
    "expert": 1,
    "interleave": 1,
    "sequence_parallel": False,
    "zero": 0,
    "replicate": 1,
    "offload": False,
    "recompute": "none",
}
"""Default values: a column in which all plans have the default is hidden."""

MIN_SHARE = 0.0005
"""Parts with a smaller share are not shown."""

DEGREES = (
    "data",
    "tensor",
    "pipeline",
    "context",
    "expert",
    "interleave",
    "sequence_parallel",
    "zero",
    "replicate",
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
    "context": "keys and values of other parts of a sequence, not overlapped",
    "expert": "tokens to the experts on other GPUs and back",
    "pipeline": "communication between pipeline stages",
    "bubble": "pipeline fill and drain",
    "stragglers": "waiting for the slowest GPU",
    "data": "communication of gradients and weights, not overlapped",
    "optimizer": "weight update",
    "offload": "transfers to and from the host",
}
"""Descriptions of the parts of a step."""

UNUSED_PARTS = {"free": "", "unusable": "fragmentation of the allocator"}
"""Descriptions of the unused parts of memory."""


def plan_title(setting: TrainingSetup) -> str:
    """Format the title: 'llama-2-7b (6.7 B weights) on 8 × A100-80GB, 1 node: 8 samples … per step, fsdp'."""
    shape, machines, engine = setting.model, setting.machines, setting.engine
    each = "" if shape.opaque else f" of {setting.sequence:,} tokens"
    precision = f" in {engine.arithmetic}" if engine.low_precision else ""
    return (
        f"{shape.name} ({format_weights(shape)}) on {machines.gpus:,} × {machines.gpu.name}, "
        f"{format_layout(machines.gpus_on_node)}: {plural(setting.batch, 'sample')}{each} per step, "
        f"{engine.label}{precision}{_format_tuning(setting)}"
    )


def _format_tuning(setting: TrainingSetup) -> str:
    """Format what is trained, if not all weights by AdamW: ', LoRA of rank 16 (41.9 M weights trained)'."""
    tuning = setting.tuning
    text = "" if tuning.optimizer == "adamw" else f", {tuning.optimizer}"
    text += f", samples of {setting.packed:,} tokens packed" if setting.packed else ""
    if not (tuning.lora_rank or tuning.frozen_layers):
        return text
    trained = f"({tuning.trained_parameters(setting.model) / 1e6:,.1f} M weights trained)"
    if tuning.frozen_layers:
        return f", {plural(tuning.frozen_layers, 'layer')} frozen {trained}{text}"
    layers = " for attention" if tuning.lora_layers == "attention" else ""
    return f", {'QLoRA' if tuning.quantized else 'LoRA'} of rank {tuning.lora_rank}{layers} {trained}{text}"


def format_weights(shape: ModelShape) -> str:
    """Format the number of weights, and of those that a token uses: '30.5 B weights, 3.0 B active'."""
    active = shape.active_parameters + shape.head_parameters
    used = f", {format_parameters(active)} active" if shape.experts > 1 else ""
    return f"{format_parameters(shape.parameters)} weights{used}"


def format_parameters(parameters: int) -> str:
    """Format a number of weights: '6.7 B'."""
    return f"{parameters / 1e9:,.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:,.0f} M"


def micro_batch(setting: TrainingSetup, plan: Plan) -> float:
    return setting.batch / (plan.data * plan.accumulation)


def plan_tables(setting: TrainingSetup, search: PlanSearch) -> list[Table]:
    best = search.best[0]
    tables = [_best_table(setting, search), _step_table(best), _memory_table(setting, best)]
    if search.rejected:
        tables.append(Table("Rejected plans", _rejected_columns(), search.rejected))
    return tables


def training_table(setting: TrainingSetup, best: Estimate, training: Training) -> Table:
    """Return what the whole training takes with the best plan."""
    from refold.cli.views.tables import fact_table
    from refold.planning.perf import compute_training_cost

    cost = compute_training_cost(setting, best, training)
    return fact_table(
        f"The whole training, {cost.tokens / 1e9:,.0f} billion tokens",
        {
            "time": f"{cost.seconds / 86_400:,.2f} days",
            "price": f"$ {cost.dollars:,.0f}" if training.price else "",
            "energy of the GPUs": f"{cost.kilowatt_hours:,.0f} kWh at most",
            "goodput": format_percent(cost.goodput) if training.mtbf_seconds else "",
            "checkpoint every": format_duration(round(cost.interval_seconds)) if training.mtbf_seconds else "",
        },
    )


def _best_table(setting: TrainingSetup, search: PlanSearch) -> Table:
    from refold.planning.plans import TIE_FACTOR

    columns = _columns(setting, search.best, f"GiB of {setting.machines.usable_gib:.1f}")
    plans = [estimate.plan for estimate in search.best]
    hidden = {key for key, default in DEFAULT_VALUES.items() if all(getattr(plan, key) == default for plan in plans)}
    hidden |= {"tokens"} if setting.model.opaque else set()
    hidden |= {"host"} if all(estimate.host_gib == 0.0 for estimate in search.best) else set()
    per_degree = [column for key, column in columns.items() if key not in {*hidden, "plan"}]
    compact = [column for key, column in columns.items() if key not in {*hidden, *DEGREES}]
    ties = f"plans within {TIE_FACTOR - 1:.0%} count as equally fast, the simplest first"
    after = [f"best of {plural(search.considered, 'plan')}; {ties.replace('%', ' %')}"]
    after += [line for line in (_risk(search), *search.advice) if line]
    shown = per_degree if _fits_one_line(per_degree, search.best) else compact
    return Table(plan_title(setting), shown, search.best, after=after)


def _risk(search: PlanSearch) -> str:
    """Say that the best plan may run out of memory, and what a safer one costs."""
    from refold.planning.plans import RISKY_GIB, is_risky

    best, safer = search.best[0], search.safer
    if not is_risky(best):
        return ""
    risk = f"risky: the best plan has less than {RISKY_GIB:g} GiB to spare, and estimates have errors; "
    if safer is None:
        return f"{risk}no plan has more"
    slowdown = safer.step_seconds / best.step_seconds
    return f"{risk}{safer.plan} has {_format_gib(safer.spare_gib)} and takes {format_factor(slowdown)} the step time"


def _fits_one_line(columns: Sequence[Column[Estimate]], rows: Sequence[Estimate]) -> bool:
    texts = [[*column.title.split(), *(column.text(row) for row in rows)] for column in columns]
    return sum(max(map(len, column)) for column in texts) + COLUMN_GAP * (len(texts) - 1) <= output_width()


def _columns(setting: TrainingSetup, best: Sequence[Estimate], memory: str) -> dict[str, Column[Estimate]]:
    """Return all columns: the plan, also in one column per degree, and its estimates."""

    def micro_batches(one: Estimate) -> str:
        return f"{one.plan.accumulation:,} × {micro_batch(setting, one.plan):,.4g}"

    return {
        "rank": Column("", lambda one: str(best.index(one) + 1), number=True),
        "plan": Column("plan", lambda one: str(one.plan)),
        "data": Column("DP", lambda one: str(one.plan.data), number=True),
        "tensor": Column("TP", lambda one: str(one.plan.tensor), number=True),
        "pipeline": Column("PP", lambda one: str(one.plan.pipeline), number=True),
        "context": Column("CP", lambda one: str(one.plan.context), number=True),
        "expert": Column("EP", lambda one: str(one.plan.expert), number=True),
        "interleave": Column("interleave", lambda one: str(one.plan.interleave), number=True),
        "sequence_parallel": Column("SP", lambda one: _format_flag(one.plan.sequence_parallel)),
        "zero": Column("ZeRO", lambda one: str(one.plan.zero), number=True),
        "replicate": Column("replicate", lambda one: str(one.plan.replicate), number=True),
        "offload": Column("offload", lambda one: _format_flag(one.plan.offload)),
        "recompute": Column("recompute", lambda one: one.plan.recompute, whole=True),
        "micro_batches": Column("micro batches", micro_batches, number=True),
        "step": Column("step", lambda one: format_step_time(one.step_seconds), number=True, style=lambda _: "bold"),
        "samples": Column("samples/s", lambda one: format_rate(one.samples_per_second), number=True),
        "tokens": Column("tokens/s", lambda one: format_rate(one.tokens_per_second), number=True),
        "mfu": Column("MFU", lambda one: format_percent(one.mfu), number=True),
        "memory": Column(memory, lambda one: f"{one.memory_gib:.1f}", number=True),
        "spare": Column("spare", _format_spare, number=True),
        "host": Column("host GiB", lambda one: f"{one.host_gib:,.0f}" if one.host_gib else "", number=True),
    }


def _format_spare(one: Estimate) -> str:
    """Format the GPU memory to spare; an exclamation mark if it is little."""
    from refold.planning.plans import is_risky

    return f"{'! ' if is_risky(one) else ''}{one.spare_gib:.1f}"


def _format_flag(value: bool) -> str:
    return "yes" if value else ""


def _step_table(estimate: Estimate) -> Table:
    title = f"Best plan, {estimate.plan}: {format_step_time(estimate.step_seconds)} per step"
    return _part_table(title, estimate.seconds, STEP_PARTS, estimate.step_seconds, format_step_time)


def _memory_table(setting: TrainingSetup, estimate: Estimate) -> Table:
    from refold.planning.perf import MEMORY_PART_MEANINGS

    total, used = setting.machines.gpu.memory_gib, estimate.memory_gib
    parts = estimate.memory | {"free": estimate.spare_gib, "unusable": total - used - estimate.spare_gib}
    after = [f"host memory: {_format_gib(estimate.host_gib)} in total"] if estimate.host_gib else []
    title = f"Memory of the fullest GPU: {_format_gib(used)} of {_format_gib(total)}"
    return _part_table(title, parts, MEMORY_PART_MEANINGS | UNUSED_PARTS, total, _format_gib, after)


def _format_gib(amount: float) -> str:
    return f"{amount:,.1f} GiB"


def _part_table(
    title: str,
    parts: Mapping[str, float],
    meanings: Mapping[str, str],
    total: float,
    format_amount: Callable[[float], str],
    after: Sequence[str] = (),
) -> Table:
    def bar(part: str, share: float) -> str:
        return "·" * round(BAR_WIDTH * share) if part in UNUSED_PARTS else draw_bar(share, BAR_WIDTH)

    columns: list[Column[tuple[str, float]]] = [
        Column("", lambda part: part[0], whole=True),
        Column("", lambda part: format_amount(part[1]), number=True),
        Column("", lambda part: format_percent(part[1] / total), number=True),
        Column("", lambda part: bar(part[0], part[1] / total), whole=True),
        Column("", lambda part: meanings[part[0]], style=lambda _: "dim"),
    ]
    return Table(title, columns, [part for part in parts.items() if part[1] >= MIN_SHARE * total], after)


def _rejected_columns() -> list[Column[RejectedPlans]]:
    def number(rejected: RejectedPlans) -> str:
        return plural(rejected.plans, "combination" if rejected.reason == "rule" else "plan")

    return [
        Column("reason", _rejection_reason),
        Column("number", number, number=True),
        Column("example", lambda rejected: str(rejected.example)),
    ]


def _rejection_reason(rejected: RejectedPlans) -> str:
    from refold.planning.plans import TIE_FACTOR, format_gib

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
    title = f"No plan fits: {plan_title(setting)}"
    tables = [_misses_table(title, search)] if search.misses else []
    invalid = [one for one in search.rejected if one.reason == "rule"]
    if invalid:
        invalid_title = "Invalid plans" if tables else f"No plan is valid: {plan_title(setting)}"
        tables.append(Table(invalid_title, _rejected_columns(), invalid))
    advice = search.advice or ("no number of GPUs is enough; try a smaller --batch, --seq or model",)
    return [*tables, Table("What would help", [Column("", str)], advice)]


def _misses_table(title: str, search: PlanSearch) -> Table:
    columns: list[Column[Estimate]] = [
        Column("closest plans", lambda one: str(one.plan)),
        Column("missing memory", lambda one: _format_gib(max(-one.spare_gib, -one.host_spare_gib)), number=True),
        Column("GPU memory", lambda one: _format_gib(one.memory_gib), number=True),
        Column("host memory", lambda one: _format_gib(one.host_gib) if one.host_gib else "", number=True),
    ]
    return Table(title, columns, search.misses, after=[f"closest of {plural(search.considered, 'plan')}"])


def format_step_time(seconds: float) -> str:
    """Format the duration of a step: '478.3 ms', '60.71 s', '1,488 s'."""
    if seconds < 1:
        return f"{seconds * 1000:,.1f} ms"
    return f"{seconds:.2f} s" if seconds < 100 else f"{seconds:,.1f} s" if seconds < 1000 else f"{seconds:,.0f} s"


def format_rate(rate: float) -> str:
    """Format a rate with three significant digits, or all integer digits: '16.7', '3,855', '0.342'."""
    digits = 0 if rate >= 99.95 else 1 if rate >= 9.995 else 2 if rate >= 0.9995 else 3
    return f"{rate:,.{digits}f}"


def format_layout(gpus_on_node: Iterable[int]) -> str:
    """Format '1 node', '2 nodes', or for nodes of different sizes '2 nodes of 8 + 4 GPUs'."""
    sizes = list(gpus_on_node)
    distinct = list(dict.fromkeys(sizes))
    counted = " + ".join(f"{sizes.count(size)} × {size}" if sizes.count(size) > 1 else str(size) for size in distinct)
    return plural(len(sizes), "node") + (f" of {counted} GPUs" if len(distinct) > 1 else "")
