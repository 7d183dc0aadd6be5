"""Two jobs on four GPUs, the gain from reshaping: Figure 8 of Rubick (MLSys'25), with Refold's policies.

RoBERTa and a T5 with 3 billion parameters share one node of four A800-80GB. With an equal split, T5 has too few GPUs:
on two GPUs its training code must offload the optimizer to the host. With three it can use tensor parallelism instead,
and gains far more than RoBERTa loses with one GPU fewer.

Print the decisions of an equal split, `rubick` and `refold`, with each job's throughput relative to its best on all
four GPUs, and the journal until both jobs have ended. The policies use the catalogue's data of the two models, and the
plans that the paper's training code can run. If Rubick's measurements are available (`$REFOLD_DATA`, or
`../shared/data` beside the repository), measured throughput is printed beside the modelled one. RoBERTa was measured to
be as fast on one GPU as on two, which a performance model does not predict.

Two inputs determine the result. Plans: with all plans that the performance model allows, T5 needs no offloading on two
GPUs, and an equal split is best. Work, which the paper does not state: here each job has one hour of work on its half.
`rubick` ignores remaining work; `refold` uses it, and with equal steps for both jobs (20,000) it runs RoBERTa on all
four GPUs first.

python examples/figure8.py [--json]
"""

from __future__ import annotations

import csv
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from refold.core import Entry, ListJournal, RunFinished, StartRun
from refold.model import Cluster, Demand, GpuType, Job, Link, Node, Plan, Reason, mib_from_gib, milli_from_number
from refold.planning.plans import Knowledge, Speeds
from refold.simulator import Costs, ModelledSpeeds, RecordedSpeeds, make_policy, simulate

GPU, GPUS, CPUS_PER_GPU = "A800-80GB", 4, 8
NODE = Node("node", GPUS, GPU, milli_from_number(48), mib_from_gib(800), inside=Link("nvlink", 200.0))
CLUSTER = Cluster((NODE,), (GpuType(GPU, 80.0),), network=Link("rdma", 100.0), name="one node")

ROBERTA = tuple(Plan(data=gpus) for gpus in (1, 2, 4)) + tuple(Plan(data=gpus, zero=2) for gpus in (2, 4))
T5_OFFLOADED = tuple(Plan(data=gpus, zero=2, offload=True) for gpus in (1, 2, 4))
T5_SLICED = tuple(Plan(tensor=gpus, accumulation=2) for gpus in (3, 4))
KNOWLEDGE = Knowledge(menu={"roberta": ROBERTA, "t5-3b": T5_OFFLOADED + T5_SLICED})
"""The plans measured for the figure. T5 with tensor parallelism 2, slower than offloading on two GPUs, is left out."""

SPEEDS = Speeds(CLUSTER, KNOWLEDGE)
HOUR = 3600.0
EQUAL_SPLIT = "fifo"
"""Runs jobs as requested, and each job requests half of the GPUs."""

POLICIES = {EQUAL_SPLIT: "equal split", "rubick": "rubick", "refold": "refold"}
PAPER = {EQUAL_SPLIT: "2 + 2 GPUs: 0.53 + 0.25 = 0.78", "rubick": "1 + 3 GPUs (T5: TP+GA): 0.55 + 0.89 = 1.44"}
MEASURED_AS = {"roberta": "roberta", "t5-3b": "t5_3B"}
TITLES = {"roberta": "RoBERTa", "t5-3b": "T5"}


class Part(msgspec.Struct, frozen=True):
    """One job's GPUs and plan, and its throughput relative to its best on the whole node."""

    gpus: int
    plan: str
    modelled: float
    measured: float | None


class Outcome(msgspec.Struct, frozen=True):
    """A policy's first decision, its journal until both jobs have ended, and their mean completion time."""

    policy: str
    parts: dict[str, Part]
    modelled_sum: float
    measured_sum: float | None
    paper: str
    timeline: list[str]
    mean_hours: float


def jobs() -> list[Job]:
    """Return the two jobs, each with one hour of work on half of the GPUs."""
    roberta = _job("roberta", 64, Plan(data=2))
    return [roberta, _job("t5-3b", 4, Plan(data=2, zero=2, offload=True))]


def _job(workload: str, batch: int, plan: Plan) -> Job:
    demand = Demand(gpus=2, cpu_milli=milli_from_number(2 * CPUS_PER_GPU))
    job = Job(workload, 0.0, demand, None, "default", reshapable=True, workload=workload, batch=batch, plan=plan)
    steps = round(HOUR * SPEEDS.requested_speed(job).steps_per_second)
    return msgspec.structs.replace(job, job_class="best-effort", steps=steps)


