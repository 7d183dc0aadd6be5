"""What is to be seen in the runs, in sentences whose figures are computed from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill

from benchmarks.backfill.goals import HARDLY, JUDGED, KEPT, fifo_mean, part_of_improvement, whole_nodes_p99
from benchmarks.backfill.runs import Outcome, Outcomes, Run
from benchmarks.backfill.world import (
    CONSERVATIVE_LIMITS,
    CONTENDERS,
    EASY,
    EASY_KNOWN,
    EASY_LIMITS,
    FIFO,
    NO_STOPS,
    PREDICTED_AND_KNOWN,
    SKIP,
    Contender,
    Workload,
)
from refold.model import HOUR

WIDE = 120
ABOUT = "Ranges are over the workloads on which fifo's jobs wait for more than a minute in the mean.\n"
Ratio = Callable[[Outcome, Outcome], float | None]


def reading(found: Outcomes, workloads: Sequence[Workload]) -> str:
    """Ranges are over the workloads on which fifo's jobs wait at all."""
    waited = [workload for workload in workloads if fifo_mean(found, workload) > HARDLY]
    lines = [
        _skipping(found, waited),
        _against_the_oracle(found, waited),
        _against_limits(found, waited),
        _bounds(found, waited),
        _below(found, workloads),
        _stopping(found, waited),
        _speed(found, waited),
    ]
    points = [fill(f"- {line}", WIDE, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join([ABOUT, *points])


def _skipping(found: Outcomes, workloads: Sequence[Workload]) -> str:
    parts = [part_of_improvement(found, workload, SKIP, EASY_KNOWN) for workload in workloads]
    whole = {contender.name: _ratios(found, workloads, contender, FIFO, _whole_nodes) for contender in (SKIP, EASY)}
    return (
        "Fifo is a weak opponent: most of what is gained over it is gained by letting anybody pass. `fifo-skip` has "
        f"{_range(parts, '.0%')} of the improvement of `easy` with known durations. It pays with the jobs that need "
        f"much: the p99 waiting of whole-node jobs is {_range(whole[SKIP.name])} times fifo's, with "
        f"`{EASY.name}` {_range(whole[EASY.name])} times."
    )


def _against_the_oracle(found: Outcomes, workloads: Sequence[Workload]) -> str:
    texts = [
        f"{_range(_ratios(found, workloads, predicted, known, _mean))} ({name})"
        for name, (predicted, known) in PREDICTED_AND_KNOWN.items()
    ]
    return (
        "Measured without fifo, predictions are farther from the oracle: jobs wait so many times as long in the mean "
        f"as with known durations: {', '.join(texts)}."
    )


def _against_limits(found: Outcomes, workloads: Sequence[Workload]) -> str:
    pairs = {"easy": (JUDGED["easy"], EASY_LIMITS), "conservative": (JUDGED["conservative"], CONSERVATIVE_LIMITS)}
    texts = [
        f"{_range(_ratios(found, workloads, predicted, limits, _mean))} ({name})"
        for name, (predicted, limits) in pairs.items()
    ]
    return f"Mean waiting with predictions is so many times that with users' limits: {', '.join(texts)}."


def _bounds(found: Outcomes, workloads: Sequence[Workload]) -> str:
    texts = []
    for name, contender in JUDGED.items():
        outcomes = [found[Run(workload, contender)] for workload in workloads if Run(workload, contender) in found]
        told = [one.promises for one in outcomes if one.promises is not None]
        widths = [one.width / HOUR for one in told if one.width is not None]
        errors = [one.error.relative for one in told]
        texts.append(f"{_range(widths, '.1f')} h and {_range(errors, '.0%')} ({name})")
    return (
        "Promises are wide. From arrival to the promised bound it is, in the median, so long, and "
        f"the expected start is off by such a part of the wait that follows: {', '.join(texts)}."
    )


def _below(found: Outcomes, workloads: Sequence[Workload]) -> str:
    """Who else promises something, and keeps too little of it."""
    others = [contender for contender in CONTENDERS if contender not in JUDGED.values()]
    below = [
        f"{contender.name} {outcome.promises.share_kept:.1%} ({workload.title})"
        for workload in workloads
        for contender in others
        if (outcome := found.get(Run(workload, contender))) and outcome.promises
        if outcome.promises.share_kept is not None and outcome.promises.share_kept < KEPT
    ]
    return f"Runs of other settings that kept less than {KEPT:.0%} of their promises: {'; '.join(below) or 'none'}."


def _stopping(found: Outcomes, workloads: Sequence[Workload]) -> str:
    stops = [
        100 * outcome.preemptions / outcome.jobs
        for outcome in (found.get(Run(workload, EASY)) for workload in workloads)
        if outcome is not None
    ]
    mean = _ratios(found, workloads, NO_STOPS, EASY, _mean)
    whole = _ratios(found, workloads, NO_STOPS, EASY, _whole_nodes)
    return (
        f"`{EASY.name}` stops {_range(stops, '.1f')} runs per 100 jobs for those that were promised to start by "
        f"then. If nobody is stopped, the mean waiting is {_range(mean)} times, the p99 waiting of whole-node jobs "
        f"{_range(whole)} times what it is."
    )


def _speed(found: Outcomes, workloads: Sequence[Workload]) -> str:
    texts = []
    for name, contender in JUDGED.items():
        outcomes = [found[Run(workload, contender)] for workload in workloads if Run(workload, contender) in found]
        texts.append(f"{_range([one.jobs / one.cpu_seconds for one in outcomes], ',.0f')} ({name})")
    return f"Jobs simulated per second of CPU time, with predictions: {', '.join(texts)}."


def _ratios(
    found: Outcomes, workloads: Sequence[Workload], one: Contender, other: Contender, ratio: Ratio
) -> list[float | None]:
    return [
        ratio(found[Run(workload, one)], found[Run(workload, other)])
        for workload in workloads
        if Run(workload, one) in found and Run(workload, other) in found
    ]


def _mean(one: Outcome, other: Outcome) -> float | None:
    return one.waiting.mean / other.waiting.mean if one.waiting.mean is not None and other.waiting.mean else None


def _whole_nodes(one: Outcome, other: Outcome) -> float | None:
    ours, theirs = whole_nodes_p99(one), whole_nodes_p99(other)
    return ours / theirs if ours is not None and theirs else None


def _range(values: Sequence[float | None], form: str = ".2f") -> str:
    """From the least to the most."""
    there = [value for value in values if value is not None]
    if not there:
        return "(not measured)"
    least, most = format(min(there), form), format(max(there), form)
    return least if least == most else f"{least} to {most}"
