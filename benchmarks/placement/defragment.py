"""What moving runs is worth: `python -m benchmarks.placement.defragment [--write]`.

The same jobs with and without `defragment`, under each policy that has it: how long wide jobs and all jobs wait, how
many runs were moved, and the GPU-hours that this cost. `--write` keeps the tables in docs/policies/defragment.md.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from statistics import mean, stdev
from typing import NamedTuple

from benchmarks.measure import REPOSITORY
from benchmarks.table import markdown
from refold.core import Entry, Journals, RunFinished, StartRun
from refold.model import DAY, HOUR, MINUTE, WHOLE, Cluster, Demand, Job, Node, mib_from_gib, text_from_seconds
from refold.registry import make_policy
from refold.simulator import Costs, simulate
from refold.testing import Audit
from refold.traces import Lognormal, PoissonArrivals, SizeClass, WorkloadShape, generate, read_cluster, read_trace

POLICIES = ("fifo", "fifo-skip", "sjf")
LOADS = (0.7, 0.8, 0.9)
SEEDS = 10
STUDENT = 2.262
"""The 97.5 % quantile of Student's distribution with SEEDS - 1 degrees of freedom."""

WIDE_GPUS = 4
"""Jobs of so many GPUs or more are called wide here."""

COSTS = Costs(stop=8.0, restart=70.0)
"""Together the 78 seconds that policies believe a restart to take."""

KEPT = REPOSITORY / "docs" / "policies" / "defragment.md"
HEADING = "## Measured"

CLUSTER = Cluster(tuple(Node(f"n{n}", 8, "A100", 96_000, mib_from_gib(768)) for n in range(16)), name="16x8")

Workload = Callable[[], tuple[Sequence[Job], Cluster]]


def _size(weight: float, hours: float, gpus: int = 1, share: int = WHOLE, instances: int = 1) -> SizeClass:
    """Jobs with 8 CPUs and 64 GiB for each GPU, or for a part of one as much as that, and durations that vary much."""
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
    """Seven in ten jobs have a GPU or less, one in five is wide."""
    return generate(SHAPE.for_load(CLUSTER, load), seed).jobs, CLUSTER


def shipped() -> tuple[Sequence[Job], Cluster]:
    """The workload that ships with the package."""
    return read_trace("demo").jobs, read_cluster("demo")


class Outcome(NamedTuple):
    """Of one run: mean seconds of waiting and from submission to the end, moves, GPU-hours lost by them and worked."""

    wide_waiting: float
    waiting: float
    completion: float
    moves: int
    lost_gpu_hours: float
    gpu_hours: float


class Ledger:
    """A journal that keeps first starts, ends, and what restarts have cost."""

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.moves = 0
        self.lost_gpu_hours = 0.0

    def write(self, entry: Entry) -> None:
        """Note one entry."""
        self.ended |= {event.job: entry.now for event in entry.events if isinstance(event, RunFinished)}
        for order in entry.orders:
            if not isinstance(order, StartRun):
                continue
            if order.run == 1:
                self.started[order.job] = entry.now
            else:
                self.moves += 1
                self.lost_gpu_hours += order.allocation.gpu_milli / WHOLE * (COSTS.stop + COSTS.restart) / HOUR


def outcome(workload: Workload, policy: str, defragment: bool) -> Outcome:
    """Simulate one policy; an audit watches."""
    jobs, cluster = workload()
    ledger = Ledger()
    made = make_policy(policy, {"defragment": defragment})
    simulate(jobs, cluster, made, journal=Journals(ledger, Audit(cluster)), costs=COSTS)
    waited = {job: ledger.started[job.id] - job.submitted for job in jobs}
    return Outcome(
        mean(seconds for job, seconds in waited.items() if job.demand.total_gpus >= WIDE_GPUS),
        mean(waited.values()),
        mean(ledger.ended[job.id] - job.submitted for job in jobs),
        ledger.moves,
        ledger.lost_gpu_hours,
        sum(job.demand.total_gpus * (job.work or 0.0) for job in jobs) / HOUR,
    )


def _less(before: Sequence[float], after: Sequence[float]) -> str:
    """By how much shorter, in percent of the mean; from several seeds with a 95 % interval of the paired difference."""
    percent = 100 / mean(before)
    differences = [(one - other) * percent for one, other in zip(before, after, strict=True)]
    interval = f" ± {STUDENT * stdev(differences) / len(differences) ** 0.5:.0f}" if len(differences) > 1 else ""
    return f"{mean(differences):.0f}{interval} %"


def row(name: str, policy: str, workloads: Sequence[Workload]) -> list[str]:
    """One line of the table."""
    before, after = ([outcome(one, policy, defragment) for one in workloads] for defragment in (False, True))
    cells = [name, f"`{policy}`"]
    for field in ("wide_waiting", "waiting"):
        old, new = ([float(getattr(one, field)) for one in outcomes] for outcomes in (before, after))
        cells += [text_from_seconds(mean(old)), text_from_seconds(mean(new)), _less(old, new)]
    cells.append(_less([one.completion for one in before], [one.completion for one in after]))
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
    """Every workload under every policy."""
    rows = []
    for load in LOADS:
        drawn = [partial(synthetic, load, seed) for seed in range(SEEDS)]
        rows += [row(f"load {load:g}", policy, drawn) for policy in POLICIES]
    rows += [row("demo", policy, [shipped]) for policy in POLICIES]
    return markdown(TITLES, rows)


def write_down(found: str) -> None:
    """Put the table below its heading, to the end of the page."""
    before = KEPT.read_text().partition(HEADING)[0]
    words = f"""`python -m benchmarks.placement.defragment --write`. Synthetic: {SHAPE.jobs:,} jobs on
{len(CLUSTER.nodes)} nodes of 8 GPUs, seven in ten of one GPU or less (a quarter, a half), one in five wide ({WIDE_GPUS}
GPUs or more, up to two instances of 8), durations lognormal; means over {SEEDS} seeds, with 95 % intervals of paired
differences. `demo` is the workload of {len(shipped()[0]):,} jobs that ships with the package, once. Best-fit placement.
Stopping is charged {COSTS.stop:.0f} s and a later start {COSTS.restart:.0f} s; GPU-hours lost are that time of all GPUs
of the runs moved, and the part of all work that they are. A run that was moved twice counts as two moves."""
    KEPT.write_text(f"{before}{HEADING}\n\n{words}\n\n{found}\n")


def main() -> None:
    """Print the table; keep it if asked to."""
    found = table()
    print(found)
    if "--write" in sys.argv[1:]:
        write_down(found)


if __name__ == "__main__":
    main()
