"""Training on several hosts that fail: network namespaces with addresses of their own, and no common folder."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from benchmarks.failures.hosts import Hosts, wait_until, why_not

SCRIPT = Path(__file__).parent / "script_to_supervise.py"
HELPERS = Path(__file__).parents[2] / "helpers"
STEPS = 120
WAIT = 240.0


@cache
def reason() -> str:
    return why_not()


class Training:
    """A run on some hosts, each of which has a folder of its own."""

    def __init__(
        self, hosts: Hosts, plan: str, slots: int = 1, steps: int = STEPS, more: Mapping[str, str] | None = None
    ) -> None:
        self.hosts, self.plan, self.slots, self.steps, self.more = hosts, plan, slots, steps, more or {}
        for host in range(hosts.count):
            self.start(host)

    def start(self, host: int) -> None:
        variables = {"PYTHONPATH": str(HELPERS), "REFOLD_GRACE": "10", **self.more}
        script = (str(SCRIPT), str(self.hosts.own_folder(host)), str(self.steps), "3600")
        self.hosts.train(host, self.plan, *script, slots=self.slots, variables=variables)

    def losses(self) -> list[tuple[int, float, str]]:
        """Return step, loss and plan of all steps, host by host."""
        found = []
        for host in range(self.hosts.count):
            path = self.hosts.own_folder(host) / "losses"
            for line in path.read_text().splitlines() if path.exists() else ():
                step, loss, plan = line.split(" ", 2)
                found.append((int(step), float(loss), plan))
        return found

    def furthest(self) -> int:
        return max((step for step, _, _ in self.losses()), default=0)

    def wait_for_more(self, steps: int = 5) -> None:
        """Wait until the training has gone on."""
        before = len(self.losses())
        wait_until(lambda: len(self.losses()) >= before + steps or self.furthest() == self.steps, WAIT)

    def wait_for_plan(self, plan: str) -> None:
        before = len(self.losses())

        def is_used() -> bool:
            return any(used == plan for _, _, used in self.losses()[before:]) or self.furthest() == self.steps

        wait_until(is_used, WAIT)

    def assert_equal(self, undisturbed: dict[int, float]) -> None:
        """All steps were done, and every time with the loss of an undisturbed training."""
        seen = self.losses()
        assert {step for step, _, _ in seen} == set(range(1, self.steps + 1))
        assert all(loss == pytest.approx(undisturbed[step], rel=1e-9) for step, loss, _ in seen)


@pytest.fixture
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    if why := reason():
        pytest.skip(why)
    made = Hosts(request.param, tmp_path / "hosts")
    try:
        yield made
    finally:
        for host in range(made.count):
            print(f"host {host}:\n{made.log(host)}")
        made.close()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """The losses of a training in one process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    variables = {**os.environ, "PYTHONPATH": str(HELPERS)}
    command = [sys.executable, str(SCRIPT), str(folder), str(STEPS), "3600"]
    subprocess.run(command, env=variables, check=True, timeout=WAIT)
    lines = [line.split(" ", 2) for line in (folder / "losses").read_text().splitlines()]
    return {int(step): float(loss) for step, loss, _ in lines}


def assert_finished(training: Training, undisturbed: dict[int, float]) -> None:
    statuses = training.hosts.finish(WAIT)
    logs = "\n".join(training.hosts.log(host) for host in range(training.hosts.count))
    assert set(statuses.values()) == {0}, logs
    training.assert_equal(undisturbed)


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_lost_rank_costs_a_few_steps(hosts: Hosts, undisturbed: dict[int, float]) -> None:
    training = Training(hosts, "dp2 zero3")
    training.wait_for_more(20)
    os.kill(hosts.ranks(1)[0], signal.SIGKILL)
    training.wait_for_more()
    assert_finished(training, undisturbed)
    assert "going on with DP1 accumulate 2 on the ranks that are left" in hosts.log(0)


@pytest.mark.parametrize("hosts", [3], indirect=True)
@pytest.mark.parametrize("lost", [0, 1])
def test_replicas_that_are_left_keep_their_process_and_repeat_no_step(
    hosts: Hosts, lost: int, undisturbed: dict[int, float]
) -> None:
    """The first host leads; the third one is a spare."""
    training = Training(hosts, "dp2")
    training.wait_for_more(20)
    left = hosts.ranks(1 - lost)
    hosts.kill_host(lost)
    training.wait_for_more(20)
    assert hosts.ranks(1 - lost) == left
    assert_finished(training, undisturbed)
    assert "grown to DP2" in hosts.log(1 if lost == 0 else 0)
    steps = [step for step, _, _ in training.losses()]
    assert len(steps) <= len(set(steps)) + 1, "that of which the lost host alone has told the loss"


