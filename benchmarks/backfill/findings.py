"""The findings as sentences with computed figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import fill

from benchmarks.backfill.experiment import (
    CONFIGS,
    CONSERVATIVE_LIMITS,
    EASY,
    EASY_KNOWN,
    EASY_LIMITS,
    FIFO,
    NO_PREEMPTION,
    PREDICTED_AND_KNOWN,
    SKIP,
    PolicyConfig,
    Workload,
)
from benchmarks.backfill.goals import (
    COVERAGE_GOAL,
    GOAL_CONFIGS,
    MIN_FIFO_WAIT,
    fifo_mean,
    improvement_share,
    whole_nodes_p99,
)
from benchmarks.backfill.runs import Result, Results, Run
from refold.model import HOUR

LINE_LENGTH = 120
INTRODUCTION = "Ranges are over the workloads on which the mean waiting under fifo is more than a minute.\n"
Ratio = Callable[[Result, Result], float | None]


def findings(results: Results, workloads: Sequence[Workload]) -> str:
    """Return the findings as a Markdown list."""
    waited = [workload for workload in workloads if fifo_mean(results, workload) > MIN_FIFO_WAIT]
    lines = [
        _fifo_skip(results, waited),
        _against_oracle(results, waited),
        _against_limits(results, waited),
        _bounds(results, waited),
        _low_coverage(results, workloads),
        _preemption(results, waited),
        _speed(results, waited),
    ]
    points = [fill(f"- {line}", LINE_LENGTH, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return "\n".join([INTRODUCTION, *points])


def _fifo_skip(results: Results, workloads: Sequence[Workload]) -> str:
    shares = [improvement_share(results, workload, SKIP, EASY_KNOWN) for workload in workloads]
    whole = {config.name: _ratios(results, workloads, config, FIFO, _whole_nodes) for config in (SKIP, EASY)}
    return (
        "Fifo is a weak baseline: most of the improvement over it comes from starting any job that fits. `fifo-skip` "
        f"reaches {_range(shares, '.0%')} of the improvement of `easy` with known durations, at the expense of large "
        f"jobs: the p99 waiting of whole-node jobs is {_range(whole[SKIP.name])} times that under fifo, with "
        f"`{EASY.name}` {_range(whole[EASY.name])} times."
    )


def _against_oracle(results: Results, workloads: Sequence[Workload]) -> str:
    texts = [
        f"{_range(_ratios(results, workloads, predicted, known, _mean))} ({name})"
        for name, (predicted, known) in PREDICTED_AND_KNOWN.items()
    ]
    return f"Mean waiting with predicted durations, divided by that with known durations: {', '.join(texts)}."


def _against_limits(results: Results, workloads: Sequence[Workload]) -> str:
    pairs = {
        "easy": (GOAL_CONFIGS["easy"], EASY_LIMITS),
        "conservative": (GOAL_CONFIGS["conservative"], CONSERVATIVE_LIMITS),
    }
    texts = [
        f"{_range(_ratios(results, workloads, predicted, limits, _mean))} ({name})"
        for name, (predicted, limits) in pairs.items()
    ]
    return f"Mean waiting with predicted durations, divided by that with users' time limits: {', '.join(texts)}."


def _bounds(results: Results, workloads: Sequence[Workload]) -> str:
    texts = []
    for name, config in GOAL_CONFIGS.items():
        finished = [results[Run(workload, config)] for workload in workloads if Run(workload, config) in results]
        estimates = [one.start_estimates for one in finished if one.start_estimates is not None]
        widths = [one.width / HOUR for one in estimates if one.width is not None]
        errors = [one.error.relative for one in estimates]
        texts.append(f"{_range(widths, '.1f')} h and {_range(errors, '.0%')} ({name})")
    return (
        "Start estimates are wide. Median time from submission to the bound, and median error of the expected start as "
        f"a share of the wait: {', '.join(texts)}."
    )


def _low_coverage(results: Results, workloads: Sequence[Workload]) -> str:
    """List the runs of configurations without a goal in which too few bounds were met."""
    others = [config for config in CONFIGS if config not in GOAL_CONFIGS.values()]
    below = [
        f"{config.name} {result.start_estimates.coverage:.1%} ({workload.title})"
        for workload in workloads
        for config in others
        if (result := results.get(Run(workload, config))) and result.start_estimates
        if result.start_estimates.coverage is not None and result.start_estimates.coverage < COVERAGE_GOAL
    ]
    return (
        f"Runs of other configurations in which fewer than {COVERAGE_GOAL:.0%} of the bounds were met: "
        f"{'; '.join(below) or 'none'}."
    )


def _preemption(results: Results, workloads: Sequence[Workload]) -> str:
    preempted = [
        100 * result.preemptions / result.jobs
        for result in (results.get(Run(workload, EASY)) for workload in workloads)
        if result is not None
    ]
    mean = _ratios(results, workloads, NO_PREEMPTION, EASY, _mean)
    whole = _ratios(results, workloads, NO_PREEMPTION, EASY, _whole_nodes)
    return (
        f"`{EASY.name}` preempts {_range(preempted, '.1f')} runs per 100 jobs so that jobs start by their reserved "
        f"time. Without preemption, the mean waiting is {_range(mean)} times and the p99 waiting of whole-node jobs "
        f"{_range(whole)} times as long."
    )


def _speed(results: Results, workloads: Sequence[Workload]) -> str:
    texts = []
    for name, config in GOAL_CONFIGS.items():
        finished = [results[Run(workload, config)] for workload in workloads if Run(workload, config) in results]
        texts.append(f"{_range([one.jobs / one.cpu_seconds for one in finished], ',.0f')} ({name})")
    return f"Jobs simulated per second of CPU time, with predicted durations: {', '.join(texts)}."


def _ratios(
    results: Results, workloads: Sequence[Workload], config: PolicyConfig, reference: PolicyConfig, ratio: Ratio
) -> list[float | None]:
    return [
        ratio(results[Run(workload, config)], results[Run(workload, reference)])
        for workload in workloads
        if Run(workload, config) in results and Run(workload, reference) in results
    ]


def _mean(result: Result, reference: Result) -> float | None:
    if result.waiting.mean is None or not reference.waiting.mean:
        return None
    return result.waiting.mean / reference.waiting.mean


def _whole_nodes(result: Result, reference: Result) -> float | None:
    p99, reference_p99 = whole_nodes_p99(result), whole_nodes_p99(reference)
    return p99 / reference_p99 if p99 is not None and reference_p99 else None


def _range(values: Sequence[float | None], form: str = ".2f") -> str:
    """Format the smallest and the largest value."""
    measured = [value for value in values if value is not None]
    if not measured:
        return "(not measured)"
    smallest, largest = format(min(measured), form), format(max(measured), form)
    return smallest if smallest == largest else f"{smallest} to {largest}"
