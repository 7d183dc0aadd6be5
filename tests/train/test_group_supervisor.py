"""The supervisor of a run on several hosts: facts in, actions out."""

from __future__ import annotations

from signal import SIGKILL, SIGQUIT

import pytest
from msgspec.structs import replace

from refold.model import ChangeAnswer, ChangeRequest, InstanceGpus, Plan
from refold.train.copies import CopySource, CopyToLoad
from refold.train.group_supervisor import MISSING_SECONDS, REGROUP_SECONDS, GroupMachine, GroupSupervisor, plan_for
from refold.train.messages import (
    Action,
    Announce,
    Answer,
    Change,
    CopyOrders,
    Entered,
    Exit,
    Left,
    Log,
    Progress,
    Ready,
    Saved,
    Send,
    SignalRank,
    StartRank,
)
from refold.train.rank_table import ENTER_SECONDS
from refold.train.run_settings import HostSlots


def host(instance: int, since: int = 1, slots: int = 2) -> HostSlots:
    return HostSlots(instance, since, slots, f"10.0.0.{instance}", 29500 + instance, 29400)


TWO, THREE = [host(0), host(1)], [host(0), host(1), host(2)]
COPY = CopyToLoad(1000, 40, 1, {0: CopySource("10.0.0.0", 29400, {})})


class Facts:
    """A clock, and the newest complete copy."""

    def __init__(self) -> None:
        self.time = 0.0
        self.copy: CopyToLoad | None = None

    def machine(self) -> GroupMachine:
        return GroupMachine(lambda: self.time, lambda: self.copy)


def change(
    plan: Plan, generation: int, *, load: CopyToLoad | None = None, first: int = 0, keep: bool = False
) -> Change:
    orders = CopyOrders(0 if load is None else 1 - load.slot, load)
    return Change(plan, plan.gpus, generation, "", False, f"10.0.0.{first}", 29500 + first, orders, keep)


def regrouped(sent: Change, rank: int) -> Change:
    """Return what a rank is told that is left when others are lost."""
    return replace(sent, keep=True, lost=True, rank=rank)


def training(facts: Facts, plan: Plan, hosts: list[HostSlots]) -> GroupSupervisor:
    """Return a supervisor whose ranks, processes 1 and so on, train."""
    supervisor = GroupSupervisor(plan, hosts, facts.machine(), 1, 8)
    supervisor.start()
    ready(supervisor, range(1, plan.gpus + 1))
    assert supervisor.received(1, Entered(1001, plan, 0, {})) == [Announce()]
    return supervisor


def ready(supervisor: GroupSupervisor, processes: range) -> list[Action]:
    actions: list[Action] = []
    for rank, process in enumerate(processes):
        actions = supervisor.received(process, Ready(rank, 64, 8))
    return actions


def test_ranks_fill_the_hosts_in_order_and_meet_at_the_first_one() -> None:
    supervisor = GroupSupervisor(Plan(data=3), TWO, Facts().machine(), 1, 0)
    assert supervisor.start() == [
        StartRank(1, 0, 3, None, 0, 0, 2),
        StartRank(2, 1, 3, None, 0, 1, 2),
        StartRank(3, 2, 3, None, 1, 0, 1),
    ]
    sent = change(Plan(data=3), 1001)
    assert ready(supervisor, range(1, 4)) == [Send(1, sent), Send(2, sent), Send(3, sent)]


def test_ranks_that_are_left_form_a_group_and_the_newest_copy_is_there_for_what_they_lack() -> None:
    facts = Facts()
    plan = Plan(data=2, zero=3, accumulation=2)
    supervisor = training(facts, Plan(data=4, zero=3), TWO)
    facts.copy = COPY
    sent = change(plan, 1002, load=COPY, first=1)
    assert supervisor.hosts_changed([host(1)]) == [
        Log("lost instance 0"),
        Log("going on with DP2 ZeRO-3 accumulate 2 on the ranks that are left"),
        Send(3, regrouped(sent, 0)),
        Send(4, regrouped(sent, 1)),
    ]
    assert supervisor.received(3, Entered(1002, plan, 40, {})) == []
    assert supervisor.first_process() == 3


def test_new_ranks_on_a_spare_host_join_those_that_are_left() -> None:
    plan = Plan(data=2, accumulation=2)
    supervisor = training(Facts(), Plan(data=4), THREE)
    actions = supervisor.hosts_changed([host(0), host(2)])
    assert actions[2:] == [Send(process, regrouped(change(plan, 1002), process - 1)) for process in (1, 2)]
    supervisor.received(1, Entered(1002, plan, 40, {}))
    assert supervisor.hosts_changed([host(0), host(2)]) == [
        Log("growing to DP4"),
        StartRank(5, 2, 4, None, 2, 0, 2),
        StartRank(6, 3, 4, None, 2, 1, 2),
    ]
    sent = change(Plan(data=4), 1003, keep=True)
    assert ready(supervisor, range(5, 7)) == [Send(process, sent) for process in (1, 2, 5, 6)]
    assert supervisor.received(1, Entered(1003, Plan(data=4), 44, {})) == [Log("grown to DP4")]