@pytest.mark.parametrize("hosts", [3], indirect=True)
@pytest.mark.parametrize("lost", [0, 2])
def test_the_others_go_on_without_a_host_and_with_it_when_it_is_back(
    hosts: Hosts, lost: int, undisturbed: dict[int, float]
) -> None:
    """The first host leads."""
    training = Training(hosts, "dp4 zero3", slots=2)
    training.wait_for_more(20)
    hosts.kill_host(lost)
    if lost == 0:
        training.wait_for_more()  # a spare host has taken over
    training.start(lost)
    training.wait_for_more()
    assert_finished(training, undisturbed)


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_run_shrinks_and_grows_again(hosts: Hosts, undisturbed: dict[int, float]) -> None:
    training = Training(hosts, "dp2 zero3")
    training.wait_for_more(20)
    hosts.kill_host(1)
    training.wait_for_plan("DP1 accumulate 2")
    training.start(1)
    training.wait_for_plan("DP2 ZeRO-3")
    assert_finished(training, undisturbed)


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_the_host_whose_link_is_cut_waits_while_the_others_train(hosts: Hosts, undisturbed: dict[int, float]) -> None:
    training = Training(hosts, "dp2 zero1")
    training.wait_for_more(20)
    hosts.set_link(1, up=False)
    training.wait_for_more()
    assert "lost the other hosts" in wait_until(lambda: hosts.log(1) if "lost" in hosts.log(1) else "")
    hosts.set_link(1, up=True)
    assert_finished(training, undisturbed)


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_plans_change_across_hosts(hosts: Hosts, undisturbed: dict[int, float]) -> None:
    training = Training(hosts, "dp2 zero3")
    training.wait_for_more(10)
    hosts.request(1, 2, {"tensor": 2})
    answer = hosts.answer(1, 2)
    assert (answer["plan"]["tensor"], answer["way"]) == (2, "live")
    hosts.request(0, 3, {"pipeline": 2})
    assert hosts.answer(0, 3)["plan"]["pipeline"] == 2
    hosts.request(0, 4, {"data": 4})
    assert "DP4 needs 4 ranks, the hosts of the run have 2" in hosts.answer(0, 4)["error"]
    assert_finished(training, undisturbed)
    steps = [step for step, _, _ in training.losses()]
    assert len(steps) == len(set(steps)), "each step was done once"
    assert len({plan for _, _, plan in training.losses()}) == 3


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_ranks_that_hang_are_replaced_and_their_stacks_are_in_the_log(
    hosts: Hosts, undisturbed: dict[int, float]
) -> None:
    training = Training(hosts, "dp2", more={"REFOLD_HANG_SECONDS": "8"})
    training.wait_for_more(20)
    os.kill(hosts.ranks(1)[0], signal.SIGSTOP)
    wait_until(lambda: "no step for 8 s" in hosts.log(0), WAIT)
    assert_finished(training, undisturbed)
    assert "Current thread" in hosts.log(0), "rank 0 waits for the other one"


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_rank_that_holds_up_the_other_is_found(hosts: Hosts) -> None:
    Training(hosts, "dp2", steps=10**6, more={"SLOW_RANK": "1", "REFOLD_PRELOAD": "torch"})
    text = "(instance 1, local rank 0)"
    wait_until(lambda: text in hosts.log(0), WAIT)
    assert "rank 1 is slow: loading a batch takes" in hosts.log(0)
    wait_until(lambda: '"what":"rank' in (hosts.own_folder(1) / "progress").read_text(), WAIT)
    os.kill(hosts.agent(0), signal.SIGTERM)
    assert set(hosts.finish(60).values()) == {0}


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_run_on_several_hosts_stops(hosts: Hosts) -> None:
    training = Training(hosts, "dp2", steps=10**6)
    training.wait_for_more(5)
    os.kill(hosts.agent(1), signal.SIGTERM)
    assert set(hosts.finish(60).values()) == {0}


@pytest.mark.parametrize("hosts", [3], indirect=True)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_random_kills_do_not_affect_the_losses(hosts: Hosts, undisturbed: dict[int, float], seed: int) -> None:
    chance = random.Random(seed)
    training = Training(hosts, "dp4 zero3", slots=2)
    training.wait_for_more(10)
    for _ in range(6):
        if training.furthest() == training.steps:
            break
        victim = chance.randrange(3)
        way: Any = chance.choice(["rank", "rank", "agent", "host"])
        if victim not in hosts.agents or hosts.agents[victim].poll() is not None:
            training.start(victim)
        elif way == "rank" or len(running(hosts)) < 3:
            with suppress(ProcessLookupError, IndexError, StopIteration):
                os.kill(chance.choice(hosts.ranks(victim)), signal.SIGKILL)
        elif way == "agent":
            with suppress(ProcessLookupError, StopIteration):
                os.kill(hosts.agent(victim), signal.SIGKILL)
            hosts.agents.pop(victim).wait()
        else:
            hosts.kill_host(victim)
        time.sleep(chance.uniform(0, 6))
    wait_until(lambda: training.furthest() == training.steps, WAIT)  # an agent may have been started too late to join
    training.assert_equal(undisturbed)
    wait_until(lambda: 0 in [agent.poll() for agent in hosts.agents.values()], WAIT)


def running(hosts: Hosts) -> list[int]:
    return [host for host, agent in hosts.agents.items() if agent.poll() is None]
