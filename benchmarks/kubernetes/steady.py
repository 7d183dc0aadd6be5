"""Pods that arrive at a steady rate on a large cluster: how long they wait for their binding, and what memory it takes.

There are as many GPUs as pods, so that a pod waits only for the scheduler. Nodes are objects only, even if there is
KWOK: heartbeats of 5,000 nodes would keep the API server busy.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path
from statistics import median, quantiles
from typing import NamedTuple

from benchmarks.kubernetes.placing import (
    CREATING_THREADS,
    Bindings,
    create_gang,
    create_nodes,
    make_servers,
    refold,
)

GANG_PODS = 5


class Steady(NamedTuple):
    """What was measured. Delays, in seconds, are from the creation of the last pod of a gang to each binding."""

    nodes: int
    asked_rate: float
    rate: float
    pods: int
    bound: int
    median_delay: float
    p99_delay: float
    max_delay: float
    start_mib: float
    mib_per_1000_pods: float


def measure(assets: Path, nodes: int, rate: float, seconds: float) -> Steady:
    """Create gangs at a steady rate, on servers of their own."""
    servers = make_servers(assets)
    created: dict[str, float] = {}

    def arrive(number: int) -> None:
        create_gang(servers, "refold", f"g{number}", GANG_PODS)
        created[f"g{number}"] = time.monotonic()

    try:
        servers.start(controllers=False)
        gangs = round(rate * seconds / GANG_PODS)
        create_nodes(servers, nodes, gpus=max(8, ceil((gangs + 1) * GANG_PODS / nodes)))
        bindings = Bindings(servers)
        with refold(servers, assets) as process, ThreadPoolExecutor(CREATING_THREADS) as threads:
            create_gang(servers, "refold", "first", GANG_PODS)
            bindings.wait(GANG_PODS)
            memory, began = resident_mib(process.pid), time.monotonic()
            for number in range(gangs):
                time.sleep(max(0.0, began + number * GANG_PODS / rate - time.monotonic()))
                threads.submit(arrive, number)
            threads.shutdown()
            took = time.monotonic() - began
            bindings.wait((gangs + 1) * GANG_PODS)
            grown = resident_mib(process.pid) - memory
        bindings.stop()
    finally:
        servers.stop()
    delays = [at - created[gang] for key, at in bindings.at.items() if (gang := bindings.gang_of[key]) in created]
    pods = gangs * GANG_PODS
    return Steady(
        nodes,
        rate,
        pods / took,
        pods,
        len(delays),
        median(delays),
        quantiles(delays, n=100)[-1],
        max(delays),
        memory,
        grown / pods * 1000,
    )


def resident_mib(pid: int) -> float:
    """Return the memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def table(found: Steady) -> list[str]:
    """Return a Markdown table."""
    return [
        f"{found.nodes:,} nodes, {found.asked_rate:g} pods/s asked for, {found.rate:.1f} pods/s created,"
        f" {found.pods:,} pods in gangs of {GANG_PODS}, {found.bound:,} bound",
        "",
        "| from creation to binding, s: median | 99 % | largest | memory of the daemon, MiB | per 1,000 pods, MiB |",
        "|---|---|---|---|---|",
        f"| {found.median_delay:.2f} | {found.p99_delay:.2f} | {found.max_delay:.2f} | {found.start_mib:.0f} |"
        f" {found.mib_per_1000_pods:.1f} |",
    ]
