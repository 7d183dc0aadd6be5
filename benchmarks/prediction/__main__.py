"""Accuracy of run-time predictions: `python -m benchmarks.prediction [--write] [TRACE ...]`.

Philly, Helios Venus, PAI and openb, replayed causally, with the predictor, simple methods, and gradient-boosted trees
(scikit-learn). The trees take half an hour on one core; their predictions are cached under build/. `--write` writes
benchmarks/prediction/prediction.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.result_page import page_parser, publish
from benchmarks.workloads import TRACES
from refold.model import HOUR, Job
from refold.predict import (
    COMPARATORS,
    QUANTILE_LEVELS,
    RECHECK_SECONDS,
    Evaluation,
    Floats,
    PredictorQuantiles,
    Score,
    evaluate_at_submission,
    evaluate_while_running,
    pinball_loss,
    score,
)
from refold.simulator.traces import read_trace

PAGE = Path(__file__).with_name("prediction.md")
FILES = {
    "Philly": "jobs_philly.csv.gz",
    "Helios Venus": "jobs_helios_venus.csv.gz",
    "PAI": "jobs_pai2020_sub60k.csv.gz",
    "openb": "jobs_openb_default.csv.gz",
}
OURS, TREES = "refold", "boosted trees"
LIMIT_SEED = 1
MAX_OVERESTIMATE = 10.0


class Loss(NamedTuple):
    """Pinball losses of a method on a part of a trace, at the quantile levels of the trees, and 80 % coverage."""

    method: str
    part: str
    log10: float
    hours: float
    covered: float


class Result(NamedTuple):
    """Results on a trace. `later`: scores of running jobs by elapsed seconds; `ours`: evaluation of the predictor."""

    name: str
    jobs: int
    losses: Sequence[Loss]
    scores: Mapping[str, Score]
    later: Mapping[float, Score]
    ours: Evaluation
    seconds: float


def evaluate_trace(name: str) -> Result:
    """Evaluate all methods on one trace."""
    from benchmarks.prediction import boosted  # needs the optional scikit-learn

    jobs = read_trace(str(TRACES / FILES[name])).jobs
    print_progress(f"{name}: {len(jobs):,} jobs")
    start = time.process_time()
    ours = evaluate_at_submission(jobs, PredictorQuantiles(), time.process_time)
    seconds = time.process_time() - start
    columns = [QUANTILE_LEVELS.index(level) for level in boosted.LEVELS]
    quantiles = {OURS: ours.quantiles[:, columns]}
    scores = {OURS: score(ours.durations, ours.quantiles)}
    for method, make in COMPARATORS.items():
        evaluated = evaluate_at_submission(
            _with_limits(jobs) if method.startswith("limit") else jobs, make(), time.process_time
        )
        quantiles[method] = evaluated.quantiles[:, columns]
        scores[method] = score(evaluated.durations, evaluated.quantiles)
    later = {elapsed: _score_later(jobs, elapsed) for elapsed in RECHECK_SECONDS}
    print_progress(f"{name}: boosted trees")
    quantiles[TREES] = boosted.quantiles(name, jobs)
    first_part = len(jobs) // boosted.PARTS
    losses = [
        loss
        for method, predicted in quantiles.items()
        for loss in _losses_of(method, ours.durations, predicted, boosted.LEVELS, first_part)
    ]
    return Result(name, len(jobs), losses, scores, later, ours, seconds)


def _score_later(jobs: Sequence[Job], elapsed: float) -> Score:
    evaluated = evaluate_while_running(jobs, elapsed)
    return score(evaluated.durations, evaluated.quantiles)


def _with_limits(jobs: Sequence[Job]) -> list[Job]:
    """Add user time limits, 1 to 10 times the true duration, log-uniform; used only by the methods named "limit"."""
    factors = MAX_OVERESTIMATE ** np.random.default_rng(LIMIT_SEED).random(len(jobs))
    return [
        msgspec.structs.replace(job, time_limit=max(job.work or 0.0, 1.0) * float(factor))
        for job, factor in zip(jobs, factors, strict=True)
    ]


def _losses_of(
    method: str, durations: Floats, predicted: Floats, levels: Sequence[float], first_part: int
) -> list[Loss]:
    parts = {"after the first 5 %": slice(first_part, None), "second half": slice(len(durations) // 2, None)}
    return [_loss(method, part, durations[chosen], predicted[chosen], levels) for part, chosen in parts.items()]


def _loss(method: str, part: str, durations: Floats, predicted: Floats, levels: Sequence[float]) -> Loss:
    durations, predicted = np.maximum(durations, 1.0), np.maximum(predicted, 1.0)
    low, high = predicted[:, levels.index(0.1)], predicted[:, levels.index(0.9)]
    return Loss(
        method,
        part,
        pinball_loss(np.log10(durations), np.log10(predicted), np.array(levels)),
        pinball_loss(durations, predicted, np.array(levels)) / HOUR,
        float(((low <= durations) & (durations <= high)).mean()),
    )


def page(results: Sequence[Result]) -> str:
    """Return the Markdown page."""
    parts = [INTRODUCTION, _goals(results)]
    for result in results:
        parts += [f"## {result.name}, {result.jobs:,} jobs\n", _losses_table(result), _predictor_table(result)]
    return "\n".join(parts)


INTRODUCTION = """# Accuracy of run-time predictions

