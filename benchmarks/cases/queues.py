"""The compiled replays of sjf, srtf, las and easy with predicted run times, compared with the general simulator.

On slices whose jobs wait: three for each policy.
"""

from __future__ import annotations

import statistics
from typing import Any, get_args

from benchmarks.measure import cpu_seconds, in_fresh_process
from benchmarks.table import Row, skipped
from benchmarks.workloads import HELIOS, PAI, PHILLY, Slice, missing
from refold.journal import History, HistoryJournal
from refold.registry import make_policy
from refold.replays import Experiment, find_replay
from refold.replays.queues import QueueOrder
from refold.results import measure, replayed_history
from refold.simulator import simulate

COUNT, QUICK_COUNT = 20_000, 2_000
SLICES = (
    Slice("Philly from job 20,000 on 40 × 8 GPUs", PHILLY, 20_000, "40x8"),
    Slice("Philly from job 60,000 on 40 × 8 GPUs", PHILLY, 60_000, "40x8"),
    Slice("Helios Venus from job 13,000 on 64 × 8 GPUs", HELIOS, 13_000, "64x8"),
)
PREDICTED_SLICES = (SLICES[0], SLICES[2], Slice("PAI from job 10,000 on 40 × 8 GPUs", PAI, 10_000, "40x8"))
POLICIES: dict[str, tuple[tuple[Slice, ...], dict[str, Any]]] = {
    **{order: (SLICES, {}) for order in get_args(QueueOrder)},
    "easy": (PREDICTED_SLICES, {"start_estimates": False}),
}
"""The slices of each policy, and its settings."""

REPEATS = 3


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second, up to the columns of the history: medians of three for the replay, one general run."""
    count, found = QUICK_COUNT if quick else COUNT, list[Row]()
    for policy, (slices, _) in POLICIES.items():
        for number, part in enumerate(slices):
            if unavailable := missing(part.file):
                found.append(skipped(f"{part.name}, replay of {policy}", unavailable))
                continue
            general, compiled, preemptions = in_fresh_process(both, number, count, policy)
            name = f"{policy}, {count:,} jobs of {part.name}"
            rates = f"{count / compiled:,.0f} jobs/s, general simulator {count / general:,.0f} jobs/s"
            text = f"{general / compiled:.0f} × ({rates}; {preemptions:,} preemptions)"
            found.append(Row(f"compiled / general, {name}", text, general / compiled))
    return found


def both(number: int, count: int, policy: str) -> tuple[float, float, int]:
    """Return the CPU seconds of both simulators and the preemptions; check that all measures are equal."""
    slices, settings = POLICIES[policy]
    jobs, cluster = slices[number].load(count)
    experiment = Experiment(policy, settings, jobs, cluster)
    for simulator in (_replay, _simulate):
        simulator(experiment._replace(jobs=jobs[:50]))
    replayed, simulated = list[History](), list[History]()
    compiled = statistics.median(cpu_seconds(lambda: replayed.append(_replay(experiment))) for _ in range(REPEATS))
    general = cpu_seconds(lambda: simulated.append(_simulate(experiment)))
    measures = measure(replayed[0])
    assert measures == measure(simulated[0]), "the measures of the two simulators differ"
    return general, compiled, measures.preemptions


def _replay(experiment: Experiment) -> History:
    replay = find_replay(experiment, min_jobs=0)
    assert replay is not None
    return replayed_history(experiment.jobs, experiment.cluster, replay.run())


def _simulate(experiment: Experiment) -> History:
    journal = HistoryJournal()
    policy = make_policy(experiment.policy, experiment.settings)
    simulate(experiment.jobs, experiment.cluster, policy, journal=journal)
    return journal.history(experiment.cluster)
