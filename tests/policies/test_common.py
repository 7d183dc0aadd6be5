"""What policies that think in whole targets are made of: drafts, ledgers, options, outlooks and promises."""

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings as chances, strategies as st

from refold.core import Scheduler, View
from refold.core.events import Event, JobSubmitted, NodeLost, RunFinished, RunProgressed, RunStarted, RunStopped, Woke
from refold.errors import BadValue
from refold.model import (
    KEEP,
    Allocation,
    Cluster,
    Decision,
    Demand,
    Job,
    Plan,
    Reshape,
    Share,
    Start,
    Stop,
    Tenant,
)
from refold.packing import Placer
from refold.plans.speeds import NOTHING_MORE, Speeds
from refold.policies.common.draft import Draft, Transition, something_happened
from refold.policies.common.guarantees import GuaranteeRules
from refold.policies.common.options import Option, OptionCache
from refold.policies.common.outlook import Outlook
from refold.policies.reshaping.ledger import NOTHING, Ledger, NodeShare
from refold.testing import make_cluster, make_job

A800 = make_cluster(8, 8, types="A800-80GB", cpus=96, memory_gib=1600)
BEST_FIT = Placer("best-fit")
Seen = TypeVar("Seen")


def on(*gpus: int, node: int = 0, plan: Plan | None = None, cpus: int = 0) -> Allocation:
    return Allocation((Share(node, gpus, cpu_milli=cpus * 1000),), plan)


def keep(view: View) -> Decision:
    return KEEP


class World:
    """A scheduler whose policy does what the test says, and shows the test what it sees."""

    name = "told"

    def __init__(self, cluster: Cluster = A800) -> None:
        self.scheduler = Scheduler(cluster, self)
        self._then: Callable[[View], Decision] = keep

    def decide(self, view: View) -> Decision:
        return self._then(view)

    def step(self, now: float, *events: Event, then: Callable[[View], Decision] = keep) -> None:
        self._then = then
        self.scheduler.step(now, events)

    def start(self, now: float, job: Job, allocation: Allocation) -> None:
        self.step(now, JobSubmitted(job), then=lambda _: Decision((Start(job.id, allocation),)))

    def look(self, now: float, see: Callable[[View], Seen], *events: Event) -> Seen:
        """What a policy would see after these events."""
        seen: list[Seen] = []

        def decide(view: View) -> Decision:
            seen.append(see(view))
            return KEEP

        self.step(now, *events or (Woke(),), then=decide)
        return seen[0]


def reshapable(id: str, gpus: int, **more: Any) -> Job:
    asked: dict[str, Any] = {"workload": "bert", "reshapable": True, "work": None, "steps": 10_000} | more
    return make_job(id, gpus=gpus, **asked)


@pytest.fixture
def world() -> World:
    """`a` on GPUs 0 to 3 of the first node, `b` on 4 and 5."""
    world = World()
    world.start(0.0, reshapable("a", 4), on(0, 1, 2, 3))
    world.start(1.0, reshapable("b", 2), on(4, 5))
    return world


# Board.


def free_gpus(draft: Draft) -> int:
    return draft.free.whole_gpus


