"""`refold top`: every GPU, how full, how busy, how hot, and whose; again and again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli import daemon, first_jobs
from refold.cli.views import (
    AsJson,
    Column,
    Table,
    bar,
    output_width,
    paint_again,
    plural,
    print_json,
    print_tables,
    tell,
)

if TYPE_CHECKING:
    from refold.api import DaemonInfo, GpuStatus, JobStatus
    from refold.client import Client

HOT = 85.0
"""Degrees from which on a GPU is shown as hot; most slow down a little later."""

WIDEST_BAR, NARROWEST_BAR = 24, 8
ROOM_BESIDE_BAR = 70
"""Characters of a line that the rest takes, about."""

UNKNOWN = "–"


def top(
    interval: Annotated[
        float, typer.Option("--interval", min=0.2, max=3600, metavar="SECONDS", help="How often to look.")
    ] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show every GPU: its memory, load, temperature, power, and whose job it has; until interrupted.

    Where the output is not a terminal, or with --json, once.

    Examples: refold top · refold top --once
    """
    client = daemon()
    if as_json:
        print_json({"about": client.about(), "gpus": client.gpus()})
        return
    paint = partial(_paint, client)
    if not once and sys.stdout.isatty():
        paint_again(paint, interval)
    paint()


def _paint(client: Client) -> None:
    about, gpus = client.about(), client.gpus()
    jobs, _ = first_jobs(client, len(gpus) + 1, state=["running", "stopping"])
    tell([about.storage] if about.storage else [])
    print_tables(_table(about, gpus, {job.id: job for job in jobs}))


def _table(about: DaemonInfo, gpus: Sequence[GpuStatus], jobs: dict[str, JobStatus]) -> Table:
    width = max(NARROWEST_BAR, min(WIDEST_BAR, output_width() - ROOM_BESIDE_BAR))
    columns = {
        "gpu": Column("GPU", whole=True),
        "name": Column("", whole=True),
        "bar": Column("memory", style=lambda _: "cyan", whole=True),
        "memory": Column("GiB", number=True),
        "load": Column("load", number=True),
        "celsius": Column("°C", number=True, style=_heat),
        "watts": Column("W", number=True),
        "jobs": Column("job"),
    }
    measured = {
        "memory": any(gpu.memory_used_mib is not None for gpu in gpus),
        "load": any(gpu.load is not None for gpu in gpus),
        "celsius": any(gpu.celsius is not None for gpu in gpus),
        "watts": any(gpu.watts is not None for gpu in gpus),
    }
    measured["bar"] = measured["memory"]
    shown = {key: column for key, column in columns.items() if measured.get(key, True)}
    one_node = len({gpu.node for gpu in gpus}) == 1
    rows = [_row(gpu, jobs, width, one_node) for gpu in gpus]
    return Table(_title(about), shown, rows)


def _title(about: DaemonInfo) -> str:
    used = f"{about.gpus - about.free_gpus:g} of {plural(about.gpus, 'GPU')} in use"
    return f"{about.cluster}: {used}, {about.running:,} running, {about.waiting:,} waiting, under {about.policy}"


def _row(gpu: GpuStatus, jobs: dict[str, JobStatus], width: int, one_node: bool) -> dict[str, str]:
    used, whole = gpu.memory_used_mib, gpu.memory_mib
    return {
        "gpu": f"{gpu.index}" if one_node else f"{gpu.node}:{gpu.index}",
        "name": gpu.name,
        "bar": f"{bar(used / whole, width):·<{width}}" if used is not None and whole else " " * width,
        "memory": f"{used / 1024:.0f}/{whole / 1024:.0f}" if used is not None and whole else UNKNOWN,
        "load": UNKNOWN if gpu.load is None else f"{gpu.load * 100:.0f} %",
        "celsius": UNKNOWN if gpu.celsius is None else f"{gpu.celsius:.0f}",
        "watts": UNKNOWN if gpu.watts is None else f"{gpu.watts:.0f}",
        "jobs": _jobs_text(gpu, jobs),
    }


def _jobs_text(gpu: GpuStatus, jobs: dict[str, JobStatus]) -> str:
    """'train-17 (ann)', 'a-1 (ann), b-2 (bob)', 'free', 'drained: too hot'."""
    told = [f"{job} ({_whose(jobs[job])})" if job in jobs and _whose(jobs[job]) else job for job in gpu.jobs]
    if gpu.drained:
        told.append(f"drained: {gpu.drained}")
    if not told:
        return "free"
    return ", ".join(told) + (f", {gpu.free:g} free" if 0 < gpu.free < 1 else "")


def _whose(job: JobStatus) -> str:
    return job.user or job.tenant


def _heat(celsius: str) -> str:
    return "bold red" if celsius != UNKNOWN and float(celsius) >= HOT else ""
