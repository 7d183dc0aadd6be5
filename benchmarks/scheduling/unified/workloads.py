"""All workloads by name. Settings are tuned on other slices and draws than those that are reported."""

from __future__ import annotations

from benchmarks.scheduling.unified.decisions import DECISIONS
from benchmarks.scheduling.unified.estimates import estimate_workloads
from benchmarks.scheduling.unified.mixtures import mixture_workloads
from benchmarks.scheduling.unified.reshapable import reshapable_workloads
from benchmarks.scheduling.unified.slices import slice_workloads
from benchmarks.scheduling.unified.workload import Workload


def workloads(tuning: bool = False) -> dict[str, Workload]:
    """Return the workloads to report, or those for tuning."""
    kinds = (reshapable_workloads, slice_workloads, mixture_workloads, estimate_workloads)
    return {workload.name: workload for kind in kinds for workload in kind(tuning)} | {DECISIONS.name: DECISIONS}