class TestBoard:
    def test_it_begins_with_what_is_held_and_free(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        assert dict(draft.holders()) == {"a": on(0, 1, 2, 3), "b": on(4, 5)}
        assert free_gpus(draft) == 10
        assert draft.target() == {}

    def test_what_is_released_is_free_and_what_is_put_is_not(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        draft.release("a", "made way")
        assert (draft.holds("a"), free_gpus(draft)) == (None, 14)
        assert not draft.put("a", on(3, 4), "")
        assert draft.put("a", on(6, 7), "back elsewhere")
        assert free_gpus(draft) == 12
        assert draft.target() == {"a": (on(6, 7), "back elsewhere")}

    def test_who_is_put_where_it_was_has_not_changed(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        draft.release("a", "made way")
        assert draft.put("a", on(0, 1, 2, 3))
        assert draft.target() == {}

    def test_a_move_may_use_what_the_job_holds(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        plan = Plan(data=8)
        assert not draft.move("b", BEST_FIT, Demand(2, 8), plan, "too wide")
        assert draft.target() == {}
        assert draft.move("a", BEST_FIT, Demand(1, 6), Plan(data=6), "wider")
        assert draft.holds("a") == on(0, 1, 2, 3, 6, 7, plan=Plan(data=6))
        assert draft.target() == {"a": (on(0, 1, 2, 3, 6, 7, plan=Plan(data=6)), "wider")}

    def test_a_move_that_fails_keeps_the_reason_of_the_last_one(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        assert draft.move("a", BEST_FIT, Demand(1, 2), None, "narrower")
        narrower = draft.holds("a")
        assert not draft.move("a", BEST_FIT, Demand(2, 8), None, "too wide")
        assert draft.target() == {"a": (narrower, "narrower")}

    def test_a_snapshot_brings_everything_back_more_than_once(self, world: World) -> None:
        draft = world.look(2.0, Draft)
        draft.release("b", "first")
        snapshot = draft.snapshot()
        for _ in range(2):
            draft.release("a", "second")
            assert draft.place("c", BEST_FIT, Demand(2, 8), None)
            draft.restore(snapshot)
            assert dict(draft.holders()) == {"a": on(0, 1, 2, 3)}
            assert free_gpus(draft) == 12
            assert draft.target() == {"b": (None, "first")}

    def test_a_run_that_is_being_reshaped_holds_what_it_will_have(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 6)),)))
        draft = world.look(3.0, Draft)
        assert draft.holds("a") == on(0, 6)
        assert free_gpus(draft) == 12

    def test_a_run_that_stops_for_good_holds_nothing(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(stops=(Stop("a"),)))
        draft = world.look(3.0, Draft)
        assert draft.holds("a") is None
        assert free_gpus(draft) == 14

    def test_a_run_to_be_reshaped_onto_a_lost_node_will_hold_nothing(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 1, node=1)),)))
        draft = world.look(3.0, Draft, NodeLost(1))
        assert draft.holds("a") is None


def test_only_what_was_not_ordered_is_something_that_happened(world: World) -> None:
    def happened(now: float, *events: Event) -> bool:
        return world.look(now, something_happened, *events)

    assert not happened(2.0)
    assert not happened(3.0, RunProgressed("a", 1, steps=5))
    assert happened(4.0, JobSubmitted(make_job("c")))
    assert happened(5.0, NodeLost(1))
    world.step(6.0, then=lambda _: Decision(stops=(Stop("a"),)))
    assert not happened(7.0, RunStopped("a", 1))
    assert happened(8.0, RunFinished("b", 1))


# Steering.


class TestSteering:
    def steer(self, world: World, now: float, steering: Transition, target: dict[str, Any], *events: Event) -> Decision:
        decided: list[Decision] = []

        def decide(view: View) -> Decision:
            decided.append(steering.go_on(view) if steering.goes_on(view) else steering.towards(view, target))
            return decided[0]

        world.step(now, *events, then=decide)
        return decided[0]

    def test_stops_come_first_and_starts_when_they_can(self, world: World) -> None:
        steering, c = Transition(), make_job("c", gpus=4)
        target = {"a": (None, "for c"), "c": (on(0, 1, 2, 3), "")}
        assert self.steer(world, 2.0, steering, target, JobSubmitted(c)) == Decision(stops=(Stop("a", "for c"),))
        assert list(steering.awaited) == ["c"]
        again = self.steer(world, 3.0, steering, {}, RunStopped("a", 1))
        assert again == Decision(starts=(Start("c", on(0, 1, 2, 3)),))
        assert not steering.awaited

    def test_what_can_be_done_now_is_done_now(self, world: World) -> None:
        target = {"a": (on(0, 1), "narrower"), "b": (on(4, 5, 6, 7), "wider")}
        assert self.steer(world, 2.0, Transition(), target) == Decision(
            reshapes=(Reshape("a", on(0, 1), "narrower"), Reshape("b", on(4, 5, 6, 7), "wider"))
        )

    def test_a_run_that_waits_for_anothers_place_goes_on_until_it_is_free(self, world: World) -> None:
        steering = Transition()
        target = {"a": (on(0, 1), "narrower"), "b": (on(2, 3, 4, 5), "wider")}
        assert self.steer(world, 2.0, steering, target) == Decision(reshapes=(Reshape("a", on(0, 1), "narrower"),))
        again = self.steer(world, 3.0, steering, {}, RunStopped("a", 1))
        assert again == Decision(reshapes=(Reshape("b", on(2, 3, 4, 5), "wider"),))

    def test_of_two_runs_that_want_each_others_places_one_is_stopped(self, world: World) -> None:
        steering = Transition()
        swapped = {"a": (on(4, 5), "to there"), "b": (on(0, 1, 2, 3), "to here")}
        assert self.steer(world, 2.0, steering, swapped) == Decision(stops=(Stop("a", "to there"),))
        again = self.steer(world, 3.0, steering, {}, RunStopped("a", 1))
        assert again == Decision(reshapes=(Reshape("b", on(0, 1, 2, 3), "to here"),))
        last = self.steer(world, 4.0, steering, {}, RunStopped("b", 1))
        assert last == Decision(starts=(Start("a", on(4, 5)),))

    def test_another_event_ends_the_way_to_the_target(self, world: World) -> None:
        steering, c = Transition(), make_job("c", gpus=4)
        target = {"a": (None, "for c"), "c": (on(0, 1, 2, 3), "")}
        self.steer(world, 2.0, steering, target, JobSubmitted(c))
        assert self.steer(world, 3.0, steering, {}, RunFinished("b", 1)) == KEEP


