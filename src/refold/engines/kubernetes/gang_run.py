"""One run: bind the pods of a gang, all or none, and follow them to their end. What is to be done, `run_state` says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, NamedTuple

import msgspec

from refold.core import RunStarted, StartRun
from refold.engines.kubernetes import run_steps as steps
from refold.engines.kubernetes.api_server import (
    CONFLICT,
    FORBIDDEN,
    NOT_FOUND,
    REPEAT_PAUSE,
    ApiError,
    Calls,
    ObjectList,
)
from refold.engines.kubernetes.gangs import GangName, RunKey
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import ApiEvent, Pod
from refold.engines.kubernetes.own_jobs import binding_annotations, pod_shares
from refold.engines.kubernetes.owners import Owners
from refold.engines.kubernetes.pod_states import PodTarget, eviction, pod_path, start_problem
from refold.engines.kubernetes.room import NodeRoom, Unfit
from refold.engines.kubernetes.run_state import GangFacts, GangRunState
from refold.engines.kubernetes.volumes import SELECTED_NODE, VolumeClaim
from refold.model import Job, Seconds

BIND_WAIT: Seconds = 60.0
"""How long binding a pod is repeated while the API server answers with temporary errors. Then the gang is ended."""

FORBIDDEN_WAIT: Seconds = 10.0
"""How long it is repeated if it is forbidden: an API server that has just started does not know the rights yet."""

MIN_GRACE_SECONDS = 1
"""With 0 the API server would forget a pod before its containers have ended."""

VOLUME_WAIT: Seconds = 120.0
"""How long a gang waits, before it is bound, for volumes that are made for its nodes."""

log = logging.getLogger("refold")


class GangRun:
    """A run of a job as pods. `changed` is set whenever one of its pods changes."""

    def __init__(
        self,
        job: Job,
        order: StartRun,
        gang: GangName,
        nodes: Sequence[str],
        calls: Calls,
        mirror: Mirror,
        room: NodeRoom,
        grace: Seconds,
        start_timeout: Seconds,
    ) -> None:
        """`nodes`: the node of each instance. `start_timeout`: how long bound pods may take to start."""
        self.key: RunKey = (job.id, order.run)
        self.gang = gang
        self.changed = asyncio.Event()
        is_elastic = bool(job.launch.gang) and job.gpu_range is not None
        self._state = GangRunState(self.key, gang, nodes, grace, is_elastic, start_timeout)
        self._calls = calls
        self._owners = Owners(calls.api)
        self._mirror = mirror
        self._room = room
        self._binder = PodBinder(job, order, calls, mirror, lambda: self._state.stopping)
        self._awaited_budget = ""

    @property
    def note(self) -> str:
        """What a run waits for that has not started, or cannot be stopped; '' if nothing is known."""
        if self._awaited_budget:
            return f"waits for PodDisruptionBudget {self.gang.namespace}/{self._awaited_budget}"
        problems = map(start_problem, self._mirror.pods_of_run(self.key).values())
        return next((found.why for found in problems if found is not None and found.why), "")

    @property
    def gone(self) -> str:
        """What somebody did to the gang, so that its job is cancelled: 'was deleted', 'was suspended'."""
        return self._state.gone

    @property
    def has_pods(self) -> bool:
        """Whether pods are bound for the run that have not ended."""
        return any(not pod.has_ended for pod in self._mirror.pods_of_run(self.key).values())

    def stop(self, grace: Seconds | None = None, is_preemption: bool = False) -> None:
        """End the run, after the grace period of its pods or another one."""
        self._state.stop(grace, is_preemption)
        self.changed.set()

    def undo(self, why: str) -> bool:
        """End the run, to be tried again, unless its pods have started; return whether it ends for this."""
        self.changed.set()
        return self._state.undo(why)

    async def supervise(self, report_start: Callable[[RunStarted], None]) -> steps.RunEnd:
        """Bind the pods, follow them, and return how the run ended once all of them have ended.

        After an ApiError, it can be called again.
        """
        answer: steps.GangAnswer | None = None
        while True:
            self.changed.clear()
            for step in self._state.next_steps(self._facts(answer)):
                match step:
                    case steps.ReportStart():
                        report_start(RunStarted(*self.key))
                    case steps.ReportEnd(end):
                        return end
                    case _:
                        answer = await self._carry_out(step)

    def _facts(self, answer: steps.GangAnswer | None) -> GangFacts:
        return GangFacts(
            self._mirror.pods_of_run(self.key),
            self._mirror.pods_of_gang(self.gang),
            self._mirror.nodes,
            asyncio.get_running_loop().time(),
            answer,
        )

    async def _carry_out(
        self,
        step: steps.AskOwner
        | steps.ResumeOwner
        | steps.BindPods
        | steps.AskKubelet
        | steps.AskBudgets
        | steps.SuspendOwner
        | steps.RemovePods
        | steps.PauseSteps,
    ) -> steps.GangAnswer | None:
        match step:
            case steps.AskOwner():
                return steps.OwnerRead(await self._calls.repeat(self._owners.state, self.gang))
            case steps.ResumeOwner(pods):
                return await self._calls.repeat(self._owners.resume, self.gang, pods)
            case steps.BindPods(targets):
                return await self._bind(targets)
            case steps.AskKubelet(pod):
                return steps.KubeletSaid(await self._read_warning(pod))
            case steps.AskBudgets():
                return steps.BudgetsRead(await self._read_budgets())
            case steps.SuspendOwner(note):
                return steps.OwnerSuspended(await self._suspend(note))
            case steps.RemovePods(pods):
                removed = await asyncio.gather(*(self._remove(pod, step) for pod in pods))
                return steps.PodsRemoved(
                    step, frozenset(pod.metadata.uid for pod, ok in zip(pods, removed, strict=True) if ok)
                )
            case steps.PauseSteps(seconds, budget):
                return await self._pause(seconds, budget)

    async def _bind(self, targets: Sequence[PodTarget]) -> steps.NoRoom | steps.PodsBound:
        """Bind pods; return when the mirror shows them."""
        if unfit := self._claim(targets):
            return steps.NoRoom(*unfit)
        try:
            if why := await self._provision(targets):
                return steps.NoRoom(why, lasting=True)
            problems = await asyncio.gather(*(self._binder.bind(target) for target in targets))
            for target, found in zip(targets, problems, strict=True):
                if found is None:
                    await self._wait_until_seen(target.pod)
        finally:
            self._room.release(self.key)
        failures = [(target.pod, found) for target, found in zip(targets, problems, strict=True) if found is not None]
        uncertain = [pod for pod, found in failures if found.uncertain]
        return steps.PodsBound(failures[0][1].why if failures else "", uncertain)

    async def _provision(self, targets: Sequence[PodTarget]) -> str:
        """Let volumes be made for the nodes of pods, and wait for them; return why pods cannot be bound then, or ''."""
        volumes, wanted = self._mirror.volumes, dict[str, tuple[VolumeClaim, str]]()
        for target in targets:
            for claim in volumes.to_provision(target.pod):
                wanted.setdefault(claim.path, (claim, target.node))
        for path, (claim, node) in wanted.items():
            if claim.metadata.annotations.get(SELECTED_NODE) != node:
                change = {"metadata": {"annotations": {SELECTED_NODE: node}}}
                await self._calls.repeat(self._calls.api.patch, path, change)
        give_up_at = asyncio.get_running_loop().time() + VOLUME_WAIT
        while waiting := [claim for target in targets for claim in volumes.to_provision(target.pod)]:
            if self._state.is_ending or asyncio.get_running_loop().time() >= give_up_at:
                claim, node = wanted.get(waiting[0].path, (waiting[0], targets[0].node))
                return f'no volume was made for persistentvolumeclaim "{claim.metadata.name}" on node {node}'
            await asyncio.sleep(REPEAT_PAUSE)
        unfit = self._claim(targets) if wanted else None  # volumes that were made may be elsewhere
        return unfit.why if unfit is not None else ""

    def _claim(self, targets: Sequence[PodTarget]) -> Unfit | None:
        return self._room.claim(self.key, [(target.pod, target.node) for target in targets])

    async def _wait_until_seen(self, pod: Pod) -> None:
        """Wait until the mirror shows that a pod was bound, or is gone."""
        while (known := self._mirror.pods.get(pod.key)) and known.metadata.uid == pod.metadata.uid:
            if known.is_bound:
                return
            self.changed.clear()
            await self.changed.wait()

    async def _read_warning(self, pod: Pod) -> str:
        """Return the latest warning about a pod; '' if there is none, or events may not be read."""
        path = f"/api/v1/namespaces/{pod.metadata.namespace}/events"
        query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid},type=Warning"}
        try:
            answer = await self._calls.repeat(partial(self._calls.api.call, query=query), "GET", path)
        except ApiError as error:
            log.warning("cannot read the events of pod %s: %s", pod.key, error)
            return ""
        found = msgspec.json.decode(answer, type=ObjectList[ApiEvent]).items
        latest = max(found, key=lambda event: event.last_timestamp or "", default=None)
        return f"{latest.reason}: {latest.message}" if latest is not None else ""

    async def _read_budgets(self) -> list[steps.DisruptionBudget]:
        path = steps.PATH.format(namespace=self.gang.namespace)
        try:
            found = await self._calls.repeat(self._calls.api.get, path, ObjectList[steps.DisruptionBudget])
        except ApiError as error:
            log.warning("cannot read the PodDisruptionBudgets of %s: %s", self.gang.namespace, error)
            return []
        return list(found.items)

    async def _suspend(self, note: str) -> bool:
        try:
            await self._calls.repeat(self._owners.suspend, self.gang, note)
        except ApiError as error:
            if self.gang.kind == "Job" and error.status != NOT_FOUND:
                raise
            log.warning("%s cannot be suspended: %s", self.gang, error)
            return False
        return True

    async def _remove(self, pod: Pod, step: steps.RemovePods) -> bool:
        """Evict or delete a pod; return whether that was accepted."""
        if not step.evict:
            await _delete_pod(self._calls, pod, step.grace)
            return True
        try:
            await self._calls.run(self._calls.api.create, f"{pod_path(pod)}/eviction", eviction(pod), retry=False)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT) and not error.is_transient:
                raise
            return error.status == NOT_FOUND
        return True

    async def _pause(self, seconds: Seconds | None, budget: str) -> steps.Unchanged | None:
        """Wait until a pod changes or the time is over."""
        if budget and budget != self._awaited_budget:
            log.info("%s cannot be preempted now: PodDisruptionBudget %s forbids it", self.gang, budget)
        self._awaited_budget = budget
        try:
            async with asyncio.timeout(seconds):
                await self.changed.wait()
        except TimeoutError:
            return steps.Unchanged()
        return None


# One pod: each request until the API server has answered.


class BindProblem(NamedTuple):
    """Why a pod could not be bound. `uncertain`: it may be bound nevertheless."""

    why: str
    uncertain: bool = False


class PodBinder:
    """Binds the pods of a run. `is_stopping`: whether the run is to end, so that nothing is tried again."""

    def __init__(
        self, job: Job, order: StartRun, calls: Calls, mirror: Mirror, is_stopping: Callable[[], bool]
    ) -> None:
        self._job = job
        self._order = order
        self._calls = calls
        self._mirror = mirror
        self._is_stopping = is_stopping
        self._shares = pod_shares(job, order.allocation)

    async def bind(self, target: PodTarget) -> BindProblem | None:
        """Bind a pod; return why that is impossible, or None.

        It is tried again while the API server cannot be reached, and for a while if it answers with temporary errors.
        """
        pod, body = target.pod, self._binding(target)
        loop, give_up_at = asyncio.get_running_loop(), inf
        while True:
            try:
                await self._calls.run(self._calls.api.create, f"{pod_path(pod)}/binding", body)
                return None
            except ApiError as error:
                if error.status == CONFLICT and await self._is_bound_as_wanted(target):
                    return None
                problem = f"pod {pod.key} cannot be bound to {target.node}: {error}"
                if not error.is_transient and error.status != FORBIDDEN:
                    return BindProblem(problem)
                if error.status:
                    wait = FORBIDDEN_WAIT if error.status == FORBIDDEN else BIND_WAIT
                    give_up_at = min(give_up_at, loop.time() + wait)
            if self._is_stopping() or loop.time() >= give_up_at:
                return BindProblem(problem, uncertain=True)
            await asyncio.sleep(REPEAT_PAUSE)

    def _binding(self, target: PodTarget) -> dict[str, Any]:
        metadata = target.pod.metadata
        annotations = binding_annotations(
            self._mirror.daemon, target.pod, self._job, self._order, target.instance, self._shares
        )
        return {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": metadata.name, "uid": metadata.uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": target.node},
        }

    async def _is_bound_as_wanted(self, target: PodTarget) -> bool:
        """Whether an earlier attempt whose answer was lost has bound the pod."""
        try:
            pod = await self._calls.repeat(self._calls.api.get, pod_path(target.pod), Pod)
        except ApiError:
            return False
        return self._mirror.run_of(pod) == (self._job.id, self._order.run) and pod.spec.node_name == target.node


async def _delete_pod(calls: Calls, pod: Pod, grace: Seconds) -> None:
    """Delete a pod, unless another one has its name."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
    if grace <= 0:
        options["gracePeriodSeconds"] = MIN_GRACE_SECONDS
    try:
        await calls.repeat(calls.api.delete, pod_path(pod), options)
    except ApiError as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise
