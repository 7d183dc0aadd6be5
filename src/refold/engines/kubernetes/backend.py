"""Runs as gangs of pods, bound to the nodes that the scheduler chose. The cluster itself keeps what is needed to adopt
them again: the annotations of pods name their runs.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec

from refold.core import JobCancelled, Order, RunFailed, RunStopped, StartRun, StopRun
from refold.engines.kubernetes.api_server import ApiError, ApiServer, ObjectList
from refold.engines.kubernetes.calls import CONFLICT, NOT_FOUND, Calls
from refold.engines.kubernetes.gang_run import GangRun, RunEnd
from refold.engines.kubernetes.gangs import GangName, gang_name, is_ours, parse_gang_name, single_pod
from refold.engines.kubernetes.mirror import JOB_ANNOTATION, RUN_ANNOTATION, Mirror, RunKey
from refold.engines.kubernetes.nodes import NodeMap
from refold.engines.kubernetes.objects import BatchJob, Pod
from refold.engines.kubernetes.own_jobs import (
    SUBMITTED_LABEL,
    PodSettings,
    manifest,
    object_name,
    pod_shares,
    service_manifest,
)
from refold.engines.kubernetes.room import NodeRoom
from refold.errors import BadInput, RefoldError
from refold.model import Job, Seconds
from refold.server import Report

THREADS = 16
"""Requests to the API server at a time."""

REFUSED_PAUSE: Seconds = 5.0
"""Pause before a run is followed again after the API server has refused a request for good."""

DELETE_AFTER: Seconds = 90.0
"""How long the Job of a stopped run is kept. A later daemon deletes Jobs of which the journal knows nothing."""

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


class OwnJobs(msgspec.Struct, frozen=True):
    """Where submitted jobs become Jobs of Kubernetes, the image of their containers, and a volume for checkpoints."""

    namespace: str = "default"
    image: str = ""
    volume_claim: str = ""


class KubernetesBackend:
    """Binds the pods of gangs, creates Jobs for submitted commands, and follows both to their end.

    `grace`: the grace period of pods that the back end creates.
    """

    def __init__(
        self,
        report: Report,
        api: ApiServer,
        mirror: Mirror,
        nodes: NodeMap,
        own: OwnJobs,
        grace: Seconds = 10.0,
    ) -> None:
        self._report = report
        self._mirror = mirror
        self._room = NodeRoom(mirror)
        self._nodes = nodes
        self._own = own
        self._grace = grace
        self._settings = PodSettings(mirror.daemon, own.image, grace, own.volume_claim)
        self._has_service = False
        self._threads = ThreadPoolExecutor(THREADS, "refold-kubernetes")
        self._calls = Calls(api, self._threads)
        self._runs: dict[RunKey, GangRun] = {}
        self._gangs: dict[GangName, RunKey] = {}
        """The run of each gang: a gang has one at most."""
        self._tasks: dict[RunKey, asyncio.Task[None]] = {}
        self._stops: dict[RunKey, StopRequest] = {}
        """Runs that were ordered to stop before their gang was known."""
        self._ends: dict[str, RunEnd] = {}
        """How the last run of each job ended. The order to start it may be repeated until the loop knows its end."""
        self._deletions: list[asyncio.Task[None]] = []
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
        path, selector = self._jobs_path(), {"labelSelector": f"{SUBMITTED_LABEL}={self._mirror.daemon}"}
        found = await self._calls.repeat(self._calls.api.get, path, ObjectList[BatchJob], selector)
        active = [job for job in found.items if not job.has_ended]  # the output of others is kept
        strays = [job for job in active if _run_of_job(job) not in wanted | set(self._tasks)]
        await asyncio.gather(
            *(self._delete_job(job) for job in strays),
            *(task for key, task in self._tasks.items() if key not in wanted),
        )

    def enforcement(self) -> str:
        """Describe what limits the runs."""
        return ""

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
            gang = parse_gang_name(job.launch.gang) if job.launch.gang else await self._create_job(job, order)
            nodes = [self._nodes.kubernetes_name(share.node) for share in pod_shares(job, order.allocation)]
            run = GangRun(job, order, gang, nodes, self._calls, self._mirror, self._room, self._grace)
            self._runs[key], self._gangs[gang] = run, key
            if key in self._stops:
                run.stop(*self._stops[key])
            end = await self._follow_to_end(run)
            if run.gone and job.launch.gang:
                self._report(JobCancelled(job.id, f"{gang} {run.gone}"))
            if not job.launch.gang and isinstance(end, RunStopped):
                self._deletions.append(asyncio.create_task(self._delete_later(f"{self._jobs_path()}/{gang.name}")))
        except RefoldError as error:
            end = RunFailed(*key, str(error), retry=isinstance(error, ApiError) and error.status not in INVALID)
        except Exception as error:
            log.exception("cannot follow run %d of %s", order.run, job.id)
            end = RunFailed(*key, f"cannot be followed: {error}", retry=True)
        finally:
            if (ended := self._runs.pop(key, None)) is not None and self._gangs.get(ended.gang) == key:
                del self._gangs[ended.gang]
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
            gangs = {gang for pod in changed.pods if is_ours(pod) for gang in (gang_name(pod), single_pod(pod))}
            keys = {self._mirror.run_of(pod) for pod in changed.pods}
            for name in changed.nodes:  # a pod on a node that is down will not say that it has ended
                keys |= {self._mirror.run_of(pod) for pod in self._mirror.pods_on_node(name).values()}
            keys |= {self._gangs[gang] for gang in gangs if gang in self._gangs}
            for key in keys:
                if key is not None and key in self._runs:
                    self._runs[key].changed.set()

    async def _end(self) -> None:
        self._mirror.unfollow(self._changes)
        ending = [self._following, *self._deletions]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        self._threads.shutdown(wait=False, cancel_futures=True)

    # Jobs of our own.

    async def _create_job(self, job: Job, order: StartRun) -> GangName:
        """Create the Job of a run, unless it exists."""
        if not self._own.image:
            raise BadInput("no image for the containers of submitted commands: set kubernetes.image in refold.yaml")
        body = manifest(job, order.run, order.allocation, self._settings)
        await self._create_service()
        try:
            text = await self._calls.repeat(self._calls.api.create, self._jobs_path(), body)
            created = msgspec.json.decode(text, type=BatchJob)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            path = f"{self._jobs_path()}/{object_name(self._mirror.daemon, job.id, order.run)}"
            created = await self._calls.repeat(self._calls.api.get, path, BatchJob)
        return GangName("Job", self._own.namespace, created.metadata.name, created.metadata.uid)

    async def _create_service(self) -> None:
        """Create the Service by which pods of a gang find each other, unless it exists."""
        if self._has_service:
            return
        path = f"/api/v1/namespaces/{self._own.namespace}/services"
        try:
            await self._calls.repeat(self._calls.api.create, path, service_manifest(self._settings))
        except ApiError as error:
            if error.status != CONFLICT:
                raise
        self._has_service = True

    async def _delete_job(self, job: BatchJob) -> None:
        """Delete a Job with its pods, and wait until the pods are gone."""
        gang = GangName("Job", job.metadata.namespace, job.metadata.name, job.metadata.uid)
        await self._delete_object(f"{self._jobs_path()}/{job.metadata.name}")
        changes = self._mirror.follow()
        try:
            while any(not pod.has_ended and pod.is_bound for pod in self._mirror.pods_of_gang(gang).values()):
                await changes.get()
        finally:
            self._mirror.unfollow(changes)

    async def _delete_later(self, path: str) -> None:
        """Delete the suspended Job of a run that was stopped, when its end is in the journal: until then it says so."""
        await asyncio.sleep(DELETE_AFTER)
        self._deletions = [task for task in self._deletions if not task.done()]
        await self._delete_object(path)

    async def _delete_object(self, path: str) -> None:
        try:
            await self._calls.repeat(self._calls.api.delete, path, {"propagationPolicy": "Background"})
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    def _jobs_path(self) -> str:
        return f"/apis/batch/v1/namespaces/{self._own.namespace}/jobs"


def _run_of_job(job: BatchJob) -> RunKey:
    annotations = job.metadata.annotations
    number = annotations.get(RUN_ANNOTATION, "")
    return annotations.get(JOB_ANNOTATION, ""), int(number) if number.isdecimal() else 0


def is_submitted(pod: Pod) -> bool:
    """Whether a pod belongs to a Job that Refold has created."""
    return SUBMITTED_LABEL in pod.metadata.labels
