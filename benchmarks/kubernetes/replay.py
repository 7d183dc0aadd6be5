"""A slice of the Philly trace played through Kubernetes, faster than it happened, beside its simulation.

Each job is a gang of plain pods, created when the job was submitted. A stand-in for the kubelets lets a pod that is
bound run for the duration of its job, and then succeed. Nodes are objects only. Times are in seconds of the trace.
"""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from benchmarks.kubernetes.placing import CREATING_THREADS, create_gang, create_node, in_threads, make_servers, refold
from benchmarks.workloads import PHILLY, missing, trace_slice
from refold.backends.kubernetes.api_server import ApiError, ApiServer
from refold.backends.kubernetes.objects import Pod
from refold.backends.kubernetes.pod_states import pod_path
from refold.backends.kubernetes.reflector import Reflector
from refold.journal import HistoryJournal
from refold.model import HOUR, Demand, Job, Seconds
from refold.registry import make_policy
from refold.simulator import simulate
from refold.testing import make_cluster

GPUS_PER_NODE = 8
STATUS_THREADS = 4
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
        in_threads(lambda number: create_node(servers, f"n{number}"), range(part.nodes))
        kubelets = StandInKubelets(servers.api, {job.id: (job.work or 0.0) / speed_up for job in jobs})
        with refold(servers, assets), ThreadPoolExecutor(CREATING_THREADS) as threads:
            create_gang(servers, "refold", "first", 1)
            kubelets.wait({"first": 1})
            began = time.monotonic()
            created: dict[str, float] = {}

            def arrive(job: Job) -> None:
                created[job.id] = time.monotonic()
                create_gang(servers, "refold", job.id, job.demand.instances, job.demand.gpus)

            for job in jobs:
                time.sleep(max(0.0, began + job.submitted / speed_up - time.monotonic()))
                threads.submit(arrive, job)
            threads.shutdown()
            kubelets.wait({job.id: job.demand.instances for job in jobs})
        kubelets.stop()
    finally:
        servers.stop()

    def traced(at: float) -> Seconds:
        return (at - began) * speed_up

    gpus = {job.id: job.demand.instances * job.demand.gpus for job in jobs}
    times = [
        JobTimes(traced(created[job]), traced(min(kubelets.bound[job])), traced(max(kubelets.ended[job])), gpus[job])
        for job in gpus
    ]
    return summarize(times, part)


def summarize(times: Sequence[JobTimes], part: Slice) -> Outcome:
    """Return the measures of what became of the jobs."""
    waits = [job.started - job.submitted for job in times]
    makespan = max(job.ended for job in times) - min(job.submitted for job in times)
    used = sum((job.ended - job.started) * job.gpus for job in times)
    return Outcome(mean(waits), median(waits), makespan, used / (makespan * part.nodes * GPUS_PER_NODE))


class StandInKubelets:
    """Lets bound pods run for the time of their job. `bound` and `ended`: when that was, by job."""

    def __init__(self, api: ApiServer, seconds: dict[str, float]) -> None:
        self.bound: dict[str, list[float]] = {}
        self.ended: dict[str, list[float]] = {}
        self._api = api
        self._seconds = seconds
        self._seen: set[str] = set()
        self._due: list[tuple[float, str, str]] = []
        self._changed = threading.Condition()
        self._stopped = False
        self._threads = ThreadPoolExecutor(STATUS_THREADS)
        self._clock = threading.Thread(target=self._run, daemon=True)
        self._reflector = Reflector(api, "/api/v1/pods", Pod, lambda _: None, self._change)
        self._reflector.start()
        self._clock.start()

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
        """End."""
        self._reflector.stop()
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._clock.join()
        self._threads.shutdown()

    def _change(self, pod: Pod, deleted: bool) -> None:
        if deleted or not pod.is_bound or pod.key in self._seen:
            return
        self._seen.add(pod.key)
        now, job = time.monotonic(), pod.metadata.labels["gang"]
        self.bound.setdefault(job, []).append(now)
        self._threads.submit(self._start, job, pod_path(pod), now + self._seconds.get(job, 0.0))

    def _start(self, job: str, path: str, due: float) -> None:
        self._set_phase(path, "Running")
        with self._changed:
            heapq.heappush(self._due, (due, job, path))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._stopped:
                    return
                wait = self._due[0][0] - time.monotonic() if self._due else None
                if wait is None or wait > 0:
                    self._changed.wait(wait)
                    continue
                _, job, path = heapq.heappop(self._due)
            self._threads.submit(self._end, job, path)

    def _end(self, job: str, path: str) -> None:
        self._set_phase(path, "Succeeded")
        with self._changed:
            self.ended.setdefault(job, []).append(time.monotonic())

    def _set_phase(self, path: str, phase: str) -> None:
        with suppress(ApiError):
            self._api.patch(f"{path}/status", {"status": {"phase": phase}})


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
