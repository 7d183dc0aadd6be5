"""How far policies are from the optimum on small clusters: `python -m benchmarks.scheduling.gap [--write] [POLICY …]`.

Each instance is a small cluster and a handful of jobs that all wait at once. A policy decides until nothing changes any
more, stops taking no time; then what runs is compared with the best for the same jobs (`policies/optimal.py`). Without
names, those of SHOWN; a policy may also be a file. `--write` keeps the table in docs/results/gap.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy.tables import data_folder
from benchmarks.measure import REPOSITORY
from benchmarks.scheduling import world
from benchmarks.table import markdown
from refold.core import Event, JobSubmitted, Policy, RunStopped, Scheduler, StopRun, View, Woke
from refold.model import KEEP, Cluster, Decision, Demand, GpuType, Job, Node, mib_from_gib, milli_from_number
from refold.plans import Speeds
from refold.policies.common import Draft
from refold.registry import make_policy, settings_of
from refold.research import OptimumSearch, gap_between, throughput_of

INSTANCES = 200
SEED = 7
MODELS = ("vit", "roberta", "bert", "t5", "gpt2", "llama7")
MOST_STEPS = 60
"""Policies that never settle (they take turns) are looked at after so many steps, when nobody is being stopped."""

WAKES = 3
"""A policy that asks to be woken, and changes nothing so many times in a row, has settled."""

HORIZON = 3600.0
"""Seconds for which a policy's wishes to be woken are followed: who waits for hours is another matter."""

SHOWN = ("refold:throughput", "refold", "rubick", "rubick-e", "rubick-r", "rubick-n", "antman", "optimus", "optimal")
"""Who is compared where nobody says; after the colon, a goal."""

SAME = 0.01
"""Percent: what is nearer to the best than this is the best."""

KEPT = REPOSITORY / "docs" / "results" / "gap.md"

HEADING = """# How far from the optimum

{count} random instances (seed {seed}): 1 to 4 nodes of 4 or 8 A800-80GB, 3 to 10 best-effort, reshapable jobs of six
models, each asking for GPUs and a plan that were measured for its model; all of them wait at once. Each policy decides
until nothing changes any more. What then runs is worth the sum of its speeds, each divided by the speed that was asked
for; the gap is what is missing to the largest such sum ([optimal](../policies/optimal.md)), by the same speeds.

`refold` aims at short completion times and gives this sum away for them; with `goal=throughput` it aims at the sum
(`refold:throughput`). Other policies do not aim at it alone either: one that is fair, keeps an order or looks at what
jobs have left gives some of it away on purpose.

*At the best* counts instances without a gap; *beyond* counts those where a policy used something that the optimum may
not (docs/policies/optimal.md says what).

Made by `python -m benchmarks.scheduling.gap --write`.
"""


class Instance(NamedTuple):
    """A cluster, and jobs that wait for it."""

    cluster: Cluster
    jobs: tuple[Job, ...]


@cache
def small_cluster(nodes: int, gpus: int) -> Cluster:
    """Servers as in the testbed, or half as large."""
    servers = tuple(
        Node(
            f"a800-{index}",
            gpus,
            world.GPU,
            milli_from_number(12 * gpus),
            mib_from_gib(200 * gpus),
            inside=world.NVLINK,
        )
        for index in range(nodes)
    )
    return Cluster(servers, (GpuType(world.GPU, 80.0),), network=world.RDMA, name=f"{nodes}x{gpus}")


@cache
def finder_for(cluster: Cluster) -> OptimumSearch:
    """What finds the optimum on a cluster; it remembers speeds."""
    return OptimumSearch(Speeds(cluster, world.knowledge()))


def instances(count: int = INSTANCES, seed: int = SEED) -> list[Instance]:
    """Seeded: 1 to 4 nodes of 4 or 8 GPUs, 3 to 10 best-effort jobs with plans that were measured for their models."""
    chance = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        cluster = small_cluster(int(chance.integers(1, 5)), int(chance.choice([4, 8])))
        jobs = tuple(_job(f"job-{number}", cluster, chance) for number in range(int(chance.integers(3, 11))))
        made.append(Instance(cluster, jobs))
    return made


