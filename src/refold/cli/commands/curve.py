"""`refold curve`: show how training throughput scales with GPUs or CPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import ClusterFile, option, with_option_groups
from refold.cli.commands.plan import ACCURACY_NOTE
from refold.cli.inputs import plan_request
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    draw_bar,
    format_percent,
    plural,
    print_json,
    print_line,
    print_notes,
    print_tables,
    progress,
)
from refold.errors import BadFile

if TYPE_CHECKING:
    from refold.cli.inputs import GpuPool
    from refold.planning.perf import Engine, GpuSpec, ModelShape
    from refold.planning.plans import Curve, CurvePoint, PlanLimits
    from refold.simulator.results import CurveChart

CHART_SUFFIXES = (".svg", ".html")

BAR_WIDTH = 20
"""Width of the longest bar in characters."""


@dataclass(frozen=True, slots=True)
class _CurveSetup:
    model: str
    shape: ModelShape
    engine: Engine
    batch: int
    sequence: int
    limits: PlanLimits

    def __str__(self) -> str:
        each = "" if self.shape.opaque else f" of {self.sequence:,} tokens"
        return f"{plural(self.batch, 'sample')}{each} per step, {self.engine.label}"


@dataclass(frozen=True, slots=True)
class _Series:
    """One curve on GPUs of one type. `up_to`: the largest number of GPUs, or of CPUs."""

    gpu: GpuSpec
    up_to: float
    curve: Curve


@with_option_groups
def curve(
    *,
    model: plan_request.ModelName,
    cluster: ClusterFile = None,
    gpu: plan_request.GpuTypeName = None,
    gpus_up_to: Annotated[
        int | None,
        option(
            "N", "Largest number of GPUs (default: 64, or all of the cluster).", min=1, max=plan_request.MAX_CURVE_GPUS
        ),
    ] = None,
    cpus_at: Annotated[
        int | None,
        option(
            "GPUS",
            "Also show how throughput scales with CPUs, on this number of GPUs.",
            min=1,
            max=plan_request.MAX_CURVE_GPUS,
        ),
    ] = None,
    training: plan_request.BatchOptions,
    network: plan_request.NetworkRate = None,
    limits: plan_request.PlanLimitOptions,
    out: Annotated[Path | None, option("FILE", "Write a chart: curve.svg or curve.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how training throughput scales with GPUs.

    Finds the best plan for every number of GPUs: of a cluster, one curve per GPU type; or of one type with its default
    links. Exit status: 0 success, 1 no plan fits.

    Example: refold curve llama-2-7b --gpu A100-80GB --gpus-up-to 64 --batch 512 --out curve.svg

    Example: refold curve gpt2-xl --cluster cluster.yaml --cpus-at 2
    """

    from refold.cli.inputs import parse_gpu_pools, pools_with_gpus, read_or_trace_model
    from refold.planning.plans import Task

    _check_chart_path(out)
    shape = read_or_trace_model(model)
    samples, tokens, notes = training.resolve_sizes(shape)
    plan_limits = limits.parse(tokens, {"--cpus-at": cpus_at})
    pools, pool_notes = parse_gpu_pools(cluster, gpu, gpus_up_to, network)
    largest = max(pools, key=lambda pool: pool.up_to)  # one framework for all numbers of GPUs: a curve compares plans
    task = Task(pinned=limits.parse_pins(), offload=cpus_at is not None)
    framework, chosen = training.resolve_engine(shape, largest.gpu, largest.up_to, task)
    notes += chosen
    setup = _CurveSetup(model, shape, framework, samples, tokens, plan_limits)
    with progress(f"curves of {shape.name}"):
        by_gpus = [_gpu_series(setup, pool) for pool in pools]
        by_cpus = (
            [] if cpus_at is None else [_cpu_series(setup, pool, cpus_at) for pool in pools_with_gpus(pools, cpus_at)]
        )
    notes += pool_notes + _assumption_notes(pools, by_gpus)
    files = [] if out is None else _write_charts(out, _charts(setup, by_gpus, by_cpus, cpus_at))
    if as_json:
        print_json(_document(setup, by_gpus, by_cpus, cpus_at) | {"notes": notes, "charts": files})
    else:
        print_notes(notes)
        tables = [_gpu_table(setup, series) for series in by_gpus]
        *others, last = [*tables, *(_cpu_table(setup, series, cpus_at) for series in by_cpus)]
        print_tables(*others, last._replace(after=[*last.after, "", ACCURACY_NOTE]))
        for path in files:
            print_line(f"chart: {path}")
    if not any(series.curve.points for series in by_gpus):
        raise typer.Exit(1)


