"""Backfill: start times worked out by hand, and properties of reservations on small random workloads."""

from collections.abc import Iterable, Sequence
from math import inf
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.core import Entry, Journals, ListJournal, Policy, Scheduler, View
from refold.core.events import (
    GpuDrained,
    JobCancelled,
    JobHeld,
    JobReleased,
    JobSubmitted,
    NodeDrained,
    NodeLost,
    NodeReturned,
    RunAdopted,
    RunFinished,
    RunStopped,
    Woke,
)
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import DAY, Allocation, Cluster, Decision, Job, Reason, Share, Shortage, Start, Stop, Wait
from refold.placement import FreeResources, Placer
from refold.policies.backfill.backfill import Backfill, Conservative, Easy
from refold.policies.backfill.bookings import Reservation
from refold.simulator import Costs, Fault, Stuck, simulate
from refold.simulator.registry import make_policy
from refold.testing import Audit, make_cluster, make_job
from refold.testing.makers import seeded_workload

KNOWN: dict[str, Any] = {"durations": "known", "backfill_order": "queue"}
LIMIT: dict[str, Any] = {"durations": "limit", "backfill_order": "queue"}


def run(
    policy: Policy, jobs: Sequence[Job], cluster: Cluster, **options: Any
) -> tuple[list[tuple[float, str]], list[Entry]]:
    """Return (time, job) of all starts, and the journal."""
    audit, journal = Audit(cluster), ListJournal()
    simulate(jobs, cluster, policy, journal=Journals(audit, journal), **options)
    return [(at, job) for at, job, _ in audit.starts], journal.entries


def starts(
    policy: str,
    jobs: Sequence[Job],
    cluster: Cluster,
    costs: Costs | None = None,
    faults: Iterable[Fault] = (),
    **settings: Any,
) -> list[tuple[float, str]]:
    started_jobs, _ = run(make_policy(policy, KNOWN | settings), jobs, cluster, costs=costs or Costs(), faults=faults)
    return started_jobs


def stopped(entries: Sequence[Entry]) -> list[tuple[float, str]]:
    return [(entry.now, order.job) for entry in entries for order in entry.orders if isinstance(order, StopRun)]


class Recorder:
    """Wraps a policy and records its decisions, and the reservations after each."""

    def __init__(self, policy: Backfill) -> None:
        self.name = policy.name
        self.policy = policy
        self.decisions: list[tuple[float, Decision]] = []
        self.reserved: list[tuple[float, dict[str, Reservation]]] = []

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        self.decisions.append((view.now, decision))
        assert self.policy._schedule is not None
        self.reserved.append((view.now, dict(self.policy._schedule.reservations.by_job)))
        return decision


# --- worked cases -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Jobs, and the expected starts under each policy with known durations."""

    name: str
    cluster: Cluster
    jobs: list[Job]
    easy: list[tuple[float, str]]
    conservative: list[tuple[float, str]] | None = None
    """None: the same as under `easy`."""