def run_policy(policy: str, measured: dict[tuple[str, int], float]) -> Outcome:
    """Simulate the two jobs with a policy and evaluate its journal."""
    journal, both = ListJournal(), jobs()
    settings = {} if policy == EQUAL_SPLIT else {"knowledge": KNOWLEDGE}
    charge = ModelledSpeeds(SPEEDS, RecordedSpeeds(CLUSTER))
    simulate(both, CLUSTER, make_policy(policy, settings), journal=journal, charge=charge, costs=Costs(restart=78.0))
    first_starts = {order.job: order for order in journal.entries[0].orders if isinstance(order, StartRun)}
    parts = {job.id: make_part(job, first_starts.get(job.id), measured) for job in both}
    ends = [entry.now for entry in journal.entries for event in entry.events if isinstance(event, RunFinished)]
    return Outcome(
        POLICIES[policy],
        parts,
        sum(item.modelled for item in parts.values()),
        sum(item.measured or 0.0 for item in parts.values()) if measured else None,
        PAPER.get(policy, ""),
        [line for entry in journal.entries for line in format_entry(entry)],
        sum(ends) / len(ends) / HOUR,
    )


def make_part(job: Job, order: StartRun | None, measured: dict[tuple[str, int], float]) -> Part:
    """Return a job's part of the node; 0 GPUs if it was not started."""
    if order is None:
        return Part(0, "waits", 0.0, 0.0 if measured else None)
    gpus, plan = order.allocation.gpus_on_node[0], order.allocation.plan or SPEEDS.own_plan(job)
    here = SPEEDS.with_plan(job, GPU, (gpus,), CPUS_PER_GPU * gpus, plan)
    best = SPEEDS.fastest(job, GPU, (GPUS,), CPUS_PER_GPU * GPUS)
    assert best is not None
    relative = measured[job.id, GPUS] / measured[job.id, gpus] if measured else None
    return Part(gpus, str(plan), here.steps_per_second / best.steps_per_second, relative)


def format_entry(entry: Entry) -> Iterator[str]:
    """Yield the events, orders and wait reasons of a journal entry as text."""
    when = f"{entry.now / HOUR:5.2f} h  "
    for event in entry.events:
        if isinstance(event, RunFinished):
            yield f"{when}{TITLES[event.job]} has ended"
    for order in entry.orders:
        if isinstance(order, StartRun):
            plan = order.allocation.plan or next(job.plan for job in jobs() if job.id == order.job)
            yield f"{when}{TITLES[order.job]} starts on {_format_gpus(order.allocation.gpus_on_node[0])}, {plan}"
        else:
            yield f"{when}{TITLES[order.job]} is stopped{f': {order.why}' if order.why else ''}"
    for wait in entry.waits:
        shortage = wait.shortage if wait.reason is Reason.RESOURCES else None
        demand = next(job.demand for job in jobs() if job.id == wait.job)
        why = shortage.text(demand) if shortage else wait.reason.value
        yield f"{when}{TITLES[wait.job]} waits: {why}"


def measured_steps() -> dict[tuple[str, int], float]:
    """Return the fastest measured step time by model and number of GPUs on one node; empty without measurements."""
    folder = Path(os.environ.get("REFOLD_DATA") or Path(__file__).parents[2] / "shared" / "data")
    file = folder / "rubick" / "measured_iter_times.csv"
    fastest: dict[tuple[str, int], float] = {}
    if not file.exists():
        return fastest
    with file.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            for workload, table in MEASURED_AS.items():
                if row["table"] == table and row["nodes"] == "1" and row["iter_time_s"]:
                    key = workload, int(row["gpus"])
                    fastest[key] = min(float(row["iter_time_s"]), fastest.get(key, float("inf")))
    return fastest


def _format_gpus(number: int) -> str:
    return f"{number} GPU{'s' if number != 1 else ''}"


def as_text(outcomes: list[Outcome]) -> str:
    """Format the outcomes as text."""
    lines = ["RoBERTa and T5 (3B) on one node of four A800-80GB; throughput relative to the best on all four GPUs", ""]
    for outcome in outcomes:
        lines.append(f"{outcome.policy}")
        for job_id, item in outcome.parts.items():
            measured_text = "" if item.measured is None else f"   measured {item.measured:.2f}"
            what = f"{_format_gpus(item.gpus)}, {item.plan}" if item.gpus else item.plan
            lines.append(f"  {TITLES[job_id]:<8} {what:<34} {item.modelled:.2f}{measured_text}")
        measured_text = "" if outcome.measured_sum is None else f"   measured {outcome.measured_sum:.2f}"
        lines.append(f"  {'sum':<43} {outcome.modelled_sum:.2f}{measured_text}")
        lines += [f"  the paper: {outcome.paper}"] if outcome.paper else []
        lines += [f"    {line}" for line in outcome.timeline]
        lines += [f"    mean completion time: {outcome.mean_hours:.2f} h", ""]
    lines.append("rubick maximises total throughput; refold minimises completion times.")
    return "\n".join(lines)


def main() -> None:
    """Print the outcome of every policy."""
    measured = measured_steps()
    outcomes = [run_policy(policy, measured) for policy in POLICIES]
    if "--json" in sys.argv[1:]:
        print(json.dumps(msgspec.to_builtins(outcomes), indent=2))
    else:
        print(as_text(outcomes))


if __name__ == "__main__":
    main()
