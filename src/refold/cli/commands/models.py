"""`refold models`: list the models of the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.cli.views import AsJson, Column, Table, count, print_json, print_tables

if TYPE_CHECKING:
    from refold.perf import ModelShape


def models(as_json: AsJson = False) -> None:
    """List the models of the catalogue.

    Their shapes, and where these are from. A model of your own is a file: see docs/catalogue.md.
    """
    from msgspec.structs import asdict

    from refold.catalogue import model_aliases, models as known

    aliases = _aliases_by_name(model_aliases())
    if as_json:
        print_json(
            [
                asdict(shape) | {"parameters": shape.parameters, "aliases": aliases.get(shape.name, [])}
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


def _aliases_by_name(aliases: Mapping[str, str]) -> dict[str, list[str]]:
    by_name: dict[str, list[str]] = {}
    for alias, name in aliases.items():
        by_name.setdefault(name, []).append(alias)
    return by_name


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:,.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:,.0f} M"


def _if_any(number: int) -> str:
    return f"{number:,}" if number else ""
