"""What is to be done about a gang in the queue: facts in, steps out. Nothing here calls Kubernetes or reads a clock."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from refold.engines.kubernetes.gangs import GangName, gang_name, single_pod
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.own_jobs import is_submitted
from refold.engines.kubernetes.owner_specs import QUEUE_LABEL, Owner
from refold.engines.kubernetes.pod_states import bindable
from refold.model import Seconds

GONE_AFTER: Seconds = 1.0
"""How long a waiting gang may have no pods before its owner is asked whether it still exists."""

GONE_AFTER_RUN: Seconds = 10.0
"""The same after a run: the pods of a gang that is preempted are gone until it runs again."""

EXTENDABLE = ("PodGroup", "Workload", "Pods", "JobSet")
"""Kinds of gangs that may have more pods than must start together, or get some of them while others run."""


class GangJob(NamedTuple):
    """The active job of a gang. `pods`: those of its run, of which it wants `instances`; 0 while it waits.

    `has_run`: whether it has run before; then its Job is suspended between its runs. `bound`: the uids of all pods that
    were bound for it.
    """

    id: str
    instances: int = 0
    pods: Collection[Pod] = ()
    stopping: bool = False
    has_run: bool = False
    bound: Collection[str] = ()

    @property
    def gone_after(self) -> Seconds:
        """How long it may have no pods before its owner is asked whether it still exists."""
        return GONE_AFTER_RUN if self.has_run else GONE_AFTER

    @property
    def has_all_pods(self) -> bool:
        """Whether no pod of its run has ended: pods that wait do not replace others."""
        return not self.stopping and sum(not (pod.has_ended or pod.is_deleted) for pod in self.pods) >= self.instances


class OwnerFound(NamedTuple):
    """The object that creates the pods of a gang; None if it does not exist."""

    owner: Owner | None


class QueuedGang(NamedTuple):
    """What is known of a gang: its pods, its active job, and for how long it has had no pods.

    The last two are known once they were asked for.
    """

    gang: GangName
    pods: Mapping[str, Pod]
    job: GangJob | None = None
    without_pods: Seconds = 0.0
    found: OwnerFound | None = None
    is_queue_missing: bool | None = None


class FindOwner(NamedTuple):
    """Read the object that creates the pods."""

    pods: list[Pod]


class FindQueue(NamedTuple):
    """Find out whether the namespace of the gang has this LocalQueue."""

    name: str


class SubmitGang(NamedTuple):
    """Submit pods as a job, unless they have one."""

    gang: GangName
    pods: list[Pod]
    owner: Owner


class HoldPods(NamedTuple):
    """Tell pods why they are not submitted, and examine their gang again later."""

    pods: list[Pod]
    why: str


class CancelJob(NamedTuple):
    job: str
    why: str


QueueStep = FindOwner | FindQueue | SubmitGang | HoldPods | CancelJob


def next_steps(facts: QueuedGang) -> Sequence[QueueStep]:
    """Return what is to be done now. What a question finds is among the next facts."""
    waiting = [pod for pod in bindable(facts.pods) if gang_name(pod) == facts.gang and not is_submitted(pod)]
    if facts.job is None:
        return _submit(facts, waiting) if waiting else ()
    if not facts.job.instances:
        return _check_whether_gone(facts, facts.job)
    has_surplus = waiting and facts.gang.kind in EXTENDABLE and facts.job.has_all_pods
    return _submit_surplus(facts, waiting) if has_surplus else ()


def _submit(facts: QueuedGang, waiting: list[Pod]) -> Sequence[QueueStep]:
    gang = facts.gang
    if facts.found is None:
        return [FindOwner(waiting)]
    owner = facts.found.owner
    if owner is None or owner.ended:
        return [HoldPods(waiting, f"{gang} {'does not exist' if owner is None else 'has ended'}")]
    queue = waiting[0].metadata.labels.get(QUEUE_LABEL) or owner.queue
    if queue and facts.is_queue_missing is None:
        return [FindQueue(queue)]
    if facts.is_queue_missing:
        return [HoldPods(waiting, f"LocalQueue {queue} not found in namespace {gang.namespace}")]
    if owner.size is None:
        return _submit_each(waiting, owner)
    if len(waiting) < owner.size:
        return [HoldPods(waiting, f"{len(waiting)} of {owner.size} pods of the gang exist")]
    return [SubmitGang(gang, waiting[: owner.size], owner)]


def _submit_each(pods: list[Pod], owner: Owner) -> list[QueueStep]:
    return [SubmitGang(single_pod(pod), [pod], owner) for pod in pods]


def _submit_surplus(facts: QueuedGang, waiting: list[Pod]) -> Sequence[QueueStep]:
    """Submit the pods of a running gang that it can do without: each starts when it fits."""
    if facts.found is None:
        return [FindOwner(waiting)]
    owner = facts.found.owner
    if owner is None or owner.ended or (facts.gang.kind == "JobSet" and owner.elastic):
        return ()  # a JobSet that was resized will delete pods that are too many
    return _submit_each(waiting, owner._replace(size=None))


def _check_whether_gone(facts: QueuedGang, job: GangJob) -> Sequence[QueueStep]:
    """Cancel a waiting job whose pods are gone, unless something will create them again."""
    live = [pod for pod in facts.pods.values() if not pod.is_deleted]
    if live:
        is_of_others = all(pod.is_bound and pod.metadata.uid not in job.bound for pod in live)
        return [CancelJob(job.id, "its pods were bound by another scheduler")] if is_of_others else ()
    if facts.gang.kind == "Pod":
        return [CancelJob(job.id, "its pod was deleted")]
    if facts.without_pods < job.gone_after:
        return ()
    if facts.found is None:
        return [FindOwner([])]
    owner = facts.found.owner
    if owner is not None and owner.suspended and not job.has_run:
        return [CancelJob(job.id, f"{facts.gang} was suspended")]
    return [CancelJob(job.id, "its pods were deleted")] if owner is None or owner.ended else ()