Each trace is replayed causally, as if jobs started when they were submitted: quantiles are predicted when a job is
submitted, and its duration becomes known when it ends. Pinball loss is the mean over the 5, 10, 25, 50, 75, 90 and 95 %
quantiles, of log10 seconds and in hours; lower is better. *In 80 %*: the share of jobs between their 10 and 90 %
quantiles. The first 5 % of each trace are excluded, because the boosted trees are not trained by then. The settings of
the predictor were tuned on the first half of each trace; the second half was seen, but not used for tuning.

*Boosted trees*: scikit-learn's HistGradientBoostingRegressor with default settings, one model per quantile of log
seconds, retrained on all ended jobs after every 5 % of the trace, with features of the job, of the time, and of recent
similar jobs (`benchmarks/prediction/boosted.py`). *Limit*: the traces have no time limits, so limits are drawn from the
true durations, 1 to 10 times too long, log-uniform. Only these two rows use them; as they depend on the result, they
are not part of the goals. Point predictions (*limit*, *last two*, *group mean*) are evaluated as if certain; *+ its
past errors* multiplies the prediction by its last 1000 errors.

Losses in the tables of the whole trace are means over the 5, 10, …, 95 % quantiles.

Generated by `python -m benchmarks.prediction --write`. Goals: the 80 % interval has 75 to 85 % of the jobs, and the
pinball loss is below that of all others. Missed goals are bold.
"""


def _goals(results: Sequence[Result]) -> str:
    rows = [
        "| trace | jobs in the 80 % interval | loss (log10) / best other | loss (hours) / best other |",
        "|---|---|---|---|",
    ]
    for result in results:
        for part in ("after the first 5 %", "second half"):
            ours = next(loss for loss in result.losses if (loss.method, loss.part) == (OURS, part))
            others = [
                loss for loss in result.losses if loss.part == part and not loss.method.startswith((OURS, "limit"))
            ]
            cells = [_bold_unless(0.75 <= ours.covered <= 0.85, f"{ours.covered:.1%}")]
            for unit in ("log10", "hours"):
                best = min(others, key=lambda loss: getattr(loss, unit))
                ratio = getattr(ours, unit) / getattr(best, unit)
                cells.append(_bold_unless(ratio < 1, f"{ratio:.3f} ({best.method})"))
            rows.append(f"| {result.name}, {part} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _bold_unless(met: bool, text: str) -> str:
    return text if met else f"**{text}**"


def _losses_table(result: Result) -> str:
    rows = [
        "| method | log10 s | hours | in 80 % | second half: log10 s | hours | in 80 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for first, second in zip(result.losses[::2], result.losses[1::2], strict=True):
        cells = [f"{loss.log10:.4f} | {loss.hours:.3f} | {loss.covered:.1%}" for loss in (first, second)]
        rows.append(f"| {first.method} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _predictor_table(result: Result) -> str:
    """Format further scores of the predictor on the whole trace."""
    whole = result.scores[OURS]
    rows = [
        "| refold, whole trace | jobs | log10 s | hours | in 50 % | in 80 % | in 95 % | median error | rank corr. |",
        "|---|---|---|---|---|---|---|---|---|",
        _score_row("at submission", whole),
        *(_score_row(f"after {elapsed / 60:.0f} min", one) for elapsed, one in result.later.items()),
    ]
    query, update = result.ours.microseconds_per_query, result.ours.microseconds_per_update
    cost = (
        f"CPU time: {query:.0f} µs for a prediction at submission, {update:.0f} µs for an update at the end of a job, "
        f"{result.seconds:.1f} s for the whole trace.\n"
    )
    return "\n".join(rows) + "\n\n" + cost


def _score_row(name: str, one: Score) -> str:
    covered = f"{one.coverage_50:.1%} | {one.coverage_80:.1%} | {one.coverage_95:.1%}"
    error = f"{one.median_relative_error:.0%} | {one.rank_correlation:.3f}"
    return f"| {name} | {one.jobs:,} | {one.pinball_log10:.4f} | {one.pinball_hours:.3f} | {covered} | {error} |"


def print_progress(text: str) -> None:
    """Print progress on stderr, apart from the results."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Print the page; write it with --write."""
    parser = page_parser("benchmarks.prediction", __doc__, "benchmarks/prediction/prediction.md")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("traces", nargs="*", choices=[*FILES, []], metavar="TRACE", help=", ".join(FILES))
    options = parser.parse_args()
    names = [name for name in options.traces or FILES if (TRACES / FILES[name]).exists()]
    if not names:
        print_progress("no traces in ../shared/data/traces")
        return
    publish(options, PAGE, page([evaluate_trace(name) for name in names]))


if __name__ == "__main__":
    main()