# Curves.


def _assumption_notes(pools: Sequence[GpuPool], by_gpus: Sequence[_Series]) -> list[str]:
    """Return a note on the assumed CPUs and memory of hosts if any plan offloads."""
    from refold.planning.perf import DEFAULT_CPUS_PER_GPU

    offloads = any(point.plan.offload for series in by_gpus for point in series.curve.points)
    machines = [pool.machines_for(1) for pool in pools]
    assumed = [f"{DEFAULT_CPUS_PER_GPU:g} CPUs per GPU"] if not all(one.cpus for one in machines) else []
    assumed += ["no limit on host memory"] if not all(one.memory_gib for one in machines) else []
    return [f"assuming {' and '.join(assumed)} for plans with offload"] if offloads and assumed else []


def _gpu_series(setup: _CurveSetup, pool: GpuPool) -> _Series:
    from refold.planning.plans import gpu_curve

    curve = gpu_curve(
        setup.shape,
        pool.machines_for,
        range(1, pool.up_to + 1),
        setup.batch,
        setup.sequence,
        setup.engine,
        setup.limits,
    )
    return _Series(pool.gpu, pool.up_to, curve)


def _cpu_series(setup: _CurveSetup, pool: GpuPool, gpus: int) -> _Series:
    from refold.planning.perf import TrainingSetup
    from refold.planning.plans import cpu_curve

    max_cpus = pool.cpus_beside(gpus)
    training = TrainingSetup(setup.shape, pool.machines_for(gpus), setup.engine, setup.batch, setup.sequence)
    amounts = [*range(gpus, int(max_cpus) + 1, gpus)] or [max_cpus]
    return _Series(pool.gpu, max_cpus, cpu_curve(training, amounts, setup.limits))


# Tables.


def _gpu_table(setup: _CurveSetup, series: _Series) -> Table:
    points = series.curve.points
    title = f"{setup.shape.name} on up to {series.up_to:,} × {series.gpu.name}: {setup}"
    most = max((_per_unit(point) for point in points), default=1.0)
    columns: list[Column[CurvePoint]] = [
        Column("GPUs", lambda point: f"{point.amount:,}", number=True),
        *_rate_columns(points),
        Column("efficiency", lambda point: format_percent(_per_unit(point) / most), number=True),
        Column("best plan", lambda point: str(point.plan)),
    ]
    return Table(title, columns, points, after=[_gpu_footnote(setup, series)])


def _rate_columns(points: Sequence[CurvePoint]) -> list[Column[CurvePoint]]:
    from refold.cli.views import format_rate

    def bar(point: CurvePoint) -> str:
        return draw_bar(point.samples_per_second / points[-1].samples_per_second, BAR_WIDTH)

    return [
        Column("samples/s", lambda point: format_rate(point.samples_per_second), number=True),
        Column("", bar, whole=True),
    ]


def _gpu_footnote(setup: _CurveSetup, series: _Series) -> str:
    if not series.curve.points:
        command = shlex.join(["refold", "plan", setup.model, "--gpus", f"{series.up_to:.0f}x{series.gpu.name}"])
        return f"no plan fits; `{command}` shows what is missing"
    return (
        "missing numbers are no faster than the next smaller one; efficiency: throughput per GPU compared with the best"
    )


def _efficiencies(points: Sequence[CurvePoint]) -> list[float]:
    """Return the throughput per unit relative to the highest: all 1 for a linear curve."""
    highest = max(map(_per_unit, points), default=1.0)
    return [_per_unit(point) / highest for point in points]


