"""Adapt a trace to a cluster: find the GPU types that jobs request, and report jobs that can never run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import msgspec

from refold.errors import UnknownName
from refold.model import WHOLE, Cluster, Demand, Job, format_count
from refold.model.documents import load_yaml, read_text
from refold.placement import FreeResources
from refold.planning.catalogue import matching_gpu_names
from refold.simulator.traces.shorthand import UNKNOWN_GPU_TYPE
from refold.simulator.traces.trace import Trace

MAX_TYPES_LISTED = 4
"""GPU types that a note lists by name; the others are only counted."""


EXPECTED_GPU_TYPE_MAP = "requested GPU types and those of the cluster, such as 'fast: A100-80GB'"

GpuTypeMap = Mapping[str, Sequence[str]]
"""GPU types of a cluster by the names that jobs request; an empty sequence accepts every type."""


def read_gpu_type_map(path: Path, cluster: Cluster) -> GpuTypeMap:
    """Read a YAML file such as `{fast: A100-80GB, any: []}`; names of the cluster's types are found as in requests."""
    mapped: dict[str, list[str]] = {}
    for name, wanted in load_yaml(read_text(path), str(path)).fields(expected=EXPECTED_GPU_TYPE_MAP).items():
        mapped[name] = []
        for part in wanted.entries() if isinstance(wanted.value, list) else [wanted]:
            found = matching_gpu_names(part.text("a GPU type"), cluster.type_names)
            if not found:
                raise part.error(UnknownName("GPU type", part.written, cluster.type_names))
            mapped[name] += found
    return mapped


def adapt_to_cluster(trace: Trace, cluster: Cluster, gpu_types: GpuTypeMap | None = None) -> Trace:
    """Return the trace with the GPU types of the cluster, and notes about what was mapped and what can never run.

    Requested types that `gpu_types` does not map are matched by name: 'nvidia_a100-sxm4-80gb' is an A100-80GB, 'a100'
    any A100. GPUs of unknown type match every requested type. Jobs that request only types the cluster does not have
    are left unchanged.
    """
    types = _TypeResolver(cluster, gpu_types or {})
    jobs = _with_demands(trace.jobs, types.resolve)
    notes = [
        *_mapped_type_notes(trace.jobs, types),
        *_unknown_type_notes(trace.jobs, cluster),
        *_infeasible_notes(jobs, cluster, types),
    ]
    return replace(trace, jobs=jobs, notes=(*trace.notes, *notes))


def ignore_gpu_types(trace: Trace) -> Trace:
    """Return the trace with jobs that may run on any GPU type."""
    typed = sum(bool(job.demand.gpu_types) for job in trace.jobs)
    if not typed:
        return trace
    note = f"requested GPU types are ignored: {format_count(typed, 'job')} may run on any type"
    return replace(trace, jobs=_with_demands(trace.jobs, _accept_any_type), notes=(*trace.notes, note))


def relax_missing_types(trace: Trace, cluster: Cluster) -> Trace:
    """Like `adapt_to_cluster`, but jobs that request only types the cluster does not have may run on any type.

    For workloads generated for this cluster.
    """
    types = _TypeResolver(cluster, {})
    absent = [job for job in trace.jobs if types.are_absent(job.demand)]
    dropped = _with_demands(trace.jobs, lambda demand: _accept_any_type(demand) if types.are_absent(demand) else demand)
    names = _list_types(_requested_types(absent))
    notes = [f"the cluster has no {names}: {format_count(len(absent), 'job')} may run on any type"] if absent else []
    return adapt_to_cluster(replace(trace, jobs=dropped, notes=(*trace.notes, *notes)), cluster)


class _TypeResolver:
    """Finds the GPU types of a cluster that requested names stand for."""

    def __init__(self, cluster: Cluster, mapped: GpuTypeMap) -> None:
        self._cluster_types = cluster.type_names
        self._has_unknown = UNKNOWN_GPU_TYPE in cluster.type_names
        self._mapped = {name.casefold(): types for name, types in mapped.items()}
        self.matches = cache(self._matches)

    def _matches(self, name: str) -> tuple[str, ...]:
        """Return the cluster's types that a requested name stands for, without GPUs of unknown type."""
        mapped = self._mapped.get(name.casefold())
        if mapped is not None:
            return tuple(mapped) or self._cluster_types
        return tuple(matching_gpu_names(name, self._cluster_types))

    def resolve(self, demand: Demand) -> Demand:
        """Return the demand with types of the cluster; unchanged if the cluster has none of the requested types."""
        if not demand.gpu_types:
            return demand
        types = {match for name in demand.gpu_types for match in self.matches(name)}
        if self._has_unknown:
            types.add(UNKNOWN_GPU_TYPE)
        if types == {UNKNOWN_GPU_TYPE} and len(self._cluster_types) == 1:
            return _accept_any_type(demand)
        return msgspec.structs.replace(demand, gpu_types=tuple(sorted(types))) if types else demand

    def are_absent(self, demand: Demand) -> bool:
        """Return whether a demand requests GPUs, and only of types that the cluster does not have."""
        if not demand.gpus or not demand.gpu_types or self._has_unknown:
            return False
        return not any(map(self.matches, demand.gpu_types))


def _accept_any_type(demand: Demand) -> Demand:
    return msgspec.structs.replace(demand, gpu_types=())


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


def _mapped_type_notes(jobs: Iterable[Job], types: _TypeResolver) -> list[str]:
    """Report the requested types whose names differ from the cluster's by more than case."""
    counts = Counter(name for job in jobs if job.demand.gpus for name in job.demand.gpu_types)
    mapped = [
        f"{name} is {' or '.join(types.matches(name))} ({format_count(count, 'job')})"
        for name, count in counts.most_common()
        if types.matches(name) and {match.casefold() for match in types.matches(name)} != {name.casefold()}
    ]
    return [f"GPU types of the cluster were found by name: {', '.join(mapped)}"] if mapped else []


def _unknown_type_notes(jobs: Iterable[Job], cluster: Cluster) -> list[str]:
    if UNKNOWN_GPU_TYPE not in cluster.type_names:
        return []
    typed = [job for job in jobs if job.demand.gpus and job.demand.gpu_types]
    if not typed:
        return []
    where = "of this cluster" if len(cluster.type_names) == 1 else "of some nodes"
    requests = f"{format_count(len(typed), 'job')} {_request_verb(typed)} {_list_types(_requested_types(typed))}"
    return [f"{requests}; the GPU types {where} are unknown and match any request"]


def _infeasible_notes(jobs: Iterable[Job], cluster: Cluster, types: _TypeResolver) -> list[str]:
    """Report jobs that do not fit the empty cluster, because of the GPU type or because of the amount."""
    free = FreeResources(cluster)
    infeasible = [job for job in jobs if not free.fits_when_empty(job.demand)]
    wrong_type = [job for job in infeasible if types.are_absent(job.demand)]
    too_much = [job for job in infeasible if not types.are_absent(job.demand)]
    notes = []
    if wrong_type:
        has = f"{_list_types(cluster.type_names)} (see --gpu-types)" if cluster.type_names else "no GPUs"
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
