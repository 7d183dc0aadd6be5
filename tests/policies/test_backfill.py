"""Backfill: who starts when, worked out by hand; and that promises are kept, on small workloads of all kinds."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf
from random import Random
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from refold.core import Entry, Journals, ListJournal, Policy, Scheduler, View
from refold.core.events import JobCancelled, JobSubmitted, NodeLost, NodeReturned, RunFinished, RunStopped, Woke
from refold.core.orders import StartRun, StopRun
from refold.errors import BadDecision, BadValue
from refold.model import Allocation, Cluster, Decision, Job, Reason, Share, Shortage, Start, Stop, Wait
from refold.packing import Free, Placer
from refold.policies.backfill.backfill import Backfill, Conservative, Easy
from refold.policies.backfill.reservations import Reservation
from refold.registry import make_policy
from refold.simulator import Costs, Fault, Stuck, simulate
from refold.testing import Audit, make_cluster, make_job
from refold.testing.workloads import seeded_workload

KNOWN: dict[str, Any] = {"durations": "known", "filling": "order"}
LIMIT: dict[str, Any] = {"durations": "limit", "filling": "order"}


def run(
    policy: Policy, jobs: Sequence[Job], cluster: Cluster, **options: Any
) -> tuple[list[tuple[float, str]], list[Entry]]:
    """When which job was started, and the journal."""
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
    begun, _ = run(make_policy(policy, KNOWN | settings), jobs, cluster, costs=costs or Costs(), faults=faults)
    return begun


def stopped(entries: Sequence[Entry]) -> list[tuple[float, str]]:
    return [(entry.now, order.job) for entry in entries for order in entry.orders if isinstance(order, StopRun)]


class Watched:
    """A policy, everything that it decided, and what was promised after each decision."""

    def __init__(self, policy: Backfill) -> None:
        self.name = policy.name
        self.policy = policy
        self.decisions: list[tuple[float, Decision]] = []
        self.promised: list[tuple[float, dict[str, Reservation]]] = []

    def decide(self, view: View) -> Decision:
        decision = self.policy.decide(view)
        self.decisions.append((view.now, decision))
        assert self.policy._reservations is not None
        self.promised.append((view.now, dict(self.policy._reservations.promised)))
        return decision


# --- worked cases -------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Jobs, and who starts when under each policy, all durations being known."""

    name: str
    cluster: Cluster
    jobs: list[Job]
    easy: list[tuple[float, str]]
    conservative: list[tuple[float, str]] | None = None
    """None: as under `easy`."""


