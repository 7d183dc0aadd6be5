"""`refold gpus`: list the GPUs in the catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from refold.cli.views import AsJson, Column, Table, format_number, print_json, print_tables

if TYPE_CHECKING:
    from refold.planning.perf import GpuSpec


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
