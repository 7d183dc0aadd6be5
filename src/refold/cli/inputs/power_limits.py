"""What a cluster has to say, and which jobs there can be, where racks are kept within their power limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from refold.cli.inputs.policy_choice import SPREAD, Choice
from refold.cli.inputs.workload import Workload
from refold.cli.views import plural

if TYPE_CHECKING:
    from refold.model import Cluster, Job
    from refold.packing import Power
    from refold.results import ReportRun

EXAMPLE = (
    "racks: [{name: r1, limit_watts: 12000}] and "
    "nodes: [{name: a, count: 4, gpus: 8, gpu_type: A100, rack: r1, idle_watts: 500, busy_watts: 1200}]"
)


def spreads_power(choice: Choice) -> bool:
    """Whether a policy places jobs by what racks draw."""
    return choice.settings.get("placement") == SPREAD


def within_limits(workload: Workload, chosen: Sequence[Choice], skip_bad: bool) -> Workload:
    """The same, once it is certain that limits can be kept if any of the policies is to keep them.

    A job for which no rack has the power would wait for ever, and hold up everybody behind it: such jobs are refused,
    or left out for all policies.
    """
    from refold.errors import BadInput, BadValue
    from refold.packing import Power

    if not any(spreads_power(choice) for choice in chosen):
        return workload
    power = Power(workload.cluster)
    _refuse_unknown(workload.cluster, power)
    try:
        power.refuse_limits_below_idle()
    except BadValue as error:
        raise BadInput(f"cluster {workload.cluster.name}: {error}") from None
    return _without_powerless(workload, power, skip_bad)


def limit_notes(chosen: Sequence[Choice], runs: Sequence[ReportRun]) -> list[str]:
    """Who was to keep limits and did not: some policies also place jobs by other means, or in rounds."""
    from refold.model import text_from_seconds

    return [
        f"{run.name}: racks were above their limits for {text_from_seconds(run.measures.power.above_limit_seconds)}, "
        "since this policy also places jobs by other means than its placement, or in rounds"
        for choice, run in zip(chosen, runs, strict=True)
        if spreads_power(choice) and run.measures.power and run.measures.power.above_limit_seconds
    ]


def _refuse_unknown(cluster: Cluster, power: Power) -> None:
    """What is missing is told with the fields to fill in."""
    from math import isfinite

    from refold.errors import BadInput
    from refold.packing import NO_RACK

    racks = [limit for name, limit in zip(power.names, power.limit.tolist(), strict=True) if name != NO_RACK]
    missing = []
    if not (power.full > power.idle).any():
        missing.append("neither nodes nor gpu_types have idle_watts and busy_watts")
    if not racks:
        missing.append("no node has a rack")
    elif len(racks) == 1 and not isfinite(racks[0]):
        missing.append("there is one rack, and it has no limit_watts")
    if missing:
        raise BadInput(
            f"{SPREAD} places by the power of racks, of which cluster {cluster.name} says too little: "
            f"{', and '.join(missing)}; a cluster file could have {EXAMPLE} (docs/power.md)"
        )


def _without_powerless(workload: Workload, power: Power, skip_bad: bool) -> Workload:
    from refold.errors import BadInput

    powerless = _powerless(workload.jobs, power)
    if not powerless:
        return workload
    first = powerless[0]
    what = f"{plural(len(powerless), 'job')} for which racks have not the power, even when all else is idle"
    if not skip_bad:
        raise BadInput(
            f"{what}, such as {first.id}: {first.demand}; raise limit_watts, or --skip-bad leaves such jobs out"
        )
    gone = {job.id for job in powerless}
    kept = [job for job in workload.jobs if job.id not in gone]
    if not kept:
        raise BadInput(f"{what}: these are all jobs of {workload.name}; raise limit_watts")
    return replace(workload, jobs=kept, notes=[*workload.notes, f"left out {what}"])


def _powerless(jobs: Sequence[Job], power: Power) -> list[Job]:
    """Jobs that fit the empty cluster but for the limits of its racks."""
    from refold.packing import Free

    free = Free(power.cluster)
    fits = {
        demand: power.fits_when_empty(demand) or not free.fits_when_empty(demand)
        for demand in {job.demand for job in jobs}
    }
    return [job for job in jobs if not fits[job.demand]]