CASES = [
    Case(
        "a short one goes before the first, a long one does not",
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
        "a long one goes before the first on GPUs that are not promised",
        make_cluster(4),
        [make_job("a", gpus=2, work=10), make_job("wide", at=1, gpus=3, work=10), make_job("long", at=2, work=50)],
        [(0, "a"), (2, "long"), (10, "wide")],
    ),
    Case(
        "two long ones do not fit beside what is promised",
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
        "the second in the queue may be delayed by easy, not by conservative",
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
        "a job that goes before the second is in its way",
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
        "a gang waits for all its nodes, and single ones go before it where they end in time",
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
        "a gang of two leaves the third node to a long one",
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
        "parts of a GPU: what is left beside a promised part is for anybody",
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
        "CPUs and memory are promised too",
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
        "GPUs of another type are not what the first waits for",
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


def test_what_easy_says_at_each_step() -> None:
    cluster = make_cluster(4)
    policy = Watched(Easy(durations="known", filling="order"))
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
    shortage = Shortage(room=0, nodes=1, few_gpus=1)
    assert [(now, msgspec.structs.replace(decision, expected=())) for now, decision in policy.decisions] == [
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
    assert [promised for _, promised in policy.promised] == [
        {},
        *[{"wide": Reservation((Share(0, (0, 1, 2, 3)),), 10, 20)}] * 3,
        {"long": Reservation((Share(0, (0,)),), 20, 70)},
        {},
    ]


def test_conservative_promises_a_place_to_everybody() -> None:
    cluster = make_cluster(2, 2)
    policy = Watched(Conservative(durations="known"))
    jobs = [
        make_job("a", gpus=2, work=10),
        make_job("b", gpus=2, work=20),
        make_job("gang", at=1, instances=2, gpus=2, work=10),
        make_job("one", at=2, work=10),
        make_job("half", at=2, share=0.5, work=30),
        make_job("two", at=3, gpus=2, work=5),
    ]
    run(policy, jobs, cluster)
    at_3 = next(promised for now, promised in policy.promised if now == 3)
    assert at_3 == {
        "gang": Reservation((Share(0, (0, 1)), Share(1, (0, 1))), 20, 30),
        "one": Reservation((Share(0, (0,)),), 10, 20),
        "half": Reservation((Share(0, (0,), 500),), 30, 60),
        "two": Reservation((Share(1, (0, 1)),), 30, 35),
    }


def test_an_early_end_is_refilled_at_once_and_the_first_begins_earlier() -> None:
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        make_job("b", gpus=2, work=20, time_limit=20),
        make_job("wide", at=1, gpus=4, work=10, time_limit=10),
        make_job("short", at=2, gpus=2, work=10, time_limit=15),
        make_job("long", at=3, gpus=2, work=10, time_limit=90),
    ]
    for policy in ("easy", "conservative"):
        # At 5 `wide` moves up from 100 to 20, which is just enough for `short`; at 15 there is nobody for so little.
        expected = [(0, "a"), (0, "b"), (5, "short"), (20, "wide"), (30, "long")]
        assert starts(policy, jobs, make_cluster(4), **LIMIT) == expected


def test_conservative_moves_everybody_up_in_order_when_a_job_ends_early() -> None:
    policy = Watched(Conservative(durations="limit"))
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        *[make_job(f"{n}", at=1 + n, gpus=2, work=10, time_limit=10) for n in range(4)],
    ]
    run(policy, jobs, make_cluster(2))
    promised = {now: {job: one.start for job, one in places.items()} for now, places in policy.promised}
    assert promised[4] == {"0": 100, "1": 110, "2": 120, "3": 130}
    assert promised[5] == {"1": 15, "2": 25, "3": 35}


# --- predictions that prove wrong ---------------------------------------------------------------------------


WRONG = [
    make_job("a", gpus=2, work=10, time_limit=10),
    make_job("first", at=1, gpus=4, work=10, time_limit=10),
    make_job("liar", at=2, gpus=2, work=100, time_limit=8),
]


def test_a_job_that_was_put_before_the_first_is_stopped_when_it_does_not_end_in_time() -> None:
    begun, entries = run(make_policy("easy", LIMIT), WRONG, make_cluster(4))
    assert begun == [(0, "a"), (2, "liar"), (10, "first"), (20, "liar")]
    assert [(order.job, order.why) for entry in entries for order in entry.orders if isinstance(order, StopRun)] == [
        ("liar", "easy: first was promised to start by now")
    ]


def test_the_first_waits_for_its_place_while_it_is_given_back() -> None:
    begun, entries = run(make_policy("easy", LIMIT), WRONG, make_cluster(4), costs=Costs(stop=3))
    assert begun == [(0, "a"), (2, "liar"), (13, "first"), (23, "liar")]
    at_10 = next(entry for entry in entries if entry.now == 10)
    assert at_10.waits == (Wait("first", Reason.RELEASING),)


@pytest.mark.parametrize(
    ("settings", "liar"),
    [({"preempt": "never"}, {}), ({}, {"preemptible": False}), ({"preempt": "whole-node"}, {"gpus": 1})],
)
def test_a_promise_is_renewed_where_nobody_may_be_stopped(settings: dict[str, Any], liar: dict[str, Any]) -> None:
    jobs = [
        make_job("a", gpus=2, work=10, time_limit=10),
        make_job("first", at=1, gpus=3, work=10, time_limit=10),
        make_job("liar", at=2, work=100, time_limit=8, **({"gpus": 2} | liar)),
        make_job("liar's friend", at=2, work=100, time_limit=8, preemptible=False),
    ]
    policy = Watched(Easy(**(LIMIT | settings)))
    begun, entries = run(policy, jobs, make_cluster(4))
    assert stopped(entries) == []
    assert {job: at for at, job in begun}["first"] == 102
    renewed = [places["first"].start for _, places in policy.promised if "first" in places]
    assert renewed[0] == 10
    assert renewed == sorted(renewed)
    assert renewed[-1] >= 102


def test_a_whole_node_is_cleared_where_only_whole_nodes_are() -> None:
    begun, entries = run(make_policy("easy", LIMIT | {"preempt": "whole-node"}), WRONG, make_cluster(4))
    assert begun == [(0, "a"), (2, "liar"), (10, "first"), (20, "liar")]
    assert stopped(entries) == [(10, "liar")]


def test_who_was_not_put_before_the_first_is_not_stopped_for_it() -> None:
    jobs = [
        make_job("old liar", gpus=2, work=100, time_limit=10),
        make_job("first", at=1, gpus=4, work=10, time_limit=10),
        make_job("liar", at=2, gpus=2, work=70, time_limit=8),
    ]
    begun, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4))
    assert begun == [(0, "old liar"), (2, "liar"), (100, "first")]
    assert stopped(entries) == []


