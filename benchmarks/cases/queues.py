"""The compiled replays of sjf, srtf and las compared with the general simulator, on three slices whose jobs wait."""

from __future__ import annotations

import statistics
from typing import get_args

from benchmarks.measure import cpu_seconds, in_fresh_process
from benchmarks.table import Row, skipped
from benchmarks.workloads import HELIOS, PHILLY, Slice, missing
from refold.journal import History, HistoryJournal
from refold.model import Cluster, Job
from refold.registry import make_policy
from refold.results import measure, replayed_history
from refold.simulator import replay_queue, simulate
from refold.simulator.queue_replay import QueueOrder

COUNT, QUICK_COUNT = 20_000, 2_000
SLICES = (
    Slice("Philly from job 20,000 on 40 × 8 GPUs", PHILLY, 20_000, "40x8"),
    Slice("Philly from job 60,000 on 40 × 8 GPUs", PHILLY, 60_000, "40x8"),
    Slice("Helios Venus from job 13,000 on 64 × 8 GPUs", HELIOS, 13_000, "64x8"),
)
REPEATS = 3


def rows(quick: bool) -> list[Row]:
    """Measure jobs per second, up to the columns of the history: medians of three for the replay, one general run."""
    count, found = QUICK_COUNT if quick else COUNT, list[Row]()
    for number, part in enumerate(SLICES):
        if unavailable := missing(part.file):
            found.append(skipped(f"{part.name}, replays of queues", unavailable))
            continue
        for order in get_args(QueueOrder):
            general, compiled, preemptions = in_fresh_process(both, number, count, order)
            name = f"{order}, {count:,} jobs of {part.name}"
            rates = f"{count / compiled:,.0f} jobs/s, general simulator {count / general:,.0f} jobs/s"
            text = f"{general / compiled:.0f} × ({rates}; {preemptions:,} preemptions)"
            found.append(Row(f"compiled / general, {name}", text, general / compiled))
    return found


def both(number: int, count: int, order: QueueOrder) -> tuple[float, float, int]:
    """Return the CPU seconds of both simulators and the preemptions; check that all measures are equal."""
    jobs, cluster = SLICES[number].load(count)
    _replay(jobs[:50], cluster, order)
    _simulate(jobs[:50], cluster, order)
    replayed, simulated = list[History](), list[History]()
    compiled = statistics.median(
        cpu_seconds(lambda: replayed.append(_replay(jobs, cluster, order))) for _ in range(REPEATS)
    )
    general = cpu_seconds(lambda: simulated.append(_simulate(jobs, cluster, order)))
    measures = measure(replayed[0])
    assert measures == measure(simulated[0]), "the measures of the two simulators differ"
    return general, compiled, measures.preemptions


def _replay(jobs: tuple[Job, ...], cluster: Cluster, order: QueueOrder) -> History:
    return replayed_history(jobs, cluster, replay_queue(jobs, cluster, order))


def _simulate(jobs: tuple[Job, ...], cluster: Cluster, order: QueueOrder) -> History:
    journal = HistoryJournal()
    simulate(jobs, cluster, make_policy(order), journal=journal)
    return journal.history(cluster)