# Ledger.


def ledger_of(world: World, now: float = 2.0) -> tuple[Draft, Ledger]:
    def see(view: View) -> tuple[Draft, Ledger]:
        draft = Draft(view)
        return draft, Ledger(view, draft, ["a", "b"])

    return world.look(now, see)


def amounts(ledger: Ledger) -> NodeShare:
    """Everything there is: what is free, and what anybody has."""
    parts = [*ledger.free, *(part for parts in ledger.parts.values() for part in parts.values())]
    return NodeShare(*(sum(column) for column in zip(*parts, strict=True)))


@chances(max_examples=60)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 4), st.integers(0, 9)),
            st.sampled_from(["mark", "back"]),
        ),
        max_size=40,
    )
)
def test_whatever_is_given_and_rolled_back_nothing_is_made_or_lost(moves: list[Any]) -> None:
    world = World()
    world.start(0.0, reshapable("a", 4, cpus=4), on(0, 1, 2, 3, cpus=4))
    world.start(1.0, reshapable("b", 2), on(4, 5))
    _, ledger = ledger_of(world)
    everything = amounts(ledger)
    marks: list[tuple[int, list[NodeShare], dict[str, dict[int, NodeShare]], dict[int, set[str]]]] = []

    def state() -> tuple[list[NodeShare], dict[str, dict[int, NodeShare]], dict[int, set[str]]]:
        parts = {job_id: dict(parts) for job_id, parts in ledger.parts.items() if parts}
        return list(ledger.free), parts, {node: set(jobs) for node, jobs in ledger.residents.items() if jobs}

    for move in moves:
        if move == "mark":
            marks.append((ledger.mark(), *state()))
        elif move == "back":
            if marks:
                mark, *before = marks.pop()
                ledger.roll_back(mark)
                assert list(state()) == before
        else:
            job_id, node, gpus, cpus = move
            ledger.give(job_id, node, NodeShare(gpus, cpus * 1000))
        assert amounts(ledger) == everything
        for job_id, parts in ledger.parts.items():
            assert all(job_id in ledger.residents[node] for node in parts)