def test_a_broken_promise_is_said_to_be_another() -> None:
    jobs = [
        make_job("a", work=100_000, time_limit=600, preemptible=False),
        make_job("first", at=1, work=10, time_limit=10),
    ]
    _, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(1))
    said = [(entry.now, expected) for entry in entries for expected in entry.start_estimates]
    assert len(said) >= 3
    assert said[0][0] == 1
    for (_, before), (then, after) in pairwise(said):
        assert before.latest is not None
        assert after.latest is not None
        assert before.latest < then < after.latest  # it is told something new as soon as it was broken, and not before


def test_the_first_starts_at_once_where_another_place_is_free_after_its_promise_was_broken() -> None:
    jobs = [
        make_job("late", work=1000, time_limit=10, preemptible=False),
        make_job("other", work=50, time_limit=60),
        make_job("first", at=1, work=5, time_limit=5),
    ]
    for policy in ("easy", "conservative"):
        assert starts(policy, jobs, make_cluster(1, 1), **LIMIT) == [(0, "late"), (0, "other"), (50, "first")]


def test_runs_beside_which_the_first_has_room_are_left_alone_when_others_are_stopped_for_it() -> None:
    jobs = [
        make_job("old", cpus=1, work=1000, time_limit=1000, preemptible=False),
        make_job("a", cpus=1, work=10, time_limit=10),
        make_job("first", at=1, gpus=3, cpus=1, work=10, time_limit=10),
        make_job("liar", at=2, gpus=2, cpus=1, work=100, time_limit=8),
    ]
    begun, entries = run(make_policy("easy", LIMIT), jobs, make_cluster(4, cpus=8))
    assert begun == [(0, "old"), (0, "a"), (2, "liar"), (10, "first"), (20, "liar")]
    assert stopped(entries) == [(10, "liar")]


def test_whoever_is_first_after_an_early_end_is_promised_a_place_before_gaps_are_filled() -> None:
    jobs = [
        make_job("a", gpus=2, work=5, time_limit=100),
        make_job("first", at=1, work=10, time_limit=10),
        make_job("second", at=2, gpus=2, work=10, time_limit=10),
        make_job("long", at=3, work=1000, time_limit=1000),
    ]
    for policy in ("easy", "conservative"):
        expected = [(0, "a"), (5, "first"), (15, "second"), (25, "long")]
        assert starts(policy, jobs, make_cluster(2), **LIMIT) == expected


# --- fairness of order --------------------------------------------------------------------------------------


STREAM = [
    make_job("a", gpus=3, work=100),
    make_job("wide", at=1, gpus=4, work=10),
    *[make_job(f"s{n}", at=2 + n, work=4) for n in range(6)],
]


def test_nobody_is_passed_over_more_often_than_is_set() -> None:
    begun = starts("easy", STREAM, make_cluster(4), most_passed=2)
    assert begun == [
        (0, "a"),
        (2, "s0"),
        (6, "s1"),
        (100, "wide"),
        (110, "s2"),
        (110, "s3"),
        (110, "s4"),
        (110, "s5"),
    ]


def test_nobody_is_passed_over_who_has_waited_for_longer_than_is_set() -> None:
    begun = starts("easy", STREAM, make_cluster(4), most_waiting_seconds=9.5)
    assert [job for at, job in begun if at < 100] == ["a", "s0", "s1", "s2"]


def test_a_promise_is_not_kept_where_somebody_has_been_passed_over_often_enough() -> None:
    jobs = [
        make_job("a", gpus=3, work=100),
        make_job("b", work=10),
        make_job("wide", at=1, gpus=4, work=10),
        *[make_job(f"s{n}", at=2 + n, work=10) for n in range(3)],
    ]
    begun = starts("conservative", jobs, make_cluster(4), most_passed=1)
    assert begun == [(0, "a"), (0, "b"), (10, "s0"), (100, "wide"), (110, "s1"), (110, "s2")]


def test_without_a_limit_whoever_fits_goes_before() -> None:
    begun = starts("easy", STREAM, make_cluster(4))
    assert begun == [(0, "a"), *[(2 + 4 * n, f"s{n}") for n in range(6)], (100, "wide")]


LANES = [
    make_job("a", gpus=4, work=10),
    make_job("b", gpus=2, work=30),
    make_job("node", at=1, gpus=4, work=10),
    make_job("small", at=2, gpus=3, work=10),
    make_job("long", at=3, gpus=2, work=100),
]


def test_with_lanes_the_first_small_one_is_promised_a_place_beside_the_first_whole_node() -> None:
    for lanes, promised in ((False, {"node": 10}), (True, {"node": 10, "small": 20})):
        policy = Watched(Easy(durations="known", filling="order", lanes=lanes))
        run(policy, LANES, make_cluster(4, 4))
        at_2 = next(places for now, places in policy.promised if now == 2)
        assert {job: place.start for job, place in at_2.items()} == promised


def test_with_lanes_the_first_small_one_is_not_delayed_by_those_behind_it() -> None:
    # Without lanes `long` takes two GPUs of the second node at once, and `small` waits for the first node.
    one_lane = [(0, "a"), (0, "b"), (3, "long"), (10, "node"), (20, "small")]
    assert starts("easy", LANES, make_cluster(4, 4)) == one_lane
    jobs = [*LANES[:3], make_job("small", at=2, gpus=3, work=25), make_job("long", at=3, gpus=2, work=100)]
    assert starts("easy", jobs, make_cluster(4, 4), lanes=True)[-2:] == [(10, "node"), (20, "small")]


def test_gaps_are_offered_in_the_order_of_the_queue_or_to_the_shortest() -> None:
    jobs = [
        make_job("a", gpus=1, work=20),
        make_job("b", gpus=1, work=5),
        make_job("wide", at=1, gpus=2, work=10),
        make_job("longer", at=2, work=10),
        make_job("shorter", at=3, work=5),
    ]
    in_order = [(0, "a"), (0, "b"), (5, "longer"), (15, "shorter"), (20, "wide")]
    assert starts("easy", jobs, make_cluster(2), filling="order") == in_order
    shortest = [(0, "a"), (0, "b"), (5, "shorter"), (10, "longer"), (20, "wide")]
    assert starts("easy", jobs, make_cluster(2), filling="shortest") == shortest


# --- orders of the queue ------------------------------------------------------------------------------------


BEHIND = [make_job("a", work=10), make_job("x", at=1, work=1, priority=5)]
"""One that runs, and one that is first whatever the order is."""


def test_whoever_has_the_higher_priority_goes_first() -> None:
    jobs = [*BEHIND, make_job("b", at=2, work=10), make_job("urgent", at=3, work=10, priority=1)]
    for policy in ("easy", "conservative"):
        expected = ["urgent", "b"] if policy == "easy" else ["b", "urgent"]  # who came first was promised a place first
        assert starts(policy, jobs, make_cluster(1))[:2] == [(0, "a"), (10, "x")]
        assert [job for _, job in starts(policy, jobs, make_cluster(1))[2:]] == expected


def test_the_shortest_goes_first_under_that_order() -> None:
    jobs = [*BEHIND, *[make_job(name, at=at, work=work) for name, at, work in (("c", 2, 9), ("b", 3, 7), ("d", 4, 8))]]
    by_arrival = [(0, "a"), (10, "x"), (11, "c"), (20, "b"), (27, "d")]
    assert starts("easy", jobs, make_cluster(1)) == by_arrival
    shortest = [(0, "a"), (10, "x"), (11, "b"), (18, "d"), (26, "c")]
    assert starts("easy", jobs, make_cluster(1), order="shortest") == shortest


def test_the_tenant_that_has_used_least_goes_first_under_fair_share() -> None:
    jobs = [
        make_job("a", work=10, tenant="heavy"),
        make_job("x", at=1, work=1, priority=5, tenant="heavy"),
        make_job("heavy", at=2, work=10, tenant="heavy"),
        make_job("light", at=3, work=10, tenant="light"),
    ]
    assert starts("easy", jobs, make_cluster(1))[2:] == [(11, "heavy"), (21, "light")]
    assert starts("easy", jobs, make_cluster(1), order="fair-share")[2:] == [(11, "light"), (21, "heavy")]


