"""How well durations are foreseen: `python -m benchmarks.prediction [--write] [TRACE ...]`.

Philly, Helios Venus, PAI and openb, played causally, by the Predictor, by simple ways, and by gradient-boosted trees
(scikit-learn). The trees take half an hour on one core, and are kept under build/. `--write` keeps the page
docs/results/prediction.md.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from benchmarks.measure import REPOSITORY
from benchmarks.prediction import boosted
from benchmarks.workloads import TRACES
from refold.model import HOUR, Job
from refold.predict import Floats
from refold.research import (
    COMPARATORS,
    QUANTILE_LEVELS,
    RECHECK_SECONDS,
    Evaluation,
    PredictorQuantiles,
    Score,
    evaluate_at_submission,
    evaluate_while_running,
    pinball_loss,
    score,
)
from refold.traces import read_trace

PAGE = REPOSITORY / "docs" / "results" / "prediction.md"
FILES = {
    "Philly": "jobs_philly.csv.gz",
    "Helios Venus": "jobs_helios_venus.csv.gz",
    "PAI": "jobs_pai2020_sub60k.csv.gz",
    "openb": "jobs_openb_default.csv.gz",
}
OURS, TREES = "refold", "boosted trees"
LIMIT_SEED = 1
OVERSTATED = 10.0
SAME = [QUANTILE_LEVELS.index(chance) for chance in boosted.CHANCES]
"""Where the quantiles of the trees stand among ours."""


class Line(NamedTuple):
    """One who foresees, on one part of a trace: loss at the quantiles of the trees, and coverage of the middle 80 %."""

    who: str
    part: str
    log10: float
    hours: float
    covered: float


class Result(NamedTuple):
    """What was measured on a trace."""

    name: str
    jobs: int
    lines: Sequence[Line]
    scores: Mapping[str, Score]
    later: Mapping[float, Score]
    ours: Evaluation
    seconds: float


def measured(name: str) -> Result:
    """Everybody on one trace."""
    jobs = read_trace(str(TRACES / FILES[name])).jobs
    say(f"{name}: {len(jobs):,} jobs")
    began = time.process_time()
    ours = evaluate_at_submission(jobs, PredictorQuantiles(), time.process_time)
    seconds = time.process_time() - began
    said = {OURS: ours.quantiles[:, SAME]}
    scores = {OURS: score(ours.durations, ours.quantiles)}
    for who, made in COMPARATORS.items():
        played = evaluate_at_submission(
            _with_limits(jobs) if who.startswith("limit") else jobs, made(), time.process_time
        )
        said[who], scores[who] = played.quantiles[:, SAME], score(played.durations, played.quantiles)
    later = {elapsed: _score_later(jobs, elapsed) for elapsed in RECHECK_SECONDS}
    say(f"{name}: boosted trees")
    said[TREES] = boosted.quantiles(name, jobs)
    lines = [line for who in said for line in _lines(who, ours.durations, said[who])]
    return Result(name, len(jobs), lines, scores, later, ours, seconds)


def _score_later(jobs: Sequence[Job], elapsed: float) -> Score:
    played = evaluate_while_running(jobs, elapsed)
    return score(played.durations, played.quantiles)


def _with_limits(jobs: Sequence[Job]) -> list[Job]:
    """Limits as users state them: 1 to 10 times too long, log-uniformly. Only for who has nothing else."""
    times = OVERSTATED ** np.random.default_rng(LIMIT_SEED).random(len(jobs))
    return [
        msgspec.structs.replace(job, time_limit=max(job.work or 0.0, 1.0) * float(overstated))
        for job, overstated in zip(jobs, times, strict=True)
    ]


def _lines(who: str, lasted: Floats, said: Floats) -> list[Line]:
    count = len(lasted)
    parts = {"after the first 5 %": slice(count // boosted.PARTS, None), "second half": slice(count // 2, None)}
    return [_line(who, part, lasted[chosen], said[chosen]) for part, chosen in parts.items()]


def _line(who: str, part: str, lasted: Floats, said: Floats) -> Line:
    lasted, said, chances = np.maximum(lasted, 1.0), np.maximum(said, 1.0), np.array(boosted.CHANCES)
    low, high = said[:, boosted.CHANCES.index(0.1)], said[:, boosted.CHANCES.index(0.9)]
    return Line(
        who,
        part,
        pinball_loss(np.log10(lasted), np.log10(said), chances),
        pinball_loss(lasted, said, chances) / HOUR,
        float(((low <= lasted) & (lasted <= high)).mean()),
    )


def page(results: Sequence[Result]) -> str:
    """What is kept in docs/results."""
    parts = [INTRODUCTION, _goals(results)]
    for result in results:
        parts += [f"## {result.name}, {result.jobs:,} jobs\n", _losses(result), _ours(result)]
    return "\n".join(parts)


INTRODUCTION = """# How well durations are foreseen