CASES = [
    Case(
        "a short job overtakes the first, a long one does not",
        make_cluster(4),
        [
            make_job("a", gpus=2, work=10),
            make_job("wide", at=1, gpus=4, work=10),
            make_job("short", at=2, work=8),
            make_job("long", at=3, work=8),
        ],
        [(0, "a"), (2, "short"), (10, "wide"), (20, "long")],
    ),
    Case(
        "a long job overtakes the first on GPUs that are not reserved",
        make_cluster(4),
        [make_job("a", gpus=2, work=10), make_job("wide", at=1, gpus=3, work=10), make_job("long", at=2, work=50)],
        [(0, "a"), (2, "long"), (10, "wide")],
    ),
    Case(
        "two long jobs do not fit beside the reservation",
        make_cluster(4),
        [
            make_job("a", gpus=2, work=10),
            make_job("wide", at=1, gpus=3, work=10),
            make_job("long", at=2, work=50),
            make_job("longer", at=3, work=60),
        ],
        [(0, "a"), (2, "long"), (10, "wide"), (20, "longer")],
    ),
    Case(
        "the second job may be delayed under easy, not under conservative",
        make_cluster(4),
        [
            make_job("a", gpus=2, work=10),
            make_job("first", at=1, gpus=3, work=10),
            make_job("second", at=2, gpus=4, work=10),
            make_job("long", at=3, work=50),
        ],
        [(0, "a"), (3, "long"), (10, "first"), (53, "second")],
        [(0, "a"), (10, "first"), (20, "second"), (30, "long")],
    ),
    Case(
        "a job that would overtake the second conflicts with it",
        make_cluster(2),
        [
            make_job("a", work=10),
            make_job("first", at=1, gpus=2, work=10),
            make_job("second", at=2, gpus=2, work=10),
            make_job("later", at=3, work=30),
            make_job("short", at=4, work=6),
        ],
        [(0, "a"), (4, "short"), (10, "first"), (20, "second"), (30, "later")],
    ),
    Case(
        "a gang waits for all its nodes, and single-node jobs overtake it if they end in time",
        make_cluster(2, 2, 2),
        [
            make_job("a", gpus=2, work=30),
            make_job("b", gpus=2, work=10),
            make_job("gang", at=1, instances=3, gpus=2, work=10),
            make_job("in time", at=2, gpus=2, work=28),
            make_job("too long", at=3, gpus=2, work=28),
        ],
        [(0, "a"), (0, "b"), (2, "in time"), (30, "gang"), (40, "too long")],
    ),
    Case(
        "a gang of two leaves the third node to a long job",
        make_cluster(2, 2, 2),
        [
            make_job("a", gpus=2, work=20),
            make_job("b", gpus=2, work=10),
            make_job("c", gpus=2, work=30),
            make_job("gang", at=1, instances=2, gpus=2, work=10),
            make_job("long", at=12, gpus=2, work=100),
            make_job("short", at=12, gpus=2, work=8),
        ],
        [(0, "a"), (0, "b"), (0, "c"), (12, "short"), (20, "gang"), (30, "long")],
    ),
    Case(
        "GPU fractions: the rest beside a reserved fraction may be used",
        make_cluster(1),
        [
            make_job("a", share=0.5, work=10),
            make_job("first", at=1, share=0.7, work=10),
            make_job("long", at=2, share=0.3, work=50),
            make_job("longer", at=3, share=0.2, work=60),
        ],
        [(0, "a"), (2, "long"), (10, "first"), (20, "longer")],
    ),
    Case(
        "CPUs and memory are reserved as well",
        make_cluster(4, cpus=8, memory_gib=8),
        [
            make_job("a", cpus=4, work=10),
            make_job("first", at=1, cpus=6, work=10),
            make_job("long", at=2, cpus=2, work=50),
            make_job("longer", at=3, cpus=1, work=60),
            make_job("without", at=4, memory_gib=2, work=70),
        ],
        [(0, "a"), (2, "long"), (4, "without"), (10, "first"), (20, "longer")],
    ),
    Case(
        "the first job does not reserve GPUs of another type",
        make_cluster(2, 2, types=["A100", "T4"]),
        [
            make_job("a", gpus=1, work=10, types=["A100"]),
            make_job("first", at=1, gpus=2, work=10, types=["A100"]),
            make_job("anywhere", at=2, gpus=1, work=100),
            make_job("there", at=3, gpus=1, work=100, types=["A100"]),
        ],
        [(0, "a"), (2, "anywhere"), (10, "first"), (20, "there")],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_worked_case(policy: str, case: Case) -> None:
    expected = case.easy if policy == "easy" or case.conservative is None else case.conservative
    assert starts(policy, case.jobs, case.cluster) == expected


def test_the_decisions_of_easy_step_by_step() -> None:
    cluster = make_cluster(4)
    policy = Recorder(Easy(durations="known", backfill_order="queue"))
    scheduler = Scheduler(cluster, policy)
    wide, short, long = (
        make_job("wide", at=1, gpus=4, work=10),
        make_job("short", at=2, work=5),
        make_job("long", at=2, work=50),
    )
    scheduler.step(0, [JobSubmitted(make_job("a", gpus=2, work=10))])
    scheduler.step(1, [JobSubmitted(wide)])
    scheduler.step(2, [JobSubmitted(short), JobSubmitted(long)])
    scheduler.step(7, [RunFinished("short", 1)])
    scheduler.step(10, [RunFinished("a", 1), Woke()])
    scheduler.step(20, [RunFinished("wide", 1), Woke()])
    shortage = Shortage(instances_fit=0, nodes=1, too_few_gpus=1)
    assert policy.decisions == [
        (0, Decision(starts=(Start("a", Allocation((Share(0, (0, 1)),))),))),
        (1, Decision(waits=(Wait("wide", Reason.RESOURCES, shortage=shortage),), wake_at=10)),
        (
            2,
            Decision(
                starts=(Start("short", Allocation((Share(0, (2,)),))),),
                waits=(Wait("long", Reason.RESERVED),),
                wake_at=10,
            ),
        ),
        (7, Decision(wake_at=10)),
        (
            10,
            Decision(
                starts=(Start("wide", Allocation((Share(0, (0, 1, 2, 3)),))),),
                waits=(Wait("long", Reason.RESOURCES, shortage=shortage),),
                wake_at=20,
            ),
        ),
        (20, Decision(starts=(Start("long", Allocation((Share(0, (0,)),))),))),
    ]
    assert [reservations for _, reservations in policy.reserved] == [
        {},
        *[{"wide": Reservation((Share(0, (0, 1, 2, 3)),), 10, 20)}] * 3,
        {"long": Reservation((Share(0, (0,)),), 20, 70)},
        {},
    ]


def test_conservative_reserves_for_every_job() -> None:
    cluster = make_cluster(2, 2)
    policy = Recorder(Conservative(durations="known"))
    jobs = [
        make_job("a", gpus=2, work=10),
        make_job("b", gpus=2, work=20),
        make_job("gang", at=1, instances=2, gpus=2, work=10),
        make_job("one", at=2, work=10),
        make_job("half", at=2, share=0.5, work=30),
        make_job("two", at=3, gpus=2, work=5),
    ]
    run(policy, jobs, cluster)
    at_3 = next(reservations for now, reservations in policy.reserved if now == 3)
    assert at_3 == {
        "gang": Reservation((Share(0, (0, 1)), Share(1, (0, 1))), 20, 30),
        "one": Reservation((Share(0, (0,)),), 10, 20),
        "half": Reservation((Share(0, (0,), 500),), 30, 60),
        "two": Reservation((Share(1, (0, 1)),), 30, 35),
    }


def test_gpus_released_early_are_reused_at_once_and_the_first_reservation_advances() -> None:
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        make_job("b", gpus=2, work=20, time_limit=20),
        make_job("wide", at=1, gpus=4, work=10, time_limit=10),
        make_job("short", at=2, gpus=2, work=10, time_limit=15),
        make_job("long", at=3, gpus=2, work=10, time_limit=90),
    ]
    for policy in ("easy", "conservative"):
        # At 5 `wide` advances from 100 to 20, which is just enough for `short`; at 15 no job fits into what is left.
        expected = [(0, "a"), (0, "b"), (5, "short"), (20, "wide"), (30, "long")]
        assert starts(policy, jobs, make_cluster(4), **LIMIT) == expected


def test_conservative_advances_all_reservations_in_order_when_a_job_ends_early() -> None:
    policy = Recorder(Conservative(durations="limit"))
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        *[make_job(f"{n}", at=1 + n, gpus=2, work=10, time_limit=10) for n in range(4)],
    ]
    run(policy, jobs, make_cluster(2))
    reserved_at = {now: {job: one.start for job, one in reservations.items()} for now, reservations in policy.reserved}
    assert reserved_at[4] == {"0": 100, "1": 110, "2": 120, "3": 130}
    assert reserved_at[5] == {"1": 15, "2": 25, "3": 35}


