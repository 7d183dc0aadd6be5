"""Defragmentation: which runs are moved for a job that does not fit although enough is free, when, and at what cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from scripted_policy import ScriptedPolicy

from refold.core import Entry, Journals, ListJournal, Policy, Scheduler, View
from refold.core.events import Event, JobCancelled, JobSubmitted, NodeLost, RunFailed, RunFinished, RunStopped
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import Allocation, Cluster, Decision, Job, Reason, Reshape, Share, Start
from refold.model.units import WHOLE
from refold.placement import RULES, Placer
from refold.policies.common.defragment import MIN_STAY_FACTOR
from refold.policies.common.moves import Moves, find_moves
from refold.simulator import Costs, Fault, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, PolicyContract, make_cluster, make_job
from refold.testing.makers import seeded_workload

LONG_AGO = 1000.0
"""A time at which runs that started at 0 may be moved."""


def defragmenting(policy: str = "fifo-skip", **more: Any) -> Policy:
    """Return the policy with defragmentation; jobs are spread out, so that free GPUs are scattered."""
    return make_policy(policy, {"placement": "worst-fit", "defragment": True, **more})


def late_orders(policy: Policy, jobs: Sequence[Job], cluster: Cluster, **options: Any) -> list[tuple[float, str, str]]:
    """Return (time, kind, job) of all starts and moves from LONG_AGO on."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal), **options)
    assert set(audit.ended) == {job.id for job in jobs}
    return [
        (entry.now, "move" if isinstance(order, StopRun) else "start", order.job)
        for entry in journal.entries
        if entry.now >= LONG_AGO
        for order in entry.orders
    ]


LEFT, RIGHT = make_job("left", gpus=2, work=5000), make_job("right", gpus=2, work=5000)
WIDE = make_job("wide", at=LONG_AGO, gpus=4, work=100)
"""On two nodes of four GPUs, with a run of two on each, four GPUs are free, but not on one node."""


def running(cluster: Cluster, runs: Mapping[Job, tuple[Share, ...]]) -> View:
    """Return a view in which these jobs have been running for long."""
    policy = ScriptedPolicy()
    scheduler = Scheduler(cluster, policy)
    policy.next = Decision(tuple(Start(job.id, Allocation(shares)) for job, shares in runs.items()))
    scheduler.step(0.0, [JobSubmitted(job) for job in runs])
    scheduler.step(LONG_AGO, [])
    return scheduler.view


def find(view: View, job: Job, max_moves: int = 8, rule: str = "best-fit") -> Moves | None:
    return find_moves(view, job, Placer(rule), rest_seconds=10.0, max_moves=max_moves)


# When runs are moved, and what follows.


def test_one_run_is_moved_and_then_the_wide_job_starts() -> None:
    cluster, journal = make_cluster(4, 4), ListJournal()
    simulate([LEFT, RIGHT, WIDE], cluster, defragmenting(), journal=journal, costs=Costs(stop=5, restart=70))
    orders = [(entry.now, order) for entry in journal.entries for order in entry.orders]
    # 2 GPUs × 78 s of restart equal 4 GPUs × 39 s of waiting.
    assert orders == [
        (0, StartRun("left", 1, Allocation((Share(0, (0, 1)),)))),
        (0, StartRun("right", 1, Allocation((Share(1, (0, 1)),)))),
        (1039, StopRun("left", 1, "defragment: to free GPUs for wide", Allocation((Share(1, (2, 3)),)))),
        (1044, StartRun("left", 2, Allocation((Share(1, (2, 3)),)))),
        (1044, StartRun("wide", 1, Allocation((Share(0, (0, 1, 2, 3)),)))),
    ]
    assert journal.entries[-1].now == 5075  # `left` has lost the 75 seconds of its move


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf"])
def test_without_defragmentation_the_job_waits(policy: str) -> None:
    jobs = [LEFT, RIGHT, WIDE]
    without = make_policy(policy, {"placement": "worst-fit"})
    assert late_orders(without, jobs, make_cluster(4, 4)) == [(5000, "start", "wide")]
    assert late_orders(defragmenting(policy), jobs, make_cluster(4, 4)) == [
        (1039, "move", "left"),
        (1039, "start", "left"),
        (1039, "start", "wide"),
    ]


