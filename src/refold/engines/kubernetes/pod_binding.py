"""Bind one pod to its node, and delete it: each until the API server has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from refold.core import StartRun
from refold.engines.kubernetes.api_server import ApiError
from refold.engines.kubernetes.calls import CONFLICT, NOT_FOUND, RETRY_PAUSE, Calls
from refold.engines.kubernetes.mirror import Mirror
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.own_jobs import binding_annotations, pod_shares
from refold.engines.kubernetes.pod_states import pod_path
from refold.model import Job, Seconds

BIND_WAIT: Seconds = 60.0
"""How long binding a pod is repeated while the API server answers with temporary errors. Then the gang is ended."""

FORBIDDEN_WAIT: Seconds = 10.0
"""How long it is repeated if it is forbidden: an API server that has just started does not know the rights yet."""

FORBIDDEN = 403
MIN_GRACE_SECONDS = 1
"""With 0 the API server would forget a pod before its containers have ended."""


class PodTarget(NamedTuple):
    """A pod, the instance that it becomes, and the node that it is bound to."""

    pod: Pod
    instance: int
    node: str


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
            await asyncio.sleep(RETRY_PAUSE)

    def _binding(self, target: PodTarget) -> dict[str, Any]:
        order, metadata = self._order, target.pod.metadata
        annotations = binding_annotations(
            self._mirror.daemon, self._job, order.run, target.instance, order.allocation, self._shares
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


async def delete_pod(calls: Calls, pod: Pod, grace: Seconds) -> None:
    """Delete a pod, unless another one has its name."""
    options: dict[str, Any] = {"preconditions": {"uid": pod.metadata.uid}}
    if grace <= 0:
        options["gracePeriodSeconds"] = MIN_GRACE_SECONDS
    try:
        await calls.repeat(calls.api.delete, pod_path(pod), options)
    except ApiError as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise
