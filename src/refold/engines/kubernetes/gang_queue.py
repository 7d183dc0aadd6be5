"""Gangs of pods enter the queue once all of their pods exist, and leave it when they are deleted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf

from msgspec.structs import replace

from refold.client.api import Caller, Submission
from refold.core import JobCancelled, NodesAllowed
from refold.engines.kubernetes.api_server import FORBIDDEN, NOT_FOUND, ApiError, ApiServer, as_dict
from refold.engines.kubernetes.constraints import unsupported_fields
from refold.engines.kubernetes.gangs import GangName, gang_name, is_ours, parse_gang_name, single_pod
from refold.engines.kubernetes.mirror import Changed, Mirror
from refold.engines.kubernetes.nodes import KUEUE_GROUP, NodeMap, PodConstraints
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.own_jobs import is_submitted, own_constraints
from refold.engines.kubernetes.owner_specs import Json, Owner
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.pod_notes import PodNotes
from refold.engines.kubernetes.pod_states import bindable
from refold.engines.kubernetes.pods import gang_submission, pod_constraints
from refold.engines.kubernetes.queue_state import (
    GONE_AFTER,
    CancelJob,
    FindOwner,
    FindQueue,
    GangJob,
    HoldPods,
    OwnerFound,
    QueuedGang,
    QueueStep,
    SubmitGang,
    next_steps,
)
from refold.errors import BadInput, BadValue, RefoldError
from refold.journal import JobEnded, Submitted
from refold.model import Job, NodeSet, Seconds
from refold.server import Admission, Inbox, LiveState, LoopStep, Subscriber

CALLER = Caller("kubernetes", "owner", "default", "kubernetes")
"""Who submits gangs."""

SETTLE_SECONDS: Seconds = 0.05
"""How long changes are collected: the pods of a gang are created one by one."""

RETRY_AFTER: Seconds = 10.0
"""Gangs with pods that could not be submitted are examined again after this time: their owner may have changed."""

MAX_RETRIED = 200
"""Gangs that are examined again at a time."""

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
        self._constraints: dict[str, PodConstraints] = {}
        """What limits the nodes of each active job, as far as it is known."""
        self._allowed: dict[str, NodeSet | None] = {}
        """The nodes on which each of these jobs may be placed, as reported last."""
        self._vanished: dict[GangName, Seconds] = {}
        """Gangs with a job and without pods, and since when."""
        self._unsettled: dict[GangName, None] = {}
        """Gangs with pods that wait and are in no job, the one that was examined first in front."""
        self._retry_at: Seconds = 0.0
        self._restored = asyncio.Event()

    # As a subscriber of the loop.

    def started(self) -> None:
        """Restore which gangs have a job, and report their nodes: the numbers of nodes may have changed."""
        for record in self._state.job_table.records.values():
            self._add(record.job)
        self.nodes_changed()
        self._restored.set()

    def after_step(self, step: LoopStep) -> None:
        for change in step.changes:
            match change:
                case Submitted(record):
                    self._add(record.job)
                    self._allowed[record.job.id] = record.job.demand.allowed_nodes
                    self._report_allowed([record.job.id])
                case JobEnded(record):
                    self._constraints.pop(record.job.id, None)
                    self._allowed.pop(record.job.id, None)
                    if not record.job.launch.gang:
                        continue
                    gang = parse_gang_name(record.job.launch.gang)
                    self._active.pop(gang, None)
                    self._unsettled[gang] = None  # its pods may still wait

    def _add(self, job: Job) -> None:
        if not job.launch.gang:
            self._constraints[job.id] = own_constraints(job)
            return
        gang = parse_gang_name(job.launch.gang)
        self._active[gang] = job.id
        self._note_constraints(job.id, self._mirror.pods_of_gang(gang))

    def _note_constraints(self, job: str, pods: Mapping[str, Pod]) -> None:
        if pods:
            with suppress(BadValue):
                self._constraints[job] = pod_constraints([*pods.values()], self._mirror.volumes)

    def nodes_changed(self) -> None:
        """Report which active jobs may be placed on other nodes now."""
        self._report_allowed(self._constraints)

    def _report_allowed(self, jobs: Iterable[str]) -> None:
        changed: dict[NodeSet | None, list[str]] = {}
        for job in jobs:
            if job in self._constraints:
                allowed = self._nodes.allowed_nodes(self._constraints[job])
            elif job in self._state.view.infeasible:
                allowed = None  # its nodes are gone, and its pods say what it needs only when it is placed
            else:
                continue
            if job not in self._allowed or allowed != self._allowed[job]:
                self._allowed[job] = allowed
                changed.setdefault(allowed, []).append(job)
        for allowed, others in changed.items():
            self._inbox.report(NodesAllowed(tuple(others), allowed))

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
        now = self._state.now()
        if now < self._retry_at:
            return set()
        self._retry_at = now + RETRY_AFTER
        due = [*islice(self._unsettled, MAX_RETRIED)]
        for gang in due:
            del self._unsettled[gang]
        return set(due)

    def _gangs_of(self, changed: Changed) -> set[GangName]:
        ended = self._active.keys() & set(changed.ended)
        self._vanished |= dict.fromkeys(ended, -inf)
        return ended | {
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
            if isinstance(problem, Exception) and not isinstance(problem, ApiError):
                self._notes.set(bindable(self._mirror.pods_of_gang(gang)), f"cannot be scheduled: {problem}")
            if isinstance(problem, ApiError | RefoldError):
                log.warning("%s: %s; trying again", gang, problem)
            elif isinstance(problem, BaseException):
                log.error("cannot submit %s; trying again", gang, exc_info=problem)

    async def _examine(self, gang: GangName) -> None:
        facts = self._facts(gang)
        while True:
            steps = next_steps(facts)
            match steps:
                case [FindOwner(pods)]:
                    found = OwnerFound(await asyncio.to_thread(self._owners.find, gang, pods))
                    facts = facts._replace(found=found)
                case [FindQueue(name)]:
                    is_missing = await asyncio.to_thread(self._queues.is_missing, gang.namespace, name)
                    facts = facts._replace(is_queue_missing=is_missing)
                case _:
                    await asyncio.gather(*(self._carry_out(step, gang) for step in steps))
                    return

    def _facts(self, gang: GangName) -> QueuedGang:
        pods, id_of_job, now = self._mirror.pods_of_gang(gang), self._active.get(gang), self._state.now()
        if id_of_job is None:
            self._vanished.pop(gang, None)
            return QueuedGang(gang, pods)
        job = self._job(id_of_job, pods)
        if not job.instances:  # its pods may be other ones than before its last run
            self._note_constraints(job.id, pods)
            self._report_allowed([job.id])
        if job.instances or any(not pod.is_deleted for pod in pods.values()):
            self._vanished.pop(gang, None)
            return QueuedGang(gang, pods, job)
        absent = now - self._vanished.setdefault(gang, now)
        if absent >= job.gone_after:
            self._vanished[gang] = now
        return QueuedGang(gang, pods, job, absent)

    def _job(self, job: str, of_gang: Mapping[str, Pod]) -> GangJob:
        bound = [pod.metadata.uid for pod in of_gang.values() if (self._mirror.run_of(pod) or ("",))[0] == job]
        run, record = self._state.view.runs.get(job), self._state.job_table.records.get(job)
        has_run = record is not None and record.runs > 0
        if run is None:
            return GangJob(job, has_run=has_run, bound=bound)
        pods = self._mirror.pods_of_run((job, run.number)).values()
        return GangJob(job, len(run.allocation.placement), pods, run.stopping, has_run, bound)

    async def _carry_out(self, step: QueueStep, examined: GangName) -> None:
        match step:
            case SubmitGang(gang, pods, owner):
                if why := next(filter(None, map(self._mirror.volumes.problem, pods)), ""):
                    self._unsettled[examined] = None
                    self._notes.set(pods, why)
                elif gang not in self._active:
                    await self._accept(gang, pods, owner)
            case HoldPods(pods, why):
                self._unsettled[examined] = None
                self._notes.set(pods, why)
            case CancelJob(job, why):
                self._vanished.pop(examined, None)
                self._inbox.report(JobCancelled(job, why))

    async def _accept(self, gang: GangName, pods: list[Pod], owner: Owner) -> None:
        """Submit a gang, once: it is known by its oldest pod, so that a restart of the daemon does not repeat it."""
        oldest = min(pods, key=lambda pod: (pod.metadata.creation_timestamp or "", pod.metadata.uid))
        try:
            if fields := [field for pod in pods for field in unsupported_fields(pod)]:
                raise BadInput(f"spec.{fields[0]} is not supported")
            submission = gang_submission(
                gang, pods, owner, f"{gang.key}/{oldest.metadata.uid}", bool(self._nodes.cluster.levels)
            )
            constraints = pod_constraints(pods, self._mirror.volumes)
            if submission.gpu_range is not None and gang.kind != "Job":
                await asyncio.to_thread(self._owners.check_resizable, gang)
            complete = partial(self._complete, gang, constraints)
            (job,) = await self._admission.accept(CALLER, [submission], complete)
        except (BadInput, BadValue) as error:
            self._notes.set(pods, str(error))
            return
        if (ended := self._admission.ended_job(job)) is not None:
            self._notes.set(pods, f"{job} has ended ({ended.state}); create the pods again to run it again")

    def _complete(self, gang: GangName, constraints: PodConstraints, _: Submission, job: Job) -> Job:
        """Add to a job which pods it consists of, and which nodes admit them."""
        allowed = self._nodes.allowed_nodes(constraints)
        return replace(
            job, demand=replace(job.demand, allowed_nodes=allowed), launch=replace(job.launch, gang=gang.text())
        )


# LocalQueues of Kueue: whether the one that a gang names exists.

KEPT_SECONDS: Seconds = 10.0
"""How long an answer is used again: many gangs name the same queue."""


class LocalQueues:
    """Asks an API server for LocalQueues, if it has their API and the daemon may read them."""

    def __init__(self, api: ApiServer, clock: Callable[[], Seconds] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._answers: dict[str, tuple[Json | None, Seconds]] = {}
        """Objects by path, None if there is none, and until when that is used."""

    def is_missing(self, namespace: str, name: str) -> bool:
        """Whether there is no such LocalQueue although there could be. Blocks while the API server answers."""
        group = self._get(KUEUE_GROUP) or {}
        version = group.get("preferredVersion", {}).get("version", "")
        return bool(version) and self._get(f"{KUEUE_GROUP}/{version}/namespaces/{namespace}/localqueues/{name}") is None

    def _get(self, path: str) -> Json | None:
        """Return an object: None if it does not exist, empty if the daemon may not read it."""
        now = self._clock()
        self._answers = {key: known for key, known in self._answers.items() if now < known[1]}
        if path not in self._answers:
            self._answers[path] = self._read(path), now + KEPT_SECONDS
        return self._answers[path][0]

    def _read(self, path: str) -> Json | None:
        try:
            return as_dict(self._api.call("GET", path))
        except ApiError as error:
            if error.status not in (FORBIDDEN, NOT_FOUND):
                raise
            return {} if error.status == FORBIDDEN else None