def test_while_runs_are_being_moved_the_reason_is_releasing() -> None:
    cluster, journal = make_cluster(4, 4), ListJournal()
    simulate([LEFT, RIGHT, WIDE], cluster, defragmenting(), journal=journal, costs=Costs(stop=5))
    waits = [(entry.now, wait.job, wait.reason) for entry in journal.entries for wait in entry.waits]
    assert waits == [(1000, "wide", Reason.RESOURCES), (1039, "wide", Reason.RELEASING)]


def test_a_more_expensive_move_is_made_later() -> None:
    jobs = [LEFT, RIGHT, WIDE]
    started = late_orders(defragmenting(restart_seconds=90), jobs, make_cluster(4, 4))
    assert started[0] == (1045, "move", "left")


def test_no_run_is_moved_if_the_job_fits_before_moves_pay_off() -> None:
    jobs = [make_job("left", gpus=2, work=1030), RIGHT, WIDE]
    assert late_orders(defragmenting(), jobs, make_cluster(4, 4)) == [(1030, "start", "wide")]


def test_a_run_that_has_just_started_is_not_moved() -> None:
    jobs = [LEFT, RIGHT, make_job("wide", at=100, gpus=4)]
    audit = Audit(make_cluster(4, 4))
    simulate(jobs, audit.cluster, defragmenting(), journal=audit)
    assert audit.starts[2:] == [(780.0, "left", 2), (780.0, "wide", 1)]  # ten times 78 s


def test_no_other_job_takes_the_gpus_being_freed() -> None:
    # Two GPUs of the left node are free until `left` has stopped; `late` arrives meanwhile and would fit there.
    late = make_job("late", at=1050, gpus=2, work=30)
    assert late_orders(defragmenting(), [LEFT, RIGHT, WIDE, late], make_cluster(4, 4), costs=Costs(stop=60)) == [
        (1039, "move", "left"),
        (1099, "start", "left"),
        (1099, "start", "wide"),
        (1199, "start", "late"),
    ]


def test_a_job_that_fits_elsewhere_starts_at_once_but_not_in_strict_order() -> None:
    late, cluster = make_job("late", at=1050, work=30), make_cluster(4, 4, 1, types=["A100", "A100", "T4"])
    jobs = [*(make_job(name, gpus=2, work=5000, types=["A100"]) for name in ("left", "right")), WIDE, late]
    first = [(1039, "move", "left")]
    then = [(1099, "start", "left"), (1099, "start", "wide")]
    beside = late_orders(defragmenting("fifo-skip"), jobs, cluster, costs=Costs(stop=60))
    assert beside == [*first, (1050, "start", "late"), *then]
    assert late_orders(defragmenting("fifo"), jobs, cluster, costs=Costs(stop=60)) == [
        *first,
        *then,
        (1099, "start", "late"),
    ]


def test_a_job_ahead_in_the_order_does_not_take_the_gpus_being_freed() -> None:
    short = make_job("short", at=1050, gpus=2, work=30)
    starts = late_orders(defragmenting("sjf"), [LEFT, RIGHT, WIDE, short], make_cluster(4, 4), costs=Costs(stop=60))
    assert starts[-2:] == [(1099, "start", "wide"), (1199, "start", "short")]