# --- wrong durations ----------- ---------------------------------------------------------------------------


OVERRUN = [
    make_job("a", gpus=2, work=10, time_limit=10),
    make_job("first", at=1, gpus=4, work=10, time_limit=10),
    make_job("late", at=2, gpus=2, work=100, time_limit=8),
]


def test_a_job_that_overtook_the_first_is_preempted_if_it_does_not_end_in_time() -> None:
    started_jobs, entries = run(make_policy("easy", LIMIT), OVERRUN, make_cluster(4))
    assert started_jobs == [(0, "a"), (2, "late"), (10, "first"), (20, "late")]
    assert [(order.job, order.why) for entry in entries for order in entry.orders if isinstance(order, StopRun)] == [
        ("late", "easy: preempted for first, whose reserved start is due")
    ]


def test_the_first_job_waits_while_its_gpus_are_being_released() -> None:
    started_jobs, entries = run(make_policy("easy", LIMIT), OVERRUN, make_cluster(4), costs=Costs(stop=3))
    assert started_jobs == [(0, "a"), (2, "late"), (13, "first"), (23, "late")]
    at_10 = next(entry for entry in entries if entry.now == 10)
    assert at_10.waits == (Wait("first", Reason.RELEASING),)


@pytest.mark.parametrize(
    ("settings", "late"),
    [({"preempt": "never"}, {}), ({}, {"preemptible": False}), ({"preempt": "whole-node"}, {"gpus": 1})],
)
def test_a_reservation_is_renewed_if_no_run_may_be_preempted(settings: dict[str, Any], late: dict[str, Any]) -> None:
    jobs = [
        make_job("a", gpus=2, work=10, time_limit=10),
        make_job("first", at=1, gpus=3, work=10, time_limit=10),
        make_job("late", at=2, work=100, time_limit=8, **({"gpus": 2} | late)),
        make_job("other late", at=2, work=100, time_limit=8, preemptible=False),
    ]
    policy = Recorder(Easy(**(LIMIT | settings)))
    started_jobs, entries = run(policy, jobs, make_cluster(4))
    assert stopped(entries) == []
    assert {job: at for at, job in started_jobs}["first"] == 102
    starts_reserved = [reserved["first"].start for _, reserved in policy.reserved if "first" in reserved]
    assert starts_reserved[0] == 10
    assert starts_reserved == sorted(starts_reserved)
    assert starts_reserved[-1] >= 102


def test_with_preempt_whole_node_runs_are_preempted_for_a_whole_node_job() -> None:
    started_jobs, entries = run(make_policy("easy", LIMIT | {"preempt": "whole-node"}), OVERRUN, make_cluster(4))
    assert started_jobs == [(0, "a"), (2, "late"), (10, "first"), (20, "late")]
    assert stopped(entries) == [(10, "late")]


def test_runs_that_did_not_overtake_the_first_are_not_preempted_for_it() -> None:
    jobs = [
        make_job("old late", gpus=2, work=100, time_limit=10),
        make_job("first", at=1, gpus=4, work=10, time_limit=10),
        make_job("late", at=2, gpus=2, work=70, time_limit=8),
    ]
    started_jobs, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4))
    assert started_jobs == [(0, "old late"), (2, "late"), (100, "first")]
    assert stopped(entries) == []


def test_the_reason_says_whether_gpus_are_lacking_or_reserved() -> None:
    """Two of four GPUs are in use. `wide` lacks GPUs; `small` would fit, but these GPUs are reserved for `wide`."""
    policy = make_policy("easy", LIMIT)
    scheduler = Scheduler(make_cluster(4), policy)
    jobs = [
        make_job("runs", gpus=2, time_limit=60, preemptible=False),
        make_job("wide", gpus=4, time_limit=60),
        make_job("small", gpus=2, time_limit=600),
    ]
    waits = scheduler.step(0.0, [JobSubmitted(job) for job in jobs]).waits
    assert {wait.job: wait.reason for wait in waits} == {"wide": Reason.RESOURCES, "small": Reason.RESERVED}


def test_the_reason_is_reported_again_after_a_job_was_held_while_no_other_waited() -> None:
    scheduler = Scheduler(make_cluster(1), make_policy("easy", LIMIT))
    jobs = [make_job(name, time_limit=60, preemptible=False) for name in ("runs", "waits")]
    waits = [scheduler.step(0.0, [JobSubmitted(job) for job in jobs]).waits]
    waits += [
        scheduler.step(now, [event]).waits for now, event in ((1.0, JobHeld("waits")), (2.0, JobReleased("waits")))
    ]
    assert [[wait.reason for wait in each] for each in waits] == [[Reason.RESOURCES], [], [Reason.RESOURCES]]


def test_the_first_job_starts_at_once_on_other_gpus_if_its_reserved_ones_are_late() -> None:
    jobs = [
        make_job("late", work=1000, time_limit=10, preemptible=False),
        make_job("other", work=50, time_limit=60),
        make_job("first", at=1, work=5, time_limit=5),
    ]
    for policy in ("easy", "conservative"):
        assert starts(policy, jobs, make_cluster(1, 1), **LIMIT) == [(0, "late"), (0, "other"), (50, "first")]


def test_runs_beside_which_the_first_job_fits_are_not_preempted() -> None:
    jobs = [
        make_job("old", cpus=1, work=1000, time_limit=1000, preemptible=False),
        make_job("a", cpus=1, work=10, time_limit=10),
        make_job("first", at=1, gpus=3, cpus=1, work=10, time_limit=10),
        make_job("late", at=2, gpus=2, cpus=1, work=100, time_limit=8),
    ]
    started_jobs, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4, cpus=8))
    assert started_jobs == [(0, "old"), (0, "a"), (2, "late"), (10, "first"), (20, "late")]
    assert stopped(entries) == [(10, "late")]


def test_of_two_overtakers_only_the_one_on_the_wanted_gpus_is_preempted() -> None:
    jobs = [
        make_job("old", gpus=2, work=10, time_limit=10),
        make_job("first", at=1, gpus=3, work=10, time_limit=10),
        make_job("late1", at=2, gpus=1, work=100, time_limit=8),
        make_job("late2", at=3, gpus=1, work=100, time_limit=7),
    ]
    started_jobs, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4))
    assert started_jobs[:4] == [(0, "old"), (2, "late1"), (3, "late2"), (10, "first")]
    assert len(stopped(entries)) == 1


def test_no_further_runs_are_preempted_while_gpus_are_being_released() -> None:
    """`first` waits for the second node. When `other` ends, it would fit on the first one without `beside`."""
    jobs = [
        make_job("other", gpus=2, work=20, time_limit=100, preemptible=False),
        make_job("a", gpus=3, work=10, time_limit=10, preemptible=False),
        make_job("first", at=1, gpus=4, work=10, time_limit=10),
        make_job("beside", at=2, gpus=2, work=200, time_limit=90),
        make_job("late", at=3, gpus=1, work=200, time_limit=7),
    ]
    started_jobs, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4, 4), costs=Costs(stop=30))
    assert started_jobs[:5] == [(0, "other"), (0, "a"), (2, "beside"), (3, "late"), (40, "first")]
    assert stopped(entries) == [(10, "late")]


@pytest.mark.parametrize("drained", [NodeDrained(1), GpuDrained(1, 0)])
def test_a_run_on_a_drained_node_is_not_preempted_for_a_job_on_another(drained: NodeDrained | GpuDrained) -> None:
    scheduler = Scheduler(make_cluster(2, 1, types=["A100", "T4"]), make_policy("easy", LIMIT))
    scheduler.step(0.0, [JobSubmitted(make_job("a", types=["A100"], time_limit=10))])
    scheduler.step(1.0, [JobSubmitted(make_job("first", at=1, gpus=2, time_limit=10))])
    late = [make_job("on T4", at=2, types=["T4"], time_limit=8), make_job("late", at=2, types=["A100"], time_limit=8)]
    scheduler.step(2.0, [JobSubmitted(job) for job in late])
    assert {job: run.allocation.placement for job, run in scheduler.view.runs.items()} == {
        "a": (Share(0, (0,)),),
        "on T4": (Share(1, (0,)),),
        "late": (Share(0, (1,)),),
    }
    scheduler.step(5.0, [drained])
    orders = scheduler.step(10.0, [RunFinished("a", 1), Woke()]).orders
    assert [(type(order), order.job) for order in orders] == [(StopRun, "late")]


def test_an_overdue_job_that_lost_its_reservation_starts_as_soon_as_it_fits() -> None:
    """From 10 on `first` is overdue; from 12 to 30 its node is down, and it has no reservation."""
    scheduler = Scheduler(make_cluster(2), make_policy("easy", LIMIT))
    scheduler.step(0.0, [JobSubmitted(make_job("late", preemptible=False, time_limit=10))])
    scheduler.step(1.0, [JobSubmitted(make_job("first", at=1, gpus=2, time_limit=10))])
    assert scheduler.step(10.0, [Woke()]).orders == ()
    assert scheduler.step(12.0, [NodeLost(0)]).orders == ()
    assert scheduler.step(13.0, [RunFinished("late", 1)]).orders == ()
    entry = scheduler.step(30.0, [NodeReturned(0)])
    assert entry.orders == (StartRun("first", 1, Allocation((Share(0, (0, 1)),))),)


def test_the_next_first_job_gets_a_reservation_before_gaps_are_filled() -> None:
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        make_job("first", at=1, work=10, time_limit=10),
        make_job("second", at=2, gpus=2, work=10, time_limit=10),
        make_job("long", at=3, work=1000, time_limit=1000),
    ]
    for policy in ("easy", "conservative"):
        expected = [(0, "a"), (5, "first"), (15, "second"), (25, "long")]
        assert starts(policy, jobs, make_cluster(2), **LIMIT) == expected


# --- limits of overtaking --------------------------------------------------------------------------------------


STREAM = [
    make_job("a", gpus=3, work=100),
    make_job("wide", at=1, gpus=4, work=10),
    *[make_job(f"s{n}", at=2 + n, work=4) for n in range(6)],
]


def test_all_jobs_that_fit_overtake() -> None:
    started_jobs = starts("easy", STREAM, make_cluster(4))
    assert started_jobs == [(0, "a"), *[(2 + 4 * n, f"s{n}") for n in range(6)], (100, "wide")]


LANES = [
    make_job("a", gpus=4, work=10),
    make_job("b", gpus=2, work=30),
    make_job("node", at=1, gpus=4, work=10),
    make_job("small", at=2, gpus=3, work=10),
    make_job("long", at=3, gpus=2, work=100),
]


def test_with_lanes_the_first_small_job_has_a_reservation_beside_that_of_the_first_whole_node_job() -> None:
    for lanes, reserved_at in ((False, {"node": 10}), (True, {"node": 10, "small": 20})):
        policy = Recorder(Easy(durations="known", backfill_order="queue", lanes=lanes))
        run(policy, LANES, make_cluster(4, 4))
        at_2 = next(reservations for now, reservations in policy.reserved if now == 2)
        assert {job: one.start for job, one in at_2.items()} == reserved_at


def test_with_lanes_the_first_small_job_is_not_delayed_by_those_behind_it() -> None:
    # Without lanes `long` takes two GPUs of the second node at once, and `small` waits for the first node.
    one_lane = [(0, "a"), (0, "b"), (3, "long"), (10, "node"), (20, "small")]
    assert starts("easy", LANES, make_cluster(4, 4)) == one_lane
    jobs = [*LANES[:3], make_job("small", at=2, gpus=3, work=25), make_job("long", at=3, gpus=2, work=100)]
    assert starts("easy", jobs, make_cluster(4, 4), lanes=True)[-2:] == [(10, "node"), (20, "small")]


def test_gaps_are_filled_in_queue_order_or_shortest_first() -> None:
    jobs = [
        make_job("a", gpus=1, work=20),
        make_job("b", gpus=1, work=5),
        make_job("wide", at=1, gpus=2, work=10),
        make_job("longer", at=2, work=10),
        make_job("shorter", at=3, work=5),
    ]
    in_order = [(0, "a"), (0, "b"), (5, "longer"), (15, "shorter"), (20, "wide")]
    assert starts("easy", jobs, make_cluster(2), backfill_order="queue") == in_order
    shortest = [(0, "a"), (0, "b"), (5, "shorter"), (10, "longer"), (20, "wide")]
    assert starts("easy", jobs, make_cluster(2), backfill_order="shortest") == shortest


# --- orders of the queue ------------------------------------------------------------------------------------


BEHIND = [make_job("a", work=10), make_job("x", at=1, work=1, priority=5)]
"""A running job, and one that is first in every order."""


def test_jobs_of_higher_priority_come_first() -> None:
    jobs = [*BEHIND, make_job("b", at=2, work=10), make_job("urgent", at=3, work=10, priority=1)]
    for policy in ("easy", "conservative"):
        expected = ["urgent", "b"] if policy == "easy" else ["b", "urgent"]  # `b` has its reservation first
        assert starts(policy, jobs, make_cluster(1))[:2] == [(0, "a"), (10, "x")]
        assert [job for _, job in starts(policy, jobs, make_cluster(1))[2:]] == expected


def test_order_shortest_starts_the_shortest_job_first() -> None:
    jobs = [*BEHIND, *[make_job(name, at=at, work=work) for name, at, work in (("c", 2, 9), ("b", 3, 7), ("d", 4, 8))]]
    by_arrival = [(0, "a"), (10, "x"), (11, "c"), (20, "b"), (27, "d")]
    assert starts("easy", jobs, make_cluster(1)) == by_arrival
    shortest = [(0, "a"), (10, "x"), (11, "b"), (18, "d"), (26, "c")]
    assert starts("easy", jobs, make_cluster(1), order="shortest") == shortest


def test_order_fair_share_starts_jobs_of_the_tenant_with_least_usage_first() -> None:
    jobs = [
        make_job("a", work=10, tenant="heavy"),
        make_job("x", at=1, work=1, priority=5, tenant="heavy"),
        make_job("heavy", at=2, work=10, tenant="heavy"),
        make_job("light", at=3, work=10, tenant="light"),
    ]
    assert starts("easy", jobs, make_cluster(1))[2:] == [(11, "heavy"), (21, "light")]
    assert starts("easy", jobs, make_cluster(1), order="fair-share")[2:] == [(11, "light"), (21, "heavy")]


def test_order_attained_starts_the_job_with_least_service_first() -> None:
    jobs = [*OVERRUN, make_job("new", at=5, gpus=4, work=10, time_limit=10)]
    started_jobs = starts("easy", jobs, make_cluster(4), **LIMIT)
    assert started_jobs[2:4] == [(10, "first"), (20, "late")]
    started_jobs = starts("easy", jobs, make_cluster(4), **LIMIT, order="attained")
    assert started_jobs[2:] == [(10, "first"), (20, "new"), (30, "late")]


# --- lost nodes, cancelled jobs, rejected decisions ----------------------------------------------------------


def test_a_job_with_a_reservation_on_a_lost_node_gets_another() -> None:
    policy = Recorder(Easy(durations="known", backfill_order="queue"))
    scheduler = Scheduler(make_cluster(2, 2), policy)
    scheduler.step(0, [JobSubmitted(make_job(name, gpus=2, work=work)) for name, work in (("a", 10), ("b", 30))])
    scheduler.step(1, [JobSubmitted(make_job("first", at=1, gpus=2, work=5))])
    scheduler.step(5, [NodeLost(0)])
    scheduler.step(6, [NodeReturned(0)])
    on = [Reservation((Share(node, (0, 1)),), start, start + 5) for node, start in ((0, 10), (1, 30), (0, 10))]
    assert [reservations.get("first") for _, reservations in policy.reserved] == [None, *on]


def test_a_gang_has_no_reservation_while_too_many_nodes_are_down_and_starts_when_they_are_up() -> None:
    jobs = [make_job("a", gpus=2, work=10), make_job("gang", at=1, instances=2, gpus=2, work=5)]
    for policy in ("easy", "conservative"):
        started_jobs = starts(policy, jobs, make_cluster(2, 2), faults=[Fault(1, 3.0, 50.0)])
        assert started_jobs == [(0, "a"), (50, "gang")]


def test_a_job_that_lost_its_reservation_with_its_node_fills_gaps_when_the_node_is_up() -> None:
    jobs = [
        make_job("a", gpus=4, work=100, types=["A100"]),
        make_job("b", at=0.5, gpus=2, work=50, types=["T4"]),
        make_job("was first", at=1, gpus=4, work=10, types=["T4"]),
        make_job("first", at=2, gpus=4, work=10, types=["A100"], priority=1),
    ]
    started_jobs = starts("easy", jobs, make_cluster(4, 4, types=["A100", "T4"]), faults=[Fault(1, 10.0, 20.0)])
    assert started_jobs == [(0, "a"), (0.5, "b"), (20, "b"), (70, "was first"), (100, "first")]