def test_whoever_has_attained_least_goes_first_under_that_order() -> None:
    jobs = [*WRONG, make_job("new", at=5, gpus=4, work=10, time_limit=10)]
    begun = starts("easy", jobs, make_cluster(4), **LIMIT)
    assert begun[2:4] == [(10, "first"), (20, "liar")]
    begun = starts("easy", jobs, make_cluster(4), **LIMIT, order="attained")
    assert begun[2:] == [(10, "first"), (20, "new"), (30, "liar")]


# --- nodes that fall, jobs that are cancelled, decisions that are refused ------------------------------------


def test_who_was_promised_a_node_that_falls_is_promised_another() -> None:
    policy = Watched(Easy(durations="known", filling="order"))
    scheduler = Scheduler(make_cluster(2, 2), policy)
    scheduler.step(0, [JobSubmitted(make_job(name, gpus=2, work=work)) for name, work in (("a", 10), ("b", 30))])
    scheduler.step(1, [JobSubmitted(make_job("first", at=1, gpus=2, work=5))])
    scheduler.step(5, [NodeLost(0)])
    scheduler.step(6, [NodeReturned(0)])
    on = [Reservation((Share(node, (0, 1)),), start, start + 5) for node, start in ((0, 10), (1, 30), (0, 10))]
    assert [places.get("first") for _, places in policy.promised] == [None, *on]


def test_a_gang_has_no_promise_while_too_many_nodes_are_down_and_starts_when_they_are_back() -> None:
    jobs = [make_job("a", gpus=2, work=10), make_job("gang", at=1, instances=2, gpus=2, work=5)]
    for policy in ("easy", "conservative"):
        begun = starts(policy, jobs, make_cluster(2, 2), faults=[Fault(1, 3.0, 50.0)])
        assert begun == [(0, "a"), (50, "gang")]


def test_who_has_lost_its_promise_with_its_node_fills_gaps_when_that_is_back() -> None:
    jobs = [
        make_job("a", gpus=4, work=100, types=["A100"]),
        make_job("b", at=0.5, gpus=2, work=50, types=["T4"]),
        make_job("was first", at=1, gpus=4, work=10, types=["T4"]),
        make_job("first", at=2, gpus=4, work=10, types=["A100"], priority=1),
    ]
    begun = starts("easy", jobs, make_cluster(4, 4, types=["A100", "T4"]), faults=[Fault(1, 10.0, 20.0)])
    assert begun == [(0, "a"), (0.5, "b"), (20, "b"), (70, "was first"), (100, "first")]


def test_when_the_first_is_cancelled_its_place_is_for_the_others() -> None:
    for kind in (Easy, Conservative):
        policy = Watched(kind(durations="known", filling="order"))
        scheduler = Scheduler(make_cluster(4), policy)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=2, work=100))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=4, work=10))])
        scheduler.step(2, [JobSubmitted(make_job("long", at=2, gpus=2, work=500))])
        entry = scheduler.step(3, [JobCancelled("wide")])
        assert entry.orders == (StartRun("long", 1, Allocation((Share(0, (2, 3)),))),)
        assert policy.promised[-1] == (3, {})


class Spoiled(Watched):
    """A policy of whose decisions one is spoiled on the way: it is refused."""

    def __init__(self, policy: Backfill, at: float) -> None:
        super().__init__(policy)
        self._at = at

    def decide(self, view: View) -> Decision:
        decision = super().decide(view)
        if view.now != self._at:
            return decision
        return msgspec.structs.replace(decision, stops=(*decision.stops, Stop("nobody")))


def test_a_start_that_was_refused_is_tried_again() -> None:
    for kind in (Easy, Conservative):
        refused: list[BadDecision] = []
        policy = Spoiled(kind(durations="known", filling="order"), at=10)
        scheduler = Scheduler(make_cluster(2), policy, refused=refused.append)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=1, work=10))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=2, work=10))])
        assert scheduler.step(10, [RunFinished("a", 1)]).orders == ()
        assert len(refused) == 1
        entry = scheduler.step(11, [Woke()])
        assert entry.orders == (StartRun("wide", 1, Allocation((Share(0, (0, 1)),))),)


# --- how long jobs last -------------------------------------------------------------------------------------


