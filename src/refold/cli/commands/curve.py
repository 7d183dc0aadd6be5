"""`refold curve`: how much faster a model trains with more GPUs, or more CPUs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli import ClusterFile
from refold.cli.commands.plan import TRUST
from refold.cli.inputs import plan_request
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    bar,
    percent,
    plural,
    print_json,
    print_tables,
    progress,
    say,
    tell,
)

if TYPE_CHECKING:
    from refold.cli.inputs import GpuPool
    from refold.perf import Engine, GpuSpec, ModelShape
    from refold.plans import Curve, CurvePoint, PlanLimits
    from refold.results import CurveChart

PICTURES = (".svg", ".html")

BAR = 20
"""Characters of the longest bar."""


@dataclass(frozen=True, slots=True)
class _Question:
    """What all curves share."""

    model: str
    shape: ModelShape
    engine: Engine
    batch: int
    sequence: int
    limits: PlanLimits

    def __str__(self) -> str:
        each = "" if self.shape.opaque else f" of {self.sequence:,} tokens"
        return f"{plural(self.batch, 'sample')}{each} a step, {self.engine.name}"


@dataclass(frozen=True, slots=True)
class _Series:
    """One curve, on GPUs of one type, up to so many of what it is against."""

    gpu: GpuSpec
    up_to: float
    curve: Curve


def curve(
    model: plan_request.ModelName,
    cluster: ClusterFile = None,
    gpu: plan_request.GpuTypeName = None,
    gpus_up_to: Annotated[
        int | None,
        typer.Option(
            "--gpus-up-to", min=1, max=plan_request.MOST_UP_TO, help="As many GPUs at most [64, or the cluster's]."
        ),
    ] = None,
    cpus_at: Annotated[
        int | None,
        typer.Option(
            "--cpus-at", min=1, max=plan_request.MOST_UP_TO, metavar="GPUS", help="Also against CPUs, on so many GPUs."
        ),
    ] = None,
    batch: plan_request.Batch = None,
    seq: plan_request.Sequence = None,
    engine: plan_request.EngineName = plan_request.USUAL_ENGINE,
    network: plan_request.NetworkRate = None,
    pin: plan_request.Pin = None,
    no_offload: plan_request.NoOffload = False,
    tensor_across_nodes: plan_request.TensorAcrossNodes = False,
    uneven: plan_request.Uneven = False,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Draw it: curve.svg or curve.html.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show how much faster a model trains on more GPUs.

    The best plan for every number of GPUs: of a cluster's, one curve for each type; or of one type with the links
    usual for it. Exit status: 0 done, 1 nothing fits.

    Example: refold curve llama-2-7b --gpu A100-80GB --gpus-up-to 64 --batch 512 --out curve.svg

    Example: refold curve gpt2-xl --cluster cluster.yaml --cpus-at 2
    """
    from dataclasses import replace

    from refold.catalogue import find_engine, read_model
    from refold.cli.inputs import sources_from, with_gpus

    _check_picture(out)
    shape = read_model(model)
    samples, tokens, notes = plan_request.sizes_from(shape, batch, seq)
    limits = plan_request.limits_from(pin, no_offload, tensor_across_nodes, uneven, {"--cpus-at": cpus_at})
    question = _Question(model, shape, find_engine(engine), samples, tokens, limits)
    sources, more = sources_from(cluster, gpu, gpus_up_to, network)
    with progress(f"curves of {shape.name}"):
        by_gpus = [_by_gpus(question, source) for source in sources]
        by_cpus = (
            [] if cpus_at is None else [_by_cpus(question, source, cpus_at) for source in with_gpus(sources, cpus_at)]
        )
    notes += more + _assumed(sources, by_gpus)
    pictures = [] if out is None else _drawn(out, _pictures(question, by_gpus, by_cpus, cpus_at))
    if as_json:
        print_json(_document(question, by_gpus, by_cpus, cpus_at) | {"notes": notes, "pictures": pictures})
    else:
        tell(notes)
        tables = [_gpu_table(question, one) for one in by_gpus]
        *others, last = [*tables, *(_cpu_table(question, one, cpus_at) for one in by_cpus)]
        print_tables(*others, replace(last, after=[*last.after, "", TRUST]))
        for path in pictures:
            say(f"picture: {path}")
    if not any(one.curve.points for one in by_gpus):
        raise typer.Exit(1)


