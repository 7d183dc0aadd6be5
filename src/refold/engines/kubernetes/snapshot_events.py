"""What a snapshot of a cluster says: its nodes and pods as events. Nothing here calls Kubernetes, or reads a clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from refold.core import Event, Header, JobSubmitted, NodeDrained, NodeLost, NodeUsed, PastJob, RunAdopted
from refold.engines.kubernetes.gangs import GangName, gang_name
from refold.engines.kubernetes.nodes import NodeMap, down_reason, group_use
from refold.engines.kubernetes.objects import Pod
from refold.engines.kubernetes.owner_specs import Owner
from refold.engines.kubernetes.pods import gang_submission, pod_constraints
from refold.engines.kubernetes.resources import pod_need
from refold.engines.kubernetes.volumes import PodVolumes
from refold.errors import BadInput, BadValue
from refold.model import WHOLE, Allocation, Job, Seconds, Share
from refold.server import MAX_PAST_JOBS


class Observation(NamedTuple):
    """The state of a cluster as the events of a snapshot, and notes on what could not be represented."""

    header: Header
    now: Seconds
    events: tuple[Event, ...]
    notes: list[str]


def is_job(pod: Pod) -> bool:
    """Whether a pod requests GPUs that Refold can represent."""
    try:
        return pod_need(pod).gpus > 0
    except BadValue:
        return False


class _Gang(NamedTuple):
    name: GangName
    pods: list[Pod]
    submitted: datetime


class SnapshotEvents:
    """Builds the events of a snapshot. Times are seconds since the oldest pod was created."""

    def __init__(self, nodes: NodeMap, pods: Sequence[Pod], owners: Mapping[GangName, Owner], now: datetime) -> None:
        """`owners`: as far as they are known; gangs without one have no limits."""
        self._nodes = nodes
        self._pods = pods
        self._owners = owners
        self._now = now
        created = [_time(pod.metadata.creation_timestamp, now) for pod in pods]
        self._began = min([*created, now])
        self._free = [[WHOLE] * group.gpus for group in nodes.groups]
        self._left = [[node.cpu_milli, node.memory_mib] for node in nodes.cluster.nodes]
        self._ids: set[str] = set()
        self._notes: list[str] = []
        self._unplaced: set[str] = set()
        """Pods that run where the cluster has no room for them, by key."""

    def observe(self, policy: str) -> Observation:
        jobs = [pod for pod in self._pods if is_job(pod)]
        running = self._gangs(jobs, lambda pod: pod.is_bound and not pod.has_ended)
        waiting = self._gangs(jobs, lambda pod: not pod.is_bound and not pod.has_ended and not pod.is_deleted)
        events = [*self.past_jobs(), *self._started(running), *self._waiting(waiting), *self._node_events()]
        header = Header(self._nodes.cluster, policy)
        return Observation(header, self._seconds(self._now), tuple(events), self._notes)

    def past_jobs(self) -> list[PastJob]:
        """Return the gangs that have succeeded, the latest ones."""
        finished = self._gangs(filter(is_job, self._pods), lambda pod: pod.status.phase == "Succeeded")
        return [event for gang in finished for event in self._past(gang)][-MAX_PAST_JOBS:]

    def _gangs(self, pods: Iterable[Pod], belongs: Callable[[Pod], bool]) -> list[_Gang]:
        """Return the gangs of some pods, the oldest first."""
        members: dict[GangName, list[Pod]] = {}
        for pod in filter(belongs, pods):
            members.setdefault(gang_name(pod), []).append(pod)
        gangs = [
            _Gang(name, found, min(_time(pod.metadata.creation_timestamp, self._now) for pod in found))
            for name, found in members.items()
        ]
        return sorted(gangs, key=lambda gang: (gang.submitted, gang.name))

    def _job(self, gang: _Gang) -> Job | None:
        """Return the job that a gang is. Gangs of which only a part is bound are two jobs: that part, and the rest."""
        owner = self._owners.get(gang.name, Owner())._replace(size=len(gang.pods))
        try:
            submission = gang_submission(gang.name, gang.pods, owner, "", bool(self._nodes.cluster.levels))
            allowed = self._nodes.allowed_nodes(pod_constraints(gang.pods, PodVolumes()))
        except (BadInput, BadValue) as error:
            self._notes.append(f"{gang.name} is left out: {error}")
            return None
        job = submission.to_job(self._unused_id(submission.name), submission.tenant or "default", "", 0.0)
        submitted = self._seconds(gang.submitted)
        return replace(job, submitted=submitted, demand=replace(job.demand, allowed_nodes=allowed))

    def _unused_id(self, name: str) -> str:
        numbered = (f"{name}-{number}" for number in range(2, len(self._ids) + 3))
        found = name if name not in self._ids else next(other for other in numbered if other not in self._ids)
        self._ids.add(found)
        return found

    def _started(self, gangs: Iterable[_Gang]) -> list[Event]:
        submitted: list[Event] = []
        adopted: list[Event] = []
        for gang in gangs:
            placement = self._placement(gang.pods)
            job = self._job(gang) if placement else None
            if job is None:
                self._unplaced |= {pod.key for pod in gang.pods}
                continue
            since = min(_time(pod.status.start_time, self._now) for pod in gang.pods)
            submitted.append(JobSubmitted(job))
            adopted.append(RunAdopted(job.id, 1, Allocation(placement), self._seconds(since)))
        return [*submitted, *adopted]

    def _waiting(self, gangs: Iterable[_Gang]) -> list[Event]:
        return [JobSubmitted(job) for gang in gangs if (job := self._job(gang)) is not None]

    def _past(self, gang: _Gang) -> list[PastJob]:
        ended = [
            entry.state.terminated.finished_at
            for pod in gang.pods
            for entry in pod.status.container_statuses
            if entry.state.terminated is not None and entry.state.terminated.finished_at
        ]
        started = [pod.status.start_time for pod in gang.pods if pod.status.start_time]
        job = self._job(gang) if ended and started else None
        if job is None:
            return []
        seconds = max(_time(end, self._now) for end in ended) - min(_time(start, self._now) for start in started)
        return [PastJob(job, max(0.0, seconds.total_seconds()))]

    # Nodes.

    def _placement(self, pods: Iterable[Pod]) -> tuple[Share, ...]:
        """Return where pods are; () if a node is unknown or has fewer GPUs. Which GPUs they have is not known."""
        shares: list[Share] = []
        for pod in pods:
            need = pod_need(pod)
            index = next(
                (
                    index
                    for index in self._nodes.indices(pod.spec.node_name)
                    if self._nodes.groups[index].resource == need.resource
                ),
                None,
            )
            free = [] if index is None else self._free[index]
            gpus = [gpu for gpu, milli in enumerate(free) if milli >= need.gpu_milli][: need.gpus]
            if index is None or len(gpus) < need.gpus:
                return ()
            for gpu in gpus:
                free[gpu] -= need.gpu_milli
            left = self._left[index]
            cpu, memory = min(need.cpu_milli, left[0]), min(need.memory_mib, left[1])
            self._left[index] = [left[0] - cpu, left[1] - memory]
            shares.append(Share(index, tuple(gpus), need.gpu_milli, cpu, memory))
        return tuple(shares)

    def _node_events(self) -> list[Event]:
        others = [pod for pod in self._pods if pod.is_bound and not pod.has_ended and self._is_of_others(pod)]
        by_node: dict[str, list[Pod]] = {}
        for pod in others:
            by_node.setdefault(pod.spec.node_name, []).append(pod)
        events: list[Event] = []
        for index, group in enumerate(self._nodes.groups):
            found = by_node.get(group.node.name, [])
            free = [gpu for gpu, milli in enumerate(self._free[index]) if milli == WHOLE]
            if found:
                use = group_use(group, found)
                taken = free[len(free) - min(use.gpus, len(free)) :]
                events.append(NodeUsed(index, tuple(taken), use.cpu_milli, use.memory_mib))
            if why := down_reason(group.node):
                events.append(NodeLost(index, why))
            elif group.node.spec.unschedulable:
                events.append(NodeDrained(index, "cordoned"))
        return events

    def _is_of_others(self, pod: Pod) -> bool:
        return not is_job(pod) or pod.key in self._unplaced

    def _seconds(self, moment: datetime) -> Seconds:
        return (moment - self._began).total_seconds()


def _time(text: str | None, default: datetime) -> datetime:
    return default if not text else datetime.fromisoformat(text)
