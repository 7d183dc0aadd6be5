"""The scheduler: a few events in, and the complete list of orders out."""

from collections.abc import Sized

import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    NodeLost,
    NodeReturned,
    RunFailed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import Allocation, Decision, Demand, Reason, Reshape, Share, Start, StartEstimate, Stop, Wait
from refold.placement import Placer
from refold.policies.queueing.fifo import Fifo
from refold.testing import Audit, make_cluster, make_job


class AuditedScheduler:
    """A scheduler with an audit of its journal; with a scripted policy, `then` is the next decision."""

    def __init__(self, *sizes: int, policy: ScriptedPolicy | None = None) -> None:
        self.cluster = make_cluster(*sizes)
        self.policy = policy
        self.scheduler = Scheduler(self.cluster, policy or Fifo())
        self.audit = Audit(self.cluster)
        self.now = 0.0

    def step(self, *events: Event, then: Decision | None = None) -> tuple[StartRun | StopRun, ...]:
        if self.policy is not None and then is not None:
            self.policy.next = then
        entry = self.scheduler.step(self.now, events)
        if self.policy is None:
            self.audit.write(entry)
        self.now += 1.0
        return entry.orders

    @property
    def view(self) -> View:
        return self.scheduler.view


def test_a_waiting_job_starts_when_another_ends() -> None:
    audited = AuditedScheduler(1)
    assert audited.step(JobSubmitted(make_job("a"))) == (StartRun("a", 1, on(0)),)
    assert audited.step(JobSubmitted(make_job("b"))) == ()
    assert audited.step(RunFinished("a", 1)) == (StartRun("b", 1, on(0)),)


def test_jobs_that_have_ended_leave_no_state_behind() -> None:
    audited = AuditedScheduler(1)

    def sizes() -> dict[str, int]:
        state = audited.view._state
        parts = {name: getattr(whole, name) for whole in (state, state.queue, state.running) for name in dir(whole)}
        return {name: len(part) for name, part in parts.items() if isinstance(part, Sized)}

    before = sizes()
    for number in range(5):
        audited.step(JobSubmitted(make_job(f"job-{number}")))
        audited.step(RunFinished(f"job-{number}", 1))
    assert sizes() == before
    assert {"progress", "jobs", "held"} <= before.keys()


def test_late_and_duplicate_reports_have_no_effect() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")))
    audited.step(JobSubmitted(make_job("a")))
    audited.step(RunFailed("a", 1, "crashed", retry=True))
    assert audited.view.runs["a"].number == 2
    for late in (
        RunFinished("a", 1),
        RunStopped("a", 1),
        RunStarted("a", 1),
        RunFailed("a", 1),
        RunProgressed("a", 1, 5),
    ):
        assert audited.step(late) == ()
    assert audited.view.runs["a"].number == 2
    assert audited.scheduler.late_reports == 6
    audited.step(RunFinished("a", 2))
    assert audited.step(RunFinished("a", 2)) == ()
    assert audited.view.runs == {}


def test_a_duplicate_start_report_does_not_change_the_start_time() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")))
    audited.step(RunStarted("a", 1))
    audited.now = 50.0
    audited.step(RunStarted("a", 1))
    assert audited.view.done("a") == 49.0


def test_progress_never_decreases() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")))
    audited.now = 10.0
    audited.step(RunProgressed("a", 1, 7.0))
    audited.now = 20.0
    audited.step(RunProgressed("a", 1, 3.0))
    assert audited.view.done("a") == 17.0


def test_a_failed_run_is_retried_only_if_the_event_allows_it() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")))
    assert audited.step(RunFailed("a", 1, "node lost", retry=True)) == (StartRun("a", 2, on(0)),)
    assert audited.step(RunFailed("a", 2, "exit 1")) == ()
    assert not audited.view.waiting


def test_cancelling_a_running_job_stops_its_run_first() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    assert audited.step(JobCancelled("a")) == (StopRun("a", 1, "cancelled"),)
    assert audited.step(JobCancelled("a")) == ()
    assert audited.step(RunStopped("a", 1)) == (StartRun("b", 1, on(0)),)
    assert "a" not in audited.view.waiting


def test_cancelling_a_waiting_job_ends_it_at_once() -> None:
    audited = AuditedScheduler(1)
    audited.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), JobSubmitted(make_job("c")))
    assert audited.step(JobCancelled("b")) == ()
    assert audited.step(RunFinished("a", 1)) == (StartRun("c", 1, on(0)),)


def test_no_run_starts_on_a_node_that_is_down() -> None:
    audited = AuditedScheduler(1, 1)
    assert audited.step(NodeLost(0), JobSubmitted(make_job("a"))) == (StartRun("a", 1, on(0, node=1)),)
    assert audited.step(JobSubmitted(make_job("b"))) == ()
    assert audited.step(NodeReturned(0)) == (StartRun("b", 1, on(0)),)
    assert audited.step(NodeReturned(0), NodeLost(1), NodeLost(1), RunFinished("a", 1)) == ()
    assert audited.scheduler.late_reports == 2


def test_a_job_that_never_fits_is_infeasible() -> None:
    audited = AuditedScheduler(2)
    audited.step(JobSubmitted(make_job("huge", gpus=4)))
    reason = audited.view.reason("huge")
    assert (reason.reason, reason.shortage and reason.shortage.too_small) == (Reason.INFEASIBLE, 1)
    audited.step(JobCancelled("huge"))
    assert not audited.view.infeasible


def test_waiting_jobs_have_a_reason_with_counts() -> None:
    audited = AuditedScheduler(2, 1)
    audited.step(JobSubmitted(make_job("a", gpus=2)))
    audited.step(JobSubmitted(make_job("b", gpus=2)), JobSubmitted(make_job("c")), JobSubmitted(make_job("d")))
    first = audited.view.reason("b")
    assert first.reason is Reason.RESOURCES
    assert first.shortage is not None
    assert first.shortage.text(Demand(gpus=2)) == (
        "0 of 2 nodes fit: 1 has fewer than 2 free GPUs, 1 has fewer than 2 GPUs in total"
    )
    assert audited.view.reason("c") == Wait("c", Reason.PRIORITY, ahead=1)
    assert audited.view.reason("d") == Wait("d", Reason.PRIORITY, ahead=2)


def test_the_shortage_of_a_gang_counts_the_instances_that_fit() -> None:
    audited = AuditedScheduler(4, 4)
    audited.step(JobSubmitted(make_job("a", gpus=3)))
    audited.step(JobSubmitted(make_job("gang", gpus=2, instances=3)))
    shortage = audited.view.reason("gang").shortage
    assert shortage is not None
    assert shortage.text(Demand(gpus=2)) == "2 of 3 instances fit on 1 of 2 nodes: 1 has fewer than 2 free GPUs"


def test_a_stopping_run_holds_its_gpus_until_it_has_stopped() -> None:
    audited = AuditedScheduler(1, policy=ScriptedPolicy())
    audited.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), then=Decision((Start("a", on(0)),)))
    assert audited.step(then=Decision(stops=(Stop("a", "for b"),))) == (StopRun("a", 1, "for b"),)
    with pytest.raises(BadDecision, match="a GPU has too little free capacity"):
        audited.step(then=Decision((Start("b", on(0)),)))
    assert audited.step(RunStopped("a", 1, 30.0), then=Decision((Start("b", on(0)),))) == (StartRun("b", 1, on(0)),)
    assert audited.view.done("a") == 30.0
    assert list(audited.view.waiting) == ["a"]


def test_a_reshaped_job_holds_both_allocations_until_its_old_run_has_stopped() -> None:
    audited = AuditedScheduler(4, policy=ScriptedPolicy())
    job = make_job("a", gpus=2, reshapable=True)
    audited.step(JobSubmitted(job), JobSubmitted(make_job("b")), then=Decision((Start("a", on(0, 1)),)))
    wider = on(1, 2, 3)
    assert audited.step(then=Decision(reshapes=(Reshape("a", wider, "grow"),))) == (StopRun("a", 1, "grow", wider),)
    for gpu in range(4):
        with pytest.raises(BadDecision, match="a GPU has too little free capacity"):
            audited.step(then=Decision((Start("b", on(gpu)),)))
    assert audited.step(RunStopped("a", 1, 5.0)) == (StartRun("a", 2, wider),)
    assert audited.step(then=Decision((Start("b", on(0)),))) == (StartRun("b", 1, on(0)),)


