"""`refold.compare`: simulate several policies on the same jobs, and measure each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import Policy
from refold.journal import HistoryJournal
from refold.model import Cluster, Job
from refold.registry import START_ESTIMATES, default_settings, make_policy
from refold.results import Measures, measure
from refold.simulator import NO_COSTS, Costs, SpeedModel, simulate


def compare(
    jobs: Sequence[Job],
    cluster: Cluster,
    policies: Iterable[str | Policy],
    *,
    charge: SpeedModel | None = None,
    costs: Costs = NO_COSTS,
    start_estimates: bool = False,
) -> dict[str, Measures]:
    """Simulate each policy on the same jobs and cluster; return the measures by policy name.

    A policy is a name (`refold policies` lists them), the path of a Python file, or an object with a `name` and a
    `decide` method. `costs` are the times to start, stop and restart runs. `charge` is the model of the actual speed
    of jobs (default: as recorded in the trace). `start_estimates`: whether policies given by name estimate when waiting
    jobs start, which is slow if queues are long, and changes no other measure.
    """
    measures: dict[str, Measures] = {}
    for chosen in policies:
        policy = _make_policy(chosen, start_estimates) if isinstance(chosen, str) else chosen
        journal = HistoryJournal()
        simulate(jobs, cluster, policy, journal=journal, charge=charge, costs=costs)
        measures[policy.name] = measure(journal.history(cluster))
    return measures


def _make_policy(name: str, start_estimates: bool) -> Policy:
    settings = {START_ESTIMATES: start_estimates} if START_ESTIMATES in default_settings(name) else {}
    return make_policy(name, settings)
