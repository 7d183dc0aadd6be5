"""The page of results, and its pictures."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import fill

from benchmarks.backfill import goals
from benchmarks.backfill.goals import (
    HARDLY,
    JUDGED,
    KEPT,
    SHARE,
    fifo_mean,
    part_of_improvement,
    share,
    whole_nodes_p99,
)
from benchmarks.backfill.pictures import Panel, PanelsPicture
from benchmarks.backfill.reading import reading
from benchmarks.backfill.runs import COSTS, SIZES, WHOLE_NODES, Outcome, Outcomes, Run, size_of
from benchmarks.backfill.world import (
    CONSERVATIVE,
    CONSERVATIVE_KNOWN,
    CONTENDERS,
    EASY,
    EASY_KNOWN,
    FIFO,
    PREDICTED_AND_KNOWN,
    SJF,
    SJF_KNOWN,
    SKIP,
    SLICES,
    Contender,
    Workload,
)
from benchmarks.table import as_markdown, markdown
from refold.model import DAY, text_from_seconds

NOTHING = "–"


def page(found: Outcomes, workloads: Sequence[Workload]) -> str:
    """What is kept in docs/results."""
    parts = [
        INTRODUCTION.format(restart=COSTS.restart, slices=_slices()),
        "## Goals\n",
        as_markdown(goals.rows(found, workloads)),
        GOALS.format(share=SHARE, kept=KEPT, hardly=text_from_seconds(HARDLY)),
        _matrix(found, workloads),
        "\n## What is to be seen\n",
        reading(found, workloads),
        "\n## Workloads\n",
        _workloads(found, workloads),
        "\n## Mean waiting\n",
        "![Mean waiting by policy and workload](backfill.svg)\n",
        "![Part of the oracle's improvement that predictions reach](backfill_share.svg)\n",
        "![Mean waiting by size](backfill_sizes.svg)\n",
        "## Every run\n",
        EVERY_RUN,
    ]
    parts += [_table(found, workload) for workload in workloads]
    return "\n".join(parts)


INTRODUCTION = """# Backfill with predicted durations, on real traces

Jobs of three published traces, played under queues that know nothing (`fifo`, `fifo-skip`) and under policies that go
by how long jobs last: backfill (`easy`, `conservative`) and `sjf`. Durations are

- *limits*: what users say, overstated 1 to 10 times (log-uniformly, seeded) and rounded up to five minutes. They are
  drawn from the truth, since the traces have none: no limit is too short, and long jobs are told from short ones;
- *predicted*: by the Predictor, from the jobs that have ended before ([how well](prediction.md)); no limits are given;
- *known*: the truth, which only an oracle has.

Policies have their default settings but for what their names say. *Shortest* is `easy` with the queue in the order of
what is believed of durations; *no stops* is `preempt=never`. Whoever is stopped does no work for {restart:g} s
when it starts again.

Slices of the traces begin with {slices}, with as many jobs
as the table of workloads says: fewer where thousands wait at once, so that conservative backfill takes minutes. None
of them was used to choose settings. Each begins with an empty cluster.

Waiting is the time from submission to end in which a job did not run, also after it was stopped.

Made by

