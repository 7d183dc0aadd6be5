"""Our measurements on one H200 (`measure_device`) as cases, like those of published tables.

The table is part of the repository: h200_measured.csv, measured on the machine described in h200_machine.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.accuracy.recipes import RECIPES, read_recipes
from benchmarks.accuracy.tables import Case, read_table
from refold.catalogue import find_gpu, find_model, read_samples
from refold.perf import Measurement

HERE = Path(__file__).parent
FILE = HERE / "h200_measured.csv"
TABLE = "h200_measured"


def measurements() -> list[Measurement]:
    """Return all measurements on the H200."""
    return read_samples(FILE)


@cache
def read_cases(table: str) -> Sequence[Case]:
    """Return the cases of a table, published or measured by us; cached."""
    if table in RECIPES:
        return tuple(read_recipes(table))
    if table != TABLE:
        return tuple(read_table(table))
    return tuple(_case(row, one) for row, one in enumerate(measurements(), start=2))


def _case(row: int, one: Measurement) -> Case:
    gpu = find_gpu(one.gpu)
    return Case(
        source=FILE.name,
        row=row,
        group=f"{one.model} on 1 {gpu.name}, batch {one.batch} × {one.sequence}",
        model=find_model(one.model),
        gpu=gpu.name,
        gpus_on_node=one.gpus_on_node,
        network=gpu.link,
        inside=None,
        engine="pytorch",
        plan=one.plan,
        micro_batch=round(one.micro_batch),
        batch=one.batch,
        sequence=one.sequence,
        cpus=one.cpus,
        step_seconds=one.step_seconds,
        memory_gib=one.memory_gib,
        fits=one.status == "ok",
        forward_seconds=one.forward_seconds,
        sync_seconds=one.backward_seconds,
        optimizer_seconds=one.optimizer_seconds,
    )