# Curves.


def _assumed(sources: Sequence[GpuPool], by_gpus: Sequence[_Series]) -> list[str]:
    """What was taken for granted about hosts, where plans offload to them."""
    from refold.perf import USUAL_CPUS_PER_GPU

    offloads = any(point.plan.offload for one in by_gpus for point in one.curve.points)
    machines = [source.machines_for(1) for source in sources]
    missing = [f"{USUAL_CPUS_PER_GPU:g} CPUs per GPU"] if not all(one.cpus for one in machines) else []
    missing += ["no limit of host memory"] if not all(one.memory_gib for one in machines) else []
    return [f"{' and '.join(missing)} are assumed, for plans that offload"] if offloads and missing else []


def _by_gpus(question: _Question, source: GpuPool) -> _Series:
    from refold.plans import gpu_curve

    found = gpu_curve(
        question.shape,
        source.machines_for,
        range(1, source.up_to + 1),
        question.batch,
        question.sequence,
        question.engine,
        question.limits,
    )
    return _Series(source.gpu, source.up_to, found)


def _by_cpus(question: _Question, source: GpuPool, gpus: int) -> _Series:
    from refold.perf import Setting
    from refold.plans import cpu_curve

    most = source.cpus_beside(gpus)
    setting = Setting(question.shape, source.machines_for(gpus), question.engine, question.batch, question.sequence)
    amounts = [*range(gpus, int(most) + 1, gpus)] or [most]
    return _Series(source.gpu, most, cpu_curve(setting, amounts, question.limits))


# For people.


def _gpu_table(question: _Question, series: _Series) -> Table:
    points = series.curve.points
    title = f"{question.shape.name} on up to {series.up_to:,} × {series.gpu.name}: {question}"
    columns = {
        "gpus": Column("GPUs", number=True),
        "samples": Column("samples/s", plan_request.rate_text, number=True),
        "bar": Column("", lambda share: bar(share, BAR), whole=True),
        "of_linear": Column("per GPU", percent, number=True),
        "plan": Column("best plan"),
    }
    rows = [
        {
            "gpus": f"{point.amount:,}",
            "samples": point.samples_per_second,
            "bar": point.samples_per_second / points[-1].samples_per_second,
            "of_linear": share,
            "plan": str(point.plan),
        }
        for point, share in zip(points, _of_linear(points), strict=True)
    ]
    return Table(title, columns, rows, after=[_about_gpus(question, series)])


def _about_gpus(question: _Question, series: _Series) -> str:
    if not series.curve.points:
        command = shlex.join(["refold", "plan", question.model, "--gpus", f"{series.up_to:.0f}x{series.gpu.name}"])
        return f"nothing fits; `{command}` says what is missing"
    return "numbers in between are no faster than the next below; per GPU: of the most that any step does"


def _of_linear(points: Sequence[CurvePoint]) -> list[float]:
    """Throughput per unit, as a share of the highest there is: where all are 1, the curve is a straight line."""
    each = [point.samples_per_second / point.amount for point in points]
    return [one / max(each) for one in each]