class TestLedger:
    def test_it_counts_gpus_layouts_and_cpus(self, world: World) -> None:
        _, ledger = ledger_of(world)
        ledger.give("a", 1, NodeShare(6, 5_000))
        assert (ledger.gpus("a"), ledger.layout("a"), ledger.cpus("a")) == (10, (6, 4), 5.0)
        assert (ledger.gpus("nobody"), ledger.layout("nobody"), ledger.cpus("nobody")) == (0, (), 0)
        assert ledger.free[1] == NodeShare(2, 91_000, 1600 * 1024)

    def test_who_keeps_gpus_keeps_the_very_same_ones(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.give("a", 0, NodeShare(2))
        ledger.give("b", 0, NodeShare(4))
        plans = {"a": Plan(data=2), "b": Plan(data=4)}
        ledger.settle(plans, {"a": "gave two", "b": "got two"})
        assert draft.target() == {
            "a": (on(0, 1, plan=plans["a"]), "gave two"),
            "b": (on(2, 3, 4, 5, plan=plans["b"]), "got two"),
        }

    def test_who_has_nothing_left_holds_nothing(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.give("a", 0, NOTHING)
        ledger.give("c", 0, NodeShare(3))
        ledger.settle({"c": None}, {"a": "gave all"})
        assert draft.target() == {"a": (None, "gave all"), "c": (on(0, 1, 2), "")}

    def test_what_was_given_and_taken_back_changes_nothing(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.give("a", 0, NodeShare(1))
        ledger.give("a", 0, NodeShare(4))
        ledger.settle({"a": None}, {})
        assert draft.target() == {}

    def test_a_new_plan_on_the_same_gpus_is_a_change(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.give("a", 0, NodeShare(4))
        ledger.settle({"a": Plan(tensor=4)}, {"a": "faster"})
        assert draft.target() == {"a": (on(0, 1, 2, 3, plan=Plan(tensor=4)), "faster")}

    def test_nothing_is_free_on_a_node_that_is_down(self, world: World) -> None:
        world.step(2.0, NodeLost(1))
        _, ledger = ledger_of(world, 3.0)
        assert ledger.free[1] == NOTHING


# Options.


def shapes(options: tuple[Option, ...]) -> list[tuple[int, int]]:
    """Nodes and GPUs on each."""
    return [(option.demand.instances, option.demand.gpus) for option in options]


class TestOptions:
    def test_sizes_are_those_that_are_faster_than_any_smaller_one(self) -> None:
        options = OptionCache(Speeds(A800)).of(reshapable("a", 4))
        sizes = sorted({option.gpus for option in options})
        assert {1, 2, 4, 8} < set(sizes)
        assert 7 not in sizes  # 32 samples cannot be split by 7, and otherwise it is no faster than on fewer
        fastest = [max(one.speed for one in options if one.gpus == gpus) for gpus in sizes]
        assert all(more > 1.01 * fewer for fewer, more in pairwise(fastest))

    def test_a_layout_over_more_nodes_is_an_option_where_it_keeps_half_the_speed(self) -> None:
        options = OptionCache(Speeds(A800)).of(reshapable("a", 4))
        spread = {option.gpus: option.speed for option in options if option.demand.instances == 2 and option.gpus <= 8}
        assert 2 in spread
        for option in options:
            if option.demand.instances == 1 and option.gpus in spread:
                assert 0.5 * option.speed < spread[option.gpus] <= option.speed

    def test_every_plan_is_for_the_gpus_of_its_option(self) -> None:
        for workload in ("gpt2", "llama7"):
            for option in OptionCache(Speeds(A800)).of(reshapable(workload, 8, workload=workload, cpus=64)):
                assert option.plan is not None
                assert option.plan.gpus == option.gpus == option.demand.instances * option.demand.gpus
                assert option.demand.gpu_types == ("A800-80GB",)
                assert option.demand.cpu_milli == option.demand.gpus * 8000

    def test_without_plans_replicas_of_the_own_plan_are_all_there_is(self) -> None:
        job = reshapable("a", 4, workload="gpt2", plan=Plan(tensor=2, data=2))
        options = OptionCache(Speeds(A800), plans=False).of(job)
        assert all(option.plan is not None and option.plan.tensor == 2 for option in options)
        assert {option.gpus for option in options} == {2, 4, 8}  # 16 GPUs are no faster than 8

    def test_without_resources_the_amounts_are_those_asked_for(self) -> None:
        job = reshapable("a", 4, plan=Plan(data=2, accumulation=2, tensor=2))
        options = OptionCache(Speeds(A800), resources=False).of(job)
        assert shapes(options) == [(1, 4)]
        assert options[0].plan != job.plan

    def test_without_either_everything_is_as_asked(self) -> None:
        plan = Plan(data=4, zero=2)
        options = OptionCache(Speeds(A800), plans=False, resources=False).of(reshapable("a", 4, plan=plan))
        assert [(option.gpus, option.plan) for option in options] == [(4, plan)]

    @pytest.mark.parametrize(
        "rigid", [{"reshapable": False}, {"workload": "own"}, {"share": 0.5}, {"types": ["T4"]}, {"gpus": 0, "cpus": 4}]
    )
    def test_who_is_not_known_has_what_it_asked_for(self, rigid: dict[str, Any]) -> None:
        asked: dict[str, Any] = {"gpus": 2}
        job = reshapable("a", **asked | rigid)
        assert OptionCache(Speeds(A800)).of(job) == (Option(job.demand.gpus, job.demand, job.plan, 1.0),)

    @pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
    def test_there_are_options_on_any_number_of_nodes(self, count: int) -> None:
        cluster = make_cluster(*[8] * count, types="A800-80GB")
        options = OptionCache(Speeds(cluster)).of(reshapable("a", 4, workload="llama7", cpus=8, batch=512))
        assert min(4 * count, 32) < max(option.gpus for option in options) <= 8 * count


# Outlook.


def outlook_of(world: World, restart: float = 78.0, **settings: Any) -> Outlook:
    return world.look(0.0, lambda view: Outlook(view, NOTHING_MORE, restart, **settings))


class TestOutlook:
    def test_steps_go_on_at_the_modelled_speed_between_two_reports(self) -> None:
        world = World()
        outlook, job = outlook_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        speed = outlook.speed(job, on(0, 1, 2, 3))
        assert world.look(10.0, lambda view: outlook.left(view, job)) == pytest.approx(10_000 - 10 * speed)
        world.step(20.0, RunProgressed("a", 1, steps=100))
        assert world.look(30.0, lambda view: outlook.left(view, job)) == pytest.approx(9_900 - 10 * speed)

    def test_a_run_that_restarts_does_nothing_until_it_has(self) -> None:
        world = World()
        outlook, job = outlook_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        world.step(10.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 1)),)))
        world.step(15.0, RunStopped("a", 1, steps=50))
        left = world.look(60.0, lambda view: (outlook.left(view, job), outlook.starting_up(view, view.runs["a"])))
        assert list(left) == [9_950, pytest.approx(15.0 + 78.0 - 60.0)]
        world.step(70.0, RunStarted("a", 2))
        left = world.look(80.0, lambda view: (outlook.left(view, job), outlook.starting_up(view, view.runs["a"])))
        assert list(left) == [pytest.approx(9_950 - 10 * outlook.speed(job, on(0, 1))), 0.0]

    def test_a_run_that_is_stopping_does_no_more(self) -> None:
        world = World()
        outlook, job = outlook_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        world.step(10.0, RunProgressed("a", 1, steps=100), then=lambda _: Decision(stops=(Stop("a"),)))
        assert world.look(1000.0, lambda view: outlook.left(view, job)) == 9_900

    def test_there_is_always_something_left(self) -> None:
        world = World()
        outlook, job = outlook_of(world), reshapable("a", 4, steps=10)
        world.start(0.0, job, on(0, 1, 2, 3))
        assert world.look(9e9, lambda view: outlook.left(view, job)) == 0.5

    def test_who_says_nothing_or_is_not_believed_has_as_much_before_it_as_behind_it(self) -> None:
        world = World()
        silent, boasting = reshapable("silent", 4, steps=None), reshapable("boasting", 4)
        outlook = outlook_of(world, trust_steps=False)
        speed = outlook.speeds.asked(silent).steps_per_second
        world.start(0.0, silent, on(0, 1, 2, 3))
        world.start(0.0, boasting, on(4, 5, 6, 7))
        for now, expected in ((0.0, 60 * speed), (30.0, 60 * speed), (500.0, 500 * speed)):
            left = world.look(now, lambda view: [outlook.left(view, job) for job in (silent, boasting)])
            assert left == pytest.approx([expected, expected])

    def test_work_of_a_job_that_is_not_known_is_counted_in_seconds(self) -> None:
        world = World()
        outlook, job = outlook_of(world), make_job("a", gpus=4, work=None)
        world.start(0.0, job, on(0, 1, 2, 3))
        assert outlook.speed(job, on(0, 1, 2, 3)) == 1.0
        assert world.look(20.0, lambda view: outlook.left(view, job)) == 60.0
        assert world.look(200.0, lambda view: outlook.left(view, job)) == 200.0

    def test_a_restart_takes_no_negative_time(self) -> None:
        with pytest.raises(BadValue, match="a restart takes seconds ≥ 0, not -1"):
            outlook_of(World(), restart=-1)


