"""`refold models`, `gpus` and `engines`: what is in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import argument
from refold.cli.views import AsJson, Column, Table, format_number, format_parameters, print_json, print_tables

if TYPE_CHECKING:
    from refold.planning.perf import Engine, GpuSpec, ModelShape


def models(
    model: Annotated[
        str | None, argument("MODEL", "Show this model instead: a name, or a file as for 'refold plan'.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the models in the catalogue with their shapes and sources, or show one as YAML.

    The YAML of a model is a file that other commands take. To use a model that is not in the catalogue, describe it in
    a file: see docs/catalogue.md.

    Example: refold models examples/module.py > module.yaml
    """
    from msgspec.structs import asdict

    from refold.planning.catalogue import model_aliases, models as known

    if model is not None:
        _print_model(model, as_json)
        return
    aliases = _aliases_by_name(model_aliases())
    if as_json:
        print_json(
            [
                asdict(shape) | {"parameters": shape.parameters, "aliases": aliases.get(shape.name, [])}
                for shape in known()
            ]
        )
        return
    columns: list[Column[ModelShape]] = [
        Column("model", lambda shape: shape.name, whole=True),
        Column("weights", lambda shape: format_parameters(shape.parameters), number=True),
        Column("kind", lambda shape: shape.kind, whole=True),
        Column("layers", lambda shape: _format_nonzero(not shape.opaque and shape.blocks), number=True),
        Column("hidden", lambda shape: _format_nonzero(not shape.opaque and shape.hidden), number=True),
        Column("heads", _format_heads, whole=True, optional=2),
        Column(
            "experts",
            lambda one: f"{one.experts_per_token} of {one.experts}" if one.experts > 1 else "",
            whole=True,
            optional=3,
        ),
        Column("vocabulary", lambda shape: _format_nonzero(shape.vocabulary), number=True, optional=4),
        Column("default --seq", lambda shape: _format_nonzero(not shape.opaque and shape.sequence), number=True),
        Column("default --batch", lambda shape: format_number(shape.batch), number=True),
        Column("source", lambda shape: shape.source, optional=5),
    ]
    after = ["heads: query heads / key-value heads, if these are fewer"]
    print_tables(Table("Models", columns, known(), after))


def _print_model(model: str, as_json: bool) -> None:
    import msgspec

    from refold.cli.inputs import read_or_trace_model

    document = msgspec.to_builtins(read_or_trace_model(model))
    if as_json:
        print_json(document)
    else:
        typer.echo(msgspec.yaml.encode(document).decode().rstrip())


def _format_heads(shape: ModelShape) -> str:
    if shape.opaque:
        return ""
    return f"{shape.heads} / {shape.kv_heads}" if shape.kv_heads else f"{shape.heads}"


def _aliases_by_name(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        by_name.setdefault(name, []).append(alias)
    return by_name


def _format_nonzero(number: int) -> str:
    return f"{number:,}" if number else ""


def gpus(as_json: AsJson = False) -> None:
    """List the GPUs in the catalogue.

    Shows data-sheet values and the share of peak performance that training reaches. To add a GPU, see
    docs/catalogue.md.
    """
    from msgspec.structs import asdict

    from refold.planning.catalogue import gpus as known

    if as_json:
        print_json([asdict(gpu) for gpu in known()])
        return
    columns: list[Column[GpuSpec]] = [
        Column("GPU", lambda gpu: gpu.name, whole=True),
        Column("GiB", lambda gpu: format_number(gpu.memory_gib), number=True),
        Column("FP16 TFLOP/s", lambda gpu: format_number(gpu.half_tflops), number=True),
        Column("efficiency", lambda gpu: f"{gpu.efficiency.matmul:.0%}".replace("%", " %"), number=True, optional=2),
        Column("memory GB/s", lambda gpu: format_number(gpu.memory_gigabytes_per_second), number=True),
        Column("link, GB/s", lambda gpu: f"{gpu.link.kind} {gpu.link.gigabytes_per_second:g}", whole=True),
        Column("node network GB/s", lambda gpu: f"{gpu.node_network_gigabytes_per_second:g}", number=True, optional=1),
        Column("GPUs per node", lambda gpu: format_number(gpu.gpus_per_node), number=True, optional=3),
        Column("W", lambda gpu: format_number(gpu.watts), number=True, optional=4),
        Column("source", lambda gpu: gpu.source, optional=5),
    ]
    after = [
        "TFLOP/s: dense; GB/s: one direction; efficiency: share of peak in large matrix products, fitted per generation"
    ]
    print_tables(Table("GPUs", columns, known(), after))


def engines(as_json: AsJson = False) -> None:
    """List the training frameworks in the catalogue.

    The default of --engine depends on the model and the GPUs. See docs/plan.md.
    """
    from msgspec.structs import asdict

    from refold.planning.catalogue import engines as known

    if as_json:
        print_json([asdict(engine) for engine in known()])
        return
    columns: list[Column[Engine]] = [
        Column("engine", lambda engine: engine.name, whole=True),
        Column("release", lambda engine: engine.release, whole=True),
        Column("arithmetic", lambda engine: engine.arithmetic, whole=True),
        Column("bytes per weight", lambda engine: format_number(_bytes_per_weight(engine)), number=True),
        Column("plans", _format_features, optional=1),
        Column("fused attention", lambda engine: "yes" if engine.fused_attention else ""),
        Column("description and source of its parameters", lambda engine: engine.source),
    ]
    after = [
        "bytes per weight: weight, gradient and optimizer state",
        "plans: what they may use besides data parallelism and accumulation; empty: everything",
    ]
    print_tables(Table("Engines (--engine)", columns, known(), after))


def _format_features(engine: Engine) -> str:
    return ", ".join(engine.runs)


def _bytes_per_weight(engine: Engine) -> float:
    return engine.weight_bytes + engine.gradient_bytes + engine.optimizer_bytes
