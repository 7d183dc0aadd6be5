"""Adapt a trace to a cluster: match the spelling of GPU types and report jobs that can never run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

import msgspec

from refold.model import WHOLE, Cluster, Demand, Job
from refold.packing import FreeResources
from refold.traces.clusters import UNKNOWN_GPU_TYPE
from refold.traces.trace import Trace, format_count

MAX_TYPES_LISTED = 4
"""GPU types that a note lists by name; the others are only counted."""


def adapt_to_cluster(trace: Trace, cluster: Cluster) -> Trace:
    """Return the trace with GPU types spelled as in the cluster, and notes about jobs that can never run on it.

    Types are compared case-insensitively. GPUs of unknown type match every requested type. Jobs that request only
    types the cluster does not have are left unchanged.
    """
    spellings = _spellings(cluster)
    jobs = _with_demands(trace.jobs, lambda demand: _match_spelling(demand, spellings))
    notes = [*_unknown_type_notes(trace.jobs, cluster), *_infeasible_notes(jobs, cluster)]
    return replace(trace, jobs=jobs, notes=(*trace.notes, *notes))


def relax_missing_types(trace: Trace, cluster: Cluster) -> Trace:
    """Like `adapt_to_cluster`, but jobs that request only types the cluster does not have may run on any type.

    For workloads generated for this cluster.
    """
    spellings = _spellings(cluster)
    absent = [job for job in trace.jobs if _types_absent(job.demand, spellings)]
    dropped = _with_demands(
        trace.jobs,
        lambda demand: msgspec.structs.replace(demand, gpu_types=()) if _types_absent(demand, spellings) else demand,
    )
    types = _list_types(_requested_types(absent))
    notes = [f"the cluster has no {types}: {format_count(len(absent), 'job')} may run on any type"] if absent else []
    return adapt_to_cluster(replace(trace, jobs=dropped, notes=(*trace.notes, *notes)), cluster)


Spellings = dict[str, set[str]]


def _spellings(cluster: Cluster) -> Spellings:
    """Return the cluster's GPU type names by their case-folded form."""
    spellings: Spellings = {}
    for name in cluster.type_names:
        spellings.setdefault(name.casefold(), set()).add(name)
    return spellings


def _match_spelling(demand: Demand, spellings: Spellings) -> Demand:
    types_in_cluster: set[str] = set().union(*(spellings.get(name.casefold(), ()) for name in demand.gpu_types))
    if demand.gpu_types and UNKNOWN_GPU_TYPE.casefold() in spellings:
        types_in_cluster |= {UNKNOWN_GPU_TYPE}
    if types_in_cluster == {UNKNOWN_GPU_TYPE} and len(spellings) == 1:
        return msgspec.structs.replace(demand, gpu_types=())
    types = tuple(sorted(types_in_cluster))
    return (
        msgspec.structs.replace(demand, gpu_types=types) if types_in_cluster and types != demand.gpu_types else demand
    )


def _types_absent(demand: Demand, spellings: Spellings) -> bool:
    """Return whether the demand requests GPUs, and only of types that the cluster does not have."""
    if not demand.gpus or not demand.gpu_types or UNKNOWN_GPU_TYPE.casefold() in spellings:
        return False
    return not any(name.casefold() in spellings for name in demand.gpu_types)


def _with_demands(jobs: Iterable[Job], change: Callable[[Demand], Demand]) -> tuple[Job, ...]:
    """Apply `change` to the demand of every job, once per distinct demand."""
    changed: dict[Demand, Demand] = {}
    adapted: list[Job] = []
    for job in jobs:
        demand = changed.get(job.demand)
        if demand is None:
            demand = changed[job.demand] = change(job.demand)
        adapted.append(job if demand == job.demand else msgspec.structs.replace(job, demand=demand))
    return tuple(adapted)


def _unknown_type_notes(jobs: Iterable[Job], cluster: Cluster) -> list[str]:
    if UNKNOWN_GPU_TYPE not in cluster.type_names:
        return []
    typed = [job for job in jobs if job.demand.gpus and job.demand.gpu_types]
    if not typed:
        return []
    where = "of this cluster" if len(cluster.type_names) == 1 else "of some nodes"
    requests = f"{format_count(len(typed), 'job')} {_request_verb(typed)} {_list_types(_requested_types(typed))}"
    return [f"{requests}; the GPU types {where} are unknown and match any request"]


def _infeasible_notes(jobs: Iterable[Job], cluster: Cluster) -> list[str]:
    """Report jobs that do not fit the empty cluster, because of the GPU type or because of the amount."""
    free, spellings = FreeResources(cluster), _spellings(cluster)
    infeasible = [job for job in jobs if not free.fits_when_empty(job.demand)]
    wrong_type = [job for job in infeasible if _types_absent(job.demand, spellings)]
    too_much = [job for job in infeasible if not _types_absent(job.demand, spellings)]
    notes = []
    if wrong_type:
        has = _list_types(cluster.type_names) if cluster.type_names else "no GPUs"
        notes.append(
            f"{format_count(len(wrong_type), 'job')} {_request_verb(wrong_type)} "
            f"{_list_types(_requested_types(wrong_type))}; the cluster has {has}"
        )
    if too_much:
        first = too_much[0]
        notes.append(
            f"{format_count(len(too_much), 'job')} {_request_verb(too_much)} more than the whole cluster has, "
            f"such as {first.id}: {_format_demand(first.demand, free)}"
        )
    return notes


def _request_verb(jobs: list[Job]) -> str:
    return "requests" if len(jobs) == 1 else "request"


def _format_demand(demand: Demand, free: FreeResources) -> str:
    """Format a demand that does not fit: its GPUs and, if those would fit alone, its CPUs and memory."""
    if not free.fits_when_empty(msgspec.structs.replace(demand, cpu_milli=0, memory_mib=0)):
        return str(demand)
    amounts = {"CPU": demand.cpu_milli / WHOLE if free.cluster.cpus_known else 0}
    amounts |= {"GiB of memory": demand.memory_mib / 1024 if free.cluster.memory_known else 0}
    amounts_text = " and ".join(f"{amount:,g} {what}" for what, amount in amounts.items() if amount)
    return f"{demand}, {amounts_text} on {'each' if demand.instances > 1 else 'one'} node"


def _requested_types(jobs: Iterable[Job]) -> list[str]:
    """Return the GPU types that the jobs request, most frequent first."""
    counts = Counter(name for job in jobs for name in job.demand.gpu_types)
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _list_types(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - MAX_TYPES_LISTED
    return ", ".join(names[:MAX_TYPES_LISTED]) + (f" and {more} more" if more > 0 else "")