def _per_unit(point: CurvePoint) -> float:
    return point.samples_per_second / point.amount


def _cpu_table(setup: _CurveSetup, series: _Series, gpus: int | None) -> Table:
    points = series.curve.points
    title = f"{setup.shape.name} on {gpus} × {series.gpu.name} with up to {series.up_to:,.0f} CPUs: {setup}"
    columns: list[Column[CurvePoint]] = [
        Column("CPUs", lambda point: f"{point.amount:,g}", number=True),
        *_rate_columns(points),
        Column("best plan", lambda point: str(point.plan)),
    ]
    return Table(title, columns, points, after=[_cpu_footnote(points)])


def _cpu_footnote(points: Sequence[CurvePoint]) -> str:
    match points:
        case []:
            return "no plan fits"
        case [only] if not only.plan.offload:
            return f"constant: {only.plan} does not offload, so CPUs have no effect"
        case [_]:
            return "constant: more CPUs do not increase throughput"
    return "missing numbers are no faster than the next smaller one"


# JSON.


def _document(
    setup: _CurveSetup, by_gpus: Sequence[_Series], by_cpus: Sequence[_Series], cpus_at: int | None
) -> dict[str, Any]:
    from msgspec.structs import asdict

    def points(series: _Series, amount: str) -> list[dict[str, Any]]:
        return [
            {
                amount: point.amount,
                "samples_per_second": point.samples_per_second,
                "efficiency": efficiency,
                "plan": str(point.plan),
                "degrees": asdict(point.plan),
            }
            for point, efficiency in zip(series.curve.points, _efficiencies(series.curve.points), strict=True)
        ]

    return {
        "model": setup.shape.name,
        "engine": setup.engine.name,
        "batch": setup.batch,
        "sequence": setup.sequence,
        "by_gpus": [{"gpu": one.gpu.name, "up_to": one.up_to, "points": points(one, "gpus")} for one in by_gpus],
        "by_cpus": [
            {"gpu": one.gpu.name, "gpus": cpus_at, "up_to": one.up_to, "points": points(one, "cpus")} for one in by_cpus
        ],
    }


# Charts.


def _check_chart_path(out: Path | None) -> None:
    """Check the path of the chart before anything is computed."""
    if out is None:
        return
    if out.suffix.lower() not in CHART_SUFFIXES:
        raise BadFile(out, f"expected a file name that ends in {' or '.join(CHART_SUFFIXES)}")
    if out.is_dir() or not out.parent.is_dir():
        raise BadFile(out, "is a folder" if out.is_dir() else "the folder does not exist; create it first")


def _charts(
    setup: _CurveSetup, by_gpus: Sequence[_Series], by_cpus: Sequence[_Series], cpus_at: int | None
) -> list[CurveChart]:
    from refold.simulator.results import CurveChart, CurveStep, StepCurve

    def step_curves(all_series: Iterable[_Series]) -> list[StepCurve]:
        return [
            StepCurve(
                series.gpu.name,
                [CurveStep(point.amount, point.samples_per_second, str(point.plan)) for point in series.curve.points],
                series.up_to,
            )
            for series in all_series
        ]

    subtitle = f"{setup}; best plan for each number"
    charts = [CurveChart(f"{setup.shape.name}: throughput by GPUs", subtitle, "GPUs", step_curves(by_gpus))]
    if by_cpus:
        title = f"{setup.shape.name}: throughput by CPUs, on {plural(cpus_at or 0, 'GPU')}"
        charts.append(CurveChart(title, subtitle, "CPUs", step_curves(by_cpus), linear=False))
    return charts


def _write_charts(out: Path, charts: Sequence[CurveChart]) -> list[str]:
    """Write the charts, an HTML page with all of them or one SVG file each, and return the paths."""
    from refold.simulator.results import render_page

    if out.suffix.lower() == ".html":
        texts = {out: render_page(charts)}
    else:
        paths = [out, out.with_stem(f"{out.stem}-cpus")]
        texts = {path: chart.svg() for path, chart in zip(paths, charts, strict=False)}
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadFile(path, f"cannot be written: {error.strerror}") from None
    return [str(path) for path in texts]