def _job(name: str, cluster: Cluster, chance: np.random.Generator) -> Job:
    workload = str(chance.choice(MODELS))
    each = cluster.nodes[0].gpus
    fitting = [plan for plan in world.knowledge().menu[workload] if _fits(plan.gpus, each, len(cluster.nodes))]
    plan = fitting[int(chance.integers(len(fitting)))]
    instances, gpus = (plan.gpus // each, each) if plan.gpus > each else (1, plan.gpus)
    demand = Demand(instances, gpus, cpu_milli=milli_from_number(world.CPUS_PER_GPU * gpus))
    steps = int(chance.integers(1_000, 100_000))
    return Job(
        name, 0.0, demand, 3600.0, job_class="best-effort", reshapable=True, workload=workload, plan=plan, steps=steps
    )


def _fits(gpus: int, each: int, nodes: int) -> bool:
    return gpus <= each or (gpus % each == 0 and gpus // each <= nodes)


def settled(instance: Instance, policy: Policy) -> Scheduler:
    """All jobs submitted at once, and the policy asked until it changes nothing more."""
    scheduler = Scheduler(instance.cluster, policy)
    now, in_vain = 0.0, 0
    events: list[Event] = [JobSubmitted(job) for job in instance.jobs]
    for step in range(2 * MOST_STEPS):
        entry = scheduler.step(now, events)
        events = [RunStopped(order.job, order.run, 0.0, 0) for order in entry.orders if isinstance(order, StopRun)]
        in_vain = 0 if entry.orders else in_vain + 1
        if events:
            continue
        if entry.wake_at is None or entry.wake_at > HORIZON or in_vain >= WAKES or step >= MOST_STEPS:
            break
        now, events = entry.wake_at, [Woke()]
    return scheduler


def gap_of(instance: Instance, policy: Policy) -> float:
    """What is missing to the best when the policy has settled."""
    finder = finder_for(instance.cluster)
    view = settled(instance, policy).view
    held = dict(Draft(view).holders())
    return gap_between(throughput_of(view, finder.speeds, held), best_of(instance))


@cache
def best_of(instance: Instance) -> float:
    """The most that the jobs can be worth, on the empty cluster."""
    asked = _Asked()
    Scheduler(instance.cluster, asked).step(0.0, [JobSubmitted(job) for job in instance.jobs])
    return asked.best


class _Asked:
    """Does nothing, and says what would be best."""

    name = "asked"
    best = 0.0

    def decide(self, view: View) -> Decision:
        self.best = finder_for(view.cluster).best(view, Draft(view)).at_most
        return KEEP


def made_for_this(name: str) -> Policy:
    """A policy by its name or file, with what is known of the models if it wants to know."""
    name, _, goal = name.partition(":")
    settings: dict[str, object] = {"knowledge": world.knowledge()} if "knowledge" in settings_of(name) else {}
    return make_policy(name, {**settings, "goal": goal} if goal else settings)


def row(name: str, tried: Sequence[Instance]) -> list[str]:
    """One policy's line: how often it is the best, and how far it is from it."""
    gaps = 100 * np.array([gap_of(instance, made_for_this(name)) for instance in tried])
    spread = (np.mean(gaps), np.percentile(gaps, 90), np.max(gaps))
    title = name.removesuffix(".py").rpartition("/")[2]
    return [
        title,
        *(f"{value:.1f} %" for value in spread),
        f"{np.mean(gaps < SAME):.0%}",
        f"{np.mean(gaps < -SAME):.0%}",
    ]


def report(names: Sequence[str], count: int = INSTANCES) -> str:
    """The page that is kept."""
    tried = instances(count)
    table = markdown(("policy", "mean", "p90", "max", "at the best", "beyond"), [row(name, tried) for name in names])
    return f"{HEADING.format(count=count, seed=SEED)}\n{table}\n"


def main() -> None:
    """Print the table; keep it with --write."""
    if data_folder() is None:
        print("the published tables are not here: nothing is known of the models (see benchmarks/README.md)")
        return
    names = [word for word in sys.argv[1:] if not word.startswith("--")] or list(SHOWN)
    text = report(names)
    print(text)
    if "--write" in sys.argv[1:]:
        KEPT.parent.mkdir(parents=True, exist_ok=True)
        KEPT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