def test_a_failure_while_a_group_is_formed_restarts_all_from_the_newest_copy() -> None:
    facts = Facts()
    supervisor = training(facts, Plan(data=4), TWO)
    facts.copy = COPY
    supervisor.hosts_changed([host(0)])
    assert supervisor.exited(2, 1) == [
        Log("rank 1 has exited with status 1"),
        Log("restarting with DP2 accumulate 2 from the copy of step 40"),
        SignalRank(1, SIGKILL),
    ]
    assert supervisor.exited(1, -SIGKILL) == [StartRank(5, 0, 2, None, 0, 0, 2), StartRank(6, 1, 2, None, 0, 1, 2)]
    sent = change(Plan(data=2, accumulation=2), 1003, load=COPY)
    assert ready(supervisor, range(5, 7)) == [Send(5, sent), Send(6, sent)]


def test_all_are_restarted_if_the_ranks_that_are_left_do_not_answer() -> None:
    facts = Facts()
    supervisor = training(facts, Plan(data=4), TWO)
    supervisor.hosts_changed([host(0)])
    facts.time = REGROUP_SECONDS
    assert supervisor.tick() == [
        Log("generation 1002 does not train in time"),
        Log("restarting with DP2 accumulate 2 from the last checkpoint"),
        SignalRank(1, SIGKILL),
        SignalRank(2, SIGKILL),
    ]


def test_all_are_restarted_if_no_replica_of_the_model_fits_on_what_is_left() -> None:
    supervisor = training(Facts(), Plan(data=1, tensor=4), TWO)
    assert supervisor.hosts_changed([host(0)])[1:] == [
        Log("restarting with DP2 ZeRO-3 from the last checkpoint"),
        SignalRank(1, SIGKILL),
        SignalRank(2, SIGKILL),
    ]


def test_a_new_leader_goes_on_with_the_ranks_that_the_hosts_have() -> None:
    supervisor = GroupSupervisor(Plan(data=3), [host(1, slots=1), host(2, slots=1)], Facts().machine(), 2, 12)
    ranks = [StartRank(6 + rank, rank, 0, None, rank) for rank in (1, 2)]
    sent = change(Plan(data=2), 2001, first=2)
    assert supervisor.adopt(ranks) == [
        Log("going on with DP2 on the ranks that are left"),
        Send(7, regrouped(sent, 1)),
        Send(8, regrouped(sent, 0)),
    ]


def test_a_rank_that_its_host_does_not_have_is_taken_as_ended() -> None:
    """The message that it has ended was lost."""
    facts = Facts()
    supervisor = training(facts, Plan(data=4), TWO)
    assert supervisor.running({0: [1, 2], 1: [3]}) == []
    facts.time = MISSING_SECONDS
    assert supervisor.running({0: [1, 2], 1: [3]})[0] == Log("rank 3 was killed by SIGKILL")
    facts.time = 2 * MISSING_SECONDS
    assert supervisor.running({0: [1, 2], 1: [3]}) == []


def test_a_checkpoint_that_is_newer_than_the_copy_is_loaded() -> None:
    facts = Facts()
    supervisor = training(facts, Plan(tensor=2), [host(0)])
    facts.copy = COPY
    supervisor.received(1, Saved(50))
    assert supervisor.exited(2, -SIGKILL) == [
        Log("rank 1 was killed by SIGKILL"),
        Log("restarting with DP1 TP2 from the last checkpoint"),
        SignalRank(1, SIGKILL),
    ]
    supervisor.exited(1, -SIGKILL)
    assert ready(supervisor, range(3, 5))[0] == Send(3, change(Plan(tensor=2), 1002))


def test_ranks_that_leave_take_no_part_of_the_state_along() -> None:
    """Replicas leave at once; shards are written to copies, and all ranks are replaced."""
    replicas = training(Facts(), Plan(data=4), TWO)
    sent = change(Plan(data=2), 1002, keep=True)
    actions = replicas.request(ChangeRequest(7, Plan(data=2)))
    assert actions == [Send(process, sent) for process in range(1, 5)]
    shards = training(Facts(), Plan(data=4, zero=3), TWO)
    starts = shards.request(ChangeRequest(7, Plan(data=2, zero=3)))
    assert [action.process for action in starts if isinstance(action, StartRank)] == [5, 6]


def test_a_host_that_is_lost_while_it_joins_leaves_the_others_as_they_were() -> None:
    supervisor = training(Facts(), Plan(data=2), [host(0)])
    supervisor.hosts_changed(TWO)
    supervisor.request(ChangeRequest(7, Plan(data=4)))
    actions = supervisor.hosts_changed([host(0)])
    assert actions[:2] == [Log("lost instance 1"), Answer(ChangeAnswer(7, error="instance 1 was lost"))]
    assert supervisor.exited(3, -SIGKILL) == []
    assert supervisor.exited(4, -SIGKILL) == []


