"""Golden runs: the orders of each policy must equal the recorded ones.

Policies that place jobs as requested run on the workload that ships with the package, one of them with every placement
rule; policies that reshape jobs run on a small seeded workload. `refold`, `rubick` and backfill run with several
settings on many small workloads. A failure means that orders have changed. If that is intended, record the new ones
with `python tests/policies/test_golden.py` (an argument restricts it to cases whose name contains it) and give the
reason in the commit message.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from refold.core import Entry
from refold.core.orders import Order, StartRun
from refold.model import WHOLE, Cluster, Job, Tenant
from refold.placement import RULES
from refold.planning.plans.speeds import Speeds
from refold.simulator import Costs, Fault, RecordedSpeeds, simulate
from refold.simulator.costs import ModelledSpeeds
from refold.simulator.registry import make_policy
from refold.simulator.traces.formats import read_cluster, read_trace
from refold.testing import make_cluster, reshapable_workload, seeded_workload

GOLDEN = Path(__file__).with_name("golden.json")
NOT_RESHAPING = ("fifo", "fifo-skip", "sjf", "srtf", "las", "drf", "easy", "conservative", "slurm")
RESHAPING = (
    "refold",
    "rubick",
    "rubick-e",
    "rubick-r",
    "rubick-n",
    "sia",
    "synergy",
    "antman",
    "optimus",
    "tiresias",
)
VARIANTS: dict[str, dict[str, object]] = {
    "refold": {},
    "refold goal=throughput": {"goal": "throughput"},
    "refold eager": {"max_preemptors": 1, "overtaking_share": 0.2, "gpu_price": 1.0},
    "rubick": {},
}
"""Settings of the policies that run on many small workloads."""

WORKLOADS = ("steady", "burst", "scarce", "mixed")
"""Arrivals over an hour; within three minutes; on nodes with few CPUs and little memory; on two types of GPU."""

BACKFILL: dict[str, dict[str, object]] = {
    "easy": {},
    "easy patient": {"preempt": "never", "depth": 4, "confidence": 0.95},
    "easy shortest": {"order": "shortest", "backfill_order": "queue"},
    "conservative": {},
    "conservative lanes": {"lanes": True, "durations": "known", "duration_quantile": 0.9},
    "easy limits": {"durations": "limit", "lanes": True, "preempt": "whole-node"},
    "easy fair": {"order": "fair-share", "duration_quantile": 0.7, "backfill_order": "queue"},
    "conservative limits": {"durations": "limit", "order": "attained", "depth": 9},
}
"""Settings of backfill on small workloads of all kinds of jobs."""

BACKFILL_WORKLOADS = ("faults", "inexact", "crowd")
"""Node faults; also wrong time limits, priorities, quotas and GPU ranges, over hours; 120 arrivals within minutes."""

DEMO_JOBS = 300
"""Of the workload that ships with the package: as many as make a queue."""

CASES = [
    *(f"{policy}/best-fit" for policy in NOT_RESHAPING),
    *(f"fifo-skip/{rule}" for rule in RULES if rule != "best-fit"),
    *(f"{policy}/reshapable" for policy in RESHAPING),
    *(f"{variant}/{workload}/{seed}" for variant in VARIANTS for workload in WORKLOADS for seed in (1, 2, 3)),
    *(f"{variant}/{workload}/{seed}" for variant in BACKFILL for workload in BACKFILL_WORKLOADS for seed in (1, 2)),
]


class Digest:
    """A journal that stores only the numbers of starts and stops, the end time, and a hash of all orders."""

    def __init__(self) -> None:
        self.starts = self.stops = 0
        self.end = 0.0
        self._hash = sha256()

    def write(self, entry: Entry) -> None:
        self.end = entry.now
        for order in entry.orders:
            self.starts += isinstance(order, StartRun)
            self.stops += not isinstance(order, StartRun)
            self.add(self.line(entry.now, order))

    def add(self, line: str) -> None:
        self._hash.update(line.encode())

    def line(self, now: float, order: Order) -> str:
        """Format an order. The next allocation of a stop is left out: the start that follows has it."""
        if isinstance(order, StartRun):
            return f"{now!r} {order}\n"
        return f"{now!r} StopRun(job={order.job!r}, run={order.run!r}, why={order.why!r})\n"

    def summary(self) -> dict[str, object]:
        return {"starts": self.starts, "stops": self.stops, "end": self.end, "orders": self._hash.hexdigest()[:16]}


class DigestWithoutTimes(Digest):
    """A digest without exact times: those from the performance model differ between machines in the last digits."""

    def line(self, now: float, order: Order) -> str:
        if not isinstance(order, StartRun):
            return f"stop {order.job} {order.run}: {order.why}\n"
        shares = [(share.node, share.gpus) for share in order.allocation.placement]
        return f"start {order.job} {order.run} {shares} {order.allocation.plan}\n"

    def write(self, entry: Entry) -> None:
        super().write(entry)
        for wait in entry.waits:
            self.add(f"{wait.job} waits: {wait.reason}\n")
        for estimate in entry.start_estimates:
            times = (estimate.soonest, estimate.at, estimate.latest)
            self.add(f"{estimate.job} starts after {[time and round(time - entry.now) for time in times]} s\n")
        if entry.wake_at is not None:
            self.add(f"wakes after {entry.wake_at - entry.now:.0f} s\n")

    def summary(self) -> dict[str, object]:
        return super().summary() | {"end": round(self.end, 3)}


def run(case: str) -> dict[str, object]:
    policy, workload, *seed = case.split("/")
    if policy in BACKFILL and seed:
        return run_backfill(*backfill_workload(workload, int(seed[0])), policy.split()[0], BACKFILL[policy])
    if seed:
        return run_reshapable(*small_workload(workload, int(seed[0])), policy.split()[0], VARIANTS[policy])
    if workload == "reshapable":
        return run_reshapable(*reshapable_workload(7, jobs=40), policy, {})
    return run_demo(policy, workload)


def small_workload(kind: str, seed: int) -> tuple[list[Job], Cluster]:
    """Return a small workload of one of the kinds in WORKLOADS."""
    jobs, cluster = reshapable_workload(seed, jobs=20)
    if kind == "burst":
        jobs = [replace(job, submitted=job.submitted / 20) for job in jobs]
    if kind == "scarce":
        nodes = [replace(node, cpu_milli=48_000, memory_mib=300 * 1024) for node in cluster.nodes]
        cluster = replace(cluster, nodes=tuple(nodes))
    if kind == "mixed":
        jobs = [replace(job, submitted=job.submitted / 4) for job in jobs]
        cluster = replace(cluster, nodes=make_cluster(8, 4, 8, types=["A800-80GB", "V100-32GB", "V100-32GB"]).nodes)
    return jobs, cluster


def run_demo(policy: str, placement: str) -> dict[str, object]:
    digest, costs = Digest(), Costs(start=10.0, stop=5.0, restart=30.0)
    jobs = read_trace("demo").jobs[:DEMO_JOBS]
    simulate(jobs, read_cluster("demo"), make_policy(policy, {"placement": placement}), journal=digest, costs=costs)
    return digest.summary()


def run_reshapable(jobs: list[Job], cluster: Cluster, policy: str, settings: dict[str, object]) -> dict[str, object]:
    digest, costs = DigestWithoutTimes(), Costs(start=10.0, stop=5.0, restart=60.0, report_every=60.0)
    charge = ModelledSpeeds(Speeds(cluster), RecordedSpeeds(cluster))
    simulate(jobs, cluster, make_policy(policy, settings), journal=digest, charge=charge, costs=costs)
    return digest.summary()


def backfill_workload(kind: str, seed: int) -> tuple[list[Job], Cluster]:
    """Return a small workload of one of the kinds in BACKFILL_WORKLOADS."""
    jobs, cluster = seeded_workload(seed, jobs=120 if kind == "crowd" else 50)
    if kind == "crowd":
        jobs = [replace(job, submitted=job.submitted / 10) for job in jobs]
    if kind == "inexact":
        rng = Random(seed)
        jobs = [inexact(job, rng) for job in jobs]
        cluster = replace(cluster, tenants=(Tenant("x", 6.0), Tenant("y", 2.0)))
    return jobs, cluster


def inexact(job: Job, rng: Random) -> Job:
    """Return a job that takes longer, and perhaps not as long as its user says."""
    work = 20 * (job.work or 0.0)
    limit = rng.choice([0.3, 0.8, 1.0, 1.0, 4.0]) * work + 1.0
    fields: dict[str, Any] = {"priority": rng.choice([0, 0, 0, 2]), "preemptible": rng.random() < 0.7}
    if job.demand.gpus and job.demand.gpu_milli == WHOLE and rng.random() < 0.4:
        fields |= {"reshapable": True, "gpu_range": (1, 2 * job.demand.instances * job.demand.gpus)}
    return replace(job, submitted=10 * job.submitted, work=work, time_limit=limit, **fields)


def run_backfill(jobs: list[Job], cluster: Cluster, policy: str, settings: dict[str, object]) -> dict[str, object]:
    digest, costs = DigestWithoutTimes(), Costs(start=2.0, stop=1.0, restart=4.0, checkpoint_every=15.0)
    faults = [Fault(0, 100.0, 180.0), Fault(2, 150.0, 400.0)]
    simulate(jobs, cluster, make_policy(policy, settings), journal=digest, costs=costs, faults=faults)
    return digest.summary()


def is_long(case: str) -> bool:
    """Whether other seeds of the same settings and workload are enough for each run of the tests."""
    return case.endswith(("/2", "/3"))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.long) if is_long(case) else case for case in CASES]
)
def test_orders_equal_the_golden_ones(case: str) -> None:
    assert run(case) == json.loads(GOLDEN.read_text())[case]


def record(part: str = "") -> None:
    """Record new golden orders of the cases whose name contains `part`."""
    recorded = json.loads(GOLDEN.read_text())
    updated = {
        case: run(case) if part in case else recorded[case] for case in CASES if part in case or case in recorded
    }
    GOLDEN.write_text(json.dumps(updated, indent=1) + "\n")


if __name__ == "__main__":
    record(*sys.argv[1:])