def test_what_users_say_is_how_long_it_takes() -> None:
    jobs = [
        make_job("a", gpus=2, work=10, time_limit=50),
        make_job("wide", at=1, gpus=4, work=10, time_limit=50),
        make_job("in time", at=2, work=30, time_limit=48),
        make_job("too long", at=3, work=1, time_limit=48),
    ]
    begun = starts("easy", jobs, make_cluster(4), **LIMIT)
    # `wide` could have had a place at 10, had not `in time` been put before it; it is promised 50, but begins earlier.
    assert begun == [(0, "a"), (2, "in time"), (32, "wide"), (42, "too long")]


def test_a_job_that_may_never_end_is_not_put_before_others() -> None:
    cluster = make_cluster(4)
    for kind in (Easy, Conservative):
        policy = Watched(kind(durations="known", filling="order"))
        scheduler = Scheduler(cluster, policy)
        scheduler.step(0, [JobSubmitted(make_job("a", gpus=2, work=10))])
        scheduler.step(1, [JobSubmitted(make_job("wide", at=1, gpus=4, work=10))])
        entry = scheduler.step(2, [JobSubmitted(make_job("unknown", at=2, work=None))])
        assert entry.orders == ()
        scheduler.step(10, [RunFinished("a", 1), Woke()])
        entry = scheduler.step(20, [RunFinished("wide", 1), Woke()])
        assert [order.job for order in entry.orders] == ["unknown"]
        # Whoever needs its GPU has no place at any time, and is promised none.
        entry = scheduler.step(30, [JobSubmitted(make_job("all", at=30, gpus=4, work=10))])
        assert (entry.orders, entry.wake_at, policy.promised[-1][1]) == ((), None, {})
        entry = scheduler.step(31, [JobSubmitted(make_job("rest", at=31, gpus=3, work=10**6))])
        assert [order.job for order in entry.orders] == ["rest"]


def test_runs_that_never_end_keep_nobody_from_starting_elsewhere() -> None:
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
        ({"likely": 0.0}, "likely is 0.0, expected a part between 0 and 1"),
        ({"confidence": 1.0}, "confidence is 1.0, expected a part between 0 and 1"),
        ({"filling": "longest"}, "filling is 'longest', expected one of order, shortest"),
        ({"preempt": "sometimes"}, "preempt is 'sometimes', expected one of never, whole-node, always"),
        ({"order": "chaos"}, "order is 'chaos', expected one of arrival, fair-share, shortest, attained"),
        ({"durations": "guessed"}, "durations is 'guessed', expected one of predicted, limit, known"),
        ({"most_passed": -1}, "most_passed is -1, expected ≥ 0 (0: however often)"),
        ({"most_waiting_seconds": -1.0}, "most_waiting_seconds is -1.0, expected ≥ 0 (0: however long)"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(BadValue) as refused:
        Easy(**settings)
    assert str(refused.value) == message


# --- promises are kept --------------------------------------------------------------------------------------


def place_in_queue(job: Job) -> tuple[float, float, str]:
    return -job.priority, job.submitted, job.id


@pytest.mark.parametrize("filling", ["order", "shortest"])
@pytest.mark.parametrize("seed", range(6))
def test_under_conservative_nobody_starts_later_than_was_first_promised(seed: int, filling: Any) -> None:
    jobs, cluster = seeded_workload(seed)
    policy = Watched(Conservative(durations="known", preempt="never", filling=filling))
    begun, entries = run(policy, jobs, cluster)
    started = {job: at for at, job in begun}
    promised: dict[str, float] = {}
    for (now, places), entry in zip(policy.promised, entries, strict=True):
        for event in entry.events:
            if isinstance(event, JobSubmitted) and started[event.job.id] > now:
                assert event.job.id in places, "everybody who waits is promised something"
        for job, place in places.items():
            assert place.start <= promised.get(job, inf), f"{job} was put off"
            promised[job] = place.start
    assert len(promised) > 10
    assert {job: started[job] for job in promised if started[job] > promised[job]} == {}


@pytest.mark.parametrize("filling", ["order", "shortest"])
@pytest.mark.parametrize("seed", range(6))
def test_under_easy_the_first_starts_when_it_was_promised_as_soon_as_it_was_first(seed: int, filling: Any) -> None:
    jobs, cluster = seeded_workload(seed)
    policy = Watched(Easy(durations="known", preempt="never", filling=filling))
    begun, entries = run(policy, jobs, cluster)
    started, waiting = {job: at for at, job in begun}, set[str]()
    promised: dict[str, float] = {}
    of = {job.id: job for job in jobs}
    came = {job.id: (job.submitted, number) for number, job in enumerate(jobs)}
    for (_, places), entry in zip(policy.promised, entries, strict=True):
        waiting |= {event.job.id for event in entry.events if isinstance(event, JobSubmitted)}
        waiting -= {order.job for order in entry.orders if isinstance(order, StartRun)}
        if waiting:
            first = min(waiting, key=came.__getitem__)
            promised.setdefault(first, places[first].start)
    assert len(promised) > 5
    assert {job: (of[job], at) for job, at in promised.items() if started[job] > at} == {}


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(4))
def test_no_two_promised_places_and_runs_share_a_gpu_beyond_what_it_has(policy: str, seed: int) -> None:
    jobs, cluster = seeded_workload(seed)
    watched = Watched(Easy(durations="known") if policy == "easy" else Conservative(durations="known"))
    _, entries = run(watched, jobs, cluster)
    ends: dict[str, tuple[Allocation, float]] = {}
    work = {job.id: max(job.work or 0.0, 1.0) for job in jobs}
    for (now, places), entry in zip(watched.promised, entries, strict=True):
        for event in entry.events:
            if isinstance(event, RunFinished):
                del ends[event.job]
        for order in entry.orders:
            assert isinstance(order, StartRun)
            ends[order.job] = order.allocation, now + work[order.job]
        booked = [(run.placement, now, end) for run, end in ends.values()]
        booked += [(place.placement, place.start, place.end) for place in places.values()]
        for _, moment, _ in booked:
            held: dict[tuple[int, int], int] = {}
            for placement, begin, end in booked:
                for share in placement if begin <= moment < end else ():
                    for gpu in share.gpus:
                        held[share.node, gpu] = held.get((share.node, gpu), 0) + share.gpu_milli
            assert all(milli <= 1000 for milli in held.values())


