"""Every rule that a decision must follow: a decision that just follows it, and one that just breaks it.

The scheduler of these tests has nodes with 4 and 3 A100s, one with 2 T4s, and one with an A100 that is down; each has
8 CPUs and 64 GiB. GPUs 0 and 1 of n0, 0 and 2 of n1, and 0 of n2 are in use.
"""

import msgspec
import pytest
from scripted_policy import ScriptedPolicy, on

from refold.core import Scheduler
from refold.core.events import JobHeld, JobSubmitted, NodeLost
from refold.core.orders import Order, StartRun, StopRun
from refold.errors import BadDecision
from refold.model import (
    Allocation,
    Cluster,
    Decision,
    End,
    Flag,
    Placement,
    Plan,
    Reason,
    Reshape,
    Share,
    Start,
    StartEstimate,
    Stop,
    Tenant,
    Wait,
)
from refold.testing import make_cluster, make_job

TYPES = ["A100", "A100", "T4", "A100"]
CLUSTER: Cluster = msgspec.structs.replace(
    make_cluster(4, 3, 2, 1, types=TYPES, cpus=8, memory_gib=64), tenants=(Tenant("capped", limit_gpus=2.0),)
)
NOW = 10.0
GIB = 1024

WAITING = [
    make_job("one"),
    make_job("two", gpus=2),
    make_job("gang", gpus=1, instances=2),
    make_job("half", share=0.5),
    make_job("with-cpus", cpus=2, memory_gib=8),
    make_job("cpus-only", gpus=0, cpus=2),
    make_job("picky", types=["A100"]),
    make_job("either", types=["A100", "T4"]),
    make_job("bends", reshapable=True),
    make_job("capped", tenant="capped", reshapable=True),
]
RUNNING = {
    make_job("runs"): on(0),
    make_job("grows", reshapable=True): on(1),
    make_job("stays", preemptible=False): on(0, node=2),
    make_job("picky-run", types=["A100"]): on(2, node=1),
}
STOPPING = make_job("stops")


@pytest.fixture
def policy() -> ScriptedPolicy:
    return ScriptedPolicy()


@pytest.fixture
def scheduler(policy: ScriptedPolicy) -> Scheduler:
    scheduler = Scheduler(CLUSTER, policy)
    jobs = [*RUNNING, STOPPING, *WAITING, make_job("held"), make_job("huge", gpus=5)]
    starts = tuple(Start(job.id, allocation) for job, allocation in RUNNING.items())
    policy.next = Decision((*starts, Start("stops", on(0, node=1))))
    scheduler.step(0.0, [*map(JobSubmitted, jobs), JobHeld("held")])
    policy.next = Decision(stops=(Stop("stops"),))
    scheduler.step(1.0, [NodeLost(3)])
    return scheduler


def decide(scheduler: Scheduler, policy: ScriptedPolicy, decision: Decision) -> tuple[Order, ...]:
    policy.next = decision
    return scheduler.step(NOW, ()).orders


def start(job: str, *shares: Share) -> Decision:
    return Decision((Start(job, Allocation(shares)),))


def start_on(job: str, *gpus: int, node: int = 0) -> Decision:
    return Decision((Start(job, on(*gpus, node=node)),))


def reshape(job: str, *shares: Share, plan: Plan | None = None) -> Decision:
    return Decision(reshapes=(Reshape(job, Allocation(shares, plan)),))


def both(first: Decision, second: Decision) -> Decision:
    return Decision(
        first.starts + second.starts,
        first.stops + second.stops,
        first.reshapes + second.reshapes,
        ends=first.ends + second.ends,
    )


STOP_RUNS = Decision(stops=(Stop("runs", "for others"),))
END_RUNS = Decision(ends=(End("runs", "hung"),))