def test_a_job_that_finishes_before_its_reshape_releases_both_allocations() -> None:
    audited = AuditedScheduler(4, policy=ScriptedPolicy())
    audited.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    audited.step(then=Decision(reshapes=(Reshape("a", on(1, 2, 3)),)))
    assert audited.step(RunFinished("a", 1)) == ()
    assert audited.view.free_gpus == 4


RUNNING, WAITS = make_job("runs", gpus=2), make_job("waits", gpus=2)


@pytest.mark.parametrize(
    ("decision", "rule", "message"),
    [
        (Decision((Start("runs", on(2, 3)),)), "waiting", "is running"),
        (Decision((Start("ghost", on(2, 3)),)), "waiting", "is unknown"),
        (Decision((Start("waits", on(2, 3)), Start("waits", on(2, 3)))), "waiting", "appears twice"),
        (Decision((Start("waits", on(2)),)), "gang", "other than the requested 2 GPUs"),
        (Decision((Start("waits", on(0, 1)),)), "free", "'n0': a GPU has too little free capacity"),
        (Decision((Start("waits", on(3, 3)),)), "free", "the same GPU twice"),
        (Decision((Start("waits", on(3, 9)),)), "free", "no such GPU"),
        (Decision((Start("waits", on(3, 70)),)), "free", "no such GPU"),
        (Decision((Start("waits", on(3, -1)),)), "free", "no such GPU"),
        (Decision((Start("bends", Allocation(())),)), "gang", "an empty allocation"),
        (Decision((Start("bends", Allocation((Share(0, (2,), -500),))),)), "free", "invalid amounts"),
        (Decision((Start("bends", Allocation((Share(0, (2,), cpu_milli=-1),))),)), "free", "invalid amounts"),
        (Decision((Start("waits", on(2, 3, node=9)),)), "free", "node 9, which does not exist"),
        (Decision((Start("waits", on(0, 1, node=1)),)), "free", "the node is down"),
        (Decision((Start("picky", on(2, 3)),)), "type", "it accepts H100"),
        (Decision(stops=(Stop("waits"),)), "running", "'waits', which is waiting"),
        (Decision(stops=(Stop("runs"), Stop("runs"))), "running", "appears twice"),
        (Decision(stops=(Stop("stays"),)), "preemptible", "'stays', which is not preemptible"),
        (Decision(reshapes=(Reshape("runs", on(2)),)), "gang", "not reshapable"),
        (Decision(waits=(Wait("runs", Reason.PRIORITY),)), "reason", "which is not waiting"),
        (Decision(wake_at=1.0), "wake", "set wake_at to 1.0"),
        (Decision(wake_at=float("inf")), "wake", "set wake_at to inf"),
    ],
)
def test_a_bad_decision_is_rejected_with_policy_and_rule(decision: Decision, rule: str, message: str) -> None:
    audited = AuditedScheduler(4, 2, 1, policy=ScriptedPolicy())
    stays = make_job("stays", preemptible=False)
    jobs = (RUNNING, WAITS, stays, make_job("bends", reshapable=True), make_job("picky", gpus=2, types=["H100"]))
    audited.scheduler = Scheduler(audited.cluster, audited.policy or ScriptedPolicy())
    audited.step(*(JobSubmitted(job) for job in jobs[:4]))
    audited.step(then=Decision((Start("runs", on(0, 1)), Start("stays", on(0, node=2)))))
    audited.scheduler._state.queue.waiting["picky"] = jobs[4]
    audited.step(NodeLost(1))
    free = audited.view.free_gpus
    with pytest.raises(BadDecision, match=message) as rejected:
        audited.step(then=decision)
    assert (rejected.value.rule, rejected.value.policy) == (rule, "scripted")
    assert audited.view.free_gpus == free
    assert set(audited.view.runs) == {"runs", "stays"}