def _cpu_table(question: _Question, series: _Series, gpus: int | None) -> Table:
    points = series.curve.points
    title = f"{question.shape.name} on {gpus} × {series.gpu.name} with up to {series.up_to:,.0f} CPUs: {question}"
    columns = {
        "cpus": Column("CPUs", number=True),
        "samples": Column("samples/s", plan_request.rate_text, number=True),
        "bar": Column("", lambda share: bar(share, BAR), whole=True),
        "plan": Column("best plan"),
    }
    rows = [
        {
            "cpus": f"{point.amount:,g}",
            "samples": point.samples_per_second,
            "bar": point.samples_per_second / points[-1].samples_per_second,
            "plan": str(point.plan),
        }
        for point in points
    ]
    return Table(title, columns, rows, after=[_about_cpus(points)])


def _about_cpus(points: Sequence[CurvePoint]) -> str:
    match points:
        case []:
            return "nothing fits"
        case [only] if not only.plan.offload:
            return f"flat: CPUs make no difference, since {only.plan} does not offload"
        case [_]:
            return "flat: more CPUs bring nothing"
    return "numbers in between are no faster than the next below"


# For programs.


def _document(
    question: _Question, by_gpus: Sequence[_Series], by_cpus: Sequence[_Series], cpus_at: int | None
) -> dict[str, Any]:
    from msgspec.structs import asdict

    def points(series: _Series, amount: str) -> list[dict[str, Any]]:
        return [
            {
                amount: point.amount,
                "samples_per_second": point.samples_per_second,
                "of_linear": share,
                "plan": str(point.plan),
                "degrees": asdict(point.plan),
            }
            for point, share in zip(series.curve.points, _of_linear(series.curve.points), strict=True)
        ]

    return {
        "model": question.shape.name,
        "engine": question.engine.name,
        "batch": question.batch,
        "sequence": question.sequence,
        "by_gpus": [{"gpu": one.gpu.name, "up_to": one.up_to, "points": points(one, "gpus")} for one in by_gpus],
        "by_cpus": [
            {"gpu": one.gpu.name, "gpus": cpus_at, "up_to": one.up_to, "points": points(one, "cpus")} for one in by_cpus
        ],
    }


# Pictures.


def _check_picture(out: Path | None) -> None:
    """Complain now, and not when all is computed."""
    from refold.errors import BadFile

    if out is None:
        return
    if out.suffix.lower() not in PICTURES:
        raise BadFile(out, f"expected a name that ends in {' or '.join(PICTURES)}")
    if out.is_dir() or not out.parent.is_dir():
        raise BadFile(out, "is a folder" if out.is_dir() else "has no folder to be in; make it first")


def _pictures(
    question: _Question, by_gpus: Sequence[_Series], by_cpus: Sequence[_Series], cpus_at: int | None
) -> list[CurveChart]:
    from refold.results import CurveChart, CurveStep, Stair

    def stairs(all_series: Iterable[_Series]) -> list[Stair]:
        return [
            Stair(
                series.gpu.name,
                [CurveStep(point.amount, point.samples_per_second, str(point.plan)) for point in series.curve.points],
                series.up_to,
            )
            for series in all_series
        ]

    about = f"{question}; best plan for each number"
    pictures = [CurveChart(f"{question.shape.name}: throughput by GPUs", about, "GPUs", stairs(by_gpus))]
    if by_cpus:
        title = f"{question.shape.name}: throughput by CPUs, on {plural(cpus_at or 0, 'GPU')}"
        pictures.append(CurveChart(title, about, "CPUs", stairs(by_cpus), linear=False))
    return pictures


def _drawn(out: Path, pictures: Sequence[CurveChart]) -> list[str]:
    """The files that were written: a page has all pictures, a drawing one, so that the second has a file of its own."""
    from refold.errors import BadFile
    from refold.results import page

    if out.suffix.lower() == ".html":
        texts = {out: page(pictures)}
    else:
        names = [out, out.with_stem(f"{out.stem}-cpus")]
        texts = {name: picture.svg() for name, picture in zip(names, pictures, strict=False)}
    for path, text in texts.items():
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise BadFile(path, f"cannot be written: {error.strerror}") from None
    return [str(path) for path in texts]
