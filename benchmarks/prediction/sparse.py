"""Run-time predictions for jobs of which few like them have been seen: `python -m benchmarks.prediction.sparse`.

Jobs are grouped by their number among the jobs of the same kind (tenant, user, name, workload and demand) and of the
same owner (tenant, user and workload). The traces name no users: owners are the virtual clusters of Philly and the task
types of PAI. The generated trace has 600 users.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.prediction.__main__ import FILES
from benchmarks.result_page import page_parser, publish
from benchmarks.workloads import TRACES
from refold.model import DAY, Job
from refold.placement import Ints
from refold.predict import Evaluation, PredictorQuantiles, Score, evaluate_at_submission, score
from refold.simulator.traces import read_trace

PAGE = Path(__file__).with_name("sparse.md")
MIN_JOBS = 5
RANGES = {"1st": (1, 1), "2nd to 5th": (2, 5), "6th to 20th": (6, 20), "later": (21, 10**9)}

KEYS: dict[str, Callable[[Job], object]] = {
    "kind": lambda job: (job.tenant, job.user, job.group, job.workload, job.demand),
    "owner": lambda job: (job.tenant, job.user or job.workload),
}


def number_among_equal(jobs: Sequence[Job], key: Callable[[Job], object]) -> Ints:
    """Return, for each job, its number among the jobs with the same key, from 1."""
    seen: Counter[object] = Counter()
    numbers = np.empty(len(jobs), dtype=np.int64)
    for index, job in enumerate(jobs):
        seen[key(job)] += 1
        numbers[index] = seen[key(job)]
    return numbers


def generated_jobs(jobs: int = 20_000, seed: int = 0) -> list[Job]:
    """Return a generated trace in which run times depend on the tenant, the user and the model, each with its factor.

    Users begin at any time, have few jobs or many, and use three of the models each.
    """
    rng = np.random.default_rng(seed)
    tenants, users, models = 15, 600, 40
    tenant_of = rng.integers(tenants, size=users)
    of_user = rng.normal(7.0, 1.0, tenants)[tenant_of] + rng.normal(0.0, 0.8, users)
    of_model, models_of = rng.normal(0.0, 1.0, models), rng.integers(models, size=(users, 3))
    activity = rng.pareto(1.0, users) + 0.1
    begin = rng.uniform(0.0, 0.9, users) * (rng.random(users) > 0.3)
    user = rng.choice(users, jobs, p=activity / activity.sum())
    submitted = (begin[user] + (1.0 - begin[user]) * rng.random(jobs)) * 60 * DAY
    model = models_of[user, rng.integers(3, size=jobs)]
    work = np.exp(of_user[user] + of_model[model] + rng.normal(0.0, 1.0, jobs))
    order = np.argsort(submitted)
    return [
        Job(
            f"g{index}",
            float(submitted[index]),
            work=float(min(work[index], 20 * DAY)),
            tenant=f"t{tenant_of[user[index]]}",
            user=f"u{user[index]}",
            workload=f"m{model[index]}",
        )
        for index in order.tolist()
    ]


class Row(NamedTuple):
    """Scores of some jobs of a trace, on both halves of it; None: there are fewer than five."""

    trace: str
    jobs: str
    first_half: Score | None
    second_half: Score | None


def evaluate(name: str, jobs: Sequence[Job]) -> list[Row]:
    """Score the jobs of a trace by their number among those of the same kind and owner."""
    found = evaluate_at_submission(jobs, PredictorQuantiles(), time.process_time)
    halves = [np.arange(len(jobs)) * 2 // len(jobs) == half for half in (0, 1)]
    chosen = {"all": np.ones(len(jobs), dtype=np.bool_)}
    for what, key in KEYS.items():
        numbers = number_among_equal(jobs, key)
        for text, (low, high) in RANGES.items():
            chosen[f"{text} of {what}"] = (low <= numbers) & (numbers <= high)
    return [Row(name, text, *(_score(found, selected & half) for half in halves)) for text, selected in chosen.items()]


def _score(found: Evaluation, chosen: NDArray[np.bool_]) -> Score | None:
    return score(found.durations[chosen], found.quantiles[chosen]) if chosen.sum() >= MIN_JOBS else None


def page(rows: Sequence[Row]) -> str:
    """Return the page."""
    lines = [f"| {row.trace} | {row.jobs} | {_cells(row.first_half)} | {_cells(row.second_half)} |" for row in rows]
    return INTRODUCTION + "\n".join(lines) + "\n"


def _cells(one: Score | None) -> str:
    return "| | " if one is None else f"{one.jobs:,} | {one.pinball_log10:.4f} | {one.coverage_80:.0%}"


INTRODUCTION = """# Run-time predictions for new users and new kinds of jobs

`python -m benchmarks.prediction.sparse --write`: pinball loss of log10 seconds at submission, and the share of jobs
within their 80 % interval, as in [prediction.md](prediction.md), by the number of a job among those
of the same kind (tenant, user, name, workload and demand) and of the same owner. The traces at hand name no users:
owners are the virtual clusters of Philly and the task types of PAI. In the *generated* trace, run times have a factor
for the tenant, one for the user and one for the model, so that something can be learned about new users from others.

| trace | jobs | first half: jobs | log10 s | in 80 % | second half: jobs | log10 s | in 80 % |
|---|---|---|---|---|---|---|---|
"""


def main() -> None:
    """Print the page; write it with --write."""
    options = page_parser("benchmarks.prediction.sparse", __doc__).parse_args()
    rows: list[Row] = []
    for name, file in FILES.items():
        rows += evaluate(name, read_trace(str(TRACES / file)).jobs)
    rows += evaluate("generated", generated_jobs())
    publish(options, PAGE, page(rows))


if __name__ == "__main__":
    main()