def test_moves_for_two_jobs_may_be_made_in_one_round_but_own_moves_do_not_trigger_more() -> None:
    # Stopping takes no time. In strict order the second job is considered only when the first has started.
    cluster = make_cluster(4, 4, 4, 4)
    jobs = [make_job(f"r{n}", gpus=2, work=5000) for n in range(4)]
    jobs += [make_job(name, at=LONG_AGO, gpus=4, work=900) for name in ("wide", "wider")]
    skipping = [(kind, job) for at, kind, job in late_orders(defragmenting("fifo-skip"), jobs, cluster) if at == 1039]
    assert skipping == [
        ("move", "r0"),
        ("move", "r2"),
        ("start", "r0"),
        ("start", "r2"),
        ("start", "wide"),
        ("start", "wider"),
    ]
    assert late_orders(defragmenting("fifo"), jobs, cluster) == [
        (1039, "move", "r0"),
        (1039, "start", "r0"),
        (1039, "start", "wide"),
        (1099, "move", "r2"),
        (1099, "start", "r2"),
        (1099, "start", "wider"),
    ]


def test_a_run_is_not_moved_for_two_jobs_in_one_round() -> None:
    # The gang has two GPUs on each of the large nodes, and each of its shares could move to a small one.
    jobs = [make_job("gang", gpus=2, instances=2, work=5000)]
    jobs += [make_job(name, at=LONG_AGO, gpus=4, work=100) for name in ("wide", "wider")]
    assert late_orders(defragmenting(), jobs, make_cluster(4, 4, 3, 3)) == [
        (1078, "move", "gang"),
        (1078, "start", "gang"),
        (1078, "start", "wide"),
        (1178, "start", "wider"),
    ]


def test_if_the_waiting_job_is_cancelled_other_jobs_get_the_freed_gpus() -> None:
    world = Scheduler(make_cluster(4, 4), defragmenting())
    world.step(0.0, [JobSubmitted(LEFT), JobSubmitted(RIGHT)])
    late = make_job("late", at=1041.0, gpus=2)
    world.step(LONG_AGO, [JobSubmitted(WIDE)])
    world.step(1039.0, [])
    assert world.step(1041.0, [JobSubmitted(late)]).orders == ()
    assert world.step(1042.0, [JobCancelled("wide")]).orders == ()
    assert world.step(1044.0, [RunStopped("left", 1, 1039.0)]).orders == (
        StartRun("left", 2, Allocation((Share(1, (2, 3)),))),
        StartRun("late", 1, Allocation((Share(0, (0, 1)),))),
    )


MEANWHILE: list[tuple[str, list[Event], list[tuple[str, int]]]] = [
    ("has finished", [RunFinished("left", 1)], [("wide", 1)]),
    ("has failed", [RunFailed("left", 1)], [("wide", 1)]),
    # It fits only where it was: it waits until a run ends.
    ("has failed and is retried", [RunFailed("left", 1, retry=True)], [("wide", 1), ("left", 2)]),
    ("was cancelled", [JobCancelled("left"), RunStopped("left", 1, 9.0)], [("wide", 1)]),
    ("will be lost with its new node", [NodeLost(1), RunFailed("right", 1, retry=True)], []),
    ("is lost with the freed node", [NodeLost(0), RunFailed("left", 1, retry=True)], [("left", 2)]),
]


@pytest.mark.parametrize(("what", "events", "started"), MEANWHILE, ids=[what for what, _, _ in MEANWHILE])
def test_events_during_a_move(what: str, events: list[Event], started: list[tuple[str, int]]) -> None:
    cluster = make_cluster(4, 4)
    scheduler, audit = Scheduler(cluster, defragmenting()), Audit(cluster)
    audit.write(scheduler.step(0.0, [JobSubmitted(LEFT), JobSubmitted(RIGHT)]))
    audit.write(scheduler.step(LONG_AGO, [JobSubmitted(WIDE)]))
    audit.write(scheduler.step(1039.0, []))
    assert audit.stops == 1
    entry = scheduler.step(1040.0, events)
    audit.write(entry)
    assert [(order.job, order.run) for order in entry.orders] == started


