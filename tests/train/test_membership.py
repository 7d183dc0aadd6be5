"""Which agents form a run: agents on a simulated network that loses, delays and reorders beats, and is cut."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from refold.train.membership import BEAT_SECONDS, LOST_SECONDS, Beat, GroupView, Membership


@dataclass
class Network:
    """Agents, beats under way, and all views that have ever counted."""

    instances: int
    seed: int = 0
    loss: float = 0.0
    delay: float = 0.05
    now: float = 0.0
    agents: dict[int, Membership] = field(default_factory=dict)
    group_of: dict[int, int] = field(default_factory=dict)
    under_way: list[tuple[float, int, Beat]] = field(default_factory=list)
    counted: dict[int, GroupView] = field(default_factory=dict)
    started: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        for instance in range(self.instances):
            self.start(instance)

    def start(self, instance: int) -> None:
        self.started += 1
        self.agents[instance] = Membership(instance, f"{instance}-{self.started}", self.instances)
        self.group_of[instance] = 0

    def kill(self, instance: int, *, refuses: bool) -> None:
        dead = self.agents.pop(instance)
        if refuses:
            for agent in self.agents.values():
                if self.group_of[agent.instance] == self.group_of[instance]:
                    agent.died(instance, dead.incarnation)
        if all(agent.view is None for agent in self.agents.values()):
            self.counted.clear()  # nobody is left who was in a view: a new run begins

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += BEAT_SECONDS / 3
            for instance, agent in self.agents.items():
                for other in self.agents:
                    if other != instance and self.chance.random() >= self.loss:
                        arrives = self.now + self.chance.uniform(0, self.delay)
                        self.under_way.append((arrives, other, agent.beat()))
            self._deliver()
            for agent in self.agents.values():
                agent.tick(self.now)
                self._note(agent)

    def _deliver(self) -> None:
        self.chance.shuffle(self.under_way)
        rest = []
        for arrives, other, beat in self.under_way:
            if arrives > self.now:
                rest.append((arrives, other, beat))
            elif other in self.agents and self.group_of[other] == self.group_of[beat.instance]:
                self.agents[other].heard(beat, self.now)
        self.under_way = rest

    def _note(self, agent: Membership) -> None:
        if agent.leads and agent.view is not None:
            known = self.counted.setdefault(agent.view.epoch, agent.view)
            assert known == agent.view, "two views of one epoch count"

    def leaders(self) -> set[int]:
        return {agent.instance for agent in self.agents.values() if agent.leads and agent.follows}


def settled(network: Network) -> None:
    """All agents that run are in one view, which counts."""
    views = {agent.instance: agent.view for agent in network.agents.values()}
    view = next(iter(views.values()))
    assert view is not None
    assert all(other == view for other in views.values()), views
    assert set(view.members) == set(network.agents)
    assert network.leaders() == {view.leader}


def test_agents_begin_when_all_are_there() -> None:
    network = Network(3)
    del network.agents[1]
    network.run(5)
    assert all(agent.view is None for agent in network.agents.values())
    network.start(1)
    network.run(2)
    settled(network)
    assert network.leaders() == {0}


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("refuses", [True, False])
def test_the_others_go_on_without_a_lost_host_which_comes_back(lost: int, refuses: bool) -> None:
    network = Network(4)
    network.run(2)
    network.kill(lost, refuses=refuses)
    network.run(LOST_SECONDS + 1)
    settled(network)
    leader = network.leaders()
    assert leader == {1 if lost == 0 else 0}
    network.start(lost)
    network.run(3)
    settled(network)
    assert network.leaders() == leader, "who comes back does not lead"
    assert network.agents[3].view is not None
    assert list(network.agents[3].view.members)[-1] == lost


def test_of_a_network_that_is_cut_the_larger_side_goes_on() -> None:
    network = Network(5)
    network.run(2)
    network.group_of |= {0: 1, 1: 1}
    network.run(6)
    assert network.leaders() == {2}
    assert not network.agents[0].follows
    network.group_of |= {0: 0, 1: 0}
    network.run(6)
    settled(network)
    assert network.leaders() == {2}


def test_of_two_halves_the_one_with_the_lowest_member_goes_on() -> None:
    network = Network(4)
    network.run(2)
    network.group_of |= {0: 1, 3: 1}
    network.run(6)
    assert network.leaders() == {0}


def test_a_host_that_loses_the_others_one_after_the_other_follows_nobody() -> None:
    """It has proposed to go on with the second one, which has never accepted that."""
    network = Network(3)
    network.run(2.0)
    agent, second = network.agents[1], network.agents[2]
    since = network.now
    while network.now < since + 4 * LOST_SECONDS:
        network.now += BEAT_SECONDS
        if network.now < since + 1.5 * LOST_SECONDS:
            agent.heard(second.beat(), network.now)
        agent.tick(network.now)
    assert agent.view is not None
    assert set(agent.view.members) == {1, 2}
    assert not agent.follows


def test_the_last_host_goes_on_if_the_others_are_known_to_be_dead() -> None:
    network = Network(2)
    network.run(2)
    network.kill(0, refuses=True)
    network.run(4)
    assert network.leaders() == {1}


def test_the_second_of_two_hosts_waits_if_the_first_is_silent_and_goes_on_when_it_starts_anew() -> None:
    network = Network(2)
    network.run(2)
    network.kill(0, refuses=False)
    network.run(6)
    assert network.leaders() == set()
    network.start(0)
    network.run(4)
    settled(network)
    assert network.leaders() == {1}


STEPS = st.sampled_from(["kill", "start", "cut", "heal", "wait"])


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 5),
    st.lists(st.tuples(STEPS, st.integers(0, 4), st.booleans(), st.floats(0.1, 4.0)), max_size=12),
    st.integers(0, 10**6),
    st.floats(0, 0.3),
    st.floats(0, 0.6),
)
def test_views_form_one_chain_and_all_agree_in_the_end(
    instances: int, steps: list[tuple[str, int, bool, float]], seed: int, loss: float, delay: float
) -> None:
    network = Network(instances, seed, loss, delay)
    network.run(3)
    for step, number, flag, seconds in steps:
        instance = number % instances
        match step:
            case "kill" if instance in network.agents:
                network.kill(instance, refuses=flag)
            case "start" if instance not in network.agents:
                network.start(instance)
            case "cut":
                network.group_of[instance] = 1
            case "heal":
                network.group_of = dict.fromkeys(network.group_of, 0)
        network.run(seconds)
    views = [view for _, view in sorted(network.counted.items())]
    for one, other in pairwise(views):
        assert other.epoch > one.epoch
        if one.leader != other.leader:
            assert other.reign > one.epoch
    network.group_of = dict.fromkeys(network.group_of, 0)
    network.loss = 0.0
    for instance in range(instances):
        if instance not in network.agents:
            network.start(instance)
    network.run(20)
    settled(network)
