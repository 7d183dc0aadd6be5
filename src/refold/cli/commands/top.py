"""`refold top`: show GPU memory, utilisation, temperature, power and jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

from refold.cli import format_job_counts, format_rack, list_jobs, make_client, switch
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    call_slots,
    draw_bar,
    output_width,
    plural,
    print_json,
    print_notes,
    print_tables,
    refresh_screen,
    resource_text,
)

if TYPE_CHECKING:
    from refold.client import Client
    from refold.client.api import DaemonInfo, GpuStatus, JobStatus

HOT_CELSIUS = 85.0
"""Temperature from which a GPU is highlighted; most GPUs throttle a few degrees above."""

MAX_BAR_WIDTH, MIN_BAR_WIDTH = 24, 8
OTHER_COLUMNS_WIDTH = 70
"""Approximate width of the other columns."""

MEASURED = {"memory": "memory_used_mib", "GiB": "memory_used_mib", "util": "utilisation", "°C": "celsius", "W": "watts"}
"""Fields of the columns that are hidden if they are unknown for all GPUs."""

UNKNOWN = "–"

REFRESH_SECONDS = 2.0


def top(
    once: Annotated[bool, switch("--once", "Print once and exit.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show memory, utilisation, temperature, power and jobs of every GPU; refresh until interrupted.

    If the output is not a terminal, or with --json, print once.

    Examples: refold top · refold top --once
    """
    client = make_client()
    if as_json:
        print_json({"info": client.info(), "gpus": client.gpus()})
        return
    paint = partial(_paint, client)
    if not once and sys.stdout.isatty():
        refresh_screen(paint, REFRESH_SECONDS)
    paint()


def _paint(client: Client) -> None:
    info, gpus = client.info(), client.gpus()
    call_slots(info.slots)
    jobs, _ = list_jobs(client, len(gpus) + 1, state=["running", "stopping"])
    print_notes([info.storage] if info.storage else [])
    racks = dict.fromkeys(format_rack(node) for node in client.nodes() if node.rack)
    print_tables(_table(info, gpus, {job.id: job for job in jobs}, [f"rack {rack}" for rack in racks]))


def _table(info: DaemonInfo, gpus: Sequence[GpuStatus], jobs: dict[str, JobStatus], after: Sequence[str]) -> Table:
    width = max(MIN_BAR_WIDTH, min(MAX_BAR_WIDTH, output_width() - OTHER_COLUMNS_WIDTH))
    one_node = len({gpu.node for gpu in gpus}) == 1

    def bar(gpu: GpuStatus) -> str:
        used, total = gpu.memory_used_mib, gpu.memory_mib
        return f"{draw_bar(used / total, width):·<{width}}" if used is not None and total else " " * width

    columns: list[Column[GpuStatus]] = [
        Column(resource_text("GPU"), lambda gpu: f"{gpu.index}" if one_node else f"{gpu.node}:{gpu.index}", whole=True),
        Column("", lambda gpu: gpu.name, whole=True),
        Column("memory", bar, style=lambda _: "cyan", whole=True),
        Column("GiB", _format_memory, number=True),
        Column("util", lambda gpu: UNKNOWN if gpu.utilisation is None else f"{gpu.utilisation:.0f} %", number=True),
        Column("°C", _format_temperature, number=True, style=_temperature_style),
        Column("W", lambda gpu: UNKNOWN if gpu.watts is None else f"{gpu.watts:.0f}", number=True),
        Column("job", lambda gpu: _format_jobs(gpu, jobs)),
    ]
    unknown = {title for title, name in MEASURED.items() if all(getattr(gpu, name) is None for gpu in gpus)}
    return Table(_title(info, gpus), [column for column in columns if column.title not in unknown], gpus, after)


def _title(info: DaemonInfo, gpus: Sequence[GpuStatus]) -> str:
    used = resource_text(f"{sum(1 - gpu.free for gpu in gpus if gpu.jobs):g} of {plural(info.gpus, 'GPU')} in use")
    drained = sum(bool(gpu.drain_reason) for gpu in gpus)
    used += f", {drained} drained" if drained else ""
    return f"{info.cluster}: {used}, {format_job_counts(info)}, policy {info.policy}"


def _format_memory(gpu: GpuStatus) -> str:
    used, total = gpu.memory_used_mib, gpu.memory_mib
    return f"{used / 1024:.0f}/{total / 1024:.0f}" if used is not None and total else UNKNOWN


def _format_temperature(gpu: GpuStatus) -> str:
    return UNKNOWN if gpu.celsius is None else f"{gpu.celsius:.0f}"


def _format_jobs(gpu: GpuStatus, jobs: dict[str, JobStatus]) -> str:
    """Format 'train-17 (ann)', 'a-1 (ann), b-2 (bob)', 'free', 'drained: too hot'."""
    parts = [f"{job} ({_owner(jobs[job])})" if job in jobs and _owner(jobs[job]) else job for job in gpu.jobs]
    if gpu.drain_reason:
        parts.append(f"drained: {gpu.drain_reason}")
    elif gpu.used_by:
        parts.append(gpu.used_by)
    if not parts:
        return "free"
    return ", ".join(parts) + (f", {gpu.free:g} free" if 0 < gpu.free < 1 and not gpu.drain_reason else "")


def _owner(job: JobStatus) -> str:
    return job.user or job.tenant


def _temperature_style(gpu: GpuStatus) -> str:
    return "bold red" if gpu.celsius is not None and round(gpu.celsius) >= HOT_CELSIUS else ""
