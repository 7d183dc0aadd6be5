"""GPUs that go down and come up: what is free, what may start, what is recorded."""

import pytest
from hypothesis import given, settings
from random_histories import Grower, History, Move, finish_all_jobs, moves
from scripted_policy import ScriptedPolicy, on

from refold.core import Entry, Scheduler
from refold.core.events import (
    GpuDrained,
    GpuLost,
    GpuReturned,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFinished,
    RunRecalled,
    RunStopped,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision
from refold.model import WHOLE, Allocation, Decision, Reshape, Share, Start
from refold.policies.queueing.fifo import FifoSkip
from refold.testing import Audit, AuditFailed, make_cluster, make_job


@given(moves)
@settings(max_examples=60)
def test_free_gpus_are_those_that_are_up_less_what_runs_hold(moves_to_play: list[Move]) -> None:
    cluster = make_cluster(4, 2, 1)
    for policy in (FifoSkip(), Grower()):
        history = History(cluster, policy, on_rejection=lambda _: None)
        for _ in history.play(moves_to_play):
            view = history.view
            held = {(node, gpu): 0 for node, kind in enumerate(cluster.nodes) for gpu in range(kind.gpus)}
            for job in view.runs:
                for share in view.held_by(job):
                    for gpu in share.gpus:
                        held[share.node, gpu] += share.gpu_milli
            free = {
                part: WHOLE - milli
                for part, milli in held.items()
                if view.is_up(part[0]) and view.is_gpu_up(*part) and part not in view.down_gpus
            }
            assert view.free_gpus * WHOLE == sum(free.values())
        finish_all_jobs(history.scheduler, history.now, nodes=3)
        assert view_is_empty(history)


def view_is_empty(history: History) -> bool:
    return history.view.free_gpus == history.cluster.gpus and not history.view.down_gpus


def test_a_job_waits_for_a_gpu_that_is_down_and_starts_when_it_returns() -> None:
    scheduler = Scheduler(make_cluster(2), FifoSkip())
    lost = scheduler.step(0.0, [GpuLost(0, 1, "fan"), JobSubmitted(make_job("pair", gpus=2))])
    assert lost.orders == ()
    assert [wait.job for wait in lost.waits] == ["pair"]
    assert (scheduler.view.free_gpus, scheduler.view.infeasible) == (1.0, {})
    assert scheduler.view.down_gpus == {(0, 1): "fan"}
    assert scheduler.view.down_reason(0, 1) == "fan"
    assert scheduler.step(1.0, [GpuReturned(0, 1)]).orders == (StartRun("pair", 1, on(0, 1)),)
    assert scheduler.view.down_gpus == {}


def test_a_run_on_a_gpu_that_goes_down_continues_and_its_gpu_is_not_free_afterwards() -> None:
    scheduler = Scheduler(make_cluster(2), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a")), JobSubmitted(make_job("b"))])
    assert scheduler.step(1.0, [GpuLost(0, 0), JobSubmitted(make_job("c"))]).orders == ()
    assert set(scheduler.view.runs) == {"a", "b"}
    assert scheduler.step(2.0, [RunFinished("a", 1)]).orders == ()
    assert scheduler.step(3.0, [RunFinished("b", 1)]).orders == (StartRun("c", 1, on(1)),)


def test_a_recalled_run_leaves_a_drained_gpu() -> None:
    scheduler = Scheduler(make_cluster(2), FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    orders = scheduler.step(1.0, [GpuLost(0, 0, "fan"), RunRecalled("a", 1, "fan")]).orders
    assert orders == (StopRun("a", 1, "fan"),)
    assert scheduler.step(2.0, [RunStopped("a", 1)]).orders == (StartRun("a", 2, on(1)),)


@pytest.mark.parametrize("returns", [False, True])
def test_the_next_allocation_of_a_reshaped_job_is_given_up_if_its_gpu_is_down(returns: bool) -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(2), policy)
    policy.next = Decision(starts=(Start("a", on(0)),))
    scheduler.step(0.0, [JobSubmitted(make_job("a", reshapable=True))])
    policy.next = Decision(reshapes=(Reshape("a", on(0, 1), "grow"),))
    scheduler.step(1.0, [])
    scheduler.step(2.0, [GpuLost(0, 1)])
    assert scheduler.view.free_gpus == 0.0
    if returns:
        scheduler.step(3.0, [GpuReturned(0, 1)])
    orders = scheduler.step(4.0, [RunStopped("a", 1)]).orders
    assert orders == ((StartRun("a", 2, on(0, 1)),) if returns else ())
    assert set(scheduler.view.waiting) == (set() if returns else {"a"})
    assert scheduler.view.free_gpus == (0.0 if returns else 1.0)


def test_a_decision_that_uses_a_gpu_that_is_down_is_rejected() -> None:
    policy = ScriptedPolicy()
    scheduler = Scheduler(make_cluster(2), policy)
    policy.next = Decision(starts=(Start("a", on(1)),))
    with pytest.raises(BadDecision, match="started job 'a', but node 'n0': GPU 1 is down"):
        scheduler.step(0.0, [GpuLost(0, 1), JobSubmitted(make_job("a"))])
    assert scheduler.view.free_gpus == 1.0


def test_a_gpu_and_its_node_are_down_independently() -> None:
    scheduler = Scheduler(make_cluster(2), FifoSkip())
    scheduler.step(0.0, [GpuLost(0, 1, "fan"), NodeLost(0, "kernel")])
    assert (scheduler.view.is_up(0), scheduler.view.is_gpu_up(0, 0), scheduler.view.is_gpu_up(0, 1)) == (
        False,
        True,
        False,
    )
    assert (scheduler.view.down_reason(0), scheduler.view.down_reason(0, 1)) == ("kernel", "fan")
    scheduler.step(1.0, [NodeReturned(0)])
    assert (scheduler.view.free_gpus, scheduler.view.down_reason(0)) == (1.0, "")
    assert not scheduler.view.is_placement_up((Share(0, (0, 1)),))
    assert scheduler.view.is_placement_up((Share(0, (0,)),))


def test_repeated_and_unknown_reports_on_gpus_have_no_effect_but_a_new_reason_is_kept() -> None:
    scheduler = Scheduler(make_cluster(2), FifoSkip())
    for event in (GpuReturned(0, 1), GpuLost(0, 2, "fan"), GpuLost(1, 0), GpuLost(0, -1, "fan"), NodeLost(4, "fan")):
        scheduler.step(0.0, [event])
    assert (scheduler.late_reports, scheduler.view.down_gpus, scheduler.view.free_gpus) == (5, {}, 2.0)
    scheduler.step(0.0, [GpuLost(0, 1, "fan"), GpuLost(0, 1), GpuLost(0, 1)])
    assert scheduler.view.down_gpus == {(0, 1): "fan"}
    scheduler.step(0.0, [GpuLost(0, 1, "ECC errors")])
    assert scheduler.view.down_gpus == {(0, 1): "ECC errors"}
    assert (scheduler.late_reports, scheduler.view.free_gpus) == (8, 1.0)


def test_the_policy_notices_that_a_gpu_came_up() -> None:
    seen: list[list[int]] = []

    class Noticing(FifoSkip):
        def decide(self, view):  # type: ignore[no-untyped-def]
            seen.append(list(view.changes.nodes))
            return super().decide(view)

    scheduler = Scheduler(make_cluster(1, 2), Noticing())
    for events in ([GpuLost(1, 0)], [], [GpuReturned(1, 0)], [GpuReturned(1, 0)]):
        scheduler.step(0.0, events)
    assert seen == [[1], [], [1], []]


def test_a_snapshot_contains_drained_gpus_and_the_runs_that_still_hold_them() -> None:
    cluster = make_cluster(2)
    scheduler = Scheduler(cluster, FifoSkip())
    scheduler.step(0.0, [JobSubmitted(make_job("a"))])
    scheduler.step(1.0, [GpuLost(0, 0, "fan"), NodeLost(0, "kernel")])
    restored = Scheduler(cluster, FifoSkip())
    restored.step(2.0, scheduler.snapshot())
    assert restored.view.down_gpus == {(0, 0): "fan"}
    assert restored.view.down_reason(0) == "kernel"
    assert restored.view.runs["a"].allocation == on(0)


def test_a_run_is_not_adopted_on_a_gpu_that_is_down() -> None:
    scheduler = Scheduler(make_cluster(1), FifoSkip())
    scheduler.step(0.0, [GpuLost(0, 0), JobSubmitted(make_job("a")), RunAdopted("a", 1, on(0), 0.0)])
    assert (dict(scheduler.view.runs), scheduler.late_reports) == ({}, 1)


def test_the_audit_finds_a_start_on_a_gpu_that_is_down() -> None:
    audit = Audit(make_cluster(2))
    entry = Entry(0.0, (JobSubmitted(make_job("a")), GpuLost(0, 1)), (StartRun("a", 1, on(1)),))
    with pytest.raises(AuditFailed, match="'a' was placed on GPU 1 of node 'n0', which is down"):
        audit.write(entry)


def test_the_audit_accepts_a_start_on_a_gpu_that_has_returned() -> None:
    audit = Audit(make_cluster(2))
    audit.write(Entry(0.0, (JobSubmitted(make_job("a")), GpuLost(0, 1))))
    audit.write(Entry(1.0, (GpuReturned(0, 1),), (StartRun("a", 1, on(1)),)))
    assert audit.running == {"a": (1, Allocation((Share(0, (1,)),)))}


def test_gpus_that_are_down_on_nodes_that_are_up_are_counted_with_those_of_nodes_that_are_down() -> None:
    scheduler = Scheduler(make_cluster(4, 2), ScriptedPolicy())
    scheduler.step(0.0, [GpuLost(0, 3), NodeLost(1), GpuLost(1, 0)])
    assert scheduler.view.down_gpu_count == 3


def test_a_snapshot_says_what_is_drained_and_what_is_down() -> None:
    events = (NodeDrained(0, "cables"), GpuDrained(0, 1, "fan"), NodeLost(1, "no power"), GpuLost(1, 0))
    scheduler = Scheduler(make_cluster(2, 2), ScriptedPolicy())
    scheduler.step(0.0, events)
    assert scheduler.snapshot() == events
    view = scheduler.view
    parts = [(0, None), (0, 1), (0, 0), (1, None), (1, 0)]
    assert [view.is_drained(*part) for part in parts] == [True, True, False, False, False]
    assert (view.down_gpu_count, view.free_gpu_milli(0), view.free_gpu_milli(1)) == (4, (0, 0), (0, 0))


def test_the_last_event_with_a_reason_decides_whether_a_node_is_drained() -> None:
    scheduler = Scheduler(make_cluster(2), ScriptedPolicy())
    for event, is_drained in (
        (NodeLost(0), False),
        (NodeDrained(0, "by ann"), True),
        (NodeLost(0), True),
        (NodeLost(0, "no power"), False),
        (NodeDrained(0, "by ann"), True),
        (NodeReturned(0), False),
    ):
        scheduler.step(0.0, [event])
        assert scheduler.view.is_drained(0) is is_drained
