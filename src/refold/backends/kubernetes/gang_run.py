"""One run: bind the pods of a gang, all or none, and follow them to their end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from refold.backends.kubernetes.api_server import ApiError, ApiServer
from refold.backends.kubernetes.gangs import GangName, controller_of, pod_order
from refold.backends.kubernetes.mirror import Mirror, RunKey
from refold.backends.kubernetes.nodes import down_reason
from refold.backends.kubernetes.objects import Pod
from refold.backends.kubernetes.own_jobs import INSTANCE_ANNOTATION, binding_annotations
from refold.backends.kubernetes.owners import Owners
from refold.backends.kubernetes.pod_states import PodFailure, first_failure, have_started, have_succeeded
from refold.core import RunFailed, RunFinished, RunStarted, RunStopped, StartRun
from refold.model import Job, Seconds

POD_WAIT: Seconds = 60.0
"""How long a run waits for its controller to create the pods. It holds its GPUs meanwhile."""

RETRY_PAUSE: Seconds = 1.0
MIN_GRACE_SECONDS = 1
"""With 0 the API server would forget a pod before its containers have ended."""

CONFLICT, NOT_FOUND = 409, 404

T = TypeVar("T")
RunEnd = RunFinished | RunFailed | RunStopped

log = logging.getLogger("refold")


class Calls:
    """Requests to the API server from threads, for use with `await`."""

    def __init__(self, api: ApiServer, threads: ThreadPoolExecutor) -> None:
        self.api = api
        self.owners = Owners(api)
        self._threads = threads

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, partial(function, *arguments))

    async def repeat(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in a thread, again and again while the API server is not available."""
        while True:
            try:
                return await self.run(function, *arguments)
            except ApiError as error:
                if not error.is_transient:
                    raise
                log.warning("%s; retrying", error)
            await asyncio.sleep(RETRY_PAUSE)


class BindFailed(Exception):
    """A pod could not be bound, and trying again would not help."""


