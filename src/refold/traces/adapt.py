"""A trace made ready for a cluster: GPU types in the cluster's spelling, and notes on jobs that can never run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from refold.model import WHOLE, Cluster, Demand, Job
from refold.packing import Free
from refold.traces.clusters import ANY_TYPE
from refold.traces.trace import Trace, counted

MOST_NAMED = 4
"""So many kinds of thing a note names; of more, it says how many."""


def for_cluster(trace: Trace, cluster: Cluster) -> Trace:
    """The same jobs with GPU types as the cluster spells them, whatever their case; notes say who can never run.

    GPUs whose type nobody said count as every type. A job that only asks for types that the cluster does not have
    is kept as it is.
    """
    spellings = _spellings(cluster)
    jobs = _with_demands(trace.jobs, lambda demand: _spelt(demand, spellings))
    notes = [*_any_type_notes(trace.jobs, cluster), *_never_notes(jobs, cluster)]
    return replace(trace, jobs=jobs, notes=(*trace.notes, *notes))


def with_types_of(trace: Trace, cluster: Cluster) -> Trace:
    """The same, but who only asks for types that the cluster does not have takes any: for workloads made for it."""
    spellings = _spellings(cluster)
    absent = [job for job in trace.jobs if _types_absent(job.demand, spellings)]
    dropped = _with_demands(
        trace.jobs,
        lambda demand: msgspec.structs.replace(demand, gpu_types=()) if _types_absent(demand, spellings) else demand,
    )
    types = _listed(_asked(absent))
    notes = [f"the cluster does not have {types}: {counted(len(absent), 'job')} may run on any type"] if absent else []
    return for_cluster(replace(trace, jobs=dropped, notes=(*trace.notes, *notes)), cluster)


Spellings = dict[str, set[str]]


def _spellings(cluster: Cluster) -> Spellings:
    """How the cluster writes each of its types, by what is the same in every case."""
    spellings: Spellings = {}
    for name in cluster.type_names:
        spellings.setdefault(name.casefold(), set()).add(name)
    return spellings


def _spelt(demand: Demand, spellings: Spellings) -> Demand:
    found: set[str] = set().union(*(spellings.get(name.casefold(), ()) for name in demand.gpu_types))
    if demand.gpu_types and ANY_TYPE.casefold() in spellings:
        found |= {ANY_TYPE}
    if found == {ANY_TYPE} and len(spellings) == 1:
        return msgspec.structs.replace(demand, gpu_types=())
    types = tuple(sorted(found))
    return msgspec.structs.replace(demand, gpu_types=types) if found and types != demand.gpu_types else demand


def _types_absent(demand: Demand, spellings: Spellings) -> bool:
    """Whether it asks for GPUs, and only for types that the cluster does not have."""
    if not demand.gpus or not demand.gpu_types or ANY_TYPE.casefold() in spellings:
        return False
    return not any(name.casefold() in spellings for name in demand.gpu_types)


def _with_demands(jobs: Iterable[Job], change: Callable[[Demand], Demand]) -> tuple[Job, ...]:
    """The jobs with other demands; few demands differ, so each is changed once."""
    changed: dict[Demand, Demand] = {}
    adapted: list[Job] = []
    for job in jobs:
        demand = changed.get(job.demand)
        if demand is None:
            demand = changed[job.demand] = change(job.demand)
        adapted.append(job if demand == job.demand else msgspec.structs.replace(job, demand=demand))
    return tuple(adapted)


def _any_type_notes(jobs: Iterable[Job], cluster: Cluster) -> list[str]:
    if ANY_TYPE not in cluster.type_names:
        return []
    asking = [job for job in jobs if job.demand.gpus and job.demand.gpu_types]
    if not asking:
        return []
    who = "the cluster does not say its GPU types" if len(cluster.type_names) == 1 else "some nodes do not say theirs"
    verb = "asks" if len(asking) == 1 else "ask"
    return [f"{counted(len(asking), 'job')} {verb} for {_listed(_asked(asking))}; {who}, so any will do there"]


def _never_notes(jobs: Iterable[Job], cluster: Cluster) -> list[str]:
    """Who has no place even in the empty cluster: for the type, or for the amount."""
    free, spellings = Free(cluster), _spellings(cluster)
    never = [job for job in jobs if not free.fits_when_empty(job.demand)]
    wrong_type = [job for job in never if _types_absent(job.demand, spellings)]
    too_much = [job for job in never if not _types_absent(job.demand, spellings)]
    notes = []
    if wrong_type:
        verb = "asks" if len(wrong_type) == 1 else "ask"
        has = _listed(cluster.type_names) if cluster.type_names else "no GPUs"
        notes.append(
            f"{counted(len(wrong_type), 'job')} {verb} for {_listed(_asked(wrong_type))}; the cluster has {has}"
        )
    if too_much:
        verb = "asks" if len(too_much) == 1 else "ask"
        first = too_much[0]
        notes.append(
            f"{counted(len(too_much), 'job')} {verb} for more than the whole cluster has room for, "
            f"such as {first.id}: {_text_of(first.demand, free)}"
        )
    return notes


def _text_of(demand: Demand, free: Free) -> str:
    """A demand without room: GPUs, and what else of it there is too little of."""
    if not free.fits_when_empty(msgspec.structs.replace(demand, cpu_milli=0, memory_mib=0)):
        return str(demand)
    amounts = {"CPU": demand.cpu_milli / WHOLE if free.cluster.cpus_known else 0}
    amounts |= {"GiB of memory": demand.memory_mib / 1024 if free.cluster.memory_known else 0}
    said = " and ".join(f"{amount:,g} {what}" for what, amount in amounts.items() if amount)
    return f"{demand}, {said} on each node" if demand.instances > 1 else f"{demand}, {said} on one node"


def _asked(jobs: Iterable[Job]) -> list[str]:
    """The types that these jobs ask for, the most frequent first."""
    times = Counter(name for job in jobs for name in job.demand.gpu_types)
    return [name for name, _ in sorted(times.items(), key=lambda item: (-item[1], item[0]))]


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
