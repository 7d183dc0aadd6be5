"""Gangs of pods enter the queue once all of their pods exist, and leave it when they are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from itertools import islice

from msgspec.structs import replace

from refold.client.api import Caller, Submission
from refold.core import JobCancelled
from refold.engines.kubernetes.api_server import ApiError
from refold.engines.kubernetes.backend import is_submitted
from refold.engines.kubernetes.constraints import unsupported_fields
from refold.engines.kubernetes.gangs import GangName, gang_name, is_ours, parse_gang_name, single_pod
from refold.engines.kubernetes.local_queues import LocalQueues
from refold.engines.kubernetes.mirror import Changed, Mirror
from refold.engines.kubernetes.nodes import NodeMap
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.owner_specs import QUEUE_LABEL, Owner
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.pod_notes import PodNotes
from refold.engines.kubernetes.pod_states import bindable
from refold.engines.kubernetes.pods import accepted_gpu_types, gang_submission
from refold.errors import BadInput, RefoldError
from refold.journal import JobEnded, Submitted
from refold.model import Job, Seconds
from refold.server import Admission, Inbox, LiveState, LoopStep, Subscriber

CALLER = Caller("kubernetes", "owner", "default", "kubernetes")
"""Who submits gangs."""

SETTLE_SECONDS: Seconds = 0.05
"""How long changes are collected: the pods of a gang are created one by one."""

GONE_AFTER: Seconds = 10.0
"""How long a waiting gang may have no pods before its owner is asked whether it still exists."""

RETRY_AFTER: Seconds = 10.0
"""Gangs with pods that could not be submitted are examined again after this time: their owner may have changed."""

MAX_RETRIED = 200
"""Gangs that are examined again at a time."""

EXTENDABLE = ("PodGroup", "Workload", "Pods", "JobSet")
"""Kinds of gangs that may have more pods than must start together, or get some of them while others run."""

log = logging.getLogger("refold")


class GangQueue(Subscriber):
    """Submits gangs. A gang has one active job at most; its job remembers it (`Launch.gang`)."""

    def __init__(
        self,
        state: LiveState,
        inbox: Inbox,
        admission: Admission,
        mirror: Mirror,
        owners: Owners,
        queues: LocalQueues,
        nodes: NodeMap,
        notes: PodNotes,
    ) -> None:
        self._state = state
        self._inbox = inbox
        self._admission = admission
        self._mirror = mirror
        self._owners = owners
        self._queues = queues
        self._nodes = nodes
        self._notes = notes
        self._changes = mirror.follow()
        self._active: dict[GangName, str] = {}
        """The active job of each gang."""
        self._vanished: dict[GangName, Seconds] = {}
        """Gangs with a job and without pods, and since when."""
        self._unsettled: dict[GangName, None] = {}
        """Gangs with pods that wait and are in no job, the one that was examined first in front."""
        self._retry_at: Seconds = 0.0
        self._restored = asyncio.Event()

    # As a subscriber of the loop.

    def started(self) -> None:
        """Restore which gangs have a job."""
        for record in self._state.job_table.records.values():
            self._add(record.job)
        self._restored.set()

    def after_step(self, step: LoopStep) -> None:
        """Follow which gangs have a job."""
        for change in step.changes:
            match change:
                case Submitted(record):
                    self._add(record.job)
                case JobEnded(record) if record.job.launch.gang:
                    gang = parse_gang_name(record.job.launch.gang)
                    self._active.pop(gang, None)
                    self._unsettled[gang] = None  # its pods may still wait

    def _add(self, job: Job) -> None:
        if job.launch.gang:
            self._active[parse_gang_name(job.launch.gang)] = job.id

    # Following the pods.

    async def run(self) -> None:
        """Follow the pods until cancelled, once it is known which gangs have a job: others would be submitted again."""
        try:
            await self._restored.wait()
            await self._look({*self._mirror.gangs(), *self._active})
            while True:
                try:
                    async with asyncio.timeout(GONE_AFTER):
                        found = self._gangs_of(await self._changes.get())
                    await asyncio.sleep(SETTLE_SECONDS)
                    while not self._changes.empty():
                        found |= self._gangs_of(self._changes.get_nowait())
                except TimeoutError:
                    found = set()
                await self._look(found | set(self._vanished) | self._due_again())
        finally:
            self._mirror.unfollow(self._changes)

    def _due_again(self) -> set[GangName]:
        """Return gangs that are to be examined again, from time to time."""
        now = self._state.now()
        if now < self._retry_at:
            return set()
        self._retry_at = now + RETRY_AFTER
        due = [*islice(self._unsettled, MAX_RETRIED)]
        for gang in due:
            del self._unsettled[gang]
        return set(due)

    def _gangs_of(self, changed: Changed) -> set[GangName]:
        return {
            name
            for pod in changed.pods
            if is_ours(pod) and not is_submitted(pod)
            for name in (gang_name(pod), single_pod(pod))
        }

    async def _look(self, gangs: set[GangName]) -> None:
        """Submit the gangs that are complete, and cancel the jobs of those that are gone."""
        looks = await asyncio.gather(*(self._examine(gang) for gang in gangs), return_exceptions=True)
        for gang, problem in zip(gangs, looks, strict=True):
            if isinstance(problem, asyncio.CancelledError):
                raise problem
            if isinstance(problem, BaseException):
                self._unsettled[gang] = None
            if isinstance(problem, ApiError | RefoldError):
                log.warning("%s: %s; trying again", gang, problem)
            elif isinstance(problem, BaseException):
                log.error("cannot submit %s; trying again", gang, exc_info=problem)

    async def _examine(self, gang: GangName) -> None:
        pods = self._mirror.pods_of_gang(gang)
        job = self._active.get(gang)
        waiting = [pod for pod in bindable(pods) if gang_name(pod) == gang and not is_submitted(pod)]
        if job is not None:
            await self._check_whether_gone(gang, job, pods)
            if waiting and gang.kind in EXTENDABLE and self._has_all_pods(job):
                await self._submit_surplus(gang, waiting)
        elif waiting:
            await self._submit(gang, waiting)

    async def _submit(self, gang: GangName, waiting: list[Pod]) -> None:
        owner = await asyncio.to_thread(self._owners.find, gang, waiting)
        if owner is None or owner.ended:
            self._unsettled[gang] = None
            self._notes.set(waiting, f"{gang} {'does not exist' if owner is None else 'has ended'}")
        elif missing := await self._missing_queue(waiting[0], owner):
            self._unsettled[gang] = None
            self._notes.set(waiting, f"LocalQueue {missing} not found in namespace {gang.namespace}")
        elif owner.size is None:
            await self._accept_each(waiting, owner)
        elif len(waiting) >= owner.size:
            await self._accept(gang, waiting[: owner.size], owner)
        else:
            self._unsettled[gang] = None
            self._notes.set(waiting, f"{len(waiting)} of {owner.size} pods of the gang exist")

    async def _missing_queue(self, pod: Pod, owner: Owner) -> str:
        """Return the LocalQueue that a gang names if it does not exist, else ''."""
        name = pod.metadata.labels.get(QUEUE_LABEL) or owner.queue
        if not name:
            return ""
        return name if await asyncio.to_thread(self._queues.is_missing, pod.metadata.namespace, name) else ""

    async def _submit_surplus(self, gang: GangName, waiting: list[Pod]) -> None:
        """Submit the pods of a running gang that it can do without: each starts when it fits."""
        owner = await asyncio.to_thread(self._owners.find, gang, waiting)
        is_resized = (
            gang.kind == "JobSet" and owner is not None and owner.elastic
        )  # it will delete pods that are too many
        if owner is not None and not owner.ended and not is_resized:
            await self._accept_each(waiting, owner._replace(size=None))

    def _has_all_pods(self, job: str) -> bool:
        """Whether a job runs, and no pod of its run has ended: pods that wait do not replace others."""
        run = self._state.view.runs.get(job)
        if run is None or run.stopping:
            return False
        pods = self._mirror.pods_of_run((job, run.number)).values()
        return sum(not (pod.has_ended or pod.is_deleted) for pod in pods) >= len(run.allocation.placement)

    async def _accept_each(self, pods: list[Pod], owner: Owner) -> None:
        new = [pod for pod in pods if single_pod(pod) not in self._active]
        await asyncio.gather(*(self._accept(single_pod(pod), [pod], owner) for pod in new))

    async def _accept(self, gang: GangName, pods: list[Pod], owner: Owner) -> None:
        """Submit a gang, once: it is known by its oldest pod, so that a restart of the daemon does not repeat it."""
        oldest = min(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.uid))
        try:
            if fields := [field for pod in pods for field in unsupported_fields(pod)]:
                raise BadInput(f"spec.{fields[0]} is not supported")
            submission = gang_submission(gang, pods, owner, f"{gang.key}/{oldest.metadata.uid}")
            types = accepted_gpu_types(pods, self._nodes)
            if submission.gpu_range is not None and gang.kind != "Job":
                await asyncio.to_thread(self._owners.check_resizable, gang)
            complete = partial(_complete, gang, types)
            (job,) = await self._admission.accept(CALLER, [submission], complete)
        except BadInput as error:
            self._notes.set(pods, str(error))
            return
        if (ended := self._admission.ended_job(job)) is not None:
            self._notes.set(pods, f"{job} has ended ({ended.state}); create the pods again to run it again")

    async def _check_whether_gone(self, gang: GangName, job: str, pods: Mapping[str, Pod]) -> None:
        """Cancel a waiting job whose pods are gone, unless something will create them again."""
        live = [pod for pod in pods.values() if not pod.is_deleted]
        if live or job in self._state.view.runs:
            self._vanished.pop(gang, None)
            if job not in self._state.view.runs and all(self._is_of_others(pod, job) for pod in live):
                self._inbox.report(JobCancelled(job, "its pods were bound by another scheduler"))
            return
        now = self._state.now()
        if now - self._vanished.setdefault(gang, now) < GONE_AFTER:
            return
        self._vanished[gang] = now
        owner = await asyncio.to_thread(self._owners.find, gang, [])
        is_suspended = owner is not None and owner.suspended and not self._has_run(job)
        if owner is None or owner.ended or is_suspended:
            self._vanished.pop(gang, None)
            self._inbox.report(JobCancelled(job, f"{gang} was suspended" if is_suspended else "its pods were deleted"))

    def _is_of_others(self, pod: Pod, job: str) -> bool:
        """Whether a pod runs or has run, and not for this job."""
        run = self._mirror.run_of(pod)
        return pod.is_bound and (run is None or run[0] != job)

    def _has_run(self, job: str) -> bool:
        """Whether a job has run before: then its Job is suspended between its runs."""
        record = self._state.job_table.records.get(job)
        return record is not None and record.run > 0


def _complete(gang: GangName, gpu_types: tuple[str, ...], _: Submission, job: Job) -> Job:
    """Add to a job which pods it consists of, and which nodes admit them."""
    return replace(job, demand=replace(job.demand, gpu_types=gpu_types), launch=replace(job.launch, gang=gang.text()))
