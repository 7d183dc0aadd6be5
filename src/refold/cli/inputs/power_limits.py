"""Checks of the cluster and the jobs for simulations with rack power limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from refold.cli.inputs.policy_choice import POWER_PLACEMENT, SelectedPolicy
from refold.cli.inputs.workload import Workload
from refold.cli.views import plural
from refold.errors import BadInput, BadValue
from refold.model import format_duration

if TYPE_CHECKING:
    from refold.model import Cluster, Job
    from refold.placement import Power
    from refold.simulator.results import ReportRun

EXAMPLE = (
    "racks: [{name: r1, limit_watts: 12000}] and "
    "nodes: [{name: a, count: 4, gpus: 8, gpu_type: A100, rack: r1, idle_watts: 500, busy_watts: 1200}]"
)


def spreads_power(policy: SelectedPolicy) -> bool:
    """Whether a policy uses the power-aware placement."""
    return policy.settings.get("placement") == POWER_PLACEMENT


def with_power_limits(workload: Workload, policies: Sequence[SelectedPolicy], skip_bad: bool) -> Workload:
    """Check that the power limits can be kept if any policy uses the power-aware placement, and return the workload.

    A job that needs more power than the racks have would wait forever and block the jobs behind it: such jobs are
    rejected, or with `skip_bad` skipped for all policies.
    """
    from refold.placement import Power

    if not any(spreads_power(policy) for policy in policies):
        return workload
    power = Power(workload.cluster)
    _check_power_data(workload.cluster, power)
    try:
        power.reject_limits_below_idle()
    except BadValue as error:
        raise BadInput(f"cluster {workload.cluster.name}: {error}") from None
    return _without_jobs_over_limit(workload, power, skip_bad)


def power_limit_notes(policies: Sequence[SelectedPolicy], runs: Sequence[ReportRun]) -> list[str]:
    """Return notes on policies with power-aware placement that exceeded limits: some also place jobs in other ways."""
    return [
        f"{run.name}: racks were above their limits for {format_duration(run.measures.power.above_limit_seconds)}, "
        "because this policy does not place all jobs with its placement rule, or places them in rounds"
        for policy, run in zip(policies, runs, strict=True)
        if spreads_power(policy) and run.measures.power and run.measures.power.above_limit_seconds
    ]


def _check_power_data(cluster: Cluster, power: Power) -> None:
    """Reject a cluster without power data; the message names the missing fields."""
    from math import isfinite

    from refold.placement import NO_RACK

    racks = [limit for name, limit in zip(power.names, power.limit.tolist(), strict=True) if name != NO_RACK]
    missing = []
    if not (power.full > power.idle).any():
        missing.append("neither nodes nor gpu_types have idle_watts and busy_watts")
    if not racks:
        missing.append("no node has a rack")
    elif len(racks) == 1 and not isfinite(racks[0]):
        missing.append("the only rack has no limit_watts")
    if missing:
        raise BadInput(
            f"{POWER_PLACEMENT} needs the power of racks, but in cluster {cluster.name} "
            f"{', and '.join(missing)}; a cluster file can have {EXAMPLE} (docs/power.md)"
        )


def _without_jobs_over_limit(workload: Workload, power: Power, skip_bad: bool) -> Workload:
    over_limit = _jobs_over_limit(workload.jobs, power)
    if not over_limit:
        return workload
    first = over_limit[0]
    problem = f"{plural(len(over_limit), 'job')} above the rack power limits even on an idle cluster"
    if not skip_bad:
        raise BadInput(
            f"{problem}, such as {first.id} ({first.demand}); raise limit_watts, or skip such jobs with --skip-bad"
        )
    skipped = {job.id for job in over_limit}
    remaining = [job for job in workload.jobs if job.id not in skipped]
    if not remaining:
        raise BadInput(f"{problem}: these are all jobs of {workload.name}; raise limit_watts")
    return replace(workload, jobs=remaining, notes=[*workload.notes, f"skipped {problem}"])


def _jobs_over_limit(jobs: Sequence[Job], power: Power) -> list[Job]:
    """Return the jobs that fit the empty cluster except for the power limits of its racks."""
    from refold.placement import FreeResources

    free = FreeResources(power.cluster)
    fits = {
        demand: power.fits_when_empty(demand) or not free.fits_when_empty(demand)
        for demand in {job.demand for job in jobs}
    }
    return [job for job in jobs if not fits[job.demand]]
