"""Simulate several policies on the same jobs and measure each: `refold.compare`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import Policy
from refold.journal import HistoryJournal
from refold.model import Cluster, Job
from refold.registry import make_policy
from refold.results import Measures, measure
from refold.simulator import FREE_OF_CHARGE, Costs, SpeedModel, simulate


def compare(
    jobs: Sequence[Job],
    cluster: Cluster,
    policies: Iterable[str | Policy],
    *,
    charge: SpeedModel | None = None,
    costs: Costs = FREE_OF_CHARGE,
) -> dict[str, Measures]:
    """Simulate each policy on the same jobs and cluster; return the measures by policy name.

    A policy is a name (`refold policies` lists them), the path of a Python file, or an object with a `name` and a
    `decide`. `costs` are those of starting, stopping and restarting runs; `charge` is how fast jobs really are
    (default: as recorded in the trace).
    """
    measures: dict[str, Measures] = {}
    for chosen in policies:
        policy = make_policy(chosen) if isinstance(chosen, str) else chosen
        journal = HistoryJournal()
        simulate(jobs, cluster, policy, journal=journal, charge=charge, costs=costs)
        measures[policy.name] = measure(journal.history(cluster))
    return measures