# Promises.


def promises_of(world: World, **settings: Any) -> GuaranteeRules:
    outlook = outlook_of(world)
    return GuaranteeRules(outlook, OptionCache(outlook.speeds), **settings)


POOR = Plan(data=4, zero=2, offload=True, recompute="full")


class TestPromises:
    def test_the_minimum_is_the_fewest_gpus_that_are_as_fast(self) -> None:
        promises = promises_of(World())
        well, badly = reshapable("well", 4, plan=Plan(data=4, zero=1)), reshapable("badly", 4, plan=POOR, cpus=4)
        assert promises.minimum(well).gpus == 4
        assert promises.minimum(badly).gpus == 1
        assert promises.minimum(badly).speed >= promises.floor(badly)

    @pytest.mark.parametrize("workload", ["vit", "roberta", "bert", "t5", "gpt2", "llama7"])
    @pytest.mark.parametrize("plan", [Plan(data=8), Plan(tensor=8), Plan(tensor=4, pipeline=2), Plan(8, zero=3)])
    def test_a_minimum_is_never_more_than_was_asked_for_nor_slower(self, workload: str, plan: Plan) -> None:
        promises = promises_of(World())
        job = reshapable("a", 8, workload=workload, plan=plan, cpus=64)
        assert promises.minimum(job).gpus <= 8
        assert all(option.speed >= promises.floor(job) for option in promises.keeping(job))

    def test_who_cannot_be_reshaped_is_promised_what_it_asked_for(self) -> None:
        promises, job = promises_of(World()), make_job("a", gpus=3)
        assert (promises.minimum(job).gpus, promises.minimum(job).demand, promises.floor(job)) == (3, job.demand, 1.0)

    def test_quotas_are_counted_in_minimums_by_order_of_submission(self) -> None:
        cluster = msgspec.structs.replace(A800, tenants=(Tenant("A", 5.0), Tenant("B", 2.0)))
        world = World(cluster)
        promises = promises_of(world)
        jobs = [
            make_job("a1", gpus=4, tenant="A"),
            make_job("a2", at=1.0, gpus=2, tenant="A"),  # beyond the quota
            reshapable("a3", 4, at=2.0, tenant="A", plan=POOR, cpus=4),  # one GPU is enough for it
            make_job("b1", at=3.0, gpus=2, tenant="B", job_class="best-effort"),
            make_job("b2", at=4.0, gpus=2, tenant="B"),
            make_job("c1", at=5.0, gpus=1, tenant="C"),  # nobody has said anything of C
        ]
        seen = world.look(9.0, promises.promised, *map(JobSubmitted, jobs))
        assert seen == {"a1", "a3", "b2"}

    def test_where_there_are_no_quotas_nothing_is_promised(self) -> None:
        world = World()
        promises = promises_of(world)
        assert world.look(0.0, promises.promised, JobSubmitted(make_job("a"))) == set()

    def test_another_is_promised_something_when_one_has_ended(self) -> None:
        cluster = msgspec.structs.replace(A800, tenants=(Tenant("A", 4.0),))
        world = World(cluster)
        promises = promises_of(world)
        world.start(0.0, make_job("a1", gpus=4, tenant="A"), on(0, 1, 2, 3))
        assert world.look(1.0, promises.promised, JobSubmitted(make_job("a2", gpus=1, tenant="A"))) == {"a1"}
        assert world.look(2.0, promises.promised, RunFinished("a1", 1)) == {"a2"}

    def test_safety_is_a_factor(self) -> None:
        for wrong in (0.9, -inf):
            with pytest.raises(BadValue, match="safety"):
                promises_of(World(), safety=wrong)