def test_a_rejected_decision_is_recorded_and_not_carried_out() -> None:
    policy = ScriptedPolicy()
    rejections: list[BadDecision] = []
    scheduler = Scheduler(make_cluster(1), policy, on_rejection=rejections.append)
    policy.next = Decision((Start("ghost", on(0)),))
    entry = scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    assert (entry.orders, len(rejections)) == ((), 1)
    assert entry.rejection.startswith("scripted started job 'ghost'")


def test_start_estimates_and_wake_ups_are_recorded() -> None:
    audited = AuditedScheduler(1, policy=ScriptedPolicy())
    audited.policy = audited.policy or ScriptedPolicy()
    audited.policy.next = Decision(start_estimates=(StartEstimate("a", 9.0),), wake_at=7.0)
    entry = audited.scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    assert (entry.start_estimates, entry.wake_at) == ((StartEstimate("a", 9.0),), 7.0)


def test_jobs_of_a_rejected_decision_start_in_the_next_round() -> None:
    class Spoiled(Fifo):
        """Adds an invalid stop to one decision."""

        def decide(self, view: View) -> Decision:
            decision = super().decide(view)
            invalid = (Stop("ghost"),) if view.now == 5.0 else ()
            return Decision(decision.starts, invalid, waits=decision.waits)

    scheduler = Scheduler(make_cluster(1), Spoiled(), on_rejection=lambda _: None)
    scheduler.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])
    assert scheduler.step(5.0, [RunFinished("a", 1)]).orders == ()
    assert scheduler.step(6.0, []).orders == (StartRun("b", 1, on(0)),)


def test_a_policy_that_raises_leaves_nothing_allocated() -> None:
    class Fails:
        name = "fails"

        def decide(self, view: View) -> Decision:
            view.trial().place(Placer(), make_job().demand)
            raise RuntimeError("no idea")

    scheduler = Scheduler(make_cluster(1), Fails())
    with pytest.raises(RuntimeError):
        scheduler.step(0.0, [])
    assert scheduler.view.free_gpus == 1


def test_a_job_can_be_reshaped_away_from_a_node_that_is_down() -> None:
    audited = AuditedScheduler(2, 2, policy=ScriptedPolicy())
    audited.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    elsewhere = on(0, 1, node=1)
    assert audited.step(NodeLost(0), then=Decision(reshapes=(Reshape("a", elsewhere),))) == (
        StopRun("a", 1, next=elsewhere),
    )
    assert audited.step(RunStopped("a", 1)) == (StartRun("a", 2, elsewhere),)
    assert audited.view.free_gpus == 0


def test_no_work_is_done_while_a_run_is_stopping() -> None:
    audited = AuditedScheduler(1, policy=ScriptedPolicy())
    audited.step(JobSubmitted(make_job("a")), then=Decision((Start("a", on(0)),)))
    audited.now = 10.0
    audited.step(then=Decision(stops=(Stop("a"),)))
    audited.now = 500.0
    audited.step(RunStarted("a", 1))
    assert (audited.view.done("a"), audited.scheduler.late_reports) == (10.0, 0)
    audited.step(RunProgressed("a", 1, 12.0))
    audited.now = 900.0
    audited.step()
    assert audited.view.done("a") == 12.0


def test_reasons_have_current_counts() -> None:
    audited = AuditedScheduler(1)
    audited.step(*(JobSubmitted(make_job(f"j{n}")) for n in range(5)))
    assert audited.view.reason("j4") == Wait("j4", Reason.PRIORITY, ahead=3)
    audited.step(RunFinished("j0", 1))
    assert audited.view.reason("j4") == Wait("j4", Reason.PRIORITY, ahead=2)


def test_the_shortage_of_an_infeasible_job_refers_to_the_empty_cluster() -> None:
    audited = AuditedScheduler(8)
    audited.step(JobSubmitted(make_job("busy", gpus=8)), JobSubmitted(make_job("two", gpus=8, instances=2)))
    shortage = audited.view.reason("two").shortage
    assert shortage is not None
    assert shortage.text(Demand(gpus=8)) == "1 of 2 instances fit on 1 of 1 nodes"


def test_steps_must_be_in_order_of_time() -> None:
    audited = AuditedScheduler(1)
    audited.scheduler.step(5.0, [])
    with pytest.raises(BadValue, match="expected times in ascending order"):
        audited.scheduler.step(4.0, [])
