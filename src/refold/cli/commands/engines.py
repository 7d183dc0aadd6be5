"""`refold engines`: list the training frameworks in the catalogue."""

from __future__ import annotations

from refold.cli.views import AsJson, Column, Table, format_number, print_json, print_tables


def engines(as_json: AsJson = False) -> None:
    """List the training frameworks in the catalogue.

    The first is the default of --engine. See docs/plan.md.
    """
    from msgspec.structs import asdict

    from refold.catalogue import engines as known

    if as_json:
        print_json([asdict(engine) for engine in known()])
        return
    columns = {
        "name": Column("engine", whole=True),
        "arithmetic": Column("arithmetic", whole=True),
        "bytes": Column("bytes per weight", format_number, number=True),
        "fused": Column("fused attention", lambda fused: "yes" if fused else ""),
        "source": Column("description and source of its parameters"),
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
    after = ["bytes per weight: weight, gradient and optimizer state"]
    print_tables(Table("Engines (--engine)", columns, rows, after=after))
