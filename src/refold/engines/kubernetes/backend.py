"""Runs as gangs of pods, bound to the nodes that the scheduler chose. The cluster itself keeps what is needed to adopt
them again: the annotations of pods name their runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf
from typing import NamedTuple

from refold.core import JobCancelled, Order, RunFailed, RunStopped, StartRun, StopRun
from refold.engines.kubernetes.api_server import ApiError, ApiServer, Calls, RequestCounts
from refold.engines.kubernetes.gang_run import GangRun
from refold.engines.kubernetes.gangs import GangName, RunKey, gang_name, is_ours, parse_gang_name, single_pod
from refold.engines.kubernetes.job_objects import OwnJobObjects, OwnJobs
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.nodes import NodeMap
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.own_jobs import pod_shares
from refold.engines.kubernetes.resources import is_foreign
from refold.engines.kubernetes.room import NodeRoom
from refold.engines.kubernetes.run_steps import RunEnd
from refold.errors import RefoldError
from refold.model import Job, Seconds
from refold.server import Metric, Report, Sample

THREADS = 16
"""Requests to the API server at a time."""

REFUSED_PAUSE: Seconds = 5.0
"""Pause before a run is followed again after the API server has refused a request for good."""

MAX_REMEMBERED_ENDS = 10_000

INVALID = (400, 422)
"""The answers to objects that can never be created."""

CANCELLED = "cancelled"
"""Why runs of jobs are stopped that users have cancelled. All other stops are preemptions."""

log = logging.getLogger("refold")


class StopRequest(NamedTuple):
    """How a run is to be stopped: its grace period (None: that of its pods), and whether for another job."""

    grace: Seconds | None = None
    is_preemption: bool = False


class KubernetesBackend:
    """Binds the pods of gangs, creates Jobs for submitted commands, and follows both to their end.

    `grace`: the grace period of pods that the back end creates. `start_timeout`: how long bound pods may take to start.
    """

    def __init__(
        self,
        report: Report,
        api: ApiServer,
        mirror: Mirror,
        nodes: NodeMap,
        own: OwnJobs,
        grace: Seconds = 10.0,
        start_timeout: Seconds = inf,
    ) -> None:
        self._report = report
        self._mirror = mirror
        self._room = NodeRoom(mirror)
        self._nodes = nodes
        self._grace, self._start_timeout = grace, start_timeout
        self._threads = ThreadPoolExecutor(THREADS, "refold-kubernetes")
        self._calls = Calls(api, self._threads)
        self._own_jobs = OwnJobObjects(self._calls, mirror, own, grace)
        self._runs: dict[RunKey, GangRun] = {}
        self._latest: dict[str, GangRun] = {}
        self._gangs: dict[GangName, RunKey] = {}
        """The run of each gang: a gang has one at most."""
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        self._stops: dict[RunKey, StopRequest] = {}
        """Runs that were ordered to stop before their gang was known."""
        self._ends: dict[str, RunEnd] = {}
        """How the last run of each job ended. The order to start it may be repeated until the loop knows its end."""
        self._undone = 0
        """Runs that were ended since another scheduler had bound pods to the same GPUs."""
        self._changes = mirror.follow()
        self._following = asyncio.create_task(self._follow())

    async def carry_out(self, orders: Sequence[Order], jobs: Mapping[str, Job]) -> None:
        """Bind or adopt pods, or request their end; then return."""
        for order in orders:
            match order:
                case StartRun(job_id, number):
                    self._start(jobs[job_id], order)
                case StopRun(job_id, number):
                    self._stop((job_id, number), StopRequest(is_preemption=order.why != CANCELLED))

    async def close(self) -> None:
        """End all runs without a grace period, and wait until they have ended."""
        for key in self._tasks:
            self._stop(key, StopRequest(0.0))
        await asyncio.gather(*self._tasks.values())
        await self._end()

    def kill(self, job_id: str) -> None:
        """End the run of a job without a grace period, if there is one."""
        for key in self._tasks:
            if key[0] == job_id:
                self._stop(key, StopRequest(0.0))

    async def detach(self) -> None:
        """Stop following; pods stay as they are until another back end adopts them."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._end()

    async def stop_all_except(self, runs: Collection[RunKey]) -> None:
        """End the Jobs that a back end of this daemon has created for other runs, and wait until their pods are gone.

        Gangs of users are left alone: their pods count as used by others.
        """
        wanted = set(runs)
        for key in [key for key in self._tasks if key not in wanted]:
            self._stop(key, StopRequest())
        await asyncio.gather(
            self._own_jobs.delete_all_except(wanted | set(self._tasks)),
            *(task for key, task in self._tasks.items() if key not in wanted),
        )

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return ""

    def run_note(self, job_id: str) -> str:
        """Return what the run of a job waits for; '' if nothing is known."""
        return self._latest[job_id].note if job_id in self._latest else ""

    # Runs.

    def _start(self, job: Job, order: StartRun) -> None:
        end = self._ends.get(job.id)
        if end is not None and end.run == order.run:
            self._report(end)
        elif (job.id, order.run) not in self._tasks:
            self._ends.pop(job.id, None)
            self._tasks[job.id, order.run] = asyncio.create_task(self._supervise(job, order))

    async def _supervise(self, job: Job, order: StartRun) -> None:
        """Follow a run, and report its end once."""
        key = (job.id, order.run)
        try:
            gang = parse_gang_name(job.launch.gang) if job.launch.gang else await self._own_jobs.create(job, order)
            nodes = [self._nodes.kubernetes_name(share.node) for share in pod_shares(job, order.allocation)]
            run = GangRun(
                job, order, gang, nodes, self._calls, self._mirror, self._room, self._grace, self._start_timeout
            )
            self._runs[key], self._latest[job.id], self._gangs[gang] = run, run, key
            if key in self._stops:
                run.stop(*self._stops[key])
            end = await self._follow_to_end(run)
            if run.gone and job.launch.gang:
                self._report(JobCancelled(job.id, f"{gang} {run.gone}"))
            if not job.launch.gang and isinstance(end, RunStopped):
                self._own_jobs.delete_later(gang)
        except RefoldError as error:
            end = RunFailed(*key, str(error), retry=isinstance(error, ApiError) and error.status not in INVALID)
        except Exception as error:
            log.exception("cannot follow run %d of %s", order.run, job.id)
            end = RunFailed(*key, f"cannot be followed: {error}", retry=True)
        finally:
            if (ended := self._runs.pop(key, None)) is not None and self._gangs.get(ended.gang) == key:
                del self._gangs[ended.gang]
            self._latest.pop(job.id, None)
            self._stops.pop(key, None)
            del self._tasks[key]
        self._remember(end)
        self._report(end)

    async def _follow_to_end(self, run: GangRun) -> RunEnd:
        """Follow a run. As long as it has pods it is not given up, even if the API server refuses a request."""
        while True:
            try:
                return await run.supervise(self._report)
            except ApiError as error:
                if not run.has_pods:
                    raise
                log.error("run %d of %s: %s; trying again", run.key[1], run.key[0], error)
            await asyncio.sleep(REFUSED_PAUSE)

    def _remember(self, end: RunEnd) -> None:
        self._ends.pop(end.job, None)
        self._ends[end.job] = end
        if len(self._ends) > MAX_REMEMBERED_ENDS:
            del self._ends[next(iter(self._ends))]

    def _stop(self, key: RunKey, request: StopRequest) -> None:
        if key in self._runs:
            self._runs[key].stop(*request)
        elif key in self._tasks:
            self._stops[key] = request

    async def _follow(self) -> None:
        """Wake the runs whose pods change."""
        while True:
            changed = await self._changes.get()
            self._undo_overcommitted(changed.pods)
            gangs = {gang for pod in changed.pods if is_ours(pod) for gang in (gang_name(pod), single_pod(pod))}
            keys = {self._mirror.run_of(pod) for pod in changed.pods}
            for name in changed.nodes:  # a pod on a node that is down will not say that it has ended
                keys |= {self._mirror.run_of(pod) for pod in self._mirror.pods_on_node(name).values()}
            keys |= {self._gangs[gang] for gang in gangs if gang in self._gangs}
            for key in keys:
                if key is not None and key in self._runs:
                    self._runs[key].changed.set()

    def _undo_overcommitted(self, changed: Sequence[Pod]) -> None:
        """End runs that have not started and whose GPUs another scheduler has given away at the same time."""
        for name in {pod.spec.node_name for pod in changed if is_foreign(pod)}:
            if not self._room.is_overcommitted(name):
                continue
            bound = {self._mirror.run_of(pod) for pod in self._mirror.pods_on_node(name).values() if is_ours(pod)}
            why = f"another scheduler has bound pods to GPUs of node {name}"
            keys = self._runs.keys() & {*bound, *self._room.runs_on(name)}
            self._undone += sum(self._runs[key].undo(why) for key in keys)

    def metrics(self) -> list[Metric]:
        """Return what pods of other schedulers do on the nodes, and the requests to the API server."""
        foreign = sum(is_foreign(pod) for pod in self._mirror.pods.values())
        pods = "Pods with GPUs that other schedulers have bound: they may overcommit nodes."
        undone = "Gangs that were ended since another scheduler had bound pods to the same GPUs."
        return [
            Metric("refold_kubernetes_foreign_gpu_pods", "gauge", pods, [Sample(foreign)]),
            Metric("refold_kubernetes_undone_bindings_total", "counter", undone, [Sample(self._undone)]),
            *_request_metrics(self._calls.api.requests),
        ]

    async def _end(self) -> None:
        self._mirror.unfollow(self._changes)
        self._following.cancel()
        await asyncio.gather(self._following, self._own_jobs.stop(), return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)


def _request_metrics(requests: RequestCounts) -> list[Metric]:
    """Return the requests by method, resource and status; those of `pods/binding` are bindings."""
    counted = [(kind._asdict() | {"code": str(kind.code)}, *totals) for kind, totals in requests.read().items()]
    numbers = [Sample(number, labels) for labels, number, _ in counted]
    seconds = [Sample(taken, labels) for labels, _, taken in counted]
    name, text = "refold_kubernetes_requests_total", "Requests to the API server; code 200: any success, 0: no answer."
    return [
        Metric(name, "counter", text, numbers),
        Metric("refold_kubernetes_request_seconds_total", "counter", "Time that these requests have taken.", seconds),
    ]