@pytest.mark.parametrize(
    ("decision", "orders"),
    [
        pytest.param(start_on("one", 2), [StartRun("one", 1, on(2))], id="waiting: a waiting job"),
        pytest.param(STOP_RUNS, [StopRun("runs", 1, "for others")], id="running: a stop"),
        pytest.param(END_RUNS, [StopRun("runs", 1, "hung")], id="running: an end"),
        pytest.param(Decision(flags=(Flag("stops", "slow"),)), [], id="running: a flag of a run that is stopping"),
        pytest.param(
            Decision(ends=(End("stays", "hung"),)), [StopRun("stays", 1, "hung")], id="preemptible: an end of any job"
        ),
        pytest.param(start_on("two", 2, 3), [StartRun("two", 1, on(2, 3))], id="gang: what was requested"),
        pytest.param(
            start("gang", Share(0, (2,)), Share(1, (1,))),
            [StartRun("gang", 1, Allocation((Share(0, (2,)), Share(1, (1,)))))],
            id="gang: instances on two nodes",
        ),
        pytest.param(
            start("with-cpus", Share(0, (2,), cpu_milli=2000, memory_mib=8 * GIB)),
            [StartRun("with-cpus", 1, Allocation((Share(0, (2,), 1000, 2000, 8 * GIB),)))],
            id="gang: CPUs and memory",
        ),
        pytest.param(
            start("half", Share(0, (3,), 500)),
            [StartRun("half", 1, Allocation((Share(0, (3,), 500),)))],
            id="gang: a fraction",
        ),
        pytest.param(
            start("cpus-only", Share(0, cpu_milli=2000)),
            [StartRun("cpus-only", 1, Allocation((Share(0, cpu_milli=2000),)))],
            id="gang: no GPU",
        ),
        pytest.param(start_on("bends", 2, 3), [StartRun("bends", 1, on(2, 3))], id="gang: more, for a reshapable job"),
        pytest.param(
            reshape("grows", Share(0, (1, 2))),
            [StopRun("grows", 1, next=on(1, 2))],
            id="gang: growth of a reshapable job",
        ),
        pytest.param(reshape("runs", Share(0, (3,))), [StopRun("runs", 1, next=on(3))], id="gang: a move of any job"),
        pytest.param(start_on("picky", 2), [StartRun("picky", 1, on(2))], id="type: accepted"),
        pytest.param(
            start_on("either", 1, node=2), [StartRun("either", 1, on(1, node=2))], id="type: one of two accepted"
        ),
        pytest.param(
            reshape("picky-run", Share(1, (1,))), [StopRun("picky-run", 1, next=on(1, node=1))], id="type: a move"
        ),
        pytest.param(start_on("capped", 2, 3), [StartRun("capped", 1, on(2, 3))], id="limit: exactly the limit"),
        pytest.param(
            start("bends", Share(0, (2,), 1)),
            [StartRun("bends", 1, Allocation((Share(0, (2,), 1),)))],
            id="free: the smallest share",
        ),
        pytest.param(
            start("bends", Share(0, (2,), 1000, 8000, 64 * GIB)),
            [StartRun("bends", 1, Allocation((Share(0, (2,), 1000, 8000, 64 * GIB),)))],
            id="free: all CPUs and memory of a node",
        ),
        pytest.param(
            both(start("half", Share(0, (3,), 500)), start("bends", Share(0, (3,), 500))),
            [
                StartRun("half", 1, Allocation((Share(0, (3,), 500),))),
                StartRun("bends", 1, Allocation((Share(0, (3,), 500),))),
            ],
            id="free: two halves of a GPU",
        ),
        pytest.param(Decision(waits=(Wait("one", Reason.PRIORITY),)), [], id="reason: of a waiting job"),
        pytest.param(Decision(start_estimates=(StartEstimate("one", 99.0),)), [], id="reason: an estimate"),
        pytest.param(Decision(wake_at=NOW + 1e-6), [], id="wake: just after now"),
    ],
)
def test_a_decision_that_just_follows_a_rule_is_accepted(
    scheduler: Scheduler, policy: ScriptedPolicy, decision: Decision, orders: list[Order]
) -> None:
    assert decide(scheduler, policy, decision) == tuple(orders)


def move_to_other_cpus(*, cpu_milli: int = 0, memory_mib: int = 0) -> Decision:
    return reshape("runs", Share(0, (3,), cpu_milli=cpu_milli, memory_mib=memory_mib))


