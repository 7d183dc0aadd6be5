"""Tune policies on published traces, and report what that gains later; compare searches."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import REPOSITORY
from benchmarks.result_page import measurement_parser, publish
from benchmarks.tuning.histories import HISTORIES, tuned_policy, tuner_of
from benchmarks.tuning.page import GainRow, SearchRow, render
from benchmarks.tuning.searches import HALVING, RANDOM, TPE, has_optuna, run_search
from benchmarks.workloads import missing
from refold.policies import POLICIES
from refold.simulator.tuning import OBJECTIVES, Goal, ReportPolicy, TrialBudget

PAGE = Path(__file__).with_name("tuning.md")
STUDIES = REPOSITORY / "build" / "tuning"
"""Results are kept here: a run that was stopped continues."""

OBJECTIVE = OBJECTIVES["balanced"]
BASELINES = ("fifo", "fifo-skip", "easy", "srtf")
TRIALS = {"las": 32, "tiresias": 32, "easy": 32, "refold": 16}
"""Policies to tune, and the number of settings to try; simulations of `refold` take five times as long."""


class SearchCase(NamedTuple):
    """Searches to compare: a history, a policy, and the number of settings that `refold tune` tries."""

    history: str
    policy: str
    trials: int


SEARCHES = (SearchCase("philly", "tiresias", 32), SearchCase("helios", "tiresias", 32))
SEEDS = (1, 2, 3)


def measure_gain(history: str, policy: str, workers: int) -> GainRow:
    """Tune a policy on a history."""
    workload = HISTORIES[history].workload(history)
    others = tuple(
        ReportPolicy("oracle" if POLICIES[name].oracle else "baseline", name, name, {})
        for name in BASELINES
        if name != policy
    )
    with tuner_of(workload, STUDIES, workers) as tuner:
        result = tuner.tune(tuned_policy(policy), Goal(OBJECTIVE, others), TrialBudget(TRIALS[policy]))
    print(f"{history} {policy}: {result.report.gains}", file=sys.stderr, flush=True)
    return GainRow(history, policy, result)


def measure_searches(case: SearchCase, workers: int) -> list[SearchRow]:
    """Compare searches, each with several seeds."""
    workload, policy = HISTORIES[case.history].workload(case.history), tuned_policy(case.policy)
    default = ReportPolicy("default", "default", case.policy, {})
    rows = []
    with tuner_of(workload, STUDIES, workers) as tuner:
        for method in (HALVING, RANDOM, *([TPE] if has_optuna() else [])):
            for seed in SEEDS:
                run = run_search(method, tuner, policy, OBJECTIVE, case.trials, seed)
                point = ReportPolicy("point", "best", case.policy, run.settings, 1)
                later = tuner.report([default, point], OBJECTIVE, 1).row(1).score
                rows.append(SearchRow(case.history, case.policy, method, seed, run.score, later.value, run.slices))
                print(rows[-1], file=sys.stderr, flush=True)
    return rows


def main() -> None:
    """Run the benchmark."""
    parser = measurement_parser("benchmarks.tuning", __doc__, "las on one trace only, no searches")
    parser.add_argument("--workers", type=int, default=1, help="number of processes")
    parser.add_argument("--policies", default=",".join(TRIALS), help="policies to tune")
    parser.add_argument("--no-searches", action="store_true", help="do not compare searches")
    options = parser.parse_args()
    if absent := missing(*(history.file for history in HISTORIES.values())):
        parser.error(absent)
    histories = ["helios"] if options.quick else list(HISTORIES)
    policies = ["las"] if options.quick else options.policies.split(",")
    gains = [measure_gain(history, policy, options.workers) for policy in policies for history in histories]
    cases = [] if options.quick or options.no_searches else SEARCHES
    searches = [row for case in cases for row in measure_searches(case, options.workers)]
    numbers = {"gains": [gain.numbers() for gain in gains], "searches": [row._asdict() for row in searches]}
    publish(options, PAGE, render(gains, searches), numbers)


if __name__ == "__main__":
    main()
