"""Plans in a Rubick round: the best one for the resources that a job has gathered, and for what its victims keep."""

from __future__ import annotations

from refold.model import WHOLE, Plan, format_duration
from refold.planning.plans import Speed
from refold.policies.common import Draft
from refold.policies.published.rubick.jobs import RubickJobs
from refold.policies.published.rubick.ledger import NO_SHARE, Ledger, NodeShare, scale_share

Choice = tuple[Plan | None, str]
"""A plan, and the reason for the change."""


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