def test_when_the_first_job_is_cancelled_others_get_its_gpus() -> None:
    for kind in (Easy, Conservative):
        policy = Recorder(kind(durations="known", backfill_order="queue"))
        scheduler = Scheduler(make_cluster(4), policy)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=2, work=100))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=4, work=10))])
        scheduler.step(2, [JobSubmitted(make_job("long", at=2, gpus=2, work=500))])
        entry = scheduler.step(3, [JobCancelled("wide")])
        assert entry.orders == (StartRun("long", 1, Allocation((Share(0, (2, 3)),))),)
        assert policy.reserved[-1] == (3, {})


def test_reservations_begin_when_runs_end_that_the_policy_has_not_started() -> None:
    """The run of `old` began 30 s ago and takes 100 s."""
    policy = Recorder(Easy(durations="known", backfill_order="queue"))
    scheduler = Scheduler(make_cluster(2), policy)
    adopted = RunAdopted("old", 1, Allocation((Share(0, (0,)),)), 0.0)
    scheduler.step(30, [JobSubmitted(make_job("old", work=100)), adopted])
    entry = scheduler.step(31, [JobSubmitted(make_job("wide", at=31, gpus=2, work=10))])
    assert (entry.orders, entry.wake_at) == ((), 130)
    jobs = [make_job(name, at=40, work=work) for name, work in (("too long", 91), ("in time", 90))]
    entry = scheduler.step(40, [JobSubmitted(job) for job in jobs])
    assert [order.job for order in entry.orders] == ["in time"]


class InvalidOnce(Recorder):
    """Makes one decision of a policy invalid, so that it is rejected."""

    def __init__(self, policy: Backfill, at: float) -> None:
        super().__init__(policy)
        self._at = at

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        if view.now != self._at:
            return decision
        return msgspec.structs.replace(decision, stops=(*decision.stops, Stop("unknown")))


def test_a_rejected_start_is_retried() -> None:
    for kind in (Easy, Conservative):
        rejected: list[BadDecision] = []
        policy = InvalidOnce(kind(durations="known", backfill_order="queue"), at=10)
        scheduler = Scheduler(make_cluster(2), policy, on_rejection=rejected.append)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=1, work=10))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=2, work=10))])
        assert scheduler.step(10, [RunFinished("a", 1)]).orders == ()
        assert len(rejected) == 1
        entry = scheduler.step(11, [Woke()])
        assert entry.orders == (StartRun("wide", 1, Allocation((Share(0, (0, 1)),))),)


# --- durations ----------------------------------------------------------------------------------------------


def test_time_limits_are_taken_as_durations() -> None:
    jobs = [
        make_job("a", gpus=2, work=10, time_limit=50),
        make_job("wide", at=1, gpus=4, work=10, time_limit=50),
        make_job("in time", at=2, work=30, time_limit=48),
        make_job("too long", at=3, work=1, time_limit=48),
    ]
    started_jobs = starts("easy", jobs, make_cluster(4), **LIMIT)
    # `wide` could have started at 10 if `in time` had not overtaken it; it has a reservation at 50, but starts earlier.
    assert started_jobs == [(0, "a"), (2, "in time"), (32, "wide"), (42, "too long")]


def test_a_job_with_unknown_duration_does_not_overtake() -> None:
    cluster = make_cluster(4)
    for kind in (Easy, Conservative):
        policy = Recorder(kind(durations="known", backfill_order="queue"))
        scheduler = Scheduler(cluster, policy)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=2, work=10))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=4, work=10))])
        entry = scheduler.step(2, [JobSubmitted(make_job("unknown", at=2, work=None))])
        assert entry.orders == ()
        scheduler.step(10, [RunFinished("a", 1), Woke()])
        entry = scheduler.step(20, [RunFinished("wide", 1), Woke()])
        assert [order.job for order in entry.orders] == ["unknown"]
        # A job that needs its GPU fits at no time, and has no reservation.
        entry = scheduler.step(30, [JobSubmitted(make_job("all", at=30, gpus=4, work=10))])
        assert (entry.orders, entry.wake_at, policy.reserved[-1][1]) == ((), None, {})
        entry = scheduler.step(31, [JobSubmitted(make_job("rest", at=31, gpus=3, work=10**6))])
        assert [order.job for order in entry.orders] == ["rest"]


def test_a_run_that_exceeds_its_known_duration_for_days_causes_few_wake_ups() -> None:
    journal, jobs = ListJournal(), [make_job("late", work=100), make_job("next", at=1, work=10)]
    simulate(jobs, make_cluster(1), make_policy("easy", KNOWN), journal=journal, never_end=[Stuck("late", 5.0)])
    week = [entry.now for entry in journal.entries if entry.now < 7 * DAY]
    assert week[:12] == [0, 1, 100, 101, 102, 104, 108, 116, 132, 164, 224, 284]
    assert len(week) < 200


def test_runs_that_never_end_do_not_block_jobs_on_other_gpus() -> None:
    jobs = [
        make_job("stuck", gpus=2, work=10),
        make_job("wide", at=1, gpus=4, work=10),
        make_job("small", at=2, gpus=2, work=5),
    ]
    policy = make_policy("easy", KNOWN | {"preempt": "never"})
    audit = Audit(make_cluster(4))
    simulate(jobs, make_cluster(4), policy, journal=audit, never_end=[Stuck("stuck", 5.0)])
    assert [(at, job) for at, job, _ in audit.starts] == [(0, "stuck"), (2, "small")]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"duration_quantile": 0.0}, "duration_quantile is 0.0, expected a quantile between 0 and 1"),
        ({"confidence": 1.0}, "confidence is 1.0, expected a quantile between 0 and 1"),
        ({"backfill_order": "longest"}, "backfill_order is 'longest', expected one of queue, shortest"),
        ({"preempt": "sometimes"}, "preempt is 'sometimes', expected one of never, whole-node, always"),
        ({"order": "chaos"}, "order is 'chaos', expected one of arrival, fair-share, shortest, attained"),
        ({"durations": "guessed"}, "durations is 'guessed', expected one of predicted, limit, known"),
        ({"depth": -1}, "depth is -1, expected ≥ 0 (0: the default of easy)"),
    ],
)
def test_invalid_settings_are_rejected(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue) as rejected:
        Easy(**settings)
    assert str(rejected.value) == message