def test_instances_can_give_up_gpus_and_get_them_back() -> None:
    facts = Facts()
    supervisor = training(facts, Plan(data=4), TWO)
    fewer = (InstanceGpus(1, "7"), InstanceGpus(1, "3"))
    actions = supervisor.request(ChangeRequest(2, Plan(data=2), instances=fewer))
    assert [action for action in actions if isinstance(action, StartRank)] == [
        StartRank(5, 0, 2, "7", 0, 0, 1),
        StartRank(6, 1, 2, "3", 1, 0, 1),
    ]
    assert supervisor.request(ChangeRequest(2, Plan(data=2), instances=fewer)) == [], "another agent has seen it, too"
    ready(supervisor, range(5, 7))
    for process in range(1, 5):
        supervisor.received(process, Left(process - 1, 4, False, {}))
    for process in range(1, 5):
        supervisor.exited(process, 0)
    supervisor.received(5, Entered(1002, Plan(data=2), 4, {}))
    assert supervisor.instances == fewer
    why = "DP4 needs 4 ranks, the hosts of the run have 2"
    assert supervisor.request(ChangeRequest(3, Plan(data=4))) == [Answer(ChangeAnswer(3, error=why))]
    both = (InstanceGpus(2, "6,7"), InstanceGpus(2, "2,3"))
    starts = supervisor.request(ChangeRequest(4, Plan(data=4), instances=both))
    assert [action.devices for action in starts if isinstance(action, StartRank)] == ["6,7", "6,7", "2,3", "2,3"]
    supervisor.exited(7, 1)
    for process in (11, 12, 13):
        supervisor.exited(process, 1)
    assert supervisor.instances == fewer, "the change was given up"


def test_a_plan_for_which_there_are_too_few_hosts_is_refused() -> None:
    supervisor = training(Facts(), Plan(data=2), [host(0)])
    why = "DP4 needs 4 ranks, the hosts of the run have 2"
    assert supervisor.request(ChangeRequest(7, Plan(data=4))) == [Answer(ChangeAnswer(7, error=why))]


def test_a_generation_that_hangs_while_it_enters_is_replaced() -> None:
    facts = Facts()
    supervisor = GroupSupervisor(Plan(data=2), [host(0)], facts.machine(), 2, 8)
    supervisor.start()
    ready(supervisor, range(10**6 + 1, 10**6 + 3))
    facts.time = ENTER_SECONDS
    assert supervisor.tick()[-2:] == [SignalRank(10**6 + 1, SIGKILL), SignalRank(10**6 + 2, SIGKILL)]


def test_ranks_that_hang_print_their_stacks_and_are_replaced() -> None:
    facts = Facts()
    supervisor = GroupSupervisor(Plan(data=2), [host(0)], facts.machine(), 1, 8, hang_seconds=60.0)
    supervisor.start()
    ready(supervisor, range(1, 3))
    supervisor.received(1, Entered(1001, Plan(data=2), 0, {}))
    facts.time = 50.0
    supervisor.received(1, Progress(7, 0.5, 1.0))
    facts.time = 109.0
    assert supervisor.tick() == []
    facts.time = 110.0
    stacks = Log("no step for 60 s; the stacks of all ranks follow")
    assert supervisor.tick() == [stacks, SignalRank(1, SIGQUIT), SignalRank(2, SIGQUIT)]
    assert supervisor.tick() == []
    facts.time = 112.0
    restart = Log("restarting with DP2 from the last checkpoint")
    assert supervisor.tick() == [restart, SignalRank(1, SIGKILL), SignalRank(2, SIGKILL)]


def test_a_script_that_fails_by_itself_is_not_started_again() -> None:
    supervisor = GroupSupervisor(Plan(data=2), [host(0)], Facts().machine(), 1, 0)
    supervisor.start()
    assert supervisor.exited(1, 3) == [Log("rank 0 has exited with status 3"), SignalRank(2, SIGKILL)]
    assert supervisor.exited(2, -SIGKILL) == [Exit(3)]


@pytest.mark.parametrize(
    ("asked", "gpus", "batch", "expected"),
    [
        (Plan(data=4), 4, 8, Plan(data=4)),
        (Plan(data=8, zero=3), 6, 8, Plan(data=4, zero=3, accumulation=2)),
        (Plan(data=8), 7, 0, Plan(data=7)),
        (Plan(data=2, tensor=2), 3, 8, Plan(data=1, tensor=2, accumulation=2)),
        (Plan(data=2, zero=1, tensor=2), 2, 8, Plan(data=1, tensor=2, accumulation=2)),
        (Plan(tensor=4), 3, 8, Plan(data=2, zero=3)),
        (Plan(tensor=4), 1, 8, Plan()),
        (Plan(data=4, replicate=2, zero=3), 3, 9, Plan(data=3, zero=3)),
    ],
)
def test_the_plan_for_what_is_left(asked: Plan, gpus: int, batch: int, expected: Plan) -> None:
    assert plan_for(asked, gpus, batch) == expected