class PodTarget(NamedTuple):
    """A pod, the instance that it becomes, and the node that it is bound to."""

    pod: Pod
    instance: int
    node: str


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
        grace: Seconds,
    ) -> None:
        """`nodes`: the node of each instance."""
        self.key: RunKey = (job.id, order.run)
        self.gang = gang
        self.changed = asyncio.Event()
        self.is_deleted = False
        """Whether the gang was deleted: its job is cancelled."""
        self._job = job
        self._order = order
        self._nodes = nodes
        self._calls = calls
        self._mirror = mirror
        self._grace = grace
        self._stopping = False
        self._ending: PodFailure | None = None
        """Why all pods are being ended, although the run was not ordered to stop."""
        self._seen: dict[str, Pod] = {}
        """All pods of the run, as they were last: a pod that has succeeded may be deleted."""

    def stop(self, grace: Seconds | None = None) -> None:
        """End the run, after the grace period of its pods or a shorter one."""
        self._grace = self._grace if grace is None else grace
        self._stopping = True
        self.changed.set()

    @property
    def _pods(self) -> list[Pod]:
        """The pods of the run as they are now; those that are gone, as they were last."""
        present = self._mirror.pods_of_run(self.key)
        self._seen.update(present)
        return [present.get(key) or _gone(pod) for key, pod in self._seen.items()]

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
            if not has_started and have_started(pods, len(self._nodes)):
                has_started = True
                report_start(RunStarted(*self.key))
            if not self._stopping and have_succeeded(pods, len(self._nodes)):
                return RunFinished(*self.key)
            self._ending = self._ending or first_failure(pods)
            if self._stopping or self._ending is not None:
                await self._end_pods()
                await self._find_out_whether_deleted()
                return self._end()
            await self.changed.wait()

    def _end(self) -> RunEnd:
        finished = [pod for pod in self._pods if not pod.is_deleted]  # others may have succeeded in saving their state
        if have_succeeded(finished, len(self._nodes)):
            return RunFinished(*self.key)
        if self._stopping or self.is_deleted:
            return RunStopped(*self.key)
        assert self._ending is not None, "the pods were ended for a reason"
        found = first_failure(self._pods)  # pods that were ended with the others are no reason
        failure = found if found is not None and not found.lost and self._ending.lost else self._ending
        return RunFailed(*self.key, failure.why, retry=failure.lost, exit_code=failure.exit_code)

    async def _find_earlier_end(self) -> RunEnd | None:
        """Find out what a previous back end has done; return how the run ended if its pods are gone.

        There is nothing to find out if pods wait and none is bound: the run is new.
        """
        has_pods = bool(self._mirror.pods_of_run(self.key))
        if self.gang.kind != "Job" or (not has_pods and bindable(self._mirror.pods_of_gang(self.gang))):
            return None
        state = await self._calls.repeat(self._calls.owners.job_state, self.gang)
        if state is None:
            self.is_deleted = not has_pods
            return None if has_pods else RunStopped(*self.key)
        number, _, why = state.ended_run.partition(" ")
        if number == str(self._order.run):
            self._stopping, self._ending = not why, PodFailure(why) if why else None
            return None if has_pods else self._end()
        if not has_pods and state.finished == "Complete":
            return RunFinished(*self.key)
        if not has_pods and state.finished:
            return RunFailed(*self.key, f"{self.gang} has failed: {state.message}")
        if not has_pods and state.suspended:
            await self._calls.repeat(self._calls.owners.suspend, self.gang, False, state.ended_run)
        return None

    async def _find_out_whether_deleted(self) -> None:
        """After a loss of pods, find out whether somebody deleted the whole gang: nothing will create them again."""
        if self._ending is None or not self._ending.lost or self._stopping:
            return
        if self.gang.kind == "Job":
            self.is_deleted = await self._calls.repeat(self._calls.owners.job_state, self.gang) is None
        else:
            gone = [pod for pod in self._pods if pod.is_deleted]
            self.is_deleted = bool(gone) and all(controller_of(pod) is None for pod in gone)

    # Binding.

    async def _bind_all(self) -> None:
        """Bind all pods that are not bound yet. Raises BindFailed if one of them cannot be bound."""
        targets = await self._find_targets()
        problems = await asyncio.gather(*(self._bind(target) for target in targets))
        for target, problem in zip(targets, problems, strict=True):
            if not problem:
                await self._wait_until_seen(target.pod)
        if found := next(filter(None, problems), ""):
            raise BindFailed(found)

    async def _wait_until_seen(self, pod: Pod) -> None:
        """Wait until the mirror shows that a pod was bound, or is gone."""
        while (known := self._mirror.pods.get(pod.key)) and known.metadata.uid == pod.metadata.uid:
            if known.is_bound:
                return
            self.changed.clear()
            await self.changed.wait()

    async def _find_targets(self) -> list[PodTarget]:
        """Wait until there is a pod for each instance; return those that are not bound yet."""
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + POD_WAIT
        while True:
            self.changed.clear()
            bound = {int(pod.metadata.annotations.get(INSTANCE_ANNOTATION, "0")) for pod in self._pods}
            missing = [instance for instance in range(len(self._nodes)) if instance not in bound]
            pending = bindable(self._mirror.pods_of_gang(self.gang))
            if len(pending) >= len(missing) or self._stopping:
                return [
                    PodTarget(pod, instance, self._nodes[instance])
                    for pod, instance in zip(pending, missing, strict=False)
                ]
            if loop.time() >= give_up_at or first_failure(self._pods) is not None:
                raise BindFailed(f"{len(pending)} of {len(missing)} pods of {self.gang} exist")
            try:
                async with asyncio.timeout_at(give_up_at):
                    await self.changed.wait()
            except TimeoutError:
                continue

    async def _bind(self, target: PodTarget) -> str:
        """Bind a pod; return why that is impossible, or ''. It is tried again while the API server is not available."""
        pod = target.pod
        annotations = binding_annotations(
            self._mirror.daemon, self._job, self._order.run, target.instance, self._order.allocation
        )
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod.metadata.name, "uid": pod.metadata.uid, "annotations": annotations},
            "target": {"apiVersion": "v1", "kind": "Node", "name": target.node},
        }
        try:
            await self._calls.repeat(self._calls.api.create, f"{pod_path(pod)}/binding", body)
        except ApiError as error:
            if error.status != CONFLICT or not await self._is_bound_as_wanted(target):
                return f"pod {pod.key} cannot be bound to {target.node}: {error}"
        return ""

    async def _is_bound_as_wanted(self, target: PodTarget) -> bool:
        """Whether an earlier attempt whose answer was lost has bound the pod."""
        try:
            pod = await self._calls.repeat(self._calls.api.get, pod_path(target.pod), Pod)
        except ApiError:
            return False
        return self._mirror.run_of(pod) == self.key and pod.spec.node_name == target.node

    # Ending.

    async def _end_pods(self) -> None:
        """End all pods that have not ended, and wait until they are gone."""
        if self.gang.kind == "Job":
            await self._suspend()
        asked: set[tuple[str, bool]] = set()
        while remaining := [pod for pod in self._mirror.pods_of_run(self.key).values() if not self._is_over(pod)]:
            self.changed.clear()
            is_urgent = self._grace <= 0
            for pod in remaining if is_urgent or self.gang.kind != "Job" else ():
                if (pod.metadata.uid, is_urgent) not in asked and (is_urgent or not pod.is_deleted):
                    asked.add((pod.metadata.uid, is_urgent))
                    await self._evict(pod)
            await self.changed.wait()

    def _is_over(self, pod: Pod) -> bool:
        """Whether a pod has ended, or is to be deleted and its node is down: nobody would say that it has ended."""
        node = self._mirror.nodes.get(pod.spec.node_name)
        return pod.has_ended or (pod.is_deleted and (node is None or bool(down_reason(node))))

    async def _suspend(self) -> None:
        """Suspend the Job: its controller ends the pods, and does not count them as failed."""
        why = "" if self._stopping or self._ending is None else f" {self._ending.why}"
        try:
            await self._calls.repeat(self._calls.owners.suspend, self.gang, True, f"{self._order.run}{why}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def _evict(self, pod: Pod) -> None:
        """Evict a pod; while a PodDisruptionBudget forbids that, try again. Without grace, delete it."""
        while pod.key in self._mirror.pods:
            try:
                if self._grace <= 0:
                    await self._calls.repeat(
                        self._calls.api.delete, pod_path(pod), {"gracePeriodSeconds": MIN_GRACE_SECONDS}
                    )
                else:
                    await self._calls.run(self._calls.api.create, f"{pod_path(pod)}/eviction", _eviction(pod))
                return
            except ApiError as error:
                if error.status == NOT_FOUND:
                    return
                if not error.is_transient:
                    raise
            await asyncio.sleep(RETRY_PAUSE)


def bindable(pods: Mapping[str, Pod]) -> list[Pod]:
    """Return the pods of a gang that wait for a node, in the order of their indices."""
    waiting = [
        pod
        for pod in pods.values()
        if not (pod.is_bound or pod.is_deleted or pod.has_ended or pod.spec.scheduling_gates)
    ]
    return sorted(waiting, key=pod_order)


def pod_path(pod: Pod) -> str:
    """Return the path of a pod."""
    return f"/api/v1/namespaces/{pod.metadata.namespace}/pods/{pod.metadata.name}"


def _eviction(pod: Pod) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod.metadata.name, "namespace": pod.metadata.namespace},
    }


def _gone(pod: Pod) -> Pod:
    """Return a pod that is gone as it was last, marked as deleted unless its end was seen."""
    if pod.has_ended or pod.is_deleted:
        return pod
    return replace(pod, metadata=replace(pod.metadata, deletion_timestamp="unknown"))
