"""Effect of defragmentation: `python -m benchmarks.placement.defragment [--write]`.

The same jobs with and without `defragment`, with each policy that supports it: waiting of wide jobs and of all jobs,
number of moved runs, and the GPU-hours lost by moves. `--write` writes benchmarks/placement/defragment.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from textwrap import fill
from typing import NamedTuple

from benchmarks.table import markdown
from refold.core import Entry, Journals, RunFinished, StartRun
from refold.model import DAY, HOUR, MINUTE, WHOLE, Cluster, Demand, Job, Node, format_duration, mib_from_gib
from refold.simulator import Costs, simulate
from refold.simulator.registry import make_policy
from refold.simulator.traces import (
    Lognormal,
    PoissonArrivals,
    SizeClass,
    WorkloadShape,
    generate,
    read_cluster,
    read_trace,
)
from refold.testing import Audit

POLICIES = ("fifo", "fifo-skip", "sjf")
LOADS = (0.7, 0.8, 0.9)
SEEDS = 10
T_QUANTILE = 2.262
"""The 97.5 % quantile of Student's t-distribution with SEEDS - 1 degrees of freedom."""

WIDE_GPUS = 4
"""Jobs with at least this many GPUs are wide."""

COSTS = Costs(stop=8.0, restart=70.0)
"""Together the 78 seconds that policies assume for a restart."""

PAGE = Path(__file__).with_name("defragment.md")

CLUSTER = Cluster(tuple(Node(f"n{n}", 8, "A100", 96_000, mib_from_gib(768)) for n in range(16)), name="16x8")

Workload = Callable[[], tuple[Sequence[Job], Cluster]]


def _size(weight: float, hours: float, gpus: int = 1, share: int = WHOLE, instances: int = 1) -> SizeClass:
    """Return a class of jobs with 8 CPUs and 64 GiB per GPU (or a share of that), and widely varying durations."""
    cpu, memory = gpus * share * 8, gpus * share * mib_from_gib(64) // WHOLE
    durations = Lognormal(hours * HOUR, 1.5, 3 * DAY, MINUTE)
    return SizeClass(Demand(instances, gpus, share, cpu, memory), weight, durations)


SHAPE = WorkloadShape(
    jobs=1500,
    arrivals=PoissonArrivals(10.0),
    classes=(
        _size(10, 1, share=250),
        _size(30, 1, share=500),
        _size(30, 1),
        _size(10, 2, gpus=2),
        _size(8, 2, gpus=4),
        _size(6, 2, gpus=8),
        _size(4, 3, gpus=4, instances=2),
        _size(2, 3, gpus=8, instances=2),
    ),
    name="parts of GPUs and gangs",
)


def synthetic(load: float, seed: int) -> tuple[Sequence[Job], Cluster]:
    """Return generated jobs and a cluster; 70 % of the jobs have one GPU or less, 20 % are wide."""
    return generate(SHAPE.for_load(CLUSTER, load), seed).jobs, CLUSTER


def shipped() -> tuple[Sequence[Job], Cluster]:
    """Return the workload and cluster that ship with the package."""
    return read_trace("demo").jobs, read_cluster("demo")


class Result(NamedTuple):
    """Result of a run: mean waiting and completion times in seconds, moves, GPU-hours lost by moves and worked."""

    wide_waiting: float
    waiting: float
    completion: float
    moves: int
    lost_gpu_hours: float
    gpu_hours: float


