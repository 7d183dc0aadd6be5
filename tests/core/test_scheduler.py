"""Facts in, orders out: a few facts, and the whole list of orders."""

from collections.abc import Sized

import pytest
from scripted_policy import Told, on

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
from refold.model import KEEP, Allocation, Decision, Reason, Reshape, Share, Start, StartEstimate, Stop, Wait
from refold.packing import Placer
from refold.policies.queueing.fifo import Fifo
from refold.testing import Audit, make_cluster, make_job


class World:
    """A scheduler under audit."""

    def __init__(self, *sizes: int, told: Told | None = None) -> None:
        self.cluster = make_cluster(*sizes)
        self.told = told
        self.scheduler = Scheduler(self.cluster, told or Fifo())
        self.audit = Audit(self.cluster)
        self.now = 0.0

    def step(self, *events: Event, then: Decision | None = None) -> tuple[StartRun | StopRun, ...]:
        if self.told is not None and then is not None:
            self.told.next = then
        entry = self.scheduler.step(self.now, events)
        if self.told is None:
            self.audit.write(entry)
        self.now += 1.0
        return entry.orders

    @property
    def view(self) -> View:
        return self.scheduler.view


def test_a_job_is_started_and_its_place_refilled_when_it_ends() -> None:
    world = World(1)
    assert world.step(JobSubmitted(make_job("a"))) == (StartRun("a", 1, on(0)),)
    assert world.step(JobSubmitted(make_job("b"))) == ()
    assert world.step(RunFinished("a", 1)) == (StartRun("b", 1, on(0)),)


def test_of_jobs_that_are_over_nothing_is_left() -> None:
    world = World(1)

    def sizes() -> dict[str, int]:
        return {name: len(part) for name, part in vars(world.view._state).items() if isinstance(part, Sized)}

    before = sizes()
    for number in range(5):
        world.step(JobSubmitted(make_job(f"job-{number}")))
        world.step(RunFinished(f"job-{number}", 1))
    assert sizes() == before
    assert {"progress", "active", "held"} <= before.keys()


def test_late_and_repeated_reports_change_nothing() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")))
    world.step(JobSubmitted(make_job("a")))
    world.step(RunFailed("a", 1, "crashed", retry=True))
    assert world.view.runs["a"].number == 2
    for late in (
        RunFinished("a", 1),
        RunStopped("a", 1),
        RunStarted("a", 1),
        RunFailed("a", 1),
        RunProgressed("a", 1, 5),
    ):
        assert world.step(late) == ()
    assert world.view.runs["a"].number == 2
    assert world.scheduler.late_reports == 6
    world.step(RunFinished("a", 2))
    assert world.step(RunFinished("a", 2)) == ()
    assert world.view.runs == {}


def test_a_second_report_of_a_start_does_not_move_it() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")))
    world.step(RunStarted("a", 1))
    world.now = 50.0
    world.step(RunStarted("a", 1))
    assert world.view.done("a") == 49.0


def test_progress_only_goes_forward() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")))
    world.now = 10.0
    world.step(RunProgressed("a", 1, 7.0))
    world.now = 20.0
    world.step(RunProgressed("a", 1, 3.0))
    assert world.view.done("a") == 17.0


def test_a_failed_run_is_tried_again_only_if_it_may() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")))
    assert world.step(RunFailed("a", 1, "node lost", retry=True)) == (StartRun("a", 2, on(0)),)
    assert world.step(RunFailed("a", 2, "exit 1")) == ()
    assert not world.view.waiting


def test_cancelling_a_run_stops_it_and_ends_its_job() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")))
    assert world.step(JobCancelled("a")) == (StopRun("a", 1, "cancelled"),)
    assert world.step(JobCancelled("a")) == ()
    assert world.step(RunStopped("a", 1)) == (StartRun("b", 1, on(0)),)
    assert "a" not in world.view.waiting


def test_cancelling_a_job_that_waits_ends_it_at_once() -> None:
    world = World(1)
    world.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), JobSubmitted(make_job("c")))
    assert world.step(JobCancelled("b")) == ()
    assert world.step(RunFinished("a", 1)) == (StartRun("c", 1, on(0)),)


