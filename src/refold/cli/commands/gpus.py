"""`refold gpus`: list the GPUs in the catalogue."""

from __future__ import annotations

from refold.cli.views import AsJson, Column, Table, format_number, print_json, print_tables


def gpus(as_json: AsJson = False) -> None:
    """List the GPUs in the catalogue.

    Shows data-sheet values and the share of peak performance that training reaches. To add a GPU, see
    docs/catalogue.md.
    """
    from msgspec.structs import asdict

    from refold.catalogue import gpus as known

    if as_json:
        print_json([asdict(gpu) for gpu in known()])
        return
    columns = {
        "name": Column("GPU", whole=True),
        "memory": Column("GiB", format_number, number=True),
        "half": Column("FP16 TFLOP/s", format_number, number=True),
        "reached": Column("efficiency", number=True),
        "bandwidth": Column("memory GB/s", format_number, number=True),
        "link": Column("link, GB/s", whole=True),
        "network": Column("node network GB/s", number=True),
        "node": Column("GPUs per node", format_number, number=True),
        "watts": Column("W", format_number, number=True),
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
        "TFLOP/s: dense; GB/s: one direction; efficiency: share of peak in large matrix products, fitted per generation"
    ]
    print_tables(Table("GPUs", columns, rows, after=after))
