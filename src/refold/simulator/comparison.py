"""`refold.compare`: simulate several policies on the same jobs, and measure each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from refold.core import Policy
from refold.journal import HistoryJournal
from refold.model import Cluster, Job
from refold.simulator.costs import NO_COSTS, Costs, SpeedModel
from refold.simulator.registry import START_ESTIMATES, make_policy
from refold.simulator.replays import Conditions, Experiment, find_replay
from refold.simulator.results import Measures, measure, replayed_history
from refold.simulator.simulation import simulate


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
    of jobs (default: as recorded in the trace). `start_estimates`: whether it is estimated, under policies given by
    name, when waiting jobs start: slow if queues are long, and it changes no other measure.
    """
    measures: dict[str, Measures] = {}
    conditions = Conditions(charge, costs)
    for chosen in policies:
        settings = {START_ESTIMATES: True} if start_estimates else {}
        policy = make_policy(chosen, settings) if isinstance(chosen, str) else chosen
        replay = None
        if isinstance(chosen, str):
            replay = find_replay(Experiment(chosen, settings, jobs, cluster, conditions))
        if replay is not None:
            history = replayed_history(jobs, cluster, replay.run())
        else:
            journal = HistoryJournal()
            simulate(jobs, cluster, policy, journal=journal, charge=charge, costs=costs)
            history = journal.history(cluster)
        measures[policy.name] = measure(history)
    return measures
