"""Two jobs, four GPUs: what reshaping gains. Figure 8 of Rubick (MLSys'25), decided anew.

RoBERTa and a T5 of 3 billion weights share one node of four A800-80GB. Split equally, T5 has too little: on two GPUs
its training code has to offload its optimizer to the host. With one GPU more it can slice its layers instead, and gains
much more by that than RoBERTa loses by having one GPU less.

Printed: an equal split, what `rubick` and `refold` decide, with each job's throughput against its best on all four
GPUs, and what follows until both have ended, as the journal has it. The policies know what the catalogue says of the
two models, and which plans the paper's training code can run. Where Rubick's measured steps are at hand
(`$REFOLD_DATA`, or `../shared/data` beside the repository), they stand beside the model's figures: those of RoBERTa are
no slower on one GPU than on two, which no model of a step would say.

Two things are given here, and matter. The plans: with all that the catalogue's model would allow, T5 needs no
offloading on two GPUs, and an equal split is best. And the work, which the paper does not state: each has an hour to do
on its half. `rubick` does not ask for that; `refold` does, and with as many steps for both (20,000) it runs RoBERTa on
all four GPUs first.

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
from refold.plans import Knowledge, Speeds
from refold.registry import make_policy
from refold.simulator import Costs, ModelledSpeeds, RecordedSpeeds, simulate

GPU, GPUS, CPUS_PER_GPU = "A800-80GB", 4, 8
NODE = Node("node", GPUS, GPU, milli_from_number(48), mib_from_gib(800), inside=Link("nvlink", 200.0))
CLUSTER = Cluster((NODE,), (GpuType(GPU, 80.0),), network=Link("rdma", 100.0), name="one node")

ROBERTA = tuple(Plan(data=gpus) for gpus in (1, 2, 4)) + tuple(Plan(data=gpus, zero=2) for gpus in (2, 4))
T5_OFFLOADED = tuple(Plan(data=gpus, zero=2, offload=True) for gpus in (1, 2, 4))
T5_SLICED = tuple(Plan(tensor=gpus, accumulation=2) for gpus in (3, 4))
KNOWLEDGE = Knowledge(menu={"roberta": ROBERTA, "t5-3b": T5_OFFLOADED + T5_SLICED})
"""The plans that were measured for the figure. One more, T5 sliced in two, was slower than offloading on two GPUs."""

SPEEDS = Speeds(CLUSTER, KNOWLEDGE)
HOUR = 3600.0
EQUAL_SPLIT = "fifo"
"""Runs everybody as asked, and each asks for half."""

POLICIES = {EQUAL_SPLIT: "equal split", "rubick": "rubick", "refold": "refold"}
PAPER = {EQUAL_SPLIT: "2 + 2 GPUs: 0.53 + 0.25 = 0.78", "rubick": "1 + 3 GPUs (T5: TP+GA): 0.55 + 0.89 = 1.44"}
MEASURED_AS = {"roberta": "roberta", "t5-3b": "t5_3B"}
TITLES = {"roberta": "RoBERTa", "t5-3b": "T5"}


class Part(msgspec.Struct, frozen=True):
    """What one job has of the node, and its throughput against its best on the whole of it."""

    gpus: int
    plan: str
    modelled: float
    measured: float | None


class Outcome(msgspec.Struct, frozen=True):
    """What a policy first does, what follows until both jobs have ended, and when that is on average."""

    policy: str
    parts: dict[str, Part]
    modelled_sum: float
    measured_sum: float | None
    paper: str
    story: list[str]
    mean_hours: float


def jobs() -> list[Job]:
    """An hour of work for each on half of the GPUs."""
    roberta = _job("roberta", 64, Plan(data=2))
    return [roberta, _job("t5-3b", 4, Plan(data=2, zero=2, offload=True))]


def _job(workload: str, batch: int, plan: Plan) -> Job:
    demand = Demand(gpus=2, cpu_milli=milli_from_number(2 * CPUS_PER_GPU))
    job = Job(workload, 0.0, demand, None, "default", reshapable=True, workload=workload, batch=batch, plan=plan)
    steps = round(HOUR * SPEEDS.asked(job).steps_per_second)
    return msgspec.structs.replace(job, job_class="best-effort", steps=steps)


def outcome(policy: str, measured: dict[tuple[str, int], float]) -> Outcome:
    """Simulate the two jobs under a policy, and read its journal."""
    journal, both = ListJournal(), jobs()
    settings = {} if policy == EQUAL_SPLIT else {"knowledge": KNOWLEDGE}
    charge = ModelledSpeeds(SPEEDS, RecordedSpeeds(CLUSTER))
    simulate(both, CLUSTER, make_policy(policy, settings), journal=journal, charge=charge, costs=Costs(restart=78.0))
    first = {order.job: order for order in journal.entries[0].orders if isinstance(order, StartRun)}
    parts = {job.id: part(job, first.get(job.id), measured) for job in both}
    ends = [entry.now for entry in journal.entries for event in entry.events if isinstance(event, RunFinished)]
    return Outcome(
        POLICIES[policy],
        parts,
        sum(each.modelled for each in parts.values()),
        sum(each.measured or 0.0 for each in parts.values()) if measured else None,
        PAPER.get(policy, ""),
        [line for entry in journal.entries for line in told(entry)],
        sum(ends) / len(ends) / HOUR,
    )


def part(job: Job, order: StartRun | None, measured: dict[tuple[str, int], float]) -> Part:
    """A job that was not started has nothing."""
    if order is None:
        return Part(0, "waits", 0.0, 0.0 if measured else None)
    gpus, plan = order.allocation.gpus_on_node[0], order.allocation.plan or SPEEDS.own_plan(job)
    here = SPEEDS.with_plan(job, GPU, (gpus,), CPUS_PER_GPU * gpus, plan)
    best = SPEEDS.fastest(job, GPU, (GPUS,), CPUS_PER_GPU * GPUS)
    assert best is not None
    against = measured[job.id, GPUS] / measured[job.id, gpus] if measured else None
    return Part(gpus, str(plan), here.steps_per_second / best.steps_per_second, against)


def told(entry: Entry) -> Iterator[str]:
    """What an entry of the journal says, for people."""
    when = f"{entry.now / HOUR:5.2f} h  "
    for event in entry.events:
        if isinstance(event, RunFinished):
            yield f"{when}{TITLES[event.job]} has ended"
    for order in entry.orders:
        if isinstance(order, StartRun):
            plan = order.allocation.plan or next(job.plan for job in jobs() if job.id == order.job)
            yield f"{when}{TITLES[order.job]} starts on {_gpus(order.allocation.gpus_on_node[0])}, {plan}"
        else:
            yield f"{when}{TITLES[order.job]} is stopped{f': {order.why}' if order.why else ''}"
    for wait in entry.waits:
        why = wait.shortage.text(_gpus(2)) if wait.reason is Reason.RESOURCES and wait.shortage else wait.reason.value
        yield f"{when}{TITLES[wait.job]} waits: {why}"


def measured_steps() -> dict[tuple[str, int], float]:
    """Seconds of the fastest measured step for each model and number of GPUs of one node; nothing if not at hand."""
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


def _gpus(number: int) -> str:
    return f"{number} GPU{'s' if number != 1 else ''}"


def as_text(outcomes: list[Outcome]) -> str:
    """A page to read."""
    lines = ["RoBERTa and T5 (3B) on one node of four A800-80GB; throughput against each one's best on all four", ""]
    for one in outcomes:
        lines.append(f"{one.policy}")
        for job_id, each in one.parts.items():
            beside = "" if each.measured is None else f"   measured {each.measured:.2f}"
            what = f"{_gpus(each.gpus)}, {each.plan}" if each.gpus else each.plan
            lines.append(f"  {TITLES[job_id]:<8} {what:<34} {each.modelled:.2f}{beside}")
        beside = "" if one.measured_sum is None else f"   measured {one.measured_sum:.2f}"
        lines.append(f"  {'sum':<43} {one.modelled_sum:.2f}{beside}")
        lines += [f"  the paper: {one.paper}"] if one.paper else []
        lines += [f"    {line}" for line in one.story]
        lines += [f"    mean time to the end: {one.mean_hours:.2f} h", ""]
    lines.append("rubick wants the largest sum, refold wants jobs to end soon.")
    return "\n".join(lines)


def main() -> None:
    """Print what is decided."""
    measured = measured_steps()
    outcomes = [outcome(policy, measured) for policy in POLICIES]
    if "--json" in sys.argv[1:]:
        print(json.dumps(msgspec.to_builtins(outcomes), indent=2))
    else:
        print(as_text(outcomes))


if __name__ == "__main__":
    main()