def test_a_lost_node_takes_no_work_until_it_returns() -> None:
    world = World(1, 1)
    assert world.step(NodeLost(0), JobSubmitted(make_job("a"))) == (StartRun("a", 1, on(0, node=1)),)
    assert world.step(JobSubmitted(make_job("b"))) == ()
    assert world.step(NodeReturned(0)) == (StartRun("b", 1, on(0)),)
    assert world.step(NodeReturned(0), NodeLost(1), NodeLost(1), RunFinished("a", 1)) == ()
    assert world.scheduler.late_reports == 2


def test_a_job_that_never_fits_says_so() -> None:
    world = World(2)
    world.step(JobSubmitted(make_job("huge", gpus=4)))
    reason = world.view.reason("huge")
    assert (reason.reason, reason.shortage and reason.shortage.too_small) == (Reason.INFEASIBLE, 1)
    world.step(JobCancelled("huge"))
    assert not world.view.infeasible


def test_waiting_jobs_know_why_with_counts() -> None:
    world = World(2, 1)
    world.step(JobSubmitted(make_job("a", gpus=2)))
    world.step(JobSubmitted(make_job("b", gpus=2)), JobSubmitted(make_job("c")), JobSubmitted(make_job("d")))
    first = world.view.reason("b")
    assert first.reason is Reason.RESOURCES
    assert first.shortage is not None
    assert first.shortage.text("2 GPUs") == "0 of 2 nodes fit: 1 × less than 2 GPUs free, 1 × too few GPUs at all"
    assert world.view.reason("c") == Wait("c", Reason.AHEAD, ahead=1)
    assert world.view.reason("d") == Wait("d", Reason.AHEAD, ahead=2)


def test_the_room_for_a_gang_is_counted() -> None:
    world = World(4, 4)
    world.step(JobSubmitted(make_job("a", gpus=3)))
    world.step(JobSubmitted(make_job("gang", gpus=2, instances=3)))
    shortage = world.view.reason("gang").shortage
    assert shortage is not None
    assert shortage.text("2 GPUs") == "room for 2 of 3 instances, 1 of 2 nodes fit: 1 × less than 2 GPUs free"


def test_a_stopped_run_holds_its_place_until_it_has_stopped() -> None:
    world = World(1, told=Told())
    world.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), then=Decision((Start("a", on(0)),)))
    assert world.step(then=Decision(stops=(Stop("a", "for b"),))) == (StopRun("a", 1, "for b"),)
    with pytest.raises(BadDecision, match="a GPU has less free"):
        world.step(then=Decision((Start("b", on(0)),)))
    assert world.step(RunStopped("a", 1, 30.0), then=Decision((Start("b", on(0)),))) == (StartRun("b", 1, on(0)),)
    assert world.view.done("a") == 30.0
    assert list(world.view.waiting) == ["a"]


def test_a_reshaped_job_holds_both_places_until_its_old_run_has_stopped() -> None:
    world = World(4, told=Told())
    job = make_job("a", gpus=2, reshapable=True)
    world.step(JobSubmitted(job), JobSubmitted(make_job("b")), then=Decision((Start("a", on(0, 1)),)))
    wider = on(1, 2, 3)
    assert world.step(then=Decision(reshapes=(Reshape("a", wider, "grow"),))) == (StopRun("a", 1, "grow"),)
    for gpu in range(4):
        with pytest.raises(BadDecision, match="a GPU has less free"):
            world.step(then=Decision((Start("b", on(gpu)),)))
    assert world.step(RunStopped("a", 1, 5.0)) == (StartRun("a", 2, wider),)
    assert world.step(then=Decision((Start("b", on(0)),))) == (StartRun("b", 1, on(0)),)


def test_a_job_that_finishes_before_its_reshape_gives_everything_back() -> None:
    world = World(4, told=Told())
    world.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    world.step(then=Decision(reshapes=(Reshape("a", on(1, 2, 3)),)))
    assert world.step(RunFinished("a", 1)) == ()
    assert world.view.free_gpus == 4


