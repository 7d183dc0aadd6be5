"""A slice of the Philly trace played through Kubernetes, faster than it happened, beside its simulation.

Each job is a gang of plain pods, created when the job was submitted. KWOK, or a stand-in for the kubelets, lets a pod
that is bound run for the duration of its job, and then succeed. Times are in seconds of the trace.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.kubernetes.kubelets import StandInKubelets, has_kwok
from benchmarks.kubernetes.placing import CREATING_THREADS, create_gang, make_servers, refold, simulated_nodes
from benchmarks.workloads import PHILLY, missing, trace_slice
from refold.engines.kubernetes.api_server import ApiServer
from refold.engines.kubernetes.mirror import Reflector
from refold.engines.kubernetes.objects import Pod
from refold.journal import HistoryJournal
from refold.model import HOUR, Demand, Job, Seconds
from refold.simulator import simulate
from refold.simulator.registry import make_policy
from refold.testing import make_cluster

GPUS_PER_NODE = 8
MAX_DURATION: Seconds = 6 * HOUR
"""Longer jobs are left out: with them, most of the GPUs would idle for most of the replay."""

MAX_WAIT: Seconds = 600.0
"""How long the end of a replay is waited for without any pod ending, in real time."""


class JobTimes(NamedTuple):
    """When a job was submitted, started and ended, and its GPUs."""

    submitted: Seconds
    started: Seconds
    ended: Seconds
    gpus: int


class Outcome(NamedTuple):
    """What became of the jobs. `allocation`: the part of all GPU time that jobs had, until the last of them ended."""

    mean_wait: Seconds
    median_wait: Seconds
    makespan: Seconds
    allocation: float


class Slice(NamedTuple):
    """Some jobs of the trace, on nodes of eight GPUs."""

    first: int
    length: int
    nodes: int

    def jobs(self) -> list[Job]:
        """Return the jobs of limited duration, which need GPUs only, in instances of at most one node."""
        if absent := missing(PHILLY):
            raise SystemExit(absent)
        found = []
        short = [job for job in trace_slice(PHILLY, self.first, self.length) if (job.work or 0.0) <= MAX_DURATION]
        for number, job in enumerate(short):
            gpus = max(1, job.demand.instances * job.demand.gpus)
            each = next(size for size in range(min(gpus, GPUS_PER_NODE), 0, -1) if gpus % size == 0)
            found.append(Job(f"j{number}", job.submitted, Demand(gpus // each, each), work=max(1.0, job.work or 0.0)))
        return found


PHILLY_PART = Slice(20_000, 600, nodes=4)
"""Jobs that keep 32 GPUs busy for 15 hours, and wait for five hours on average."""


def simulated(part: Slice) -> Outcome:
    """Return what the simulator predicts, first come first served."""
    journal, cluster = HistoryJournal(), make_cluster(*[GPUS_PER_NODE] * part.nodes)
    simulate(part.jobs(), cluster, make_policy("fifo"), journal=journal)
    found = journal.history(cluster).jobs
    rows = zip(found.submitted, found.first_start, found.ended, found.gpus, strict=True)
    times = [JobTimes(float(at), float(start), float(end), int(gpus)) for at, start, end, gpus in rows]
    return summarize(times, part)


def played(assets: Path, part: Slice, speed_up: float) -> Outcome:
    """Play the jobs through Kubernetes, so many times faster than they were, on servers of their own."""
    servers, jobs = make_servers(assets), part.jobs()
    try:
        servers.start(controllers=False)
        kubelets = nullcontext() if has_kwok(assets) else StandInKubelets(servers.api).running()
        pods = PodTimes(servers.api)
        with (
            simulated_nodes(servers, assets, part.nodes),
            kubelets,
            refold(servers, assets),
            ThreadPoolExecutor(CREATING_THREADS) as threads,
        ):
            create_gang(servers, "refold", "first", 1, seconds=0.0)
            pods.wait({"first": 1})
            began = time.monotonic()
            created: dict[str, float] = {}

            def arrive(job: Job) -> None:
                created[job.id] = time.monotonic()
                seconds = (job.work or 0.0) / speed_up
                create_gang(servers, "refold", job.id, job.demand.instances, job.demand.gpus, seconds)

            for job in jobs:
                time.sleep(max(0.0, began + job.submitted / speed_up - time.monotonic()))
                threads.submit(arrive, job)
            threads.shutdown()
            pods.wait({job.id: job.demand.instances for job in jobs})
        pods.stop()
    finally:
        servers.stop()

    def traced(at: float) -> Seconds:
        return (at - began) * speed_up

    gpus = {job.id: job.demand.instances * job.demand.gpus for job in jobs}
    times = [
        JobTimes(traced(created[job]), traced(min(pods.bound[job])), traced(max(pods.ended[job])), gpus[job])
        for job in gpus
    ]
    return summarize(times, part)


def summarize(times: Sequence[JobTimes], part: Slice) -> Outcome:
    """Return the measures of what became of the jobs."""
    waits = [job.started - job.submitted for job in times]
    makespan = max(job.ended for job in times) - min(job.submitted for job in times)
    used = sum((job.ended - job.started) * job.gpus for job in times)
    return Outcome(mean(waits), median(waits), makespan, used / (makespan * part.nodes * GPUS_PER_NODE))


class PodTimes:
    """Watches when pods are bound and end, by job."""

    def __init__(self, api: ApiServer) -> None:
        self.bound: dict[str, list[float]] = {}
        self.ended: dict[str, list[float]] = {}
        self._seen: set[tuple[str, bool]] = set()
        self._reflector = Reflector(api, "/api/v1/pods", Pod, lambda _: None, self._change)
        self._reflector.start()

    def wait(self, pods: dict[str, int]) -> None:
        """Wait until this number of pods of each job has ended."""
        deadline, last = time.monotonic() + MAX_WAIT, -1
        while (missing := sum(max(0, count - len(self.ended.get(job, []))) for job, count in pods.items())) > 0:
            deadline = time.monotonic() + MAX_WAIT if missing != last else deadline
            last = missing
            if time.monotonic() > deadline:
                raise RuntimeError(f"{missing} pods have not ended, and none has for {MAX_WAIT:g} s")
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop watching."""
        self._reflector.stop()

    def _change(self, pod: Pod, deleted: bool) -> None:
        for times, happened in ((self.bound, pod.is_bound), (self.ended, pod.has_ended)):
            key = (pod.key, times is self.ended)
            if happened and not deleted and key not in self._seen:
                self._seen.add(key)
                times.setdefault(pod.metadata.labels["gang"], []).append(time.monotonic())


def table(part: Slice, predicted: Outcome, found: dict[float, Outcome]) -> list[str]:
    """Return a Markdown table."""
    lines = [
        f"{len(part.jobs())} jobs of Philly, of at most {MAX_DURATION / HOUR:g} h each, from number {part.first:,},"
        f" on {part.nodes} nodes of eight GPUs, first come first served",
        "",
        "| | mean wait, h | to predicted | median wait, h | GPU allocation | to predicted | makespan, h |",
        "|---|---|---|---|---|---|---|",
        f"| simulator | {predicted.mean_wait / HOUR:.2f} | | {predicted.median_wait / HOUR:.2f} |"
        f" {predicted.allocation:.1%} | | {predicted.makespan / HOUR:.1f} |",
    ]
    for speed_up, outcome in found.items():
        lines.append(
            f"| Kubernetes, {speed_up:g} times as fast | {outcome.mean_wait / HOUR:.2f} |"
            f" {outcome.mean_wait / predicted.mean_wait - 1:+.1%} | {outcome.median_wait / HOUR:.2f} |"
            f" {outcome.allocation:.1%} | {outcome.allocation / predicted.allocation - 1:+.1%} |"
            f" {outcome.makespan / HOUR:.1f} |"
        )
    return lines
