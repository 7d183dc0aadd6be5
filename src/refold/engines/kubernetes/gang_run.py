"""One run: bind the pods of a gang, all or none, and follow them to their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from math import inf

from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.engines.kubernetes.api_server import ApiError, ObjectList
from refold.engines.kubernetes.budgets import PATH as BUDGETS, Budget, blocking_budget
from refold.engines.kubernetes.calls import CONFLICT, NOT_FOUND, RETRY_PAUSE, Calls
from refold.engines.kubernetes.gangs import GangName, controller_of
from refold.engines.kubernetes.mirror import Mirror, RunKey
from refold.engines.kubernetes.nodes import down_reason
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.own_jobs import INSTANCE_ANNOTATION
from refold.engines.kubernetes.owners import SUSPENDABLE, GangState
from refold.engines.kubernetes.pod_binding import PodBinder, PodTarget, delete_pod
from refold.engines.kubernetes.pod_states import (
    PodFailure,
    as_gone,
    bindable,
    eviction,
    first_failure,
    have_started,
    have_succeeded,
    pod_path,
)
from refold.engines.kubernetes.room import NodeRoom
from refold.model import Job, Seconds

POD_WAIT: Seconds = 60.0
"""How long a run waits for its controller to create the pods. It holds its GPUs meanwhile."""

SUSPEND_WAIT: Seconds = 30.0
"""How long the controller of a suspended JobSet, TrainJob or PyTorchJob has to end its pods. Then they are evicted."""

OWNER_CHECK_PAUSE: Seconds = 2.0
BUDGET_PAUSE: Seconds = 2.0

RunEnd = RunFinished | RunFailed | RunStopped

log = logging.getLogger("refold")


class BindFailed(Exception):
    """A pod could not be bound, and trying again would not help."""


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
    ) -> None:
        """`nodes`: the node of each instance."""
        self.key: RunKey = (job.id, order.run)
        self.gang = gang
        self.changed = asyncio.Event()
        self.gone = ""
        """What somebody did to the gang, so that its job is cancelled: 'was deleted', 'was suspended'."""
        self._order = order
        self._nodes = nodes
        self._calls = calls
        self._mirror = mirror
        self._room = room
        self._grace = grace
        self._binder = PodBinder(job, order, calls, mirror, lambda: self._stopping)
        self._is_elastic = bool(job.launch.gang) and job.gpu_range is not None
        self._can_suspend = gang.kind in SUSPENDABLE
        self._size = len(nodes)
        """Pods that the run has: fewer than instances if some indices of its Jobs were complete before."""
        self._stopping = False
        self._respects_budgets = False
        self._ending: PodFailure | None = None
        """Why all pods are being ended, although the run was not ordered to stop."""
        self._uncertain: list[Pod] = []
        """Pods of which it is unknown whether they were bound."""
        self._seen: dict[str, Pod] = {}
        """All pods of the run, as they were last: a pod that has succeeded may be deleted."""

    def stop(self, grace: Seconds | None = None, is_preemption: bool = False) -> None:
        """End the run, after the grace period of its pods or a shorter one.

        A preemption waits until the PodDisruptionBudgets of the pods allow it.
        """
        self._grace = self._grace if grace is None else grace
        self._respects_budgets = is_preemption and (self._respects_budgets or not self._stopping)
        self._stopping = True
        self.changed.set()

    @property
    def has_pods(self) -> bool:
        """Whether pods are bound for the run that have not ended."""
        return any(not pod.has_ended for pod in self._mirror.pods_of_run(self.key).values())

    @property
    def _pods(self) -> list[Pod]:
        """The pods of the run as they are now; those that are gone, as they were last."""
        present = self._mirror.pods_of_run(self.key)
        for key, pod in present.items():
            before = self._seen.get(key)
            if before is None or before.is_deleted or not before.has_ended:  # a pod that has ended may be deleted later
                self._seen[key] = pod
        return [pod if key in present else as_gone(pod) for key, pod in self._seen.items()]

    async def supervise(self, report_start: Callable[[RunStarted], None]) -> RunEnd:
        """Bind the pods, follow them, and return how the run ended once all of them have ended."""
        if (end := await self._find_earlier_end()) is not None:
            return end
        try:
            await self._bind_all()
        except BindFailed as error:
            self._ending = PodFailure(str(error), lost=True)
        has_started = False
        while True:
            self.changed.clear()
            pods = self._pods
            if not has_started and have_started(pods, self._size):
                has_started = True
                report_start(RunStarted(*self.key))
            if not self._stopping and have_succeeded(pods, self._size):
                return RunFinished(*self.key)
            self._ending = self._ending or first_failure(pods)
            if self._stopping or self._ending is not None:
                await self._find_out_whether_gone()
                await self._end_pods()
                return self._end()
            await self.changed.wait()

    def _end(self) -> RunEnd:
        if have_succeeded(self._pods, self._size):
            return RunFinished(*self.key)
        if self._stopping or self.gone:
            return RunStopped(*self.key)
        assert self._ending is not None, "the pods were ended for a reason"
        found = first_failure(self._pods)  # pods that were ended with the others are no reason
        failure = found if found is not None and not found.lost and self._ending.lost else self._ending
        return RunFailed(*self.key, failure.why, retry=failure.lost, exit_code=failure.exit_code)

    # The object that creates the pods.

    async def _find_earlier_end(self) -> RunEnd | None:
        """Find out what a previous back end has done; return how the run ended if its pods are gone.

        There is nothing to find out if the job has not run before and all pods wait. After an earlier run, the object
        may be suspended although its pods still wait: its controller has yet to delete them.
        """
        has_pods = bool(self._mirror.pods_of_run(self.key))
        waiting = bindable(self._mirror.pods_of_gang(self.gang))
        is_first = self._order.run == 1 and not has_pods
        is_new = is_first and len(waiting) >= self._size and not self._is_elastic
        if not self._can_suspend or is_new:
            return None
        state = await self._read_state()
        if state is None:
            self.gone = "" if has_pods else "was deleted"
            return None if has_pods else RunStopped(*self.key)
        number, _, why = state.ended_run.partition(" ")
        if number == str(self._order.run):
            self._stopping, self._ending = not why, PodFailure(why) if why else None
            return None if has_pods else self._end()
        if state.has_succeeded:
            return RunFinished(*self.key)
        if not has_pods and state.finished:
            return RunFailed(*self.key, f"{self.gang} has failed: {state.message}")
        if not has_pods:
            await self._resume(state)
        return None

    async def _read_state(self) -> GangState | None:
        """Return the state of the object; indices that were complete before this run get no pods any more."""
        state = await self._calls.repeat(self._calls.owners.state, self.gang)
        if state is not None:
            of_this_run = sum(pod.status.phase == "Succeeded" for pod in self._pods)
            self._size = len(self._nodes) - max(0, min(state.succeeded - of_this_run, len(self._nodes) - 1))
        return state

    async def _resume(self, state: GangState) -> None:
        """Let the object create as many pods as the run has instances."""
        has_other_size = self._is_elastic and state.pods != len(self._nodes)
        if state.suspended or has_other_size:
            size = len(self._nodes) if has_other_size else None
            await self._calls.repeat(self._calls.owners.resume, self.gang, size)

    async def _check_owner(self) -> None:
        """While pods are missing: see that the object is able to create them. Raises BindFailed if it is not."""
        state = await self._read_state()
        if state is None:
            raise BindFailed(f"{self.gang} was deleted")
        if state.finished:
            raise BindFailed(f"{self.gang} has ended: {state.finished}")
        if not self._stopping:
            await self._resume(state)

    async def _find_out_whether_gone(self) -> None:
        """After a loss of pods, find out whether somebody has deleted or suspended the gang: its job is cancelled."""
        if self._ending is None or not self._ending.lost or self._stopping:
            return
        if self._can_suspend:
            state = await self._calls.repeat(self._calls.owners.state, self.gang)
            ended_by_us = state is not None and state.ended_run.partition(" ")[0] == str(self._order.run)
            if state is None:
                self.gone = "was deleted"
            elif state.suspended and not ended_by_us:
                self.gone = "was suspended"
        else:
            gone = [pod for pod in self._pods if pod.is_deleted]
            self.gone = "was deleted" * (bool(gone) and all(controller_of(pod) is None for pod in gone))

    # Binding.

    async def _bind_all(self) -> None:
        """Bind all pods that are not bound yet. Raises BindFailed if one of them cannot be bound."""
        try:
            targets = await self._find_targets()
            problems = await asyncio.gather(*(self._binder.bind(target) for target in targets))
            for target, problem in zip(targets, problems, strict=True):
                if problem is None:
                    await self._wait_until_seen(target.pod)
                elif problem.uncertain:
                    self._uncertain.append(target.pod)
        finally:
            self._room.release(self.key)
        if found := next(filter(None, problems), None):
            raise BindFailed(found.why)

    async def _wait_until_seen(self, pod: Pod) -> None:
        """Wait until the mirror shows that a pod was bound, or is gone."""
        while (known := self._mirror.pods.get(pod.key)) and known.metadata.uid == pod.metadata.uid:
            if known.is_bound:
                return
            self.changed.clear()
            await self.changed.wait()

    async def _find_targets(self) -> list[PodTarget]:
        """Wait until there is a pod for each instance, and room for it; return those that are not bound yet.

        None if the run is to stop.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + POD_WAIT
        while not self._stopping:
            self.changed.clear()
            bound = {int(pod.metadata.annotations.get(INSTANCE_ANNOTATION, "0")) for pod in self._pods}
            missing = [instance for instance in range(self._size) if instance not in bound]
            pending = bindable(self._mirror.pods_of_gang(self.gang))
            problem = f"{len(pending)} of {len(missing)} pods of {self.gang} exist"
            if len(pending) >= len(missing):
                targets = [
                    PodTarget(pod, instance, self._nodes[instance])
                    for pod, instance in zip(pending, missing, strict=False)
                ]
                problem = self._room.claim(self.key, [(target.pod, target.node) for target in targets])
                if not problem:
                    return targets
            if loop.time() >= give_up_at or first_failure(self._pods) is not None:
                raise BindFailed(problem)
            if not await self._wait_for_change(OWNER_CHECK_PAUSE) and self._can_suspend:
                await self._check_owner()
        return []

    async def _wait_for_change(self, timeout: Seconds | None) -> bool:
        """Wait until a pod changes or the time is over; return whether one has changed."""
        try:
            async with asyncio.timeout(timeout):
                await self.changed.wait()
        except TimeoutError:
            return False
        return True

    # Ending.

    async def _end_pods(self) -> None:
        """End all pods that have not ended, and wait until they are gone."""
        await self._wait_for_budgets()
        if have_succeeded(self._pods, self._size):
            return
        loop = asyncio.get_running_loop()
        evict_at = await self._suspend() if self._can_suspend else 0.0
        if evict_at <= 0:  # nothing else ends them
            await asyncio.gather(*(delete_pod(self._calls, pod, self._grace) for pod in self._uncertain))
        asked: set[tuple[str, bool]] = set()
        while remaining := [pod for pod in self._mirror.pods_of_run(self.key).values() if not self._is_over(pod)]:
            self.changed.clear()
            is_urgent, seconds_left = self._grace <= 0, evict_at - loop.time()
            wanted = [
                pod
                for pod in (remaining if is_urgent or seconds_left <= 0 else [])
                if (pod.metadata.uid, is_urgent) not in asked and (is_urgent or not pod.is_deleted)
            ]
            accepted = await asyncio.gather(*(self._remove(pod) for pod in wanted))
            asked |= {(pod.metadata.uid, is_urgent) for pod, ok in zip(wanted, accepted, strict=True) if ok}
            pause = seconds_left if 0 < seconds_left < inf else None
            await self._wait_for_change(pause if all(accepted) else RETRY_PAUSE)

    async def _wait_for_budgets(self) -> None:
        """Before a preemption, wait until PodDisruptionBudgets allow to evict the whole gang."""
        path, told = BUDGETS.format(namespace=self.gang.namespace), ""
        while self._respects_budgets and self._ending is None and self._grace > 0:
            self.changed.clear()
            pods = [pod for pod in self._mirror.pods_of_run(self.key).values() if not pod.has_ended]
            self._ending = first_failure(self._pods)
            try:
                budgets = await self._calls.repeat(self._calls.api.get, path, ObjectList[Budget])
            except ApiError as error:
                log.warning("cannot read the PodDisruptionBudgets of %s: %s", self.gang.namespace, error)
                return
            blocking = blocking_budget(budgets.items, pods)
            if not blocking or not pods:
                return
            if blocking != told:
                log.info("%s cannot be preempted now: PodDisruptionBudget %s forbids it", self.gang, blocking)
                told = blocking
            await self._wait_for_change(BUDGET_PAUSE)

    def _is_over(self, pod: Pod) -> bool:
        """Whether a pod has ended, or is to be deleted and its node is down, so that its end is never reported."""
        node = self._mirror.nodes.get(pod.spec.node_name)
        return pod.has_ended or (pod.is_deleted and (node is None or bool(down_reason(node))))

    async def _suspend(self) -> Seconds:
        """Suspend the object: its controller ends the pods, and does not count them as failed.

        Return the time at which pods that have not ended are evicted: never, if Kubernetes itself has the controller.
        """
        why = "" if self._stopping or self._ending is None else f" {self._ending.why}"
        is_job = self.gang.kind == "Job"
        try:
            await self._calls.repeat(self._calls.owners.suspend, self.gang, f"{self._order.run}{why}")
        except ApiError as error:
            if is_job and error.status != NOT_FOUND:
                raise
            log.warning("%s cannot be suspended: %s", self.gang, error)
            return inf if is_job else 0.0
        return inf if is_job else asyncio.get_running_loop().time() + SUSPEND_WAIT

    async def _remove(self, pod: Pod) -> bool:
        """Evict a pod, or delete it if its gang is broken or there is no grace; return whether that was accepted."""
        if self._grace <= 0 or not self._stopping:
            await delete_pod(self._calls, pod, self._grace)
            return True
        try:
            await self._calls.run(self._calls.api.create, f"{pod_path(pod)}/eviction", eviction(pod), retry=False)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT) and not error.is_transient:
                raise
            return error.status == NOT_FOUND
        return True