@pytest.mark.parametrize(
    ("decision", "rule", "problem"),
    [
        (start_on("runs", 2), "waiting", "started job 'runs', which is running"),
        (start_on("stops", 2), "waiting", "started job 'stops', which is stopping"),
        (start_on("held", 2), "waiting", "started job 'held', which is held"),
        (start_on("huge", 2), "waiting", "started job 'huge', which does not fit even into the empty cluster"),
        (start_on("ghost", 2), "waiting", "started job 'ghost', which is unknown"),
        (
            both(start_on("one", 2), start_on("one", 3)),
            "waiting",
            "started job 'one', which appears twice in the decision",
        ),
        (Decision(stops=(Stop("one"),)), "running", "changed job 'one', which is waiting"),
        (Decision(stops=(Stop("stops"),)), "running", "changed job 'stops', which is stopping"),
        (Decision(stops=(Stop("held"),)), "running", "changed job 'held', which is held"),
        (Decision(stops=(Stop("ghost"),)), "running", "changed job 'ghost', which is unknown"),
        (both(STOP_RUNS, STOP_RUNS), "running", "changed job 'runs', which appears twice in the decision"),
        (both(STOP_RUNS, END_RUNS), "running", "changed job 'runs', which appears twice in the decision"),
        (
            both(STOP_RUNS, reshape("runs", Share(0, (3,)))),
            "running",
            "changed job 'runs', which appears twice in the decision",
        ),
        (Decision(ends=(End("one", "hung"),)), "running", "changed job 'one', which is waiting"),
        (reshape("one", Share(0, (3,))), "running", "changed job 'one', which is waiting"),
        (Decision(flags=(Flag("one", "slow"),)), "running", "flagged job 'one', which is waiting"),
        (Decision(flags=(Flag("ghost", "slow"),)), "running", "flagged job 'ghost', which is unknown"),
        (Decision(stops=(Stop("stays"),)), "preemptible", "changed job 'stays', which is not preemptible"),
        (reshape("stays", Share(0, (3,))), "preemptible", "changed job 'stays', which is not preemptible"),
        (start_on("two", 2), "gang", "started job 'two' with resources other than the requested 2 GPUs"),
        (start_on("one", 2, 3), "gang", "started job 'one' with resources other than the requested 1 GPU"),
        (
            start("gang", Share(0, (2,))),
            "gang",
            "started job 'gang' with resources other than the requested 2 × 1 GPU",
        ),
        (
            start("gang", Share(0, (2,)), Share(0, (3,)), Share(1, (1,))),
            "gang",
            "started job 'gang' with resources other than the requested 2 × 1 GPU",
        ),
        (
            start("half", Share(0, (2,), 501)),
            "gang",
            "started job 'half' with resources other than the requested 0.5 GPU",
        ),
        (reshape("runs", Share(0, (2, 3))), "gang", "reshaped job 'runs', which is not reshapable"),
        (reshape("runs", Share(0, (3,)), plan=Plan(1)), "gang", "reshaped job 'runs', which is not reshapable"),
        (move_to_other_cpus(cpu_milli=1), "gang", "reshaped job 'runs', which is not reshapable"),
        (move_to_other_cpus(memory_mib=1), "gang", "reshaped job 'runs', which is not reshapable"),
        (start("bends"), "gang", "gave job 'bends' an empty allocation"),
        (reshape("grows"), "gang", "gave job 'grows' an empty allocation"),
        (start_on("picky", 1, node=2), "type", "placed job 'picky' on T4, but it accepts A100"),
        (reshape("picky-run", Share(2, (1,))), "type", "placed job 'picky-run' on T4, but it accepts A100"),
        (
            start_on("capped", 2, 3, 1),
            "limit",
            "gave job 'capped' 3 GPUs, but the limit of tenant 'capped' allows 2",
        ),
        (start_on("bends", 0, node=4), "free", "placed job 'bends' on node 4, which does not exist"),
        (start_on("bends", 0, node=-1), "free", "placed job 'bends' on node -1, which does not exist"),
        (reshape("grows", Share(9, (0,))), "free", "placed job 'grows' on node 9, which does not exist"),
        (start_on("bends", 4), "free", "gave job 'bends' GPUs (4,) of 'n0': no such GPU"),
        (start_on("bends", -1), "free", "gave job 'bends' GPUs (-1,) of 'n0': no such GPU"),
        (start_on("bends", 2, node=2), "free", "gave job 'bends' GPUs (2,) of 'n2': no such GPU"),
        (start_on("one", 0), "free", "started job 'one', but node 'n0': a GPU has too little free capacity"),
        (start_on("one", 0, node=1), "free", "started job 'one', but node 'n1': a GPU has too little free capacity"),
        (start_on("one", 0, node=3), "free", "started job 'one', but node 'n3': the node is down"),
        (
            both(start_on("one", 2), start_on("bends", 2)),
            "free",
            "started job 'bends', but node 'n0': a GPU has too little free capacity",
        ),
        (
            both(start_on("one", 2), reshape("grows", Share(0, (1, 2)))),
            "free",
            "reshaped job 'grows', but node 'n0': a GPU has too little free capacity",
        ),
        (
            start("bends", Share(0, (2,), cpu_milli=8001)),
            "free",
            "started job 'bends', but node 'n0': too few free CPUs",
        ),
        (
            start("bends", Share(0, (2,), memory_mib=64 * GIB + 1)),
            "free",
            "started job 'bends', but node 'n0': too little free memory",
        ),
        (
            both(start("half", Share(0, (3,), 500)), start("bends", Share(0, (3,), 501))),
            "free",
            "started job 'bends', but node 'n0': a GPU has too little free capacity",
        ),
        (
            Decision(waits=(Wait("runs", Reason.PRIORITY),)),
            "reason",
            "gives a reason for job 'runs', which is not waiting",
        ),
        (
            msgspec.structs.replace(start_on("one", 2), waits=(Wait("one", Reason.PRIORITY),)),
            "reason",
            "gives a reason for job 'one', which is not waiting",
        ),
        (
            Decision(start_estimates=(StartEstimate("held", 99.0),)),
            "reason",
            "estimates the start of job 'held', which is not waiting",
        ),
        (
            msgspec.structs.replace(start_on("one", 2), start_estimates=(StartEstimate("one", 99.0),)),
            "reason",
            "estimates the start of job 'one', which is not waiting",
        ),
        (Decision(wake_at=NOW), "wake", "set wake_at to 10.0, expected a finite time after 10.0"),
        (Decision(wake_at=NOW - 1), "wake", "set wake_at to 9.0, expected a finite time after 10.0"),
        (Decision(wake_at=float("inf")), "wake", "set wake_at to inf, expected a finite time after 10.0"),
        (Decision(wake_at=float("nan")), "wake", "set wake_at to nan, expected a finite time after 10.0"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_decision_that_just_breaks_a_rule_is_rejected_as_a_whole(
    scheduler: Scheduler, policy: ScriptedPolicy, decision: Decision, rule: str, problem: str
) -> None:
    view, free = scheduler.view, scheduler.view.free_gpus
    before = dict(view.runs), dict(view.waiting)
    with pytest.raises(BadDecision) as error:
        decide(scheduler, policy, decision)
    assert str(error.value) == f"scripted {problem} (rule: {rule})"
    assert (view.free_gpus, dict(view.runs), dict(view.waiting)) == (free, *before)
    assert decide(scheduler, policy, start_on("two", 2, 3)) == (StartRun("two", 1, on(2, 3)),)


@pytest.mark.parametrize(
    "share",
    [
        Share(0, (2,), 0),
        Share(0, (2,), 1001),
        Share(0, (2,), -1),
        Share(0, (2,), cpu_milli=-1),
        Share(0, (2,), memory_mib=-1),
    ],
)
def test_amounts_that_no_node_can_have_are_rejected(scheduler: Scheduler, policy: ScriptedPolicy, share: Share) -> None:
    for decision in (start("bends", share), reshape("grows", share)):
        job = "bends" if decision.starts else "grows"
        with pytest.raises(BadDecision) as error:
            decide(scheduler, policy, decision)
        assert str(error.value) == f"scripted gave job {job!r} invalid amounts in {share} (rule: free)"


@pytest.mark.parametrize(("gpus", "repeated"), [((2, 2), True), ((2, 3, 2), True), ((2, 3), False)])
def test_a_gpu_appears_once_in_a_share(
    scheduler: Scheduler, policy: ScriptedPolicy, gpus: tuple[int, ...], repeated: bool
) -> None:
    share = Share(0, gpus)
    if not repeated:
        assert decide(scheduler, policy, start("bends", share)) == (StartRun("bends", 1, Allocation((share,))),)
        return
    with pytest.raises(BadDecision) as error:
        decide(scheduler, policy, start("bends", share))
    assert str(error.value) == f"scripted gave job 'bends' the same GPU twice in {share} (rule: free)"


def holding(scheduler: Scheduler, job: str) -> Placement:
    return scheduler.view.held_by(job)


def test_a_reshape_takes_only_what_the_job_does_not_hold_yet(scheduler: Scheduler, policy: ScriptedPolicy) -> None:
    free = scheduler.view.free_gpus
    decide(scheduler, policy, reshape("grows", Share(0, (1, 2, 3), cpu_milli=3000)))
    assert scheduler.view.free_gpus == free - 2
    held = holding(scheduler, "grows")
    assert sorted(gpu for share in held for gpu in share.gpus) == [1, 2, 3]
    assert sum(share.cpu_milli for share in held) == 3000


def test_two_reshapes_cannot_exchange_gpus_that_both_still_hold(scheduler: Scheduler, policy: ScriptedPolicy) -> None:
    exchange = both(reshape("grows", Share(0, (0,))), reshape("runs", Share(0, (1,))))
    with pytest.raises(BadDecision, match="reshaped job 'grows', but node 'n0': a GPU has too little free capacity"):
        decide(scheduler, policy, exchange)


def test_gpus_of_a_stop_in_the_same_decision_are_not_free(scheduler: Scheduler, policy: ScriptedPolicy) -> None:
    with pytest.raises(BadDecision, match="started job 'one', but node 'n0': a GPU has too little free capacity"):
        decide(scheduler, policy, both(STOP_RUNS, start_on("one", 0)))


def test_what_a_rejected_decision_had_taken_before_the_error_is_free_again(
    scheduler: Scheduler, policy: ScriptedPolicy
) -> None:
    free = scheduler.view.free_gpus
    takes_first = both(both(start_on("one", 2), reshape("grows", Share(0, (1, 3)))), reshape("runs", Share(1, (0,))))
    with pytest.raises(BadDecision, match="reshaped job 'runs', but node 'n1'"):
        decide(scheduler, policy, takes_first)
    assert scheduler.view.free_gpus == free
    assert holding(scheduler, "grows") == on(1).placement