class MoveRecorder:
    """A journal that records first starts, ends, and the cost of restarts."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.moves = 0
        self.lost_gpu_hours = 0.0

    def write(self, entry: Entry) -> None:
        """Record one entry."""
        self.ended |= {event.job: entry.now for event in entry.events if isinstance(event, RunFinished)}
        for order in entry.orders:
            if not isinstance(order, StartRun):
                continue
            if order.run == 1:
                self.started[order.job] = entry.now
            else:
                self.moves += 1
                self.lost_gpu_hours += order.allocation.gpu_milli / WHOLE * (COSTS.stop + COSTS.restart) / HOUR


def simulate_policy(workload: Workload, policy: str, defragment: bool) -> Result:
    """Simulate one policy, with an audit of the journal."""
    jobs, cluster = workload()
    recorder = MoveRecorder()
    scheduling_policy = make_policy(policy, {"defragment": defragment})
    simulate(jobs, cluster, scheduling_policy, journal=Journals(recorder, Audit(cluster)), costs=COSTS)
    waited = {job: recorder.started[job.id] - job.submitted for job in jobs}
    return Result(
        mean(seconds for job, seconds in waited.items() if job.demand.total_gpus >= WIDE_GPUS),
        mean(waited.values()),
        mean(recorder.ended[job.id] - job.submitted for job in jobs),
        recorder.moves,
        recorder.lost_gpu_hours,
        sum(job.demand.total_gpus * (job.work or 0.0) for job in jobs) / HOUR,
    )


def _reduction(before: Sequence[float], after: Sequence[float]) -> str:
    """Format the reduction in percent of the mean; for several seeds with the 95 % interval of paired differences."""
    percent = 100 / mean(before)
    differences = [(one - other) * percent for one, other in zip(before, after, strict=True)]
    interval = f" ± {T_QUANTILE * stdev(differences) / len(differences) ** 0.5:.0f}" if len(differences) > 1 else ""
    return f"{mean(differences):.0f}{interval} %"


def row(name: str, policy: str, workloads: Sequence[Workload]) -> list[str]:
    """Return one row of the table."""
    before, after = ([simulate_policy(one, policy, defragment) for one in workloads] for defragment in (False, True))
    cells = [name, f"`{policy}`"]
    for field in ("wide_waiting", "waiting"):
        old, new = ([float(getattr(one, field)) for one in results] for results in (before, after))
        cells += [format_duration(mean(old)), format_duration(mean(new)), _reduction(old, new)]
    cells.append(_reduction([one.completion for one in before], [one.completion for one in after]))
    lost, worked = sum(one.lost_gpu_hours for one in after), sum(one.gpu_hours for one in after)
    moves = mean(one.moves for one in after)
    return [*cells, f"{moves:.0f}", f"{lost / len(after):.1f} ({100 * lost / worked:.2f} %)"]


TITLES = (
    "workload",
    "policy",
    "wide jobs wait",
    "with moves",
    "less",
    "all jobs wait",
    "with moves",
    "less",
    "submission to end: less",
    "moves",
    "GPU-hours lost",
)


def table() -> str:
    """Return the table of all workloads and policies."""
    rows = []
    for load in LOADS:
        generated = [partial(synthetic, load, seed) for seed in range(SEEDS)]
        rows += [row(f"load {load:g}", policy, generated) for policy in POLICIES]
    rows += [row("demo", policy, [shipped]) for policy in POLICIES]
    return markdown(TITLES, rows)


def write_page(results: str) -> None:
    """Write the page."""
    text = f"""[What it does](../../docs/policies/defragment.md). `python -m benchmarks.placement.defragment --write`. \
Synthetic workload: {SHAPE.jobs:,} jobs on \
{len(CLUSTER.nodes)} nodes with 8 GPUs each; 70 % of the jobs have one GPU or less (a quarter, a half), 20 % are wide \
({WIDE_GPUS} GPUs or more, up to two instances of 8); durations are log-normal. Means over {SEEDS} seeds, with 95 % \
intervals of paired differences. `demo` is the workload of {len(shipped()[0]):,} jobs that ships with the package, \
simulated once. Placement is best-fit. A stop costs {COSTS.stop:.0f} s and a later start {COSTS.restart:.0f} s; \
GPU-hours lost are these times × the GPUs of the moved runs, also as a share of all work. A run that is moved twice \
counts as two moves."""
    page = f"# Waits with and without defragmentation\n\n{fill(text, 120, break_on_hyphens=False)}\n\n{results}\n"
    PAGE.write_text(page, encoding="utf-8")


def main() -> None:
    """Print the table; write the page with --write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.placement.defragment", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write benchmarks/placement/defragment.md")
    options = parser.parse_args()
    results = table()
    print(results)
    if options.write:
        write_page(results)


if __name__ == "__main__":
    main()
