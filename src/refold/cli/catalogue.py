"""`refold models`, `refold gpus` and `refold engines`: what the catalogue knows, and from where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.cli.output import AsJson, Column, Table, count, print_json, print_tables

if TYPE_CHECKING:
    from refold.perf.shapes import ModelShape


def models(as_json: AsJson = False) -> None:
    """List the models of the catalogue.

    Their shapes, and where these are from. A model of your own is a file: see docs/catalogue.md.
    """
    from refold.catalogue import model_aliases
    from refold.catalogue import models as known

    aliases = _aliases_by_name(model_aliases())
    if as_json:
        print_json(
            [
                _fields(shape) | {"parameters": shape.parameters, "aliases": aliases.get(shape.name, [])}
                for shape in known()
            ]
        )
        return
    columns = {
        "name": Column("model", whole=True),
        "parameters": Column("weights", _billions, number=True),
        "kind": Column("kind", whole=True),
        "layers": Column("layers", _if_any, number=True),
        "hidden": Column("hidden", _if_any, number=True),
        "heads": Column("heads", whole=True),
        "experts": Column("experts", whole=True),
        "vocabulary": Column("vocabulary", _if_any, number=True),
        "sequence": Column("usual --seq", _if_any, number=True),
        "batch": Column("usual --batch", count, number=True),
        "source": Column("source"),
    }
    after = ["heads: of queries, and / of keys where these are fewer"]
    print_tables(Table("Models", columns, [_model_row(shape) for shape in known()], after=after))


def _model_row(shape: ModelShape) -> dict[str, Any]:
    shapes = not shape.opaque
    heads = f"{shape.heads} / {shape.kv_heads}" if shape.kv_heads else f"{shape.heads}"
    return {
        "name": shape.name,
        "parameters": shape.parameters,
        "kind": shape.kind,
        "layers": shapes and shape.blocks,
        "hidden": shapes and shape.hidden,
        "heads": heads if shapes else "",
        "experts": f"{shape.experts_per_token} of {shape.experts}" if shape.experts > 1 else "",
        "vocabulary": shape.vocabulary,
        "sequence": shapes and shape.sequence,
        "batch": shape.batch,
        "source": shape.source,
    }


def gpus(as_json: AsJson = False) -> None:
    """List the GPUs of the catalogue.

    What their data sheets say, and the share of it that training was seen to reach. A GPU of yours that is not there:
    see docs/catalogue.md.
    """
    from refold.catalogue import gpus as known

    if as_json:
        print_json([_fields(gpu) for gpu in known()])
        return
    columns = {
        "name": Column("GPU", whole=True),
        "memory": Column("GiB", count, number=True),
        "half": Column("half TFLOP/s", count, number=True),
        "reached": Column("reached", number=True),
        "bandwidth": Column("memory GB/s", count, number=True),
        "link": Column("link, GB/s", whole=True),
        "network": Column("node's network GB/s", number=True),
        "node": Column("GPUs per node", count, number=True),
        "watts": Column("W", count, number=True),
        "source": Column("source"),
    }
    rows = [
        {
            "name": gpu.name,
            "memory": gpu.memory_gib,
            "half": gpu.half_tflops,
            "reached": f"{gpu.efficiency.matmul:.0%}".replace("%", " %"),
            "bandwidth": gpu.memory_gigabytes_per_second,
            "link": f"{gpu.link.kind} {gpu.link.gigabytes_per_second:g}",
            "network": f"{gpu.node_network_gigabytes_per_second:g}",
            "node": gpu.gpus_per_node,
            "watts": gpu.watts,
            "source": gpu.source,
        }
        for gpu in known()
    ]
    after = [
        "rates are dense and in one direction; reached: by large products of matrices, as fitted for the generation"
    ]
    print_tables(Table("GPUs", columns, rows, after=after))


def engines(as_json: AsJson = False) -> None:
    """List the training frameworks of the catalogue.

    The first is what commands assume where --engine is not given. See docs/plan.md.
    """
    from refold.catalogue import engines as known

    if as_json:
        print_json([_fields(engine) for engine in known()])
        return
    columns = {
        "name": Column("engine", whole=True),
        "arithmetic": Column("arithmetic", whole=True),
        "bytes": Column("bytes per weight", count, number=True),
        "fused": Column("fused attention", lambda fused: "yes" if fused else ""),
        "source": Column("what it is, and what it was fitted on"),
    }
    rows = [
        {
            "name": engine.name,
            "arithmetic": engine.arithmetic,
            "bytes": engine.weight_bytes + engine.gradient_bytes + engine.optimizer_bytes,
            "fused": engine.fused_attention,
            "source": engine.source,
        }
        for engine in known()
    ]
    after = ["bytes per weight: itself, its gradient and what the optimizer keeps of it"]
    print_tables(Table("Engines (--engine)", columns, rows, after=after))


def _aliases_by_name(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        by_name.setdefault(name, []).append(alias)
    return by_name


def _fields(entry: Any) -> dict[str, Any]:
    """Every field of an entry, also those that are as usual."""
    from msgspec.structs import asdict

    return asdict(entry)


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:,.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:,.0f} M"


def _if_any(number: int) -> str:
    return f"{number:,}" if number else ""
