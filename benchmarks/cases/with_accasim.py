"""FIFO and EASY compared with AccaSim, each on three slices: the simulator, with a journal.

FIFO also has a compiled replay, which writes none. EASY knows the run times, and makes no start estimates, which
AccaSim does not make either.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.measure import cpu_seconds, in_fresh_process
from benchmarks.peers import accasim_simulator as peer
from benchmarks.table import Row, at_least, skipped
from benchmarks.workloads import (
    HELIOS,
    PHILLY,
    PHILLY_NODES,
    Slice,
    missing,
    simulate_with_journal,
    starts_in,
)
from refold.simulator.replays import Experiment, find_replay

PolicyName = Literal["fifo", "easy"]
REPEATS = 3
QUICK_COUNT = 2_000


class Case(NamedTuple):
    """The settings of a policy, the slices, and how many jobs of each."""

    settings: dict[str, Any]
    goal: float
    jobs: int
    slices: tuple[Slice, ...]


CASES: Mapping[PolicyName, Case] = {
    "fifo": Case(
        {"placement": "best-fit"},
        20,
        20_000,
        (
            Slice("Philly", PHILLY, 0, PHILLY_NODES),
            Slice("Philly from job 20,000 on 64 nodes", PHILLY, 20_000, "64x8"),
            Slice("Helios Venus", HELIOS, 0, "135x8:V100"),
        ),
    ),
    "easy": Case(
        {"durations": "known", "start_estimates": False},
        10,
        5_000,
        (
            Slice("Philly from job 20,000 on 40 × 8 GPUs", PHILLY, 20_000, "40x8"),
            Slice("Philly from job 60,000 on 40 × 8 GPUs", PHILLY, 60_000, "40x8"),
            Slice("Helios Venus from job 13,000 on 64 × 8 GPUs", HELIOS, 13_000, "64x8"),
        ),
    ),
}


class RefoldResult(NamedTuple):
    """Result of a run of Refold; started jobs and mean waiting (seconds) are read from the journal.

    `replay_seconds`: CPU time of the compiled replay; 0: there is none.
    """

    cpu_seconds: float
    replay_seconds: float
    started: int
    mean_waiting: float


def rows_of(policy: PolicyName, quick: bool) -> list[Row]:
    """Measure jobs per second of both, and the speed-up: medians of three alternating pairs of runs per slice."""
    found: list[Row] = []
    for number, part in enumerate(CASES[policy].slices):
        unavailable = missing(part.file, PHILLY_NODES)
        found += [skipped(f"{part.name}, {policy}", unavailable)] if unavailable else _rows(policy, number, quick)
    return found


def _rows(policy: PolicyName, number: int, quick: bool) -> list[Row]:
    count, name = QUICK_COUNT if quick else CASES[policy].jobs, CASES[policy].slices[number].name
    allocator = min(peer.ALLOCATORS, key=lambda one: in_fresh_process(accasim, policy, number, QUICK_COUNT, one)[0])
    pairs = [
        (
            peer.Result(*in_fresh_process(accasim, policy, number, count, allocator)),
            RefoldResult(*in_fresh_process(refold, policy, number, count)),
        )
        for _ in range(REPEATS)
    ]
    for theirs, ours in pairs:
        assert theirs.finished == ours.started == count, f"of {count} jobs, AccaSim ran {theirs}, Refold {ours}"
    theirs, ours = pairs[0]
    ratios = [theirs.cpu_seconds / ours.cpu_seconds for theirs, ours in pairs]
    their_seconds = statistics.median(theirs.cpu_seconds for theirs, _ in pairs)
    our_seconds = statistics.median(ours.cpu_seconds for _, ours in pairs)
    replays = sorted(theirs.cpu_seconds / ours.replay_seconds for theirs, ours in pairs if ours.replay_seconds)
    waiting = f"mean waiting {ours.mean_waiting:,.0f} s, AccaSim {theirs.mean_waiting:,.0f} s"
    ratio = statistics.median(ratios)
    measured = f"{ratio:.1f} × ({min(ratios):.1f}–{max(ratios):.1f}; {waiting})"
    return [
        Row(f"AccaSim {policy} + {allocator}, {count:,} jobs of {name}", f"{count / their_seconds:,.0f} jobs/s"),
        Row(f"Refold {policy} + best-fit, journal on, {name}", f"{count / our_seconds:,.0f} jobs/s"),
        at_least(f"{policy}: Refold / AccaSim with its faster allocator, {name}", ratio, CASES[policy].goal, measured),
    ] + [Row(f"{policy}: compiled replay, no journal / AccaSim, {name}", f"{ratio:.1f} ×") for ratio in replays[1:2]]


def accasim(policy: PolicyName, number: int, count: int, allocator: peer.Allocator) -> peer.Result:
    """Run AccaSim; called in a fresh process."""
    return peer.run(*CASES[policy].slices[number].load(count), allocator, policy)


def refold(policy: PolicyName, number: int, count: int) -> RefoldResult:
    """Run Refold; called in a fresh process."""
    settings, (jobs, cluster) = CASES[policy].settings, CASES[policy].slices[number].load(count)
    with tempfile.TemporaryDirectory() as folder:
        journal = Path(folder) / "journal.jsonl"
        for part in (jobs[:100], jobs):  # the first imports what is needed
            seconds = simulate_with_journal(part, cluster, policy, settings, journal)
        started = dict(starts_in(journal))
    replay = find_replay(Experiment(policy, settings, jobs, cluster))
    replay_seconds = 0.0 if replay is None else cpu_seconds(replay.run)
    waiting = statistics.fmean(started[job.id] - job.submitted for job in jobs)
    return RefoldResult(seconds, replay_seconds, len(started), waiting)
