"""The jobs of Slurm's accounting as a workload on which policies can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from refold.cli.inputs.workload import Workload
from refold.cli.views import progress

if TYPE_CHECKING:
    from refold.cli import TraceOptions
    from refold.engines.slurm import SlurmCluster, SlurmHistory
    from refold.model import Seconds
    from refold.simulator import Costs
    from refold.simulator.results import ReportRun

DEFAULT_SINCE = "30d"


def parse_since(text: str | None) -> Seconds:
    """Parse --since: how far back jobs are read."""
    from refold.cli import parse_duration_option

    return parse_duration_option("--since", text or DEFAULT_SINCE)


def read_slurm_workload(
    since: Seconds, _trace: str, cluster: str | None, options: TraceOptions, costs: Costs
) -> Workload:
    """Read the jobs that have run under Slurm in the last `since` seconds, and its nodes unless a cluster is given."""
    from time import time

    from refold.engines.slurm import Programs, SlurmError, map_nodes, read_history, read_nodes
    from refold.errors import BadInput, BadValue
    from refold.model import format_count
    from refold.simulator.traces import read_cluster

    run = Programs().run
    try:
        with progress("reading Slurm's accounting"):
            found = map_nodes(read_nodes(run))
            history = read_history(run, found, time() - since)
    except (SlurmError, BadValue) as error:
        raise BadInput(f"Slurm's jobs cannot be read: {error}") from None
    machines = found.cluster if cluster is None else read_cluster(cluster)
    first = replace(history.trace, jobs=history.trace.jobs[: options.limit])
    if not first.jobs:
        raise BadInput("; ".join(["no jobs with GPUs in Slurm's accounting", *first.notes]))
    ready = options.adapt(first, machines)
    skipped = len(ready.skipped_rows)
    if cluster is not None:  # Slurm's decisions were for its own nodes
        return Workload(ready.name, ready.jobs, machines, costs, (), skipped, ready.notes)
    recorded, left_out = _recorded_run(history._replace(trace=ready), found)
    notes = [f"{format_count(left_out, 'job')} left out of what Slurm did: no GPUs were free by its records"]
    notes = [*ready.notes, *(notes if left_out else [])]
    return Workload(ready.name, ready.jobs, machines, costs, (), skipped, notes, recorded=recorded)


def _recorded_run(history: SlurmHistory, cluster: SlurmCluster) -> tuple[ReportRun, int]:
    from refold.engines.slurm import recorded_entries
    from refold.journal import History
    from refold.simulator.results import ReportRun, measure

    entries, left_out = recorded_entries(history.trace.jobs, history.starts, cluster)
    found = History.from_entries(cluster.cluster, entries)
    return ReportRun("Slurm (recorded)", found, measure(found)), left_out