class Spell:
    """One time of waiting of a job, as the journal tells it: how often others behind it went before it."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.passed = 0


def spells(entries: Sequence[Entry]) -> Iterable[tuple[Entry, dict[str, Spell]]]:
    """Whoever waits after each entry, others that went before it counted."""
    jobs: dict[str, Job] = {}
    waiting: dict[str, Spell] = {}
    for entry in entries:
        for event in entry.events:
            if isinstance(event, JobSubmitted):
                jobs[event.job.id] = event.job
                waiting[event.job.id] = Spell(event.job)
            elif isinstance(event, RunStopped):
                waiting[event.job] = Spell(jobs[event.job])
        begun = [jobs[order.job] for order in entry.orders if isinstance(order, StartRun)]
        for job in begun:
            del waiting[job.id]
        for spell in waiting.values():
            spell.passed += sum(place_in_queue(job) > place_in_queue(spell.job) for job in begun)
        yield entry, waiting


def distinct(seed: int, jobs: int = 60) -> tuple[list[Job], Cluster]:
    """A workload of which no two jobs come at the same time, and whose users have no idea how long jobs last."""
    made, cluster = seeded_workload(seed, jobs)
    chance = Random(seed)
    return [
        msgspec.structs.replace(
            job,
            submitted=job.submitted + number / 100,
            time_limit=chance.choice([0.3, 0.5, 1.0, 1.0, 3.0]) * (job.work or 0.0) + 1.0,
            preemptible=chance.random() < 0.8,
        )
        for number, job in enumerate(made)
    ], cluster


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_is_passed_over_more_often_than_is_set_whatever_comes(policy: str, seed: int) -> None:
    jobs, cluster = distinct(seed)
    for most in (1, 4):
        settings = {"durations": "limit", "most_passed": most, "lanes": seed % 2 == 1}
        _, entries = run(make_policy(policy, settings), jobs, cluster)
        assert max(spell.passed for _, waiting in spells(entries) for spell in waiting.values()) == most


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(5))
def test_nobody_who_has_waited_for_long_enough_is_passed_over(policy: str, seed: int) -> None:
    jobs, cluster = distinct(seed)
    _, entries = run(make_policy(policy, {"durations": "limit", "most_waiting_seconds": 100.0}), jobs, cluster)
    passed: dict[str, int] = {}
    for entry, waiting in spells(entries):
        for job_id, spell in waiting.items():
            if entry.now - spell.job.submitted >= 100.0:
                assert spell.passed <= passed.get(job_id, spell.passed), f"{job_id} at {entry.now}"
            passed[job_id] = spell.passed


@pytest.mark.parametrize("policy", ["easy", "conservative"])
@pytest.mark.parametrize("seed", range(5))
def test_the_first_does_not_wait_beyond_its_promise_for_those_that_were_put_before_it(policy: str, seed: int) -> None:
    """Whoever was first before: from the promised moment on it would not fit even if all that may be stopped were."""
    jobs, cluster = distinct(seed)
    watched = Watched((Easy if policy == "easy" else Conservative)(durations="limit"))
    _, entries = run(watched, jobs, cluster)
    of, promised, put_before = {job.id: job for job in jobs}, dict[str, float](), dict[str, set[str]]()
    held: dict[str, Allocation] = {}
    late, first_before = 0, ""
    for number, (entry, waiting) in enumerate(spells(entries)):
        for event in entry.events:
            if isinstance(event, RunFinished | RunStopped):
                del held[event.job]
        begun = {order.job: order.allocation for order in entry.orders if isinstance(order, StartRun)}
        held |= begun
        for job_id in waiting:
            behind = {job for job in begun if place_in_queue(of[job]) > place_in_queue(of[job_id])}
            put_before.setdefault(job_id, set()).update(behind)
        for job_id, place in watched.promised[number][1].items():
            promised.setdefault(job_id, place.start)
        for job_id in held:
            promised.pop(job_id, None)
            put_before.pop(job_id, None)
        is_last_of_moment = number + 1 == len(entries) or entries[number + 1].now > entry.now
        if not waiting or not is_last_of_moment:
            continue
        first = min(waiting, key=lambda job_id: place_in_queue(of[job_id]))
        was_first, first_before = first == first_before, first
        if was_first and promised.get(first, inf) <= entry.now:
            late += 1
            rest = [run for job, run in held.items() if job not in put_before[first] or not of[job].preemptible]
            assert not fits(cluster, rest, of[first]), f"{first} at {entry.now}"
    assert late > 0


def fits(cluster: Cluster, runs: Sequence[Allocation], job: Job) -> bool:
    free = Free(cluster)
    for run in runs:
        assert free.take(run.placement) is None
    return Placer("first-fit").place(free, job.demand) is not None


# --- against EASY on a count of GPUs ------------------------------------------------------------------------


def plain_easy(jobs: Sequence[Job], gpus: int) -> list[tuple[float, str]]:
    """EASY with known durations on one node, in plain Python: GPUs by name, the lowest that are free first."""
    queue: list[Job] = []
    running: list[tuple[float, set[int]]] = []
    begun: list[tuple[float, str]] = []
    held: tuple[str, float, set[int]] = ("", inf, set())
    arrivals = list(jobs)

    def lasts(job: Job) -> float:
        return max(job.work or 0.0, 1.0)

    def free_at(moment: float) -> list[int]:
        taken = {gpu for end, names in running if end > moment for gpu in names}
        return [gpu for gpu in range(gpus) if gpu not in taken]

    def start(now: float, job: Job, names: set[int]) -> None:
        queue.remove(job)
        running.append((now + lasts(job), names))
        begun.append((now, job.id))

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
            ends_in_time = now + lasts(job) <= held[1]
            names = [gpu for gpu in free_at(now) if ends_in_time or gpu not in held[2]]
            if len(names) >= job.demand.gpus:
                start(now, job, set(names[: job.demand.gpus]))
        later = [end for end, _ in running if end > now] + [job.submitted for job in arrivals]
        now = min(later, default=inf)
    return begun


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(2, 8))
def test_on_one_node_easy_starts_everybody_when_a_plain_reading_of_it_does(seed: int, gpus: int) -> None:
    chance = Random(seed)
    jobs, now = [], 0.0
    for number in range(30):
        now += chance.choice([0, 1, 3, 10])
        size, work = chance.choice([1, 1, 2, 3, gpus]), chance.choice([2, 5, 10, 40])
        jobs.append(make_job(f"j{number:02}", at=now, gpus=min(size, gpus), work=work))
    ours = starts("easy", jobs, make_cluster(gpus), preempt="never", placement="first-fit")
    assert sorted(ours) == sorted(plain_easy(jobs, gpus))


@pytest.mark.parametrize("policy", ["easy", "conservative"])
def test_a_place_stays_promised_while_runs_take_their_time_to_stop(policy: str) -> None:
    """Stopping takes longer than the first will: meanwhile nobody else is put where it waits."""
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
