"""`refold gpus`: list the GPUs of the catalogue."""

from __future__ import annotations

from refold.cli.views import AsJson, Column, Table, count, print_json, print_tables


def gpus(as_json: AsJson = False) -> None:
    """List the GPUs of the catalogue.

    What their data sheets say, and the share of it that training was seen to reach. A GPU of yours that is not there:
    see docs/catalogue.md.
    """
    from msgspec.structs import asdict

    from refold.catalogue import gpus as known

    if as_json:
        print_json([asdict(gpu) for gpu in known()])
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
