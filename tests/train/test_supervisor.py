"""What the agent decides: messages and exits in, actions out."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM, SIGUSR1
from typing import Literal

import pytest

from refold.errors import BadFile
from refold.model import ChangeAnswer, ChangeRequest, Plan
from refold.train.messages import (
    Action,
    Announce,
    Answer,
    Change,
    Entered,
    Exit,
    Finished,
    Left,
    Log,
    NotEntered,
    Progress,
    Ready,
    Report,
    Saved,
    Send,
    SignalRank,
    StartRank,
    StopTraining,
)
from refold.train.rank_table import ENTER_SECONDS, JOIN_SECONDS, LEAVE_SECONDS
from refold.train.run_settings import AgentRanks
from refold.train.supervisor import Supervisor

ONE, TWO, THREE = Plan(), Plan(data=2), Plan(data=3)


class FakeMachine:
    """A machine whose clock stands still, and whose ports are numbered."""

    def __init__(self) -> None:
        self.time = 0.0
        self.space = 100

    def now(self) -> float:
        return self.time

    def shared_state(self, size: int) -> str:
        return f"state of {size}"

    def reserve(self, size: int) -> None:
        if size > self.space:
            raise BadFile("/dev/shm", "full")


@pytest.fixture
def machine() -> FakeMachine:
    return FakeMachine()


def change(plan: Plan, generation: int, *, resume: bool = True, ranks: int | None = None) -> Change:
    ranks = plan.gpus if ranks is None else ranks
    return Change(plan, ranks, generation, state="state of 8", resume=resume)


def ready(supervisor: Supervisor, **rank_by_process: int) -> list[Action]:
    """Let processes become ready, named p1, p2 …; return what follows."""
    return [
        action
        for process, rank in rank_by_process.items()
        for action in supervisor.received(int(process[1:]), Ready(rank, 8))
    ]


def training(machine: FakeMachine, plan: Plan = TWO, devices: str | None = None) -> Supervisor:
    """Return the supervisor of a run that trains with one process per rank, numbered from 1."""
    supervisor = Supervisor(plan, devices, machine)
    supervisor.start()
    ready(supervisor, **{f"p{rank + 1}": rank for rank in range(plan.gpus)})
    assert supervisor.received(1, Entered(1, plan, 0, {})) == [Announce()]
    return supervisor


def restart_of(plan: Plan, *killed: int) -> list[Action]:
    return [
        Log(f"restarting with {plan} from the last checkpoint"),
        *(SignalRank(process, SIGKILL) for process in killed),
    ]


def test_ranks_enter_together_when_all_are_ready(machine: FakeMachine) -> None:
    supervisor = Supervisor(TWO, "4,5", machine)
    assert supervisor.start() == [StartRank(1, 0, 2, "4,5"), StartRank(2, 1, 2, "4,5")]
    assert supervisor.received(2, Ready(1, 8)) == []
    first = change(TWO, 1, resume=False)
    assert supervisor.received(1, Ready(0, 5)) == [Send(1, first), Send(2, first)]
    assert supervisor.received(1, Progress(3, 0.1, 2.0)) == [Report(3, 0.1, 2.0)]
    assert supervisor.received(1, Finished(9)) == [Report(9)]
    assert supervisor.exited(1, 0) == []
    assert supervisor.exited(2, 0) == [Exit(0)]


def test_a_run_grows(machine: FakeMachine) -> None:
    supervisor = training(machine)
    assert supervisor.request(ChangeRequest(7, THREE)) == [StartRank(3, 2, 3, None)]
    second = change(THREE, 2)
    assert supervisor.received(3, Ready(2, 8)) == [Send(1, second), Send(2, second), Send(3, second)]
    assert supervisor.received(1, Entered(1, TWO, 5, {})) == []
    entered = Entered(2, THREE, 6, {"drain": 0.5}, why="as asked")
    assert supervisor.received(1, entered) == [Answer(ChangeAnswer(7, THREE, 6, {"drain": 0.5}, "as asked"))]


def test_a_run_shrinks(machine: FakeMachine) -> None:
    supervisor = training(machine)
    assert supervisor.request(ChangeRequest(7, ONE)) == [Send(1, change(ONE, 2)), Send(2, change(ONE, 2))]
    assert supervisor.received(2, Left(1, 6)) == []
    assert supervisor.received(1, Entered(2, ONE, 6, {})) == []
    assert supervisor.exited(2, -SIGKILL) == [Answer(ChangeAnswer(7, ONE, 6, {}))]


@pytest.mark.parametrize("devices", [None, "4,5"])
def test_ranks_that_restart_for_a_change_leave_before_others_start(machine: FakeMachine, devices: str | None) -> None:
    supervisor = Supervisor(TWO, devices, machine)
    supervisor.start()
    for process in (1, 2):
        supervisor.received(process, Ready(process - 1, 8, restarts=True))
    supervisor.received(1, Entered(1, TWO, 0, {}))
    asked = "6,7,8" if devices else None
    told = change(THREE, 2, ranks=0 if devices else 3)
    assert supervisor.request(ChangeRequest(7, THREE, asked)) == [Send(1, told), Send(2, told)]
    assert supervisor.received(1, Left(0, 6, restart=True)) == [Report(6)]
    supervisor.received(2, Left(1, 6, restart=True))
    assert supervisor.exited(1, 0) == []
    assert supervisor.exited(2, 0) == [StartRank(process, process - 3, 3, asked) for process in (3, 4, 5)]
    ready(supervisor, p3=0, p4=1, p5=2)
    machine.time = 2.0
    answer = Answer(ChangeAnswer(7, THREE, 6, {"restart": 2.0}, way="cold"))
    assert supervisor.received(3, Entered(3, THREE, 6, {})) == [answer]


def test_a_rank_that_leaves_but_does_not_exit_is_killed(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    supervisor.received(1, Entered(2, ONE, 6, {}))
    assert supervisor.request(ChangeRequest(8, TWO)) == []
    machine.time = LEAVE_SECONDS
    assert supervisor.tick() == [SignalRank(2, SIGKILL)]
    assert supervisor.exited(2, -SIGKILL) == [Answer(ChangeAnswer(7, ONE, 6, {})), StartRank(3, 1, 2, None)]


def test_ranks_that_a_smaller_plan_does_not_need_may_leave(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    supervisor.received(3, Ready(2, 8))
    assert supervisor.received(3, Left(2, 5)) == supervisor.exited(3, 0) == []
    entered = Entered(2, TWO, 6, {}, why="the batch cannot be divided by 3")
    assert supervisor.received(1, entered) == [Answer(ChangeAnswer(7, TWO, 6, {}, "the batch cannot be divided by 3"))]


@pytest.mark.parametrize("plan", [ONE, THREE])
def test_after_a_change_that_was_not_possible_the_same_ranks_continue(machine: FakeMachine, plan: Plan) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, plan))
    joined = plan is THREE
    if joined:
        supervisor.received(3, Ready(2, 8))
    killed = [SignalRank(3, SIGKILL)] if joined else []
    refused = Answer(ChangeAnswer(7, error="/dev/shm: full"))
    assert supervisor.received(1, NotEntered(2, "/dev/shm: full")) == [refused, *killed]
    if joined:
        assert supervisor.exited(3, -SIGKILL) == []
    again = change(ONE, 3)
    assert supervisor.request(ChangeRequest(8, ONE)) == [Send(1, again), Send(2, again)]


def test_a_stop_after_a_change_that_was_not_possible_is_sent_to_rank_0(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    assert supervisor.stop(30.0, SIGTERM) == []
    assert supervisor.received(1, NotEntered(2, "full")) == [
        Answer(ChangeAnswer(7, error="full")),
        Send(1, StopTraining(30.0)),
    ]


def test_a_change_needs_space_for_the_state(machine: FakeMachine) -> None:
    supervisor = training(machine)
    machine.space = 1
    assert supervisor.request(ChangeRequest(7, ONE)) == [Answer(ChangeAnswer(7, error="/dev/shm: full"))]
    machine.space = 8
    assert supervisor.request(ChangeRequest(8, ONE)) == [Send(1, change(ONE, 2)), Send(2, change(ONE, 2))]


def test_staying_ranks_keep_their_gpus(machine: FakeMachine) -> None:
    supervisor = training(machine, TWO, "2,3")
    assert supervisor.request(ChangeRequest(7, THREE, "1,2,3")) == [StartRank(3, 2, 3, "2,3,1")]


def test_all_ranks_are_replaced_if_one_must_move(machine: FakeMachine) -> None:
    supervisor = training(machine, TWO, "0,1")
    assert supervisor.request(ChangeRequest(7, TWO, "1,2")) == [StartRank(3, 0, 2, "1,2"), StartRank(4, 1, 2, "1,2")]
    leave = change(TWO, 2, ranks=0)
    assert ready(supervisor, p3=0, p4=1) == [Send(1, leave), Send(2, leave)]
    left = Left(0, 5, phases={"write": 0.5})
    assert supervisor.received(1, left) == supervisor.exited(1, 0) == supervisor.received(2, Left(1, 5)) == []
    assert supervisor.exited(2, 0) == [Send(3, change(TWO, 2)), Send(4, change(TWO, 2))]
    machine.time += 3.0
    phases = {"write": 0.5, "exit": 1.0, "load": 2.0}
    answer = ChangeAnswer(7, TWO, 5, phases, way="warm")
    assert supervisor.received(3, Entered(2, TWO, 5, {"load": 2.0})) == [Answer(answer)]
    assert supervisor.exited(4, 0) == []
    assert supervisor.exited(3, 0) == [Exit(0)]


def test_a_failed_rank_restarts_all(machine: FakeMachine) -> None:
    supervisor = training(machine)
    assert supervisor.exited(2, -SIGKILL) == [Log("rank 1 was killed by SIGKILL"), *restart_of(TWO, 1)]
    assert supervisor.received(1, Finished(4)) == []
    assert supervisor.exited(1, -SIGKILL) == [StartRank(3, 0, 2, None), StartRank(4, 1, 2, None)]
    again = change(TWO, 2, resume=False)
    assert ready(supervisor, p3=0, p4=1) == [Send(3, again), Send(4, again)]


def test_a_rank_that_fails_during_a_change_restarts_all_with_the_new_plan(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    assert supervisor.exited(1, 1) == [Log("rank 0 has exited with status 1"), *restart_of(THREE, 2, 3)]
    assert supervisor.exited(2, -SIGKILL) == []
    assert supervisor.exited(3, -SIGKILL) == [StartRank(number, number - 4, 3, None) for number in (4, 5, 6)]
    ready(supervisor, p4=0, p5=1, p6=2)
    machine.time = 5.0
    entered = Entered(2, THREE, 0, {"load": 2.0})
    assert supervisor.received(4, entered) == [
        Answer(ChangeAnswer(7, THREE, 0, {"restart": 3.0, "load": 2.0}, way="cold"))
    ]


@pytest.mark.parametrize("way", ["live", "warm"])
def test_loops_that_exit_for_a_change_are_started_again_with_the_new_plan(
    machine: FakeMachine, way: Literal["live", "warm"]
) -> None:
    supervisor = training(machine, ONE)
    supervisor.request(ChangeRequest(7, TWO, way=way))
    joining = {"live": {"p2": 1}, "warm": {"p2": 0, "p3": 1}}[way]
    ready(supervisor, **joining)
    killed = [SignalRank(int(process[1:]), SIGKILL) for process in joining]
    assert supervisor.received(1, Left(0, 5, restart=True)) == [*killed, Report(5)]
    for process in joining:
        assert supervisor.exited(int(process[1:]), -SIGKILL) == []
    first = len(joining) + 2
    assert supervisor.exited(1, 0) == [StartRank(first, 0, 2, None), StartRank(first + 1, 1, 2, None)]
    again = change(TWO, 3, resume=False)
    assert ready(supervisor, **{f"p{first}": 0, f"p{first + 1}": 1}) == [Send(first, again), Send(first + 1, again)]
    assert supervisor.received(first, Entered(3, TWO, 5, {})) == [
        Answer(ChangeAnswer(7, TWO, 5, {"restart": 0.0}, way="cold"))
    ]


def test_a_loop_that_exits_for_a_change_is_not_started_again_after_a_stop(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    assert supervisor.stop(30.0, SIGTERM) == []
    assert supervisor.received(1, Left(0, 5, restart=True)) == [
        Answer(ChangeAnswer(7, error="the run is stopping")),
        Report(5),
    ]
    supervisor.received(2, Left(1, 5, restart=True))
    assert supervisor.exited(2, 0) == []
    assert supervisor.exited(1, 0) == [Exit(0)]


def test_a_loop_that_does_not_exit_for_a_change_is_killed_and_started_again(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    supervisor.received(1, Left(0, 5, restart=True))
    machine.time = ENTER_SECONDS
    assert supervisor.tick() == [SignalRank(1, SIGKILL), SignalRank(2, SIGKILL)]
    assert supervisor.exited(1, -SIGKILL) == []
    assert supervisor.exited(2, -SIGKILL) == [StartRank(3, 0, 1, None)]


def test_a_joining_rank_that_fails_is_started_again(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    for process in (3, 4, 5):
        assert supervisor.exited(process, 1) == [
            Log("joining rank 2 has exited with status 1"),
            StartRank(process + 1, 2, 3, None),
        ]
    assert supervisor.exited(6, 1) == [
        Log("joining rank 2 has exited with status 1"),
        Answer(ChangeAnswer(7, error="joining rank 2 has exited with status 1")),
    ]
    assert supervisor.request(ChangeRequest(8, ONE)) == [Send(1, change(ONE, 2)), Send(2, change(ONE, 2))]


def fail_once(supervisor: Supervisor, process: int) -> list[Action]:
    """Kill the only rank."""
    return supervisor.exited(process, -SIGKILL)


def test_restarts_without_progress_are_limited(machine: FakeMachine) -> None:
    supervisor = training(machine, ONE)
    for process in (1, 2):
        assert StartRank(process + 1, 0, 1, None) in fail_once(supervisor, process)
    ready(supervisor, p3=0)
    supervisor.received(3, Saved(10))
    for process in (3, 4, 5):
        assert StartRank(process + 1, 0, 1, None) in fail_once(supervisor, process)
    assert fail_once(supervisor, 6) == [Log("rank 0 was killed by SIGKILL"), Exit(128 + SIGKILL)]


def test_a_script_that_fails_before_it_has_trained_is_not_restarted(machine: FakeMachine) -> None:
    supervisor = Supervisor(TWO, None, machine)
    supervisor.start()
    assert supervisor.exited(1, 3) == [Log("rank 0 has exited with status 3"), SignalRank(2, SIGKILL)]
    assert supervisor.exited(2, -SIGKILL) == [Exit(3)]


def test_a_rank_that_is_killed_before_it_has_trained_is_restarted(machine: FakeMachine) -> None:
    supervisor = Supervisor(ONE, None, machine)
    supervisor.start()
    assert StartRank(2, 0, 1, None) in supervisor.exited(1, -SIGKILL)


def test_the_newest_request_wins_after_the_current_change(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    assert supervisor.request(ChangeRequest(8, TWO)) == []
    assert supervisor.request(ChangeRequest(9, ONE)) == [Answer(ChangeAnswer(8, error="superseded by run 9"))]
    supervisor.received(3, Ready(2, 8))
    third = change(ONE, 3)
    assert supervisor.received(1, Entered(2, THREE, 4, {})) == [
        Answer(ChangeAnswer(7, THREE, 4, {})),
        *(Send(process, third) for process in (1, 2, 3)),
    ]


def test_a_training_that_finishes_before_a_change_is_not_changed(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    supervisor.received(3, Ready(2, 8))  # all ranks have been told to change
    assert supervisor.received(1, Finished(9)) == [
        Report(9),
        Answer(ChangeAnswer(7, error="the training has finished")),
        SignalRank(3, SIGKILL),
    ]
    assert supervisor.exited(3, -SIGKILL) == supervisor.exited(1, 0) == []
    assert supervisor.exited(2, 0) == [Exit(0)]


def test_stop_is_sent_to_rank_0(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    assert supervisor.stop(30.0, SIGTERM) == [
        Answer(ChangeAnswer(7, error="the run is stopping")),
        SignalRank(3, SIGKILL),
        Send(1, StopTraining(30.0)),
    ]
    assert supervisor.request(ChangeRequest(8, ONE)) == [Answer(ChangeAnswer(8, error="the run is ending"))]
    assert supervisor.received(1, Left(0, 4)) == [Report(4)]
    assert supervisor.exited(3, -SIGKILL) == supervisor.exited(1, 0) == []
    assert supervisor.exited(2, 0) == [Exit(0)]


def test_stop_waits_for_a_change_that_has_begun(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    assert supervisor.stop(30.0, SIGTERM) == []
    machine.time = 10.0
    assert supervisor.received(1, Entered(2, ONE, 4, {})) == [Send(1, StopTraining(20.0))]
    assert supervisor.exited(2, 0) == [Answer(ChangeAnswer(7, ONE, 4, {}))]


def test_ranks_that_do_not_train_are_signalled_to_stop(machine: FakeMachine) -> None:
    supervisor = Supervisor(TWO, None, machine)
    supervisor.start()
    ready(supervisor, p1=0)
    assert supervisor.stop(30.0, SIGUSR1) == [SignalRank(1, SIGKILL), SignalRank(2, SIGUSR1)]
    assert supervisor.received(2, Ready(1, 8)) == [SignalRank(2, SIGKILL)]
    assert supervisor.exited(1, -SIGKILL) == []
    assert supervisor.exited(2, -SIGKILL) == [Exit(0)]


def test_ranks_are_killed_at_the_end_of_the_grace_period(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.stop(30.0, SIGTERM)
    machine.time = 29.9
    assert supervisor.tick() == []
    machine.time = 30.0
    assert supervisor.tick() == [SignalRank(1, SIGKILL), SignalRank(2, SIGKILL)]
    assert supervisor.exited(1, -SIGKILL) == []
    assert supervisor.exited(2, -SIGKILL) == [Exit(128 + SIGTERM)]


def test_a_rank_that_fails_while_stopping_ends_the_run(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.stop(30.0, SIGTERM)
    assert supervisor.exited(2, 4) == [SignalRank(1, SIGKILL)]
    assert supervisor.exited(1, -SIGKILL) == [Exit(4)]


def test_joining_ranks_have_a_time_limit(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, THREE))
    machine.time = JOIN_SECONDS
    refusal = "ranks were not ready within 300 s: does the script call start()?"
    assert supervisor.tick() == [Answer(ChangeAnswer(7, error=refusal)), SignalRank(3, SIGKILL)]
    assert supervisor.tick() == []


def test_a_change_that_hangs_restarts_all_with_the_new_plan(machine: FakeMachine) -> None:
    supervisor = training(machine)
    supervisor.request(ChangeRequest(7, ONE))
    machine.time = ENTER_SECONDS
    assert supervisor.tick() == [Log("generation 2 does not train in time"), *restart_of(ONE, 1, 2)]


def test_an_agent_among_several_starts_its_own_ranks_and_does_not_change(machine: FakeMachine) -> None:
    supervisor = Supervisor(Plan(data=4), None, machine, AgentRanks(first_rank=2, instances=2))
    assert supervisor.start() == [StartRank(1, 2, 4, None), StartRank(2, 3, 4, None)]
    ready(supervisor, p1=2, p2=3)
    refusal = "a run with several instances cannot change live"
    assert supervisor.request(ChangeRequest(7, TWO)) == [Answer(ChangeAnswer(7, error=refusal))]
    assert supervisor.exited(1, -SIGKILL) == [Log("rank 2 was killed by SIGKILL"), SignalRank(2, SIGKILL)]
    assert supervisor.exited(2, -SIGKILL) == [Exit(128 + SIGKILL)]


def test_progress_has_the_plan_in_use_if_it_is_not_the_requested_one(machine: FakeMachine) -> None:
    supervisor = training(machine)
    assert supervisor.received(1, Progress(3, 0.1, 2.0)) == [Report(3, 0.1, 2.0)]
    supervisor.request(ChangeRequest(7, Plan(tensor=2)))
    supervisor.received(1, Entered(2, TWO, 6, {}, why="its heads cannot be divided by 2"))
    assert supervisor.received(1, Progress(7, 0.1, 2.0)) == [Report(7, 0.1, 2.0, TWO)]
    supervisor.request(ChangeRequest(8, TWO))
    supervisor.received(1, Entered(3, TWO, 8, {}))
    assert supervisor.received(1, Progress(9, 0.1, 2.0)) == [Report(9, 0.1, 2.0)]