# --- reservations hold --------------------------------------------------------------------------------------


def queue_position(job: Job) -> tuple[float, float, str]:
    return -job.priority, job.submitted, job.id


@pytest.mark.parametrize("backfill_order", ["queue", "shortest"])
@pytest.mark.parametrize("seed", range(6))
def test_under_conservative_no_job_starts_after_its_first_reserved_time(seed: int, backfill_order: Any) -> None:
    jobs, cluster = seeded_workload(seed)
    policy = Recorder(Conservative(durations="known", preempt="never", backfill_order=backfill_order))
    started_jobs, entries = run(policy, jobs, cluster)
    started = {job: at for at, job in started_jobs}
    reserved_at: dict[str, float] = {}
    for (now, reservations), entry in zip(policy.reserved, entries, strict=True):
        for event in entry.events:
            if isinstance(event, JobSubmitted) and started[event.job.id] > now:
                assert event.job.id in reservations, "every waiting job has a reservation"
        for job, reservation in reservations.items():
            assert reservation.start <= reserved_at.get(job, inf), f"{job} was delayed"
            reserved_at[job] = reservation.start
    assert len(reserved_at) > 10
    assert {job: started[job] for job in reserved_at if started[job] > reserved_at[job]} == {}


@pytest.mark.parametrize("backfill_order", ["queue", "shortest"])
@pytest.mark.parametrize("seed", range(6))
def test_under_easy_a_job_starts_by_the_time_reserved_when_it_became_first(seed: int, backfill_order: Any) -> None:
    jobs, cluster = seeded_workload(seed)
    policy = Recorder(Easy(durations="known", preempt="never", backfill_order=backfill_order))
    started_jobs, entries = run(policy, jobs, cluster)
    started, waiting = {job: at for at, job in started_jobs}, set[str]()
    reserved_at: dict[str, float] = {}
    of = {job.id: job for job in jobs}
    arrival = {job.id: (job.submitted, number) for number, job in enumerate(jobs)}
    for (_, reservations), entry in zip(policy.reserved, entries, strict=True):
        waiting |= {event.job.id for event in entry.events if isinstance(event, JobSubmitted)}
        waiting -= {order.job for order in entry.orders if isinstance(order, StartRun)}
        if waiting:
            first = min(waiting, key=arrival.__getitem__)
            reserved_at.setdefault(first, reservations[first].start)
    assert len(reserved_at) > 5
    assert {job: (of[job], at) for job, at in reserved_at.items() if started[job] > at} == {}


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(4))
def test_runs_and_reservations_never_overbook_a_gpu(policy: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed)
    recorder = Recorder(Easy(durations="known") if policy == "easy" else Conservative(durations="known"))
    _, entries = run(recorder, jobs, cluster)
    ends: dict[str, tuple[Allocation, float]] = {}
    work = {job.id: max(job.work or 0.0, 1.0) for job in jobs}
    for (now, reservations), entry in zip(recorder.reserved, entries, strict=True):
        for event in entry.events:
            if isinstance(event, RunFinished):
                del ends[event.job]
        for order in entry.orders:
            assert isinstance(order, StartRun)
            ends[order.job] = order.allocation, now + work[order.job]
        booked = [(run.placement, now, end) for run, end in ends.values()]
        booked += [(one.placement, one.start, one.end) for one in reservations.values()]
        for _, moment, _ in booked:
            held: dict[tuple[int, int], int] = {}
            for placement, begin, end in booked:
                for share in placement if begin <= moment < end else ():
                    for gpu in share.gpus:
                        held[share.node, gpu] = held.get((share.node, gpu), 0) + share.gpu_milli
            assert all(milli <= 1000 for milli in held.values())


