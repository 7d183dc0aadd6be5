"""Resources for one job in a Rubick round: free ones first, then unit by unit from the jobs that lose least."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from refold.model import WHOLE
from refold.policies.published.rubick.jobs import RubickJobs, Sensitivity
from refold.policies.published.rubick.ledger import NO_SHARE, Ledger, NodeShare, scale_share


class Gatherer:
    """Gathers GPUs and CPUs for jobs in a ledger."""

    def __init__(self, jobs: RubickJobs, ledger: Ledger, sensitivity: Sensitivity) -> None:
        self._jobs, self._ledger, self._sensitivity = jobs, ledger, sensitivity
        self._victims = _VictimsByLoss()
        self._taken: list[tuple[str, int]] = []
        """Victims that lost a GPU to the present job, and the node of each GPU."""

    def update_victim(self, job_id: str) -> None:
        """Note that the resources of a job have changed."""
        can_lose = self._ledger.gpus(job_id) and self._sensitivity.can_lose(job_id)
        self._victims.update(job_id, self._sensitivity.loss(job_id) if can_lose else None)

    def could_gain(self, job_id: str) -> bool:
        """Whether the job is below its minimum, or can take a free GPU or one from a job that loses less."""
        if self._sensitivity.is_below_minimum(job_id):
            return True
        first_victim = next(self._victims.in_order(), None)
        could_take = first_victim is not None and self._victims.loss_of(first_victim) < self._sensitivity.gain(job_id)
        wants_more = self._ledger.gpus(job_id) < self._jobs.curve(job_id).max_gpus
        return wants_more and (could_take or bool(self._ledger.nodes_with_free_gpus))

    def gather(self, job_id: str) -> None:
        """Gather GPUs node by node: free ones first, then one by one from victims that lose less; then CPUs."""
        self._taken = []
        max_gpus = max(self._jobs.curve(job_id).max_gpus, self._jobs.minimum(job_id))
        for node in self._nodes_for(job_id) if self._ledger.gpus(job_id) < max_gpus else ():
            self._take_free(job_id, node, max_gpus - self._ledger.gpus(job_id))
            while self._ledger.gpus(job_id) < max_gpus and self._take_from_victim(job_id, node):
                pass
            if self._ledger.gpus(job_id) >= max_gpus:
                break
        self._gather_cpus(job_id)

    def return_unused(self) -> None:
        """Return GPUs that were taken but not used, because the next step of the curve was not reached."""
        for victim, node in reversed(self._taken):
            self._take_free(victim, node, 1)

    def _nodes_for(self, job_id: str) -> Iterator[int]:
        """Yield nodes to visit: the job's own, then by free GPUs, then those of victims by ascending loss."""
        gpu_type, view, ledger = self._jobs.curve(job_id).gpu_type, self._jobs.view, self._ledger
        nodes, free = view.cluster.nodes, ledger.free
        own = sorted(ledger.shares.get(job_id, {}))
        yield from own
        nodes_with_free_gpus = [
            n for n in ledger.nodes_with_free_gpus if nodes[n].gpu_type == gpu_type and n not in own
        ]
        yield from sorted(nodes_with_free_gpus, key=lambda node: (-free[node].gpus, node))
        seen = {*own, *nodes_with_free_gpus}
        for victim in self._victims.in_order():
            if self._victims.loss_of(victim) >= self._sensitivity.gain(
                job_id
            ) and not self._sensitivity.is_below_minimum(job_id):
                return
            for node in sorted(ledger.shares.get(victim, {})):
                if node not in seen and nodes[node].gpu_type == gpu_type and view.is_up(node):
                    seen.add(node)
                    yield node

    def _take_free(self, job_id: str, node: int, wanted: int) -> bool:
        """Take up to `wanted` free GPUs of a node, with their CPUs and memory; return False if there are none."""
        free, unit, view = self._ledger.free[node], self._jobs.unit(job_id), self._jobs.view
        if view.cluster.nodes[node].gpu_type != self._jobs.curve(job_id).gpu_type or not view.is_up(node):
            return False
        limits = [wanted, free.gpus]
        limits += [free.cpu_milli // unit.cpu_milli] if unit.cpu_milli else []
        limits += [free.memory_mib // unit.memory_mib] if unit.memory_mib else []
        more = min(limits)
        if more < 1:
            return False
        have = self._ledger.shares.get(job_id, {}).get(node, NO_SHARE)
        larger = NodeShare(
            have.gpus + more, have.cpu_milli + more * unit.cpu_milli, have.memory_mib + more * unit.memory_mib
        )
        self._ledger.set_share(job_id, node, larger)
        return True

    def _take_from_victim(self, job_id: str, node: int) -> bool:
        """Take one GPU from the job on this node with the smallest loss, if Algorithm 1 allows it."""
        on_node = self._ledger.jobs_on_node.get(node, ())
        candidates = [other for other in on_node if other != job_id and self._sensitivity.can_lose(other)]
        if not candidates or not self._jobs.view.is_up(node):
            return False
        victim = min(candidates, key=lambda other: (self._sensitivity.loss(other), other))
        if not (
            self._sensitivity.loss(victim) < self._sensitivity.gain(job_id)
            or self._sensitivity.is_below_minimum(job_id)
        ):
            return False
        share = self._ledger.shares[victim][node]
        self._ledger.set_share(victim, node, scale_share(share, share.gpus - 1))
        if self._take_free(job_id, node, 1):
            self._taken.append((victim, node))
            return True
        self._ledger.set_share(victim, node, share)  # its CPUs or memory did not suffice
        return False

    # CPUs.

    def _gather_cpus(self, job_id: str) -> None:
        """Gather CPUs for an offloading plan while they make it faster: free ones, then spare ones of other jobs."""
        for node in sorted(self._ledger.shares.get(job_id, {})):
            while self._sensitivity.cpu_gain(job_id) > 0 and self._take_cpu(job_id, node):
                pass

    def _take_cpu(self, job_id: str, node: int) -> bool:
        if self._ledger.free[node].cpu_milli < WHOLE and not self._free_cpu(job_id, node):
            return False
        share = self._ledger.shares[job_id][node]
        self._ledger.set_share(job_id, node, share._replace(cpu_milli=share.cpu_milli + WHOLE))
        return True

    def _free_cpu(self, job_id: str, node: int) -> bool:
        """Free a CPU of the job on a node with the smallest CPU loss; jobs keep the CPUs requested per GPU."""
        others = self._ledger.jobs_on_node.get(node, set()) - {job_id}
        candidates = [other for other in others if self._sensitivity.spare_cpu_milli(other, node) >= WHOLE]
        victim = min(candidates, key=lambda other: (self._sensitivity.cpu_loss(other), other), default=None)
        if victim is None or self._sensitivity.cpu_loss(victim) >= self._sensitivity.cpu_gain(job_id):
            return False
        share = self._ledger.shares[victim][node]
        self._ledger.set_share(victim, node, share._replace(cpu_milli=share.cpu_milli - WHOLE))
        return True


class _VictimsByLoss:
    """Jobs that may lose a GPU, ordered by ascending loss."""

    def __init__(self) -> None:
        self._sorted: list[tuple[float, str]] = []
        self._loss_by_job: dict[str, float] = {}

    def update(self, job_id: str, loss: float | None) -> None:
        """Set a job's loss; None removes the job."""
        before = self._loss_by_job.pop(job_id, None)
        if before is not None:
            del self._sorted[bisect_left(self._sorted, (before, job_id))]
        if loss is not None:
            self._loss_by_job[job_id] = loss
            insort(self._sorted, (loss, job_id))

    def loss_of(self, job_id: str) -> float:
        return self._loss_by_job[job_id]

    def in_order(self) -> Iterator[str]:
        """Iterate by ascending loss; `update` must not be called meanwhile."""
        return (job_id for _, job_id in self._sorted)
