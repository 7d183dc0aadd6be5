"""Histories of simulations, and their comparison."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from refold.journal import History, HistoryJournal, RunColumns
from refold.model import Cluster, Job
from refold.simulator import NO_COSTS, Costs, simulate
from refold.simulator.registry import make_policy
from refold.simulator.results import measure


def simulated_history(
    jobs: Sequence[Job], cluster: Cluster, policy: str, settings: Mapping[str, Any], costs: Costs = NO_COSTS
) -> History:
    """Return the history of the general simulator."""
    journal = HistoryJournal()
    simulate(jobs, cluster, make_policy(policy, settings), journal=journal, costs=costs)
    return journal.history(cluster)


def assert_same_history(ours: History, general: History) -> None:
    """Compare all columns of all runs, their placements, and the measures."""
    for name in RunColumns.__dataclass_fields__.keys() - {"allocations"}:
        np.testing.assert_array_equal(getattr(ours.runs, name), getattr(general.runs, name), name)
    assert [*ours.runs.allocations] == [*general.runs.allocations]
    assert measure(ours) == measure(general)
    assert ours.until == general.until