def test_a_target_is_turned_into_the_changes_that_lead_to_it() -> None:
    world = World(4, told=Told())
    start = Decision((Start("a", on(0)), Start("b", on(1))))
    world.step(JobSubmitted(make_job("a")), JobSubmitted(make_job("b")), JobSubmitted(make_job("c")), then=start)
    towards = Decision.towards(world.view, {"b": on(1), "c": on(2)}, "why not")
    assert towards == Decision(starts=(Start("c", on(2)),), stops=(Stop("a", "why not"),))


RUNNING, WAITS = make_job("runs", gpus=2), make_job("waits", gpus=2)


@pytest.mark.parametrize(
    ("decision", "rule", "words"),
    [
        (Decision((Start("runs", on(2, 3)),)), "waiting", "is running"),
        (Decision((Start("ghost", on(2, 3)),)), "waiting", "is not known"),
        (Decision((Start("waits", on(2, 3)), Start("waits", on(2, 3)))), "waiting", "named twice"),
        (Decision((Start("waits", on(2)),)), "gang", "other than the 2 GPU"),
        (Decision((Start("waits", on(0, 1)),)), "free", "'n0': a GPU has less free"),
        (Decision((Start("waits", on(3, 3)),)), "free", "the same GPU twice"),
        (Decision((Start("waits", on(3, 9)),)), "free", "no such GPU"),
        (Decision((Start("waits", on(3, 70)),)), "free", "no such GPU"),
        (Decision((Start("waits", on(3, -1)),)), "free", "no such GPU"),
        (Decision((Start("bends", Allocation(())),)), "gang", "nothing at all"),
        (Decision((Start("bends", Allocation((Share(0, (2,), -500),))),)), "free", "impossible amounts"),
        (Decision((Start("bends", Allocation((Share(0, (2,), cpu_milli=-1),))),)), "free", "impossible amounts"),
        (Decision((Start("waits", on(2, 3, node=9)),)), "free", "node 9, which does not exist"),
        (Decision((Start("waits", on(0, 1, node=1)),)), "free", "the node is down"),
        (Decision((Start("picky", on(2, 3)),)), "type", "it accepts H100"),
        (Decision(stops=(Stop("waits"),)), "running", "'waits', which waits"),
        (Decision(stops=(Stop("runs"), Stop("runs"))), "running", "named twice"),
        (Decision(stops=(Stop("stays"),)), "preemptible", "'stays', which is not preemptible"),
        (Decision(reshapes=(Reshape("runs", on(2)),)), "gang", "not reshapable"),
        (Decision(waits=(Wait("runs", Reason.AHEAD),)), "reason", "which does not"),
        (Decision(wake_at=1.0), "wake", "to be woken at 1.0"),
        (Decision(wake_at=float("inf")), "wake", "to be woken at inf"),
    ],
)
def test_a_bad_decision_is_refused_whole_and_by_name(decision: Decision, rule: str, words: str) -> None:
    world = World(4, 2, 1, told=Told())
    stays = make_job("stays", preemptible=False)
    jobs = (RUNNING, WAITS, stays, make_job("bends", reshapable=True), make_job("picky", gpus=2, types=["H100"]))
    world.scheduler = Scheduler(world.cluster, world.told or Told())
    world.step(*(JobSubmitted(job) for job in jobs[:4]))
    world.step(then=Decision((Start("runs", on(0, 1)), Start("stays", on(0, node=2)))))
    world.scheduler._state.waiting["picky"] = jobs[4]
    world.step(NodeLost(1))
    free = world.view.free_gpus
    with pytest.raises(BadDecision, match=words) as refusal:
        world.step(then=decision)
    assert (refusal.value.rule, refusal.value.policy) == (rule, "told")
    assert world.view.free_gpus == free
    assert set(world.view.runs) == {"runs", "stays"}


def test_where_nobody_watches_a_bad_decision_is_written_down_and_nothing_is_done() -> None:
    told = Told()
    heard: list[BadDecision] = []
    scheduler = Scheduler(make_cluster(1), told, refused=heard.append)
    told.next = Decision((Start("ghost", on(0)),))
    entry = scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    assert (entry.orders, len(heard)) == ((), 1)
    assert entry.refused.startswith("told started job 'ghost'")