def test_a_job_with_a_planned_start_on_a_lost_node_is_requeued() -> None:
    cluster, faults = make_cluster(4, 4, 4, 4), [Fault(0, 1041.0, 9000.0)]
    jobs = [*(make_job(name, gpus=2, work=5000) for name in ("left", "right", "third", "fourth")), WIDE]
    assert late_orders(defragmenting(), jobs, cluster, costs=Costs(stop=5), faults=faults) == [
        (1039, "move", "left"),
        # `left` is lost with the node and all its work; it restarts first, since it arrived first. The cost of its move
        # was spent for `wide`, which has to wait as long again before another run is moved.
        (1041, "start", "left"),
        (1078, "move", "third"),
        (1083, "start", "third"),
        (1083, "start", "wide"),
    ]


def test_a_job_does_not_wait_for_moves_that_were_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    rejections: list[BadDecision] = []
    scheduler = Scheduler(make_cluster(4, 4), defragmenting(), on_rejection=rejections.append)
    scheduler.step(0.0, [JobSubmitted(LEFT), JobSubmitted(RIGHT)])
    scheduler.step(LONG_AGO, [JobSubmitted(WIDE)])

    def reject(*_: object) -> None:
        raise BadDecision("fifo-skip", "free", "for a trial")

    with monkeypatch.context() as patched:
        patched.setattr("refold.core.scheduler.check_and_allocate", reject)
        assert scheduler.step(1039.0, []).orders == ()
    assert len(rejections) == 1
    late = [JobSubmitted(make_job(name, at=1040.0, gpus=2)) for name in ("late", "later")]
    assert [order.job for order in scheduler.step(1040.0, late).orders] == ["late", "later"]
    assert scheduler.view.reason("wide").reason is Reason.RESOURCES


def test_a_job_does_not_wait_for_gpus_on_a_lost_node_even_without_a_failure_report() -> None:
    scheduler = Scheduler(make_cluster(4, 4), defragmenting())
    scheduler.step(0.0, [JobSubmitted(LEFT), JobSubmitted(RIGHT)])
    scheduler.step(LONG_AGO, [JobSubmitted(WIDE)])
    scheduler.step(1039.0, [])
    assert scheduler.view.reason("wide").reason is Reason.RELEASING
    scheduler.step(1040.0, [NodeLost(0)])
    assert scheduler.view.reason("wide").reason is Reason.RESOURCES


def test_the_run_time_before_a_failure_does_not_count_as_waiting() -> None:
    wide, faults = make_job("wide", gpus=4, work=100_000), [Fault(0, LONG_AGO, 90_000.0)]
    assert late_orders(defragmenting(), [wide, LEFT, RIGHT], make_cluster(4, 4, 4), faults=faults)[:3] == [
        (1039, "move", "left"),
        (1039, "start", "left"),
        (1039, "start", "wide"),
    ]


# Which runs are moved.


def test_the_cheapest_run_is_moved() -> None:
    two, one, other = make_job("two", gpus=2), make_job("one"), make_job("other", gpus=2)
    view = running(
        make_cluster(4, 3, 4), {two: (Share(0, (0, 1)),), one: (Share(1, (0,)),), other: (Share(2, (0, 1)),)}
    )
    assert find(view, make_job("wide", gpus=3)) == Moves(
        (Reshape("one", Allocation((Share(0, (2,)),)), "defragment: to free GPUs for wide"),),
        (Share(1, (0, 1, 2)),),
        1000,
    )
    assert find(view, make_job("wide", gpus=4)) == Moves(
        (Reshape("two", Allocation((Share(1, (1, 2)),)), "defragment: to free GPUs for wide"),),
        (Share(0, (0, 1, 2, 3)),),
        2000,
    )


def test_a_job_that_is_not_preemptible_is_not_moved() -> None:
    stays, moves = make_job("stays", gpus=2, preemptible=False), make_job("moves", gpus=2)
    shares = {stays: (Share(0, (0, 1)),), moves: (Share(1, (0, 1)),)}
    moves_found = find(running(make_cluster(4, 4), shares), make_job("wide", gpus=4))
    assert moves_found is not None
    assert [reshape.job for reshape in moves_found.reshapes] == ["moves"]
    both = {make_job(name, gpus=2, preemptible=False): (Share(node, (0, 1)),) for node, name in enumerate("ab")}
    assert find(running(make_cluster(4, 4), both), make_job("wide", gpus=4)) is None


