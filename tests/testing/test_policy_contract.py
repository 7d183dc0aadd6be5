"""The policy contract passes correct policies, and fails broken ones in the cases that their defects concern."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from contract_outcomes import Outcomes, run_contract

from refold.core import Policy, View
from refold.model import Allocation, Decision, Job, Plan, Reason, Share, Start, Stop, Wait
from refold.placement import Placer
from refold.testing import PolicyContract

CHANGE_LIMIT = "test_runs_are_not_changed_more_often_than_their_jobs_allow"

RESHAPING = {
    "test_every_reshapable_job_finishes_exactly_once",
    "test_every_waiting_reshapable_job_has_a_reason",
    "test_reshapable_jobs_are_placed_on_the_nodes_that_they_are_allowed_on",
    "test_reshapable_jobs_are_handled_with_disturbances_and_a_snapshot",
    "test_reshapable_jobs_finish_despite_overhead_and_lost_nodes_and_can_be_replayed",
    "test_reshapable_runs_are_changed_only_with_consent",
    "test_reshapable_runs_may_continue_on_drained_gpus",
}
"""The cases for policies that reshape jobs."""


class FirstFit:
    """A correct policy: jobs in order of arrival; jobs that do not fit are skipped. Subclasses break one thing."""

    name = "first-fit"

    def __init__(self) -> None:
        self._placer = Placer("first-fit", 0)

    def order(self, view: View) -> Iterable[Job]:
        """Return the jobs to start, in order."""
        return view.waiting.values()

    def allocation(self, job: Job, placement: tuple[Share, ...]) -> Allocation:
        """Return the allocation of a job that fits."""
        return Allocation(placement)

    def decide(self, view: View) -> Decision:
        self._placer.observe(view)
        trial, starts = view.trial(), {}
        for job in self.order(view):
            placement = trial.place(self._placer, job.demand)
            if placement is not None:
                starts[job.id] = Start(job.id, self.allocation(job, placement))
        waits = tuple(
            Wait(job.id, Reason.RESOURCES, shortage=view.shortage(job.demand))
            for job in view.waiting.values()
            if job.id not in starts
        )
        return Decision(starts=tuple(starts.values()), waits=waits)


class Nameless(FirstFit):
    name = ""


class ForgetsCpuJobs(FirstFit):
    name = "forgets-cpu-jobs"

    def order(self, view: View) -> Iterable[Job]:
        return [job for job in view.waiting.values() if job.demand.gpus]


class Alternating(FirstFit):
    """Every second instance serves the queue from the back: state that is not derived from views."""

    name = "alternating"
    instances = 0

    def __init__(self) -> None:
        super().__init__()
        type(self).instances += 1
        self._backwards = self.instances % 2

    def order(self, view: View) -> Iterable[Job]:
        jobs = list(view.waiting.values())
        return jobs[::-1] if self._backwards else jobs


class Silent(FirstFit):
    """Gives no reasons."""

    name = "silent"

    def decide(self, view: View) -> Decision:
        return Decision(starts=super().decide(view).starts)


class ShortestFirst(FirstFit):
    """Uses run times before they are known."""

    name = "shortest-first"

    def order(self, view: View) -> Iterable[Job]:
        return sorted(view.waiting.values(), key=lambda job: job.work or 0.0)


class BlockedByInfeasibleJobs(FirstFit):
    name = "blocked"

    def order(self, view: View) -> Iterable[Job]:
        return () if view.infeasible else view.waiting.values()


class NeedsAJobAtFirst(FirstFit):
    """Fails if there is no job in its first round."""

    name = "needs-a-job"

    def __init__(self) -> None:
        super().__init__()
        self._first = ""

    def decide(self, view: View) -> Decision:
        self._first = self._first or min((*view.waiting, *view.runs))
        return super().decide(view)


class NoticesNoRemovals(FirstFit):
    """Keeps an own queue, from which jobs that are cancelled or held are not removed."""

    name = "own-queue"

    def __init__(self) -> None:
        super().__init__()
        self._queue: dict[str, Job] = {}

    def order(self, view: View) -> Iterable[Job]:
        self._queue |= {job.id: job for job in (*view.changes.submitted, *view.changes.requeued)}
        return self._queue.values()

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        for start in decision.starts:
            del self._queue[start.job]
        return decision


class ExpectsAChange(FirstFit):
    """Fails in a round in which nothing has changed that it can see."""

    name = "expects-a-change"

    def decide(self, view: View) -> Decision:
        assert any(getattr(view.changes, kind) for kind in view.changes.__slots__), "why was this called?"
        return super().decide(view)


class AvoidsReturnedGpus(FirstFit):
    """Never uses a GPU again that was down once."""

    name = "avoids"

    def __init__(self) -> None:
        super().__init__()
        self._avoided: set[tuple[int, int]] = set()

    def decide(self, view: View) -> Decision:
        self._avoided |= set(view.down_gpus)
        decision = super().decide(view)
        starts = [start for start in decision.starts if not self._avoided & _gpus(start.allocation)]
        dropped = [start.job for start in decision.starts if start not in starts]
        return Decision(tuple(starts), waits=(*decision.waits, *(Wait(job, Reason.RESOURCES) for job in dropped)))


class IgnoresDownGpus(FirstFit):
    """Starts single-GPU jobs on the first GPU that no run holds, whether it is up or not."""

    name = "ignores-down-gpus"

    def decide(self, view: View) -> Decision:
        decision, held = super().decide(view), {gpu for run in view.runs for gpu in _gpus_held(view, run)}
        held |= {gpu for start in decision.starts for gpu in _gpus(start.allocation)}
        starts = list(decision.starts)
        for gpu in view.down_gpus.keys() - held:
            for job in view.waiting.values():
                if job.demand.gpus == job.demand.instances == 1 and job.id not in {start.job for start in starts}:
                    share = Share(gpu[0], (gpu[1],), job.demand.gpu_milli, job.demand.cpu_milli, job.demand.memory_mib)
                    starts.append(Start(job.id, Allocation((share,))))
                    break
        started = {start.job for start in starts}
        return Decision(tuple(starts), waits=tuple(wait for wait in decision.waits if wait.job not in started))


class StopsAnything(FirstFit):
    """Preempts the oldest run when a job does not fit, preemptible or not."""

    name = "stops-anything"

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        oldest = next((run for run in view.runs.values() if not run.stopping and view.run_count(run.job) < 3), None)
        if not decision.waits or oldest is None:
            return decision
        return Decision(decision.starts, (Stop(oldest.job, "its turn is over"),), waits=decision.waits)


class RemembersItsStarts(FirstFit):
    """Looks up every run among those that it has started itself."""

    name = "remembers"

    def __init__(self) -> None:
        super().__init__()
        self._started: dict[str, Allocation] = {}

    def decide(self, view: View) -> Decision:
        for job_id in view.runs:
            self._started[job_id]
        decision = super().decide(view)
        self._started |= {start.job: start.allocation for start in decision.starts}
        return decision


class DoublesThePlan(FirstFit):
    """Starts reshapable jobs with a plan for more GPUs than they get."""

    name = "doubles"

    def allocation(self, job: Job, placement: tuple[Share, ...]) -> Allocation:
        gpus = job.demand.total_gpus
        return Allocation(placement, Plan(2 * int(gpus)) if job.reshapable else None)


def _gpus(allocation: Allocation) -> set[tuple[int, int]]:
    return {(share.node, gpu) for share in allocation.placement for gpu in share.gpus}


def _gpus_held(view: View, job_id: str) -> set[tuple[int, int]]:
    return _gpus(Allocation(view.held_by(job_id)))


def outcomes_of(policy: Callable[[], Policy], folder: Path, **settings: bool) -> Outcomes:
    """Run the contract for a policy, on few workloads."""

    class Contract(PolicyContract):
        seeds = disturbance_seeds = range(1)
        reshaping_seeds = range(1)

        def make_policy(self) -> Policy:
            return policy()

    contract = Contract()
    vars(contract).update(settings)
    return run_contract(contract, folder)


def test_a_correct_policy_passes(tmp_path: Path) -> None:
    outcomes = outcomes_of(FirstFit, tmp_path)
    assert outcomes.failed == {}
    assert set(outcomes.skipped) == RESHAPING


LOSES_JOBS = {
    "test_every_feasible_job_finishes_exactly_once",
    "test_every_job_finishes_despite_lost_gpus",
    "test_every_job_finishes_despite_overhead_and_lost_nodes",
    "test_gangs_are_placed_in_the_domains_that_they_require",
    "test_held_released_recalled_and_cancelled_jobs_are_handled",
    "test_jobs_are_placed_on_the_nodes_that_they_are_allowed_on",
    CHANGE_LIMIT,
    "test_runs_may_continue_on_drained_gpus",
    "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
    "test_without_consent_no_run_is_stopped",
}
"""The cases in which a policy fails that does not start some jobs."""

STARTS_EMPTY = {
    "test_a_gpu_is_used_again_after_it_returns",
    "test_an_infeasible_job_does_not_block_others",
    "test_the_policy_accepts_an_empty_cluster",
    "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
}
"""The cases in which the first round has no job."""

REMOVES_JOBS = {
    "test_cancelled_and_failed_jobs_are_not_started",
    "test_held_released_recalled_and_cancelled_jobs_are_handled",
    "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
}
"""The cases in which jobs leave the queue without a run."""

DOMAINS = "test_gangs_are_placed_in_the_domains_that_they_require"
"""Policies are called when jobs do not wait for domains any more, even if these have started."""

NOTHING_CHANGES = {
    "test_a_job_that_is_submitted_and_cancelled_in_one_step_is_ignored",
    "test_an_infeasible_job_does_not_block_others",
    "test_held_released_recalled_and_cancelled_jobs_are_handled",
    "test_runs_may_continue_on_drained_gpus",
    "test_the_policy_accepts_an_empty_cluster",
    "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
}
"""The cases with rounds in which nothing has changed for the policy."""


@pytest.mark.parametrize(
    ("policy", "failing", "message"),
    [
        (Nameless, {"test_the_policy_has_a_name"}, "assert ''"),
        (ForgetsCpuJobs, LOSES_JOBS, "Extra items in the left set"),
        (
            Alternating,
            {"test_the_policy_does_not_use_run_times_in_advance", "test_the_same_events_give_the_same_orders"},
            "StartRun(job=",
        ),
        (Silent, {"test_every_waiting_job_has_a_reason"}, "== []"),
        (ShortestFirst, {"test_the_policy_does_not_use_run_times_in_advance"}, "StartRun(job="),
        (BlockedByInfeasibleJobs, {"test_an_infeasible_job_does_not_block_others"}, "'small'"),
        (NeedsAJobAtFirst, STARTS_EMPTY, "ValueError: min() "),
        (NoticesNoRemovals, REMOVES_JOBS, "own-queue started job 'b', which is unknown (rule: waiting)"),
        (ExpectsAChange, NOTHING_CHANGES | {DOMAINS}, "why was this called?"),
        (
            AvoidsReturnedGpus,
            {
                "test_a_gpu_is_used_again_after_it_returns",
                "test_every_job_finishes_despite_lost_gpus",
                "test_runs_may_continue_on_drained_gpus",
            },
            "(False, (0,)) in [",
        ),
        (
            IgnoresDownGpus,
            {
                "test_a_gpu_is_used_again_after_it_returns",
                "test_every_job_finishes_despite_lost_gpus",
                "test_runs_may_continue_on_drained_gpus",
                "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
            },
            "ignores-down-gpus started job 'b', but node 'n0': GPU 0 is down (rule: free)",
        ),
        (
            StopsAnything,
            {
                "test_held_released_recalled_and_cancelled_jobs_are_handled",
                CHANGE_LIMIT,
                "test_the_policy_continues_from_a_snapshot_with_a_drained_gpu",
                "test_without_consent_no_run_is_stopped",
            },
            "stops-anything changed job 'j0', which is not preemptible (rule: preemptible)",
        ),
        (
            RemembersItsStarts,
            {"test_the_policy_continues_from_a_snapshot_with_a_drained_gpu"},
            "KeyError",
        ),
    ],
)
def test_a_broken_policy_fails_exactly_the_cases_that_its_defect_concerns(
    policy: Callable[[], Policy], failing: set[str], message: str, tmp_path: Path
) -> None:
    outcomes = outcomes_of(policy, tmp_path)
    assert set(outcomes.failed) == failing
    assert message in outcomes.failed[min(failing)]


def test_a_declared_oracle_may_use_run_times(tmp_path: Path) -> None:
    outcomes = outcomes_of(ShortestFirst, tmp_path, oracle=True)
    assert outcomes.failed == {}
    assert outcomes.skipped["test_the_policy_does_not_use_run_times_in_advance"].startswith(
        "does not apply: the policy is an oracle"
    )


def test_a_wrong_plan_is_found_only_in_the_cases_with_reshapable_jobs(tmp_path: Path) -> None:
    outcomes = outcomes_of(DoublesThePlan, tmp_path, reshapes=True)
    assert set(outcomes.failed) == {*RESHAPING, CHANGE_LIMIT}
    assert outcomes.skipped == {}
    message = outcomes.failed["test_every_reshapable_job_finishes_exactly_once"]
    assert message == "AuditFailed: entry 1 at 200.0: 'j0' got 2 GPUs for plan DP4"
