"""`refold top`: show GPU memory, utilisation, temperature, power and jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import list_jobs, make_client
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    draw_bar,
    output_width,
    plural,
    print_json,
    print_notes,
    print_tables,
    refresh_screen,
)

if TYPE_CHECKING:
    from refold.api import DaemonInfo, GpuStatus, JobStatus
    from refold.client import Client

HOT_CELSIUS = 85.0
"""Temperature from which a GPU is highlighted; most GPUs throttle a few degrees above."""

MAX_BAR_WIDTH, MIN_BAR_WIDTH = 24, 8
OTHER_COLUMNS_WIDTH = 70
"""Approximate width of the other columns."""

UNKNOWN = "–"


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, metavar="SECONDS", help="Refresh interval.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
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
        refresh_screen(paint, interval)
    paint()


def _paint(client: Client) -> None:
    info, gpus = client.info(), client.gpus()
    jobs, _ = list_jobs(client, len(gpus) + 1, state=["running", "stopping"])
    print_notes([info.storage] if info.storage else [])
    print_tables(_table(info, gpus, {job.id: job for job in jobs}))


def _table(info: DaemonInfo, gpus: Sequence[GpuStatus], jobs: dict[str, JobStatus]) -> Table:
    width = max(MIN_BAR_WIDTH, min(MAX_BAR_WIDTH, output_width() - OTHER_COLUMNS_WIDTH))
    columns = {
        "gpu": Column("GPU", whole=True),
        "name": Column("", whole=True),
        "bar": Column("memory", style=lambda _: "cyan", whole=True),
        "memory": Column("GiB", number=True),
        "utilisation": Column("util", number=True),
        "celsius": Column("°C", number=True, style=_temperature_style),
        "watts": Column("W", number=True),
        "jobs": Column("job"),
    }
    measured = {
        "memory": any(gpu.memory_used_mib is not None for gpu in gpus),
        "utilisation": any(gpu.utilisation is not None for gpu in gpus),
        "celsius": any(gpu.celsius is not None for gpu in gpus),
        "watts": any(gpu.watts is not None for gpu in gpus),
    }
    measured["bar"] = measured["memory"]
    shown = {key: column for key, column in columns.items() if measured.get(key, True)}
    one_node = len({gpu.node for gpu in gpus}) == 1
    rows = [_row(gpu, jobs, width, one_node) for gpu in gpus]
    return Table(_title(info), shown, rows)


def _title(info: DaemonInfo) -> str:
    used = f"{info.gpus - info.free_gpus:g} of {plural(info.gpus, 'GPU')} in use"
    return f"{info.cluster}: {used}, {info.running:,} running, {info.waiting:,} waiting, policy {info.policy}"


def _row(gpu: GpuStatus, jobs: dict[str, JobStatus], width: int, one_node: bool) -> dict[str, str]:
    used, total = gpu.memory_used_mib, gpu.memory_mib
    return {
        "gpu": f"{gpu.index}" if one_node else f"{gpu.node}:{gpu.index}",
        "name": gpu.name,
        "bar": f"{draw_bar(used / total, width):·<{width}}" if used is not None and total else " " * width,
        "memory": f"{used / 1024:.0f}/{total / 1024:.0f}" if used is not None and total else UNKNOWN,
        "utilisation": UNKNOWN if gpu.utilisation is None else f"{gpu.utilisation:.0f} %",
        "celsius": UNKNOWN if gpu.celsius is None else f"{gpu.celsius:.0f}",
        "watts": UNKNOWN if gpu.watts is None else f"{gpu.watts:.0f}",
        "jobs": _format_jobs(gpu, jobs),
    }


def _format_jobs(gpu: GpuStatus, jobs: dict[str, JobStatus]) -> str:
    """Format 'train-17 (ann)', 'a-1 (ann), b-2 (bob)', 'free', 'drained: too hot'."""
    parts = [f"{job} ({_owner(jobs[job])})" if job in jobs and _owner(jobs[job]) else job for job in gpu.jobs]
    if gpu.drain_reason:
        parts.append(f"drained: {gpu.drain_reason}")
    if not parts:
        return "free"
    return ", ".join(parts) + (f", {gpu.free:g} free" if 0 < gpu.free < 1 else "")


def _owner(job: JobStatus) -> str:
    return job.user or job.tenant


def _temperature_style(celsius: str) -> str:
    return "bold red" if celsius != UNKNOWN and float(celsius) >= HOT_CELSIUS else ""
