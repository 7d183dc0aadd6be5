"""One simulation of a large cluster."""

from __future__ import annotations

from typing import Any, NamedTuple

from benchmarks.measure import cpu_seconds, peak_memory_bytes
from refold.journal import History, HistoryJournal
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.simulator.replays import Experiment, find_replay
from refold.simulator.results import measure, replayed_history
from refold.simulator.traces import everyday_workload, generate, read_cluster

LOAD = 0.95
GPUS_PER_NODE = 8
SETTINGS: dict[str, dict[str, Any]] = {
    "fifo": {},
    "easy": {"durations": "known", "start_estimates": False},
    "easy-predicted": {"start_estimates": False},
    "srtf": {},
    "las": {},
    "refold": {"start_estimates": False},
}


PREDICTED = "-predicted"
"""Ends the name of a policy with predicted run times."""


class Measured(NamedTuple):
    """CPU seconds of the simulation and of the measures, peak memory, mean wait, share of GPUs allocated."""

    simulation: float
    measures: float
    memory_mib: float
    mean_wait: float
    allocation: float


def run(policy: str, jobs: int, nodes: int) -> Measured:
    """Simulate one case, after a few jobs, so that all is imported; called in a fresh process."""
    cluster, settings = read_cluster(f"{nodes}x{GPUS_PER_NODE}:A100"), SETTINGS[policy]
    policy = policy.removesuffix(PREDICTED)
    workload = generate(everyday_workload(jobs).for_load(cluster, LOAD), seed=1).jobs

    def history(count: int) -> History:
        chosen = workload[:count]
        replay = find_replay(Experiment(policy, settings, chosen, cluster))
        if replay is not None:
            return replayed_history(chosen, cluster, replay.run())
        journal = HistoryJournal()
        simulate(chosen, cluster, make_policy(policy, settings), journal=journal)
        return journal.history(cluster)

    measure(history(50))
    histories: list[History] = []
    simulation = cpu_seconds(lambda: histories.append(history(jobs)))
    measures = measure(histories[0])
    seconds = cpu_seconds(lambda: measure(histories[0]))
    wait, allocation = measures.waiting.mean or 0.0, measures.allocation or 0.0
    return Measured(simulation, seconds, peak_memory_bytes() / 2**20, wait, allocation)