def test_a_run_with_a_share_on_a_lost_node_is_not_moved() -> None:
    gang = make_job("gang", gpus=2, instances=2)
    view = running(make_cluster(4, 4, 2), {gang: (Share(0, (0, 1)), Share(1, (0, 1)))})
    view._state.apply(NodeLost(1))
    assert find(view, make_job("wide", gpus=4)) is None


def test_gpu_fractions_are_consolidated_within_a_node() -> None:
    halves = {make_job(f"half{gpu}", share=0.5): (Share(0, (gpu,), 500),) for gpu in (0, 1)}
    assert find(running(make_cluster(2), halves), make_job("whole")) == Moves(
        (Reshape("half0", Allocation((Share(0, (1,), 500),)), "defragment: to free GPUs for whole"),),
        (Share(0, (0,)),),
        500,
    )


def test_runs_are_moved_to_free_cpus_as_well() -> None:
    cluster = make_cluster(2, 2, cpus=8)
    runs = {
        make_job("busy", cpus=6): (Share(0, (0,), cpu_milli=6000),),
        make_job("idle", cpus=1): (Share(1, (0,), cpu_milli=1000),),
    }
    moves_found = find(running(cluster, runs), make_job("wants", cpus=8))
    assert moves_found is not None
    assert [(reshape.job, reshape.allocation.placement) for reshape in moves_found.reshapes] == [
        ("busy", (Share(1, (1,), cpu_milli=6000),))
    ]
    assert find(running(cluster, runs), make_job("wants", cpus=8.5)) is None


def test_a_moved_run_does_not_use_cpus_that_the_job_needs() -> None:
    # `half` could move to the other GPU of its node if it did not need CPUs.
    half, other = make_job("half", share=0.5, cpus=4), make_job("other", share=0.5, preemptible=False)
    there = {half: (Share(0, (0,), 500, 4000),), other: (Share(0, (1,), 500),)}
    view = running(make_cluster(2, 1, types=["T4", "P4"], cpus=8), there)
    for cpus, expected in ((4, Share(0, (1,), 500, 4000)), (6, Share(1, (0,), 500, 4000))):
        moves_found = find(view, make_job("wants", cpus=cpus, types=["T4"]))
        assert moves_found is not None
        assert [reshape.allocation.placement for reshape in moves_found.reshapes] == [(expected,)]


def test_only_the_blocking_share_of_a_gang_is_moved() -> None:
    gang = make_job("gang", gpus=2, instances=2)
    shares = {gang: (Share(0, (0, 1)), Share(1, (0, 1))), make_job("full", gpus=2): (Share(1, (2, 3)),)}
    moves_found = find(running(make_cluster(4, 4, 2), shares), make_job("wide", gpus=4))
    assert moves_found == Moves(
        (Reshape("gang", Allocation((Share(2, (0, 1)), Share(1, (0, 1)))), "defragment: to free GPUs for wide"),),
        (Share(0, (0, 1, 2, 3)),),
        4000,  # the whole gang has to stop
    )


def test_runs_are_moved_only_if_all_instances_of_a_gang_fit() -> None:
    runs = {make_job(f"r{node}", gpus=1): (Share(node, (0,)),) for node in range(3)}
    cluster = make_cluster(2, 2, 2, 1, 1)
    wide = make_job("wide", gpus=2, instances=2)
    moves_found = find(running(cluster, runs), wide)
    assert moves_found == Moves(
        (
            Reshape("r0", Allocation((Share(1, (1,)),)), "defragment: to free GPUs for wide"),
            Reshape("r2", Allocation((Share(3, (0,)),)), "defragment: to free GPUs for wide"),
        ),
        (Share(0, (0, 1)), Share(2, (0, 1))),
        2000,
    )
    assert find(running(cluster, runs), wide, max_moves=1) is None
    # One instance would fit, but then the other does not.
    assert find(running(make_cluster(2, 2, 2), runs), wide) is None


