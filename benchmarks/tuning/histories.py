"""Histories of small clusters: every tenth or so job of a published trace, so that they last for weeks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.scheduling.unified.workload import COSTS, feasible
from benchmarks.workloads import HELIOS, PAI, PHILLY, TRACES
from refold.cli import start_tuning_runs, study_inputs
from refold.cli.inputs import Workload
from refold.cli.views.output import ignore_progress
from refold.model import DAY
from refold.simulator.registry import default_settings, make_policy, setting_ranges
from refold.simulator.traces import read_cluster, read_trace
from refold.simulator.tuning import Space, Split, Study, TunedPolicy, Tuner, split_history

REPORT_SHARE = 0.4


class TraceHistory(NamedTuple):
    """Every `stride`-th job of a trace that fits a cluster; of these, `jobs` from number `first`."""

    file: str
    stride: int
    nodes: str
    first: int
    jobs: int

    def workload(self, name: str) -> Workload:
        """Return the jobs and the cluster."""
        cluster = read_cluster(self.nodes)
        jobs = feasible(read_trace(TRACES / self.file).jobs[:: self.stride], cluster)
        return Workload(name, tuple(jobs[self.first : self.first + self.jobs]), cluster, COSTS)


HISTORIES = {
    "philly": TraceHistory(PHILLY, 10, "8x8", 2000, 4000),
    "helios": TraceHistory(HELIOS, 16, "6x8", 2000, 4000),
    "pai": TraceHistory(PAI, 10, "5x8", 1800, 4000),
}


def describe(name: str) -> str:
    """Describe the jobs, the cluster and the parts of a history."""
    history = HISTORIES[name]
    workload = history.workload(name)
    split = split_of(workload)
    tuned, last = split.report.measured, len(workload.jobs) - 1
    begin, middle, end = (workload.jobs[number].submitted / DAY for number in (0, tuned, last))
    return (
        f"`{name}`: every {history.stride}th job of {history.file}, {len(workload.jobs):,} from number "
        f"{history.first:,} on {history.nodes.replace('x', ' × ')} GPUs; tuned on {tuned:,} jobs of "
        f"{middle - begin:.0f} days, reported on {last + 1 - tuned:,} of {end - middle:.0f} days"
    )


def split_of(workload: Workload) -> Split:
    """Return the parts of a history."""
    return split_history([job.submitted for job in workload.jobs], REPORT_SHARE)


def tuned_policy(name: str) -> TunedPolicy:
    """Return a policy with its declared ranges."""

    def is_valid(settings: object) -> bool:
        try:
            make_policy(name, settings)  # type: ignore[arg-type]
        except ValueError:
            return False
        return True

    return TunedPolicy(name, Space(setting_ranges(name), {}, is_valid), default_settings(name))


@contextmanager
def tuner_of(workload: Workload, folder: Path, workers: int, seed: int = 0) -> Iterator[Tuner]:
    """Start processes that simulate a history; results are kept in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(folder / f"{workload.name}.jsonl", study_inputs(workload, []))
    submitted = np.array([job.submitted for job in workload.jobs])
    gpus = np.array([job.demand.total_gpus for job in workload.jobs], dtype=np.float64)
    with start_tuning_runs(workload, study, workers, ignore_progress) as runs:
        yield Tuner(split_of(workload), submitted, gpus, runs.run, seed)