class WaitingPeriod:
    """One wait of a job, and how often jobs behind it have started in that time."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.overtaken = 0


def waiting_periods(entries: Sequence[Entry]) -> Iterable[tuple[Entry, dict[str, WaitingPeriod]]]:
    """Yield each entry with the jobs that wait after it and their counts."""
    jobs: dict[str, Job] = {}
    waiting: dict[str, WaitingPeriod] = {}
    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobSubmitted):
                jobs[event.job.id] = event.job
                waiting[event.job.id] = WaitingPeriod(event.job)
            elif isinstance(event, RunStopped):
                waiting[event.job] = WaitingPeriod(jobs[event.job])
        started_jobs = [jobs[order.job] for order in entry.orders if isinstance(order, StartRun)]
        for job in started_jobs:
            del waiting[job.id]
        for period in waiting.values():
            period.overtaken += sum(queue_position(job) > queue_position(period.job) for job in started_jobs)
        yield entry, waiting


def distinct(seed: int, jobs: int = 60) -> tuple[list[Job], Cluster]:
    """Return a workload with distinct arrival times and time limits that are far off."""
    made, cluster = seeded_workload(seed, jobs)
    rng = Random(seed)
    return [
        msgspec.structs.replace(
            job,
            submitted=job.submitted + number / 100,
            time_limit=rng.choice([0.3, 0.5, 1.0, 1.0, 3.0]) * (job.work or 0.0) + 1.0,
            preemptible=rng.random() < 0.8,
        )
        for number, job in enumerate(made)
    ], cluster


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_job_does_not_wait_for_its_overtakers_beyond_its_reserved_time(policy: str, seed: int) -> None:
    """If the first job is overdue, it would not fit even if all runs that may be preempted for it were stopped."""
    jobs, cluster = distinct(seed)
    recorder = Recorder((Easy if policy == "easy" else Conservative)(durations="limit"))
    _, entries = run(recorder, jobs, cluster)
    of, reserved_at, overtakers = {job.id: job for job in jobs}, dict[str, float](), dict[str, set[str]]()
    held: dict[str, Allocation] = {}
    late, first_before = 0, ""
    for number, (entry, waiting) in enumerate(waiting_periods(entries)):
        for event in entry.events:
            if isinstance(event, RunFinished | RunStopped):
                del held[event.job]
        started_jobs = {order.job: order.allocation for order in entry.orders if isinstance(order, StartRun)}
        held |= started_jobs
        for job_id in waiting:
            behind = {job for job in started_jobs if queue_position(of[job]) > queue_position(of[job_id])}
            overtakers.setdefault(job_id, set()).update(behind)
        for job_id, reservation in recorder.reserved[number][1].items():
            reserved_at.setdefault(job_id, reservation.start)
        for job_id in held:
            reserved_at.pop(job_id, None)
            overtakers.pop(job_id, None)
        is_last_at_this_time = number + 1 == len(entries) or entries[number + 1].now > entry.now
        if not waiting or not is_last_at_this_time:
            continue
        first = min(waiting, key=lambda job_id: queue_position(of[job_id]))
        was_first, first_before = first == first_before, first
        if was_first and reserved_at.get(first, inf) <= entry.now:
            late += 1
            rest = [run for job, run in held.items() if job not in overtakers[first] or not of[job].preemptible]
            assert not fits(cluster, rest, of[first]), f"{first} at {entry.now}"
    assert late > 0


def fits(cluster: Cluster, runs: Sequence[Allocation], job: Job) -> bool:
    free = FreeResources(cluster)
    for run in runs:
        assert free.take(run.placement) is None
    return Placer("first-fit").place(free, job.demand) is not None


# --- comparison with a simple EASY --------------------------------------------------------------------------


def plain_easy(jobs: Sequence[Job], gpus: int) -> list[tuple[float, str]]:
    """EASY with known durations on one node, in plain Python; GPUs by number, the lowest free ones first."""
    queue: list[Job] = []
    running: list[tuple[float, set[int]]] = []
    started_jobs: list[tuple[float, str]] = []
    held: tuple[str, float, set[int]] = ("", inf, set())
    arrivals = list(jobs)

    def duration(job: Job) -> float:
        return max(job.work or 0.0, 1.0)

    def free_at(moment: float) -> list[int]:
        taken = {gpu for end, names in running if end > moment for gpu in names}
        return [gpu for gpu in range(gpus) if gpu not in taken]

    def start(now: float, job: Job, names: set[int]) -> None:
        queue.remove(job)
        running.append((now + duration(job), names))
        started_jobs.append((now, job.id))

    now = 0.0
    while arrivals or queue:
        while arrivals and arrivals[0].submitted <= now:
            queue.append(arrivals.pop(0))
        while queue:
            first = queue[0]
            if held[0] != first.id:
                moments = sorted({now, *(end for end, _ in running if end > now)})
                when = next(moment for moment in moments if len(free_at(moment)) >= first.demand.gpus)
                held = first.id, when, set(free_at(when)[: first.demand.gpus])
            if held[1] > now:
                break
            start(now, first, held[2])
        for job in list(queue[1:]):
            ends_in_time = now + duration(job) <= held[1]
            names = [gpu for gpu in free_at(now) if ends_in_time or gpu not in held[2]]
            if len(names) >= job.demand.gpus:
                start(now, job, set(names[: job.demand.gpus]))
        later = [end for end, _ in running if end > now] + [job.submitted for job in arrivals]
        now = min(later, default=inf)
    return started_jobs


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_on_one_node_easy_gives_the_same_starts_as_a_simple_implementation(seed: int, gpus: int) -> None:
    rng = Random(seed)
    jobs, now = [], 0.0
    for number in range(30):
        now += rng.choice([0, 1, 3, 10])
        size, work = rng.choice([1, 1, 2, 3, gpus]), rng.choice([2, 5, 10, 40])
        jobs.append(make_job(f"j{number:02}", at=now, gpus=min(size, gpus), work=work))
    ours = starts("easy", jobs, make_cluster(gpus), preempt="never", placement="first-fit")
    assert sorted(ours) == sorted(plain_easy(jobs, gpus))


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_gpus_stay_reserved_while_preempted_runs_are_stopping(policy: str) -> None:
    """Stopping takes longer than the first job will run; meanwhile no other job is placed on its GPUs."""
    jobs = [
        make_job("x", gpus=2, work=20.0, time_limit=20.0, preemptible=False),
        make_job("wide", gpus=4, at=1, work=3.0, time_limit=3.0),
        make_job("a", gpus=2, at=2, work=1000.0, time_limit=10.0),
        make_job("c", gpus=2, at=25, work=1000.0, time_limit=10.0),
    ]
    journal = ListJournal()
    simulate(jobs, make_cluster(4), make_policy(policy, {"durations": "limit"}), journal=journal, costs=Costs(stop=30))
    starts = [(e.now, order.job) for e in journal.entries for order in e.orders if isinstance(order, StartRun)]
    assert starts == [(0.0, "x"), (2.0, "a"), (50.0, "wide"), (53.0, "a"), (53.0, "c")]


def test_the_only_waiting_job_does_not_wait_behind_others_if_its_node_is_down() -> None:
    scheduler = Scheduler(make_cluster(2), make_policy("easy"))
    scheduler.step(0.0, [NodeLost(0), JobSubmitted(make_job("a"))])
    scheduler.step(1.0, [JobSubmitted(make_job("b"))])
    assert [scheduler.view.reason(job).reason for job in ("a", "b")] == [Reason.RESOURCES, Reason.PRIORITY]
