"""`refold models`: list the models in the catalogue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from refold.cli.views import AsJson, Column, Table, format_number, print_json, print_tables

if TYPE_CHECKING:
    from refold.perf import ModelShape


def models(as_json: AsJson = False) -> None:
    """List the models in the catalogue with their shapes and sources.

    To use a model that is not in the catalogue, describe it in a file: see docs/catalogue.md.
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
        "parameters": Column("weights", _format_parameters, number=True),
        "kind": Column("kind", whole=True),
        "layers": Column("layers", _format_nonzero, number=True),
        "hidden": Column("hidden", _format_nonzero, number=True),
        "heads": Column("heads", whole=True),
        "experts": Column("experts", whole=True),
        "vocabulary": Column("vocabulary", _format_nonzero, number=True),
        "sequence": Column("default --seq", _format_nonzero, number=True),
        "batch": Column("default --batch", format_number, number=True),
        "source": Column("source"),
    }
    after = ["heads: query heads / key-value heads, if these are fewer"]
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


def _format_parameters(parameters: int) -> str:
    return f"{parameters / 1e9:,.1f} B" if parameters >= 1e9 else f"{parameters / 1e6:,.0f} M"


def _format_nonzero(number: int) -> str:
    return f"{number:,}" if number else ""