def test_needless_moves_are_dropped() -> None:
    # The first instance needs the GPU of `small`, the second one of `large`, which alone would suffice for both.
    runs = {make_job("small"): (Share(0, (0,)),), make_job("large", gpus=2): (Share(0, (1, 2)),)}
    cluster = make_cluster(3, 4, types=["T4", "A100"])
    moves_found = find(running(cluster, runs), make_job("pair", instances=2, types=["T4"]))
    assert moves_found is not None
    assert [reshape.job for reshape in moves_found.reshapes] == ["large"]
    assert moves_found.placement == (Share(0, (1,)), Share(0, (2,)))


def test_runs_move_to_other_gpu_types_but_not_to_slower_ones() -> None:
    any_type, wants = make_job("any"), make_job("wants", types=["T4"])
    there = {any_type: (Share(0, (0,)),)}
    equal = make_cluster(1, 1, types=["T4", "P4"])
    slower = make_cluster(1, 1, types=["T4", "P4"], speeds={"T4": 2.0, "P4": 1.0})
    moves_found = find(running(equal, there), wants)
    assert moves_found is not None and moves_found.reshapes[0].allocation.placement == (Share(1, (0,)),)
    assert find(running(slower, there), wants) is None
    only_there = {make_job("only", types=["T4"]): (Share(0, (0,)),)}
    assert find(running(equal, only_there), wants) is None


def test_if_there_are_too_many_sets_to_try_a_greedy_one_without_needless_moves_is_found() -> None:
    # Sixteen halves on eight GPUs: for three GPUs six halves have to move, and there are more such sets than are tried.
    halves = {make_job(f"h{n:02}", share=0.5): (Share(0, (n % 8,), 500),) for n in range(16)}
    cluster = make_cluster(8, 3, types=["T4", "A100"])
    moves_found = find(running(cluster, halves), make_job("wide", gpus=3, types=["T4"]))
    assert moves_found is not None
    assert (len(moves_found.reshapes), moves_found.gpu_milli, moves_found.placement) == (
        6,
        3000,
        (Share(0, (0, 1, 2)),),
    )
    assert {share.node for reshape in moves_found.reshapes for share in reshape.allocation.placement} == {1}


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(BadValue, match="restart_seconds is -1"):
        make_policy("fifo", {"restart_seconds": -1})


# Properties.