Each trace is played causally, as if jobs started when they were submitted: quantiles are asked for when a job comes,
its duration is told when it ends. Pinball loss is the mean over the 5, 10, 25, 50, 75, 90 and 95 % quantiles, of
log10 seconds and in hours; less is better. *In 80 %*: the share of jobs between their 10 and 90 % quantiles. The first
5 % of each trace are left out, since the boosted trees have not been trained by then. The settings of the Predictor
were chosen by the first half of each trace; the second half was seen along the way, but nothing was chosen by it.

*Boosted trees*: scikit-learn's HistGradientBoostingRegressor with its defaults, one model for each quantile of log
seconds, trained anew on all ended jobs after every 5 % of the trace, with features of the job, of the time, and of what
lately happened to jobs like it (`benchmarks/prediction/boosted.py`). *Limit*: traces have none, so it is drawn from
the true duration, overstated 1 to 10 times, log-uniformly; only these two rows know it, so they are told of the
answer and are no part of the goal. A bare number (*limit*, *last two*, *group mean*) counts as a certainty; *+ its
past errors* multiplies it with its last 1000 errors.

Made by `python -m benchmarks.prediction --write`.
"""


def _goals(results: Sequence[Result]) -> str:
    rows = ["| goal | trace | measured | |", "|---|---|---|---|"]
    for result in results:
        for part in ("after the first 5 %", "second half"):
            mine = next(line for line in result.lines if (line.who, line.part) == (OURS, part))
            others = [line for line in result.lines if line.part == part and not line.who.startswith((OURS, "limit"))]
            rows.append(_goal("80 % interval covers 75 to 85 %", result, part, mine.covered))
            for what in ("log10", "hours"):
                best = min(others, key=lambda line: getattr(line, what))
                rows.append(_beaten(result, part, what, getattr(mine, what), best))
    return "\n".join(rows) + "\n"


def _goal(what: str, result: Result, part: str, covered: float) -> str:
    verdict = "met" if 0.75 <= covered <= 0.85 else "missed"
    return f"| {what} | {result.name}, {part} | {covered:.1%} | {verdict} |"


def _beaten(result: Result, part: str, what: str, mine: float, best: Line) -> str:
    theirs = getattr(best, what)
    verdict = "met" if mine < theirs else "missed"
    return (
        f"| pinball loss ({what}) below all others | {result.name}, {part} | {mine:.4f}, "
        f"{mine / theirs:.3f} of the best other ({best.who}) | {verdict} |"
    )


def _losses(result: Result) -> str:
    rows = [
        "| foreseen by | log10 s | hours | in 80 % | second half: log10 s | hours | in 80 % |",
        "|---|---|---|---|---|---|---|",
    ]
    for all_of_it, half in zip(result.lines[::2], result.lines[1::2], strict=True):
        cells = [f"{line.log10:.4f} | {line.hours:.3f} | {line.covered:.1%}" for line in (all_of_it, half)]
        rows.append(f"| {all_of_it.who} | {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def _ours(result: Result) -> str:
    """What else is asked of the Predictor, on the whole trace."""
    whole = result.scores[OURS]
    rows = [
        "| refold, whole trace | jobs | log10 s | hours | in 50 % | in 80 % | in 95 % | median error | rank corr. |",
        "|---|---|---|---|---|---|---|---|---|",
        _score_row("when submitted", whole),
        *(_score_row(f"after {elapsed / 60:.0f} min", one) for elapsed, one in result.later.items()),
    ]
    mean = float(result.ours.durations.mean())
    asked, told = result.ours.microseconds_per_query, result.ours.microseconds_per_update
    cost = (
        "Losses here are means over every twentieth quantile. A query with the news of the submission took "
        f"{asked:.0f} µs and an end {told:.0f} µs of CPU time; the mean job lasts "
        f"{mean / (asked + told) * 1e6:,.0f} times both. The whole trace: {result.seconds:.1f} s.\n"
    )
    return "\n".join(rows) + "\n\n" + cost


def _score_row(what: str, one: Score) -> str:
    covered = f"{one.coverage_50:.1%} | {one.coverage_80:.1%} | {one.coverage_95:.1%}"
    error = f"{one.median_relative_error:.0%} | {one.rank_correlation:.3f}"
    return f"| {what} | {one.jobs:,} | {one.pinball_log10:.4f} | {one.pinball_hours:.3f} | {covered} | {error} |"


def say(text: str) -> None:
    """Progress, where it does not disturb what is printed."""
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    """Measure, print, and keep if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", choices=[*FILES, []], metavar="TRACE", help=", ".join(FILES))
    parser.add_argument("--write", action="store_true", help="keep docs/results/prediction.md")
    given = parser.parse_args()
    names = [name for name in given.traces or FILES if (TRACES / FILES[name]).exists()]
    if not names:
        say("no traces in ../shared/data/traces; nothing is measured")
        return
    text = page([measured(name) for name in names])
    print(text)
    if given.write:
        PAGE.write_text(text)


if __name__ == "__main__":
    main()
