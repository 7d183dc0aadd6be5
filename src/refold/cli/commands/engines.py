"""`refold engines`: list the training frameworks in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views import AsJson, Column, Table, format_number, print_json, print_tables

if TYPE_CHECKING:
    from refold.planning.perf import Engine


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