<!-- not run: reads the published traces, which are not part of this repository -->
```sh
python -m benchmarks.backfill --write
```
"""

GOALS = """
The oracle's improvement is how much shorter the mean waiting is with known durations than under fifo; predictions, with
the same policy, should have {share:.0%} of it wherever fifo's jobs wait for more than {hardly} in the mean. It can be
more than 100 %: to know all durations does not make a greedy policy the best one. A promise is kept if the job first
starts by the bound that it was told when it came ({kept:.0%} of them should be). *Whole nodes*: p99 waiting of jobs of
8 GPUs per instance. Goals that are missed are bold. `fifo-skip`, which knows no durations and promises nothing, is
shown by its part of the improvement of `easy` with known durations.
"""

EVERY_RUN = """Waiting as mean / p99. *Kept*: the part of promises that were kept, of how many; *bound*: the median time
from a job's arrival to the bound that it was promised; *renewed*: jobs that were promised a later one. *Passed over*:
by how many that came later and started earlier, mean / p99. *Stopped*: how often runs were. *Jobs/s*: by CPU time of
one core, while others worked on the same machine.
"""


def _slices() -> str:
    return ", ".join(f"job {part.first:,} of {part.name}" for part in SLICES.values())


def _workloads(found: Outcomes, workloads: Sequence[Workload]) -> str:
    rows = [_workload_row(found, workload) for workload in workloads]
    titles = (
        "workload",
        "jobs",
        "whole-node",
        "days",
        "GPUs",
        "offered load",
        "fifo waits, mean / p99",
        "easy, predicted, waits",
    )
    played = [workload for workload in workloads if Run(workload, FIFO) in found]
    hardly = [workload.title for workload in played if fifo_mean(found, workload) <= HARDLY]
    text = (
        "\n\nThe load is how many times as fast jobs arrive as they did; the offered load is the GPU time that they\n"
        "ask for, as a part of what the cluster has from the first arrival to the last. Helios and Philly do not fill\n"
        "the clusters that they were recorded on, so they are also played on fewer nodes, as many as make the offered\n"
        "load about 0.9. PAI's file is a sample of 8.2 % of the tasks; its cluster has 8.2 % of the GPUs.\n"
    )
    if hardly:
        text += "\n" + fill(f"Fifo's jobs hardly wait on: {'; '.join(hardly)}.", 120) + "\n"
    return markdown(titles, rows) + text


def _workload_row(found: Outcomes, workload: Workload) -> list[str]:
    jobs, gpus = workload.jobs(), workload.cluster.gpus
    span = jobs[-1].submitted
    offered = sum((job.work or 0.0) * job.demand.total_gpus for job in jobs) / span / gpus
    waits = [_waits(found.get(Run(workload, contender))) for contender in (FIFO, EASY)]
    whole = sum(SIZES[size_of(job)] == WHOLE_NODES for job in jobs)
    numbers = [f"{len(jobs):,}", f"{whole:,}", f"{span / DAY:.1f}", f"{gpus:,}", f"{offered:.2f}"]
    return [workload.title, *numbers, *waits]


def _waits(outcome: Outcome | None) -> str:
    return NOTHING if outcome is None else _pair(outcome.waiting.mean, outcome.waiting.p99)


def _pair(mean: float | None, p99: float | None) -> str:
    return f"{_time(mean)} / {_time(p99)}"


def _time(seconds: float | None) -> str:
    return NOTHING if seconds is None else text_from_seconds(seconds)


def _matrix(found: Outcomes, workloads: Sequence[Workload]) -> str:
    """The goals, workload by workload."""
    titles = ["workload"]
    titles += [f"{name}: part of oracle's" for name in PREDICTED_AND_KNOWN]
    titles.append("fifo-skip: part of easy's oracle's")
    titles += [f"{name}: kept" for name in JUDGED]
    titles += ["whole nodes p99: fifo", *JUDGED]
    return markdown(titles, [_matrix_row(found, workload) for workload in workloads])


def _matrix_row(found: Outcomes, workload: Workload) -> list[str]:
    cells = [workload.title]
    for name in PREDICTED_AND_KNOWN:
        part = share(found, workload, name)
        cells.append(_judged(f"{part:.1%}", name not in JUDGED or part >= SHARE) if part is not None else NOTHING)
    skipping = part_of_improvement(found, workload, SKIP, EASY_KNOWN)
    cells.append(NOTHING if skipping is None else f"{skipping:.1%}")
    outcomes = [found.get(Run(workload, contender)) for contender in JUDGED.values()]
    for outcome in outcomes:
        kept = outcome.promises.share_kept if outcome and outcome.promises else None
        cells.append(_judged(f"{kept:.1%}", kept >= KEPT) if kept is not None else NOTHING)
    fifo = whole_nodes_p99(found.get(Run(workload, FIFO)))
    cells.append(_time(fifo))
    for outcome in outcomes:
        p99 = whole_nodes_p99(outcome)
        cells.append(_judged(_time(p99), fifo is None or p99 is None or p99 <= fifo))
    return cells


def _judged(text: str, good: bool) -> str:
    return text if good else f"**{text}**"


def _table(found: Outcomes, workload: Workload) -> str:
    titles = ["policy", "waiting", "slowdown", *SIZES, "kept", "bound", "renewed", "passed over", "stopped", "jobs/s"]
    rows = [
        _policy_row(contender, found[Run(workload, contender)])
        for contender in CONTENDERS
        if Run(workload, contender) in found
    ]
    absent = [contender.name for contender in CONTENDERS if Run(workload, contender) not in found]
    note = f"\nNot run: {'; '.join(absent)}.\n" if absent else ""
    return f"### {workload.title}\n\n{markdown(titles, rows)}\n{note}"


def _policy_row(contender: Contender, outcome: Outcome) -> list[str]:
    promises, passed = outcome.promises, outcome.passed_over
    kept = promises.share_kept if promises else None
    return [
        contender.name,
        _waits(outcome),
        NOTHING if outcome.slowdown.mean is None else f"{outcome.slowdown.mean:,.1f}",
        *(_pair(outcome.sizes[size].mean, outcome.sizes[size].p99) for size in SIZES),
        NOTHING if promises is None or kept is None else f"{kept:.1%} of {promises.promised:,}",
        NOTHING if promises is None else _time(promises.width),
        NOTHING if promises is None else f"{promises.renewed:,}",
        f"{passed.mean or 0:,.1f} / {passed.p99 or 0:,.0f}",
        f"{outcome.preemptions:,}",
        f"{outcome.jobs / outcome.cpu_seconds:,.0f}",
    ]


# --- pictures -------------------------------------------------------------------------------------------------

SIZED = (FIFO, EASY, EASY_KNOWN, CONSERVATIVE, CONSERVATIVE_KNOWN, SJF, SJF_KNOWN)
"""Those whose waiting is shown by size."""


def pictures(found: Outcomes, workloads: Sequence[Workload]) -> dict[str, str]:
    """The SVG files by their names."""
    waited = [workload for workload in workloads if fifo_mean(found, workload) > HARDLY]
    if not waited:
        return {}
    return {
        "backfill.svg": _by_policy(found, waited).svg(),
        "backfill_share.svg": _shares(found, waited).svg(),
        "backfill_sizes.svg": _by_size(found, [one for one in waited if one.busy and one.load == 1.0]).svg(),
    }


def _colour(contender: Contender) -> int:
    """What is predicted, known or said has the same colour everywhere."""
    durations = dict(contender.settings).get("durations", "")
    return {"predicted": 0, "known": 2, "limit": 4}.get(durations, 7)


def _mean(outcome: Outcome | None) -> float | None:
    return None if outcome is None else outcome.waiting.mean


def _by_policy(found: Outcomes, workloads: Sequence[Workload]) -> PanelsPicture:
    return PanelsPicture(
        "Mean waiting",
        "Logarithmic, each panel on its own scale. Blue: predicted durations; green: known; yellow: users' limits.",
        [contender.name for contender in CONTENDERS],
        [_colour(contender) for contender in CONTENDERS],
        [
            Panel(workload.title, [_mean(found.get(Run(workload, contender))) for contender in CONTENDERS])
            for workload in workloads
        ],
        3,
        text_from_seconds,
        logarithmic=True,
    )


def _shares(found: Outcomes, workloads: Sequence[Workload]) -> PanelsPicture:
    return PanelsPicture(
        "How much of the oracle's improvement over fifo predictions reach, in mean waiting",
        f"The same policy with predicted and with known durations. Dashed: the goal, {SHARE:.0%}.",
        list(PREDICTED_AND_KNOWN),
        [0] * len(PREDICTED_AND_KNOWN),
        [
            Panel(workload.title, [share(found, workload, name) for name in PREDICTED_AND_KNOWN])
            for workload in workloads
        ],
        3,
        lambda part: f"{part:.0%}",
        level=SHARE,
    )


def _by_size(found: Outcomes, workloads: Sequence[Workload]) -> PanelsPicture:
    panels = []
    for workload in workloads:
        outcomes = [found.get(Run(workload, contender)) for contender in SIZED]
        panels += [
            Panel(f"{workload.title}: {size}", [one.sizes[size].mean if one else None for one in outcomes])
            for size in SIZES
        ]
    return PanelsPicture(
        "Mean waiting by size",
        "Logarithmic, each panel on its own scale. Whole nodes: 8 GPUs per instance.",
        [contender.name for contender in SIZED],
        [_colour(contender) for contender in SIZED],
        panels,
        len(SIZES),
        text_from_seconds,
        logarithmic=True,
    )