@st.composite
def whole_gpu_states(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Draw the sizes of nodes, and runs as (node, GPUs)."""
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    free = list(sizes)
    runs: list[tuple[int, int]] = []
    for node, gpus in draw(st.lists(st.tuples(st.integers(0, len(sizes) - 1), st.integers(1, 4)), max_size=8)):
        if gpus <= free[node]:
            free[node] -= gpus
            runs.append((node, gpus))
    return sizes, runs


@given(whole_gpu_states(), st.integers(1, 6))
@settings(max_examples=200, deadline=None)
def test_a_single_move_is_the_cheapest_possible(state: tuple[list[int], list[tuple[int, int]]], wanted: int) -> None:
    sizes, runs = state
    free = list(sizes)
    shares: dict[Job, tuple[Share, ...]] = {}
    for number, (node, gpus) in enumerate(runs):
        first = sizes[node] - free[node]
        shares[make_job(f"r{number}", gpus=gpus)] = (Share(node, tuple(range(first, first + gpus))),)
        free[node] -= gpus
    costs = [
        gpus * WHOLE
        for node, gpus in runs
        if free[node] + gpus >= wanted
        and any(free[other] - (max(0, wanted - gpus) if other == node else 0) >= gpus for other in range(len(sizes)))
    ]
    if max(free) >= wanted:
        costs = []  # no move is needed
    view = running(make_cluster(*sizes), shares) if shares else None
    if view is not None:
        moves_found = find(view, make_job("wide", gpus=wanted), max_moves=1)
        assert (moves_found.gpu_milli if moves_found is not None else None) == min(costs, default=None)


class MoveAudit:
    """A journal that checks that moves pay off, that moved runs were long in place, and that the job starts."""

    def __init__(self, restart_seconds: float, stop_seconds: float) -> None:
        self.moves = 0
        self._restart_seconds = restart_seconds
        self._stop_seconds = stop_seconds
        self._jobs: dict[str, Job] = {}
        self._runs: dict[str, tuple[float, Allocation]] = {}
        self._spent: dict[str, float] = {}
        self._due: dict[str, float] = {}

    def write(self, entry: Entry) -> None:
        self._jobs |= {event.job.id: event.job for event in entry.events if isinstance(event, JobSubmitted)}
        for order in entry.orders:
            if isinstance(order, StartRun):
                self._runs[order.job] = (entry.now, order.allocation)
                self._due.pop(order.job, None)
            else:
                self._moved(entry.now, order)
        for job_id, at in self._due.items():
            assert entry.now <= at, f"{job_id} should have started at {at}"

    def _moved(self, now: float, stop: StopRun) -> None:
        self.moves += 1
        since, allocation = self._runs[stop.job]
        assert now - since >= self._restart_seconds * MIN_STAY_FACTOR - 1e-6
        job = self._jobs[stop.why.removeprefix("defragment: to free GPUs for ")]
        spent = self._spent.get(job.id, 0.0) + allocation.gpu_milli * self._restart_seconds
        assert spent <= job.demand.total_gpu_milli * (now - job.submitted + 0.01)
        self._spent[job.id] = spent
        self._due[job.id] = now + self._stop_seconds


@pytest.mark.parametrize("policy", ["fifo", "fifo-skip", "sjf"])
@pytest.mark.parametrize("stop", [0.0, 2.0])
def test_moves_cost_no_more_than_the_wait_and_the_job_starts_afterwards(policy: str, stop: float) -> None:
    moves = 0
    for seed in range(12):
        jobs, cluster = seeded_workload(seed)
        move_audit, audit, journal = MoveAudit(0.5, stop), Audit(cluster), ListJournal()
        costs = Costs(stop=stop, restart=0.5)
        made = [defragmenting(policy, restart_seconds=0.5) for _ in range(2)]
        simulate(jobs, cluster, made[0], journal=Journals(move_audit, audit, journal), costs=costs)
        assert set(audit.ended) == {job.id for job in jobs}
        again = Scheduler(cluster, made[1])
        assert all(again.step(entry.now, entry.events).orders == entry.orders for entry in journal.entries)
        moves += move_audit.moves
    assert moves > 10  # otherwise nothing was tested


@pytest.mark.parametrize("rule", RULES)
def test_runs_are_moved_with_every_placement(rule: str) -> None:
    moves = 0
    for seed in range(4):
        jobs, cluster = seeded_workload(seed)
        move_audit, audit = MoveAudit(0.5, 2.0), Audit(cluster)
        policy = defragmenting("fifo-skip", placement=rule, restart_seconds=0.5, seed=3)
        simulate(jobs, cluster, policy, journal=Journals(move_audit, audit), costs=Costs(stop=2.0))
        assert set(audit.ended) == {job.id for job in jobs}
        moves += move_audit.moves
    assert moves > 0


class _Defragmenting(PolicyContract):
    seeds = range(4)

    def make_policy(self) -> Policy:
        return defragmenting("fifo-skip", restart_seconds=0.5)


class TestFifoSkip(_Defragmenting):
    pass


class TestFifo(_Defragmenting):
    def make_policy(self) -> Policy:
        return defragmenting("fifo", restart_seconds=0.5)


class TestSjf(_Defragmenting):
    oracle = True

    def make_policy(self) -> Policy:
        return defragmenting("sjf", restart_seconds=0.5)


class TestReshapableJobs(_Defragmenting):
    """With reshapable jobs, and some that are not preemptible."""

    reshapes = True