def test_what_a_policy_expects_is_written_down() -> None:
    world = World(1, told=Told())
    world.told = world.told or Told()
    world.told.next = Decision(start_estimates=(StartEstimate("a", 9.0),), wake_at=7.0)
    entry = world.scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    assert (entry.start_estimates, entry.wake_at) == ((StartEstimate("a", 9.0),), 7.0)


def test_whoever_was_refused_is_started_by_the_next_look() -> None:
    class Spoiled(Fifo):
        """Adds nonsense to one decision."""

        def decide(self, view: View) -> Decision:
            decision = super().decide(view)
            nonsense = (Stop("ghost"),) if view.now == 5.0 else ()
            return Decision(decision.starts, nonsense, waits=decision.waits)

    scheduler = Scheduler(make_cluster(1), Spoiled(), refused=lambda _: None)
    scheduler.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])
    assert scheduler.step(5.0, [RunFinished("a", 1)]).orders == ()
    assert scheduler.step(6.0, []).orders == (StartRun("b", 1, on(0)),)


def test_a_policy_that_fails_leaves_nothing_taken() -> None:
    class Fails:
        name = "fails"

        def decide(self, view: View) -> Decision:
            view.trial().place(Placer(), make_job().demand)
            raise RuntimeError("no idea")

    scheduler = Scheduler(make_cluster(1), Fails())
    with pytest.raises(RuntimeError):
        scheduler.step(0.0, [])
    assert scheduler.view.free_gpus == 1


def test_a_job_can_be_reshaped_away_from_a_lost_node() -> None:
    world = World(2, 2, told=Told())
    world.step(JobSubmitted(make_job("a", gpus=2, reshapable=True)), then=Decision((Start("a", on(0, 1)),)))
    elsewhere = on(0, 1, node=1)
    assert world.step(NodeLost(0), then=Decision(reshapes=(Reshape("a", elsewhere),))) == (StopRun("a", 1),)
    assert world.step(RunStopped("a", 1)) == (StartRun("a", 2, elsewhere),)
    assert world.view.free_gpus == 0


def test_a_target_can_be_said_again_while_a_run_is_stopping() -> None:
    world = World(2, told=Told())
    world.step(JobSubmitted(make_job("a", reshapable=True)), then=Decision((Start("a", on(0)),)))
    target = {"a": on(1)}
    world.step(then=Decision.towards(world.view, target))
    assert Decision.towards(world.view, target) == KEEP
    assert world.step(RunStopped("a", 1)) == (StartRun("a", 2, on(1)),)


def test_no_work_is_done_while_a_run_is_stopping() -> None:
    world = World(1, told=Told())
    world.step(JobSubmitted(make_job("a")), then=Decision((Start("a", on(0)),)))
    world.now = 10.0
    world.step(then=Decision(stops=(Stop("a"),)))
    world.now = 500.0
    world.step(RunStarted("a", 1))
    assert (world.view.done("a"), world.scheduler.late_reports) == (10.0, 0)
    world.step(RunProgressed("a", 1, 12.0))
    world.now = 900.0
    world.step()
    assert world.view.done("a") == 12.0


def test_reasons_count_the_present() -> None:
    world = World(1)
    world.step(*(JobSubmitted(make_job(f"j{n}")) for n in range(5)))
    assert world.view.reason("j4") == Wait("j4", Reason.AHEAD, ahead=3)
    world.step(RunFinished("j0", 1))
    assert world.view.reason("j4") == Wait("j4", Reason.AHEAD, ahead=2)


def test_what_never_fits_is_counted_on_the_empty_cluster() -> None:
    world = World(8)
    world.step(JobSubmitted(make_job("busy", gpus=8)), JobSubmitted(make_job("two", gpus=8, instances=2)))
    shortage = world.view.reason("two").shortage
    assert shortage is not None
    assert shortage.text("8 GPUs") == "room for 1 of 2 instances, 1 of 1 nodes fit"


def test_time_does_not_go_back() -> None:
    world = World(1)
    world.scheduler.step(5.0, [])
    with pytest.raises(BadValue, match="time does not go back"):
        world.scheduler.step(4.0, [])
