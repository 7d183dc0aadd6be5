"""Resources and plans for one job in a Rubick round.

Free resources come first, then unit by unit those of the jobs that lose least. The plan is the best one for what the
job has gathered, and for what its victims keep.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from refold.model import WHOLE, Plan, format_duration
from refold.planning.plans import Speed
from refold.policies.common import Draft
from refold.policies.published.rubick.jobs import RubickJobs, Sensitivity
from refold.policies.published.rubick.ledger import NO_SHARE, Ledger, NodeShare, scale_share

Choice = tuple[Plan | None, str]
"""A plan, and the reason for the change."""


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
        view, ledger = self._jobs.view, self._ledger
        free = ledger.free
        own = sorted(ledger.shares.get(job_id, {}))
        yield from own
        nodes_with_free_gpus = [
            n for n in ledger.nodes_with_free_gpus if self._jobs.accepts(job_id, n) and n not in own
        ]
        yield from sorted(nodes_with_free_gpus, key=lambda node: (-free[node].gpus, node))
        seen = {*own, *nodes_with_free_gpus}
        for victim in self._victims.in_order():
            if self._victims.loss_of(victim) >= self._sensitivity.gain(
                job_id
            ) and not self._sensitivity.is_below_minimum(job_id):
                return
            for node in sorted(ledger.shares.get(victim, {})):
                if node not in seen and self._jobs.accepts(job_id, node) and view.is_up(node):
                    seen.add(node)
                    yield node

    def _take_free(self, job_id: str, node: int, wanted: int) -> bool:
        """Take up to `wanted` free GPUs of a node, with their CPUs and memory; return False if there are none."""
        free, unit, view = self._ledger.free[node], self._jobs.unit(job_id), self._jobs.view
        if not self._jobs.accepts(job_id, node) or not view.is_up(node):
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


class PlanChooser:
    """Chooses plans for what jobs have in a ledger; the draft holds what they had before."""

    def __init__(self, jobs: RubickJobs, ledger: Ledger, draft: Draft) -> None:
        self._jobs, self._ledger, self._draft = jobs, ledger, draft

    def choose(self, job_id: str, savepoint: int) -> Choice | None:
        """Return the plan for a job that has gathered resources; None if there is none, or it is not worthwhile."""
        before = self._jobs.speed(job_id, self._draft.allocation_of(job_id))
        best = self._best_plan(job_id)
        if best is None or not self._is_worthwhile(job_id, before, best.steps_per_second, savepoint):
            return None
        return best.plan, self._growth_reason(job_id, before, best.steps_per_second) if before else ""

    def choose_for_victim(self, victim: str, preemptor: str) -> Choice | None:
        """Choose a plan for a victim on its remaining resources, or stop it; None if that breaks its guarantee."""
        ledger, held = self._ledger, self._draft.allocation_of(victim)
        best = self._best_plan(victim) if ledger.gpus(victim) else None
        if best is None:
            for node in list(ledger.shares.get(victim, {})):
                ledger.set_share(victim, node, NO_SHARE)
            stopped = f"gave all GPUs to {preemptor}, which gains more from them"
            return None if victim in self._jobs.guaranteed else (None, stopped)
        speed_before = self._jobs.speed(victim, held)
        lost = (held.gpu_milli // WHOLE if held is not None else 0) - ledger.gpus(victim)
        change = best.steps_per_second / speed_before - 1 if speed_before else 0.0
        what_it_gave = f"{lost} GPUs" if lost > 0 else "CPUs"
        return best.plan, f"gave {what_it_gave} to {preemptor}, which gains more from them: {change:+.0%} speed"

    def _best_plan(self, job_id: str) -> Speed | None:
        """Choose the best plan for the resources gathered, and release nodes and GPUs that do not make it faster."""
        jobs, ledger = self._jobs, self._ledger
        if ledger.gpus(job_id) < jobs.minimum(job_id):
            return None
        best: tuple[float, Speed, list[tuple[int, NodeShare]]] | None = None
        shares = sorted(ledger.shares.get(job_id, {}).items(), key=lambda item: (-item[1].gpus, item[0]))
        for wanted in self._useful_gpu_counts(job_id):
            chosen = _take_from_fewest_nodes(shares, wanted)
            layout = tuple(sorted((share.gpus for _, share in chosen), reverse=True))
            cpus = sum(share.cpu_milli for _, share in chosen) / WHOLE
            speed = jobs.speed_on(job_id, layout, cpus)
            if speed is not None and (best is None or speed.steps_per_second > best[0]):
                best = speed.steps_per_second, speed, chosen
        if best is None or not jobs.is_fast_enough(job_id, best[1]):
            return None
        return best[1] if self._allocate_memory(job_id, best[1], best[2]) else None

    def _useful_gpu_counts(self, job_id: str) -> list[int]:
        max_gpus = self._ledger.gpus(job_id)
        steps = {int(point.amount) for point in self._jobs.curve(job_id).points} | {self._jobs.minimum(job_id)}
        return sorted(amount for amount in steps if 0 < amount <= max_gpus)

    def _allocate_memory(self, job_id: str, speed: Speed, chosen: list[tuple[int, NodeShare]]) -> bool:
        """Allocate host memory for a plan; return False if a node has too little. More memory gains no speed."""
        ledger, gpus = self._ledger, sum(share.gpus for _, share in chosen)
        wanted = dict(chosen)
        for node in list(ledger.shares[job_id]):
            if node not in wanted:
                ledger.set_share(job_id, node, NO_SHARE)
        for node, share in chosen:
            need = max(share.gpus * self._jobs.unit(job_id).memory_mib, -(-speed.host_mib * share.gpus // gpus))
            if need > ledger.free[node].memory_mib + ledger.shares[job_id][node].memory_mib:
                return False
            ledger.set_share(job_id, node, share._replace(memory_mib=need))
        return True

    def _is_worthwhile(self, job_id: str, before: float, after: float, savepoint: int) -> bool:
        """Whether a run saves more time than its own restart and those of its victims cost; True for waiting jobs."""
        runs = self._jobs.view.runs
        if not before:
            return True
        if after <= before or job_id not in self._ledger.changed_since(savepoint):
            return False
        if job_id not in runs:
            return True
        remaining = self._jobs.remaining_work(job_id)
        changed = [other for other in self._ledger.changed_since(savepoint) if other in runs]
        return remaining / before - remaining / after > sum(map(self._jobs.restart_cost, changed))

    def _growth_reason(self, job_id: str, before: float, after: float) -> str:
        payback = format_duration(self._jobs.restart_cost(job_id) / (1 - before / after))
        return f"now {self._ledger.gpus(job_id)} GPUs: {after / before - 1:+.0%} speed, pays back in {payback}"


def _take_from_fewest_nodes(shares: list[tuple[int, NodeShare]], wanted: int) -> list[tuple[int, NodeShare]]:
    """Take `wanted` GPUs from the fewest nodes, with CPUs and memory in proportion."""
    chosen: list[tuple[int, NodeShare]] = []
    single = [item for item in shares if item[1].gpus >= wanted]
    for node, share in single[-1:] or shares:
        take = min(share.gpus, wanted)
        chosen.append((node, scale_share(share, take)))
        wanted -= take
        if not wanted:
            break
    return chosen
