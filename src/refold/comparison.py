"""`refold.compare`: simulate several policies on the same jobs, and measure each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import Policy
from refold.journal import HistoryJournal
from refold.model import Cluster, Job
from refold.registry import make_policy
from refold.results import Measures, measure
from refold.simulator import NO_COSTS, Costs, SpeedModel, simulate


def compare(
    jobs: Sequence[Job],
    cluster: Cluster,
    policies: Iterable[str | Policy],
    *,
    charge: SpeedModel | None = None,
    costs: Costs = NO_COSTS,
) -> dict[str, Measures]:
    """Simulate each policy on the same jobs and cluster; return the measures by policy name.

    A policy is a name (`refold policies` lists them), the path of a Python file, or an object with a `name` and a
    `decide` method. `costs` are the times to start, stop and restart runs. `charge` is the model of the actual speed
    of jobs (default: as recorded in the trace).
    """
    measures: dict[str, Measures] = {}
    for chosen in policies:
        policy = make_policy(chosen) if isinstance(chosen, str) else chosen
        journal = HistoryJournal()
        simulate(jobs, cluster, policy, journal=journal, charge=charge, costs=costs)
        measures[policy.name] = measure(journal.history(cluster))
    return measures
