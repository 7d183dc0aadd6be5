"""Common parts of reshaping policies: drafts, transitions, ledgers, options, progress estimates and guarantees."""

from collections.abc import Callable
from itertools import pairwise
from math import inf
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from refold.core import Scheduler, View
from refold.core.events import (
    Event,
    JobSubmitted,
    NodeLost,
    NodesAllowed,
    RunFinished,
    RunProgressed,
    RunStarted,
    RunStopped,
    Woke,
)
from refold.errors import BadValue
from refold.model import (
    NO_CHANGE,
    Allocation,
    Cluster,
    Decision,
    Demand,
    Job,
    NodeSet,
    Plan,
    Reshape,
    Share,
    Start,
    Stop,
    Tenant,
)
from refold.placement import Placer
from refold.planning.plans.speeds import CATALOGUE_ONLY, Speeds
from refold.policies.common.draft import Draft, Transition, has_external_changes
from refold.policies.common.guarantees import GuaranteeRules
from refold.policies.common.options import Option, OptionCache
from refold.policies.common.progress_estimator import ProgressEstimator
from refold.policies.published.rubick.ledger import NO_SHARE, Ledger, NodeShare
from refold.testing import make_cluster, make_job

A800 = make_cluster(8, 8, types="A800-80GB", cpus=96, memory_gib=1600)
BEST_FIT = Placer("best-fit")
Result = TypeVar("Result")


def on(*gpus: int, node: int = 0, plan: Plan | None = None, cpus: int = 0) -> Allocation:
    return Allocation((Share(node, gpus, cpu_milli=cpus * 1000),), plan)


def no_change(view: View) -> Decision:
    return NO_CHANGE


class World:
    """A scheduler whose policy is the test: it sets the decisions and reads the views."""

    name = "scripted"

    def __init__(self, cluster: Cluster = A800) -> None:
        self.scheduler = Scheduler(cluster, self)
        self._then: Callable[[View], Decision] = no_change

    def decide(self, view: View) -> Decision:
        return self._then(view)

    def step(self, now: float, *events: Event, then: Callable[[View], Decision] = no_change) -> None:
        self._then = then
        self.scheduler.step(now, events)

    def start(self, now: float, job: Job, allocation: Allocation) -> None:
        self.step(now, JobSubmitted(job), then=lambda _: Decision((Start(job.id, allocation),)))

    def observe(self, now: float, read: Callable[[View], Result], *events: Event) -> Result:
        """Return what `read` returns for the view after these events."""
        results: list[Result] = []

        def decide(view: View) -> Decision:
            results.append(read(view))
            return NO_CHANGE

        self.step(now, *events or (Woke(),), then=decide)
        return results[0]


def reshapable(id: str, gpus: int, **more: Any) -> Job:
    fields: dict[str, Any] = {"workload": "bert", "reshapable": True, "work": None, "steps": 10_000} | more
    return make_job(id, gpus=gpus, **fields)


@pytest.fixture
def world() -> World:
    """`a` runs on GPUs 0 to 3 of the first node, `b` on 4 and 5."""
    world = World()
    world.start(0.0, reshapable("a", 4), on(0, 1, 2, 3))
    world.start(1.0, reshapable("b", 2), on(4, 5))
    return world


# Draft.


def free_gpus(draft: Draft) -> int:
    return draft.free.whole_gpus


class TestDraft:
    def test_it_starts_with_the_current_allocations_and_free_gpus(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        assert dict(draft.allocations()) == {"a": on(0, 1, 2, 3), "b": on(4, 5)}
        assert free_gpus(draft) == 10
        assert draft.target() == {}

    def test_released_gpus_are_free_and_assigned_ones_are_not(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        draft.release("a", "released")
        assert (draft.allocation_of("a"), free_gpus(draft)) == (None, 14)
        assert not draft.assign("a", on(3, 4), "")
        assert draft.assign("a", on(6, 7), "back elsewhere")
        assert free_gpus(draft) == 12
        assert draft.target() == {"a": (on(6, 7), "back elsewhere")}

    def test_a_job_assigned_its_former_allocation_is_unchanged(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        draft.release("a", "released")
        assert draft.assign("a", on(0, 1, 2, 3))
        assert draft.target() == {}

    def test_a_move_may_use_the_gpus_of_the_job(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        plan = Plan(data=8)
        assert not draft.move("b", BEST_FIT, Demand(2, 8), plan, "too wide")
        assert draft.target() == {}
        assert draft.move("a", BEST_FIT, Demand(1, 6), Plan(data=6), "wider")
        assert draft.allocation_of("a") == on(0, 1, 2, 3, 6, 7, plan=Plan(data=6))
        assert draft.target() == {"a": (on(0, 1, 2, 3, 6, 7, plan=Plan(data=6)), "wider")}

    def test_a_failed_move_keeps_the_reason_of_the_previous_one(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        assert draft.move("a", BEST_FIT, Demand(1, 2), None, "narrower")
        narrower = draft.allocation_of("a")
        assert not draft.move("a", BEST_FIT, Demand(2, 8), None, "too wide")
        assert draft.target() == {"a": (narrower, "narrower")}

    def test_a_snapshot_can_be_restored_more_than_once(self, world: World) -> None:
        draft = world.observe(2.0, Draft)
        draft.release("b", "first")
        snapshot = draft.snapshot()
        for _ in range(2):
            draft.release("a", "second")
            assert draft.place("c", BEST_FIT, Demand(2, 8), None)
            draft.restore(snapshot)
            assert dict(draft.allocations()) == {"a": on(0, 1, 2, 3)}
            assert free_gpus(draft) == 12
            assert draft.target() == {"b": (None, "first")}

    def test_a_run_being_reshaped_has_its_next_allocation(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 6)),)))
        draft = world.observe(3.0, Draft)
        assert draft.allocation_of("a") == on(0, 6)
        assert free_gpus(draft) == 12

    def test_a_stopping_run_has_no_allocation(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(stops=(Stop("a"),)))
        draft = world.observe(3.0, Draft)
        assert draft.allocation_of("a") is None
        assert free_gpus(draft) == 14

    def test_a_run_being_reshaped_onto_a_lost_node_has_no_allocation(self, world: World) -> None:
        world.step(2.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 1, node=1)),)))
        draft = world.observe(3.0, Draft, NodeLost(1))
        assert draft.allocation_of("a") is None


def test_ends_of_ordered_stops_are_not_external_changes(world: World) -> None:
    def changed(now: float, *events: Event) -> bool:
        return world.observe(now, has_external_changes, *events)

    assert not changed(2.0)
    assert not changed(3.0, RunProgressed("a", 1, steps=5))
    assert changed(4.0, JobSubmitted(make_job("c")))
    assert changed(5.0, NodeLost(1))
    world.step(6.0, then=lambda _: Decision(stops=(Stop("a"),)))
    assert not changed(7.0, RunStopped("a", 1))
    assert changed(8.0, RunFinished("b", 1))


# Transition.


class TestTransition:
    def step(
        self, world: World, now: float, transition: Transition, target: dict[str, Any], *events: Event
    ) -> Decision:
        decided: list[Decision] = []

        def decide(view: View) -> Decision:
            decided.append(
                transition.next_step(view) if transition.can_continue(view) else transition.step_towards(view, target)
            )
            return decided[0]

        world.step(now, *events, then=decide)
        return decided[0]

    def test_stops_come_first_and_starts_follow_when_possible(self, world: World) -> None:
        transition, c = Transition(), make_job("c", gpus=4)
        target = {"a": (None, "for c"), "c": (on(0, 1, 2, 3), "")}
        assert self.step(world, 2.0, transition, target, JobSubmitted(c)) == Decision(stops=(Stop("a", "for c"),))
        assert list(transition.pending) == ["c"]
        again = self.step(world, 3.0, transition, {}, RunStopped("a", 1))
        assert again == Decision(starts=(Start("c", on(0, 1, 2, 3)),))
        assert not transition.pending

    def test_changes_that_are_possible_now_are_made_now(self, world: World) -> None:
        target = {"a": (on(0, 1), "narrower"), "b": (on(4, 5, 6, 7), "wider")}
        assert self.step(world, 2.0, Transition(), target) == Decision(
            reshapes=(Reshape("a", on(0, 1), "narrower"), Reshape("b", on(4, 5, 6, 7), "wider"))
        )

    def test_a_run_that_waits_for_gpus_of_another_continues_until_they_are_free(self, world: World) -> None:
        transition = Transition()
        target = {"a": (on(0, 1), "narrower"), "b": (on(2, 3, 4, 5), "wider")}
        assert self.step(world, 2.0, transition, target) == Decision(reshapes=(Reshape("a", on(0, 1), "narrower"),))
        again = self.step(world, 3.0, transition, {}, RunStopped("a", 1))
        assert again == Decision(reshapes=(Reshape("b", on(2, 3, 4, 5), "wider"),))

    def test_if_two_runs_want_each_others_gpus_one_is_stopped(self, world: World) -> None:
        transition = Transition()
        swapped = {"a": (on(4, 5), "to there"), "b": (on(0, 1, 2, 3), "to here")}
        assert self.step(world, 2.0, transition, swapped) == Decision(stops=(Stop("a", "to there"),))
        again = self.step(world, 3.0, transition, {}, RunStopped("a", 1))
        assert again == Decision(reshapes=(Reshape("b", on(0, 1, 2, 3), "to here"),))
        last = self.step(world, 4.0, transition, {}, RunStopped("b", 1))
        assert last == Decision(starts=(Start("a", on(4, 5)),))

    def test_what_is_pending_on_nodes_that_are_no_longer_allowed_is_given_up(self, world: World) -> None:
        transition, c, others = Transition(), make_job("c", gpus=4), NodeSet.of([1])
        target = {"a": (None, "for c"), "b": (on(2, 3), "after a"), "c": (on(0, 1, 2, 3), "")}
        self.step(world, 2.0, transition, target, JobSubmitted(c))
        assert set(transition.pending) == {"b", "c"}
        draft = world.observe(3.0, Draft, RunStopped("a", 1), NodesAllowed(("b", "c"), others))
        assert not draft.assign("c", on(0, 1, 2, 3))
        stays = Reshape("b", on(2, 3), "after a")  # on its node
        assert world.observe(3.0, transition.next_step) == Decision(reshapes=(stays,))
        assert not transition.pending

    def test_an_external_event_ends_the_transition(self, world: World) -> None:
        transition, c = Transition(), make_job("c", gpus=4)
        target = {"a": (None, "for c"), "c": (on(0, 1, 2, 3), "")}
        self.step(world, 2.0, transition, target, JobSubmitted(c))
        assert self.step(world, 3.0, transition, {}, RunFinished("b", 1)) == NO_CHANGE


# Snapshots of drafts.


@hypothesis_settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("place"), st.sampled_from("abcd"), st.integers(1, 8), st.integers(1, 3)),
            st.tuples(st.just("move"), st.sampled_from("abcd"), st.integers(1, 8), st.integers(1, 3)),
            st.tuples(st.just("release"), st.sampled_from("abcd")),
            st.tuples(st.just("save")),
            st.tuples(st.just("restore"), st.integers(0, 9)),
        ),
        max_size=40,
    )
)
def test_restoring_any_snapshot_gives_the_same_allocations_and_free_resources(steps: list[Any]) -> None:
    world = World(make_cluster(8, 3, types="A800-80GB", cpus=96))
    world.start(0.0, reshapable("a", 4, cpus=4), on(0, 1, 2, 3, cpus=4))
    world.start(1.0, reshapable("b", 2), on(4, 5))
    world.step(1.5, NodeLost(2))

    def check(view: View) -> None:
        draft = Draft(view)

        def state() -> tuple[Any, ...]:
            arrays = draft.free.nodes.tolist(), draft.free.gpus.tolist(), draft.free.bits.tolist()
            return (*arrays, list(draft.allocations()), dict(draft.changed))

        saved = [(draft.snapshot(), state())]
        for kind, *arguments in steps:
            if kind == "save":
                saved.append((draft.snapshot(), state()))
            elif kind == "restore":
                snapshot, expected = saved[arguments[0] % len(saved)]
                draft.restore(snapshot)
                assert state() == expected
            elif kind == "release":
                draft.release(arguments[0])
            elif kind == "move" or draft.allocation_of(arguments[0]) is None:
                job_id, gpus, nodes = arguments
                demand = Demand(instances=nodes, gpus=gpus, cpu_milli=1000)
                (draft.move if kind == "move" else draft.place)(job_id, BEST_FIT, demand, None, kind)

    world.observe(2.0, check)


# Ledger.


def ledger_of(world: World, now: float = 2.0) -> tuple[Draft, Ledger]:
    def read(view: View) -> tuple[Draft, Ledger]:
        draft = Draft(view)
        return draft, Ledger(view, draft, ["a", "b"])

    return world.observe(now, read)


def total(ledger: Ledger) -> NodeShare:
    """Return the total of what is free and what all jobs have."""
    parts = [*ledger.free, *(part for parts in ledger.shares.values() for part in parts.values())]
    return NodeShare(*(sum(column) for column in zip(*parts, strict=True)))


@hypothesis_settings(max_examples=60)
@given(
    moves=st.lists(
        st.one_of(
            st.tuples(st.sampled_from("abc"), st.integers(0, 1), st.integers(0, 4), st.integers(0, 9)),
            st.sampled_from(["mark", "back"]),
        ),
        max_size=40,
    )
)
def test_changes_and_rollbacks_conserve_the_total(moves: list[Any]) -> None:
    world = World()
    world.start(0.0, reshapable("a", 4, cpus=4), on(0, 1, 2, 3, cpus=4))
    world.start(1.0, reshapable("b", 2), on(4, 5))
    _, ledger = ledger_of(world)
    before_all = total(ledger)
    marks: list[tuple[int, list[NodeShare], dict[str, dict[int, NodeShare]], dict[int, set[str]]]] = []

    def state() -> tuple[list[NodeShare], dict[str, dict[int, NodeShare]], dict[int, set[str]]]:
        parts = {job_id: dict(parts) for job_id, parts in ledger.shares.items() if parts}
        return list(ledger.free), parts, {node: set(jobs) for node, jobs in ledger.jobs_on_node.items() if jobs}

    for move in moves:
        if move == "mark":
            marks.append((ledger.savepoint(), *state()))
        elif move == "back":
            if marks:
                mark, *before = marks.pop()
                ledger.roll_back(mark)
                assert list(state()) == before
        else:
            job_id, node, gpus, cpus = move
            ledger.set_share(job_id, node, NodeShare(gpus, cpus * 1000))
        assert total(ledger) == before_all
        for job_id, parts in ledger.shares.items():
            assert all(job_id in ledger.jobs_on_node[node] for node in parts)


class TestLedger:
    def test_it_counts_gpus_layouts_and_cpus(self, world: World) -> None:
        _, ledger = ledger_of(world)
        ledger.set_share("a", 1, NodeShare(6, 5_000))
        assert (ledger.gpus("a"), ledger.layout("a"), ledger.cpus("a")) == (10, (6, 4), 5.0)
        assert (ledger.gpus("unknown"), ledger.layout("unknown"), ledger.cpus("unknown")) == (0, (), 0)
        assert ledger.free[1] == NodeShare(2, 91_000, 1600 * 1024)

    def test_jobs_that_keep_gpus_keep_the_same_ones(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.set_share("a", 0, NodeShare(2))
        ledger.set_share("b", 0, NodeShare(4))
        plans = {"a": Plan(data=2), "b": Plan(data=4)}
        ledger.apply(plans, {"a": "gave two", "b": "got two"})
        assert draft.target() == {
            "a": (on(0, 1, plan=plans["a"]), "gave two"),
            "b": (on(2, 3, 4, 5, plan=plans["b"]), "got two"),
        }

    def test_a_job_without_gpus_has_no_allocation(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.set_share("a", 0, NO_SHARE)
        ledger.set_share("c", 0, NodeShare(3))
        ledger.apply({"c": None}, {"a": "gave all"})
        assert draft.target() == {"a": (None, "gave all"), "c": (on(0, 1, 2), "")}

    def test_a_share_that_was_changed_and_restored_is_no_change(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.set_share("a", 0, NodeShare(1))
        ledger.set_share("a", 0, NodeShare(4))
        ledger.apply({"a": None}, {})
        assert draft.target() == {}

    def test_a_new_plan_on_the_same_gpus_is_a_change(self, world: World) -> None:
        draft, ledger = ledger_of(world)
        ledger.set_share("a", 0, NodeShare(4))
        ledger.apply({"a": Plan(tensor=4)}, {"a": "faster"})
        assert draft.target() == {"a": (on(0, 1, 2, 3, plan=Plan(tensor=4)), "faster")}

    def test_nothing_is_free_on_a_node_that_is_down(self, world: World) -> None:
        world.step(2.0, NodeLost(1))
        _, ledger = ledger_of(world, 3.0)
        assert ledger.free[1] == NO_SHARE


# Options.


def shapes(options: tuple[Option, ...]) -> list[tuple[int, int]]:
    """Return (nodes, GPUs on each) of each option."""
    return [(option.demand.instances, option.demand.gpus) for option in options]


class TestOptions:
    def test_options_are_the_sizes_that_are_faster_than_all_smaller_ones(self) -> None:
        options = OptionCache(Speeds(A800)).for_job(reshapable("a", 4))
        sizes = sorted({option.gpus for option in options})
        assert {1, 2, 4, 8} < set(sizes)
        assert 7 not in sizes  # 32 samples cannot be divided by 7
        fastest = [max(one.speed for one in options if one.gpus == gpus) for gpus in sizes]
        assert all(more > 1.01 * fewer for fewer, more in pairwise(fastest))

    def test_a_layout_over_more_nodes_is_an_option_if_it_keeps_half_the_speed(self) -> None:
        options = OptionCache(Speeds(A800)).for_job(reshapable("a", 4))
        spread = {option.gpus: option.speed for option in options if option.demand.instances == 2 and option.gpus <= 8}
        assert 2 in spread
        for option in options:
            if option.demand.instances == 1 and option.gpus in spread:
                assert 0.5 * option.speed < spread[option.gpus] <= option.speed

    def test_every_plan_uses_the_gpus_of_its_option(self) -> None:
        for workload in ("gpt2", "llama7"):
            for option in OptionCache(Speeds(A800)).for_job(reshapable(workload, 8, workload=workload, cpus=64)):
                assert option.plan is not None
                assert option.plan.gpus == option.gpus == option.demand.instances * option.demand.gpus
                assert option.demand.gpu_types == ("A800-80GB",)
                assert option.demand.cpu_milli == option.demand.gpus * 8000

    def test_without_plans_only_replicas_of_the_own_plan_are_options(self) -> None:
        job = reshapable("a", 4, workload="gpt2", plan=Plan(tensor=2, data=2))
        options = OptionCache(Speeds(A800), plans=False).for_job(job)
        assert all(option.plan is not None and option.plan.tensor == 2 for option in options)
        assert {option.gpus for option in options} == {2, 4, 8}  # 16 GPUs are no faster than 8

    def test_without_resources_the_amounts_are_as_requested(self) -> None:
        job = reshapable("a", 4, plan=Plan(data=2, accumulation=2, tensor=2))
        options = OptionCache(Speeds(A800), resources=False).for_job(job)
        assert shapes(options) == [(1, 4)]
        assert options[0].plan != job.plan

    def test_without_either_the_only_option_is_the_request(self) -> None:
        plan = Plan(data=4, zero=2)
        options = OptionCache(Speeds(A800), plans=False, resources=False).for_job(reshapable("a", 4, plan=plan))
        assert [(option.gpus, option.plan) for option in options] == [(4, plan)]

    @pytest.mark.parametrize(
        "rigid", [{"reshapable": False}, {"workload": "own"}, {"share": 0.5}, {"types": ["T4"]}, {"gpus": 0, "cpus": 4}]
    )
    def test_the_only_option_of_a_job_with_unknown_speed_is_its_request(self, rigid: dict[str, Any]) -> None:
        requested: dict[str, Any] = {"gpus": 2}
        job = reshapable("a", **requested | rigid)
        assert OptionCache(Speeds(A800)).for_job(job) == (Option(job.demand.gpus, job.demand, job.plan, 1.0),)

    @pytest.mark.parametrize("count", [1, 2, 3, 5, 40])
    def test_there_are_options_on_any_number_of_nodes(self, count: int) -> None:
        cluster = make_cluster(*[8] * count, types="A800-80GB")
        options = OptionCache(Speeds(cluster)).for_job(reshapable("a", 4, workload="llama7", cpus=8, batch=512))
        assert min(4 * count, 32) < max(option.gpus for option in options) <= 8 * count


# Progress estimates.


def estimator_of(world: World, restart: float = 78.0, **settings: Any) -> ProgressEstimator:
    return world.observe(0.0, lambda view: ProgressEstimator(view, CATALOGUE_ONLY, restart, **settings))


class TestProgressEstimator:
    def test_steps_continue_at_the_modelled_speed_between_reports(self) -> None:
        world = World()
        estimator, job = estimator_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        speed = estimator.speed(job, on(0, 1, 2, 3))
        assert world.observe(10.0, lambda view: estimator.remaining_work(view, job)) == pytest.approx(
            10_000 - 10 * speed
        )
        world.step(20.0, RunProgressed("a", 1, steps=100))
        assert world.observe(30.0, lambda view: estimator.remaining_work(view, job)) == pytest.approx(
            9_900 - 10 * speed
        )

    def test_a_restarting_run_makes_no_progress_until_it_has_started(self) -> None:
        world = World()
        estimator, job = estimator_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        world.step(10.0, then=lambda _: Decision(reshapes=(Reshape("a", on(0, 1)),)))
        world.step(15.0, RunStopped("a", 1, steps=50))
        remaining = world.observe(
            60.0, lambda view: (estimator.remaining_work(view, job), estimator.startup_seconds(view, view.runs["a"]))
        )
        assert list(remaining) == [9_950, pytest.approx(15.0 + 78.0 - 60.0)]
        world.step(70.0, RunStarted("a", 2))
        remaining = world.observe(
            80.0, lambda view: (estimator.remaining_work(view, job), estimator.startup_seconds(view, view.runs["a"]))
        )
        assert list(remaining) == [pytest.approx(9_950 - 10 * estimator.speed(job, on(0, 1))), 0.0]

    def test_a_stopping_run_makes_no_progress(self) -> None:
        world = World()
        estimator, job = estimator_of(world), reshapable("a", 4)
        world.start(0.0, job, on(0, 1, 2, 3))
        world.step(10.0, RunProgressed("a", 1, steps=100), then=lambda _: Decision(stops=(Stop("a"),)))
        assert world.observe(1000.0, lambda view: estimator.remaining_work(view, job)) == 9_900

    def test_a_running_job_always_has_work_left(self) -> None:
        world = World()
        estimator, job = estimator_of(world), reshapable("a", 4, steps=10)
        world.start(0.0, job, on(0, 1, 2, 3))
        assert world.observe(9e9, lambda view: estimator.remaining_work(view, job)) == 0.5

    def test_a_job_without_trusted_steps_has_as_much_work_left_as_it_has_done(self) -> None:
        world = World()
        silent, untrusted = reshapable("silent", 4, steps=None), reshapable("untrusted", 4)
        estimator = estimator_of(world, trust_steps=False)
        speed = estimator.speeds.requested_speed(silent).steps_per_second
        world.start(0.0, silent, on(0, 1, 2, 3))
        world.start(0.0, untrusted, on(4, 5, 6, 7))
        for now, expected in ((0.0, 60 * speed), (30.0, 60 * speed), (500.0, 500 * speed)):
            remaining = world.observe(
                now, lambda view: [estimator.remaining_work(view, job) for job in (silent, untrusted)]
            )
            assert remaining == pytest.approx([expected, expected])

    def test_work_of_a_job_with_unknown_speed_is_counted_in_seconds(self) -> None:
        world = World()
        estimator, job = estimator_of(world), make_job("a", gpus=4, work=None)
        world.start(0.0, job, on(0, 1, 2, 3))
        assert estimator.speed(job, on(0, 1, 2, 3)) == 1.0
        assert world.observe(20.0, lambda view: estimator.remaining_work(view, job)) == 60.0
        assert world.observe(200.0, lambda view: estimator.remaining_work(view, job)) == 200.0

    def test_a_negative_restart_time_is_rejected(self) -> None:
        with pytest.raises(BadValue, match="restart_seconds is -1, expected seconds ≥ 0"):
            estimator_of(World(), restart=-1)


# Guarantees.


def rules_of(world: World, **settings: Any) -> GuaranteeRules:
    estimator = estimator_of(world)
    return GuaranteeRules(estimator, OptionCache(estimator.speeds), **settings)


SLOW_PLAN = Plan(data=4, zero=2, offload=True, recompute="full")


class TestGuaranteeRules:
    def test_the_minimum_is_the_fewest_gpus_that_reach_the_guaranteed_speed(self) -> None:
        rules = rules_of(World())
        fast, slow = reshapable("fast", 4, plan=Plan(data=4, zero=1)), reshapable("slow", 4, plan=SLOW_PLAN, cpus=4)
        assert rules.minimum_option(fast).gpus == 4
        assert rules.minimum_option(slow).gpus == 1
        assert rules.minimum_option(slow).speed >= rules.guaranteed_speed(slow)

    @pytest.mark.parametrize("workload", ["vit", "roberta", "bert", "t5", "gpt2", "llama7"])
    @pytest.mark.parametrize("plan", [Plan(data=8), Plan(tensor=8), Plan(tensor=4, pipeline=2), Plan(8, zero=3)])
    def test_the_minimum_is_never_more_than_requested_nor_slower(self, workload: str, plan: Plan) -> None:
        rules = rules_of(World())
        job = reshapable("a", 8, workload=workload, plan=plan, cpus=64)
        assert rules.minimum_option(job).gpus <= 8
        assert all(option.speed >= rules.guaranteed_speed(job) for option in rules.sufficient_options(job))

    def test_a_job_that_is_not_reshapable_is_guaranteed_its_request(self) -> None:
        rules, job = rules_of(World()), make_job("a", gpus=3)
        assert (rules.minimum_option(job).gpus, rules.minimum_option(job).demand, rules.guaranteed_speed(job)) == (
            3,
            job.demand,
            1.0,
        )

    def test_quotas_count_minimums_in_order_of_submission(self) -> None:
        cluster = msgspec.structs.replace(A800, tenants=(Tenant("A", 5.0), Tenant("B", 2.0)))
        world = World(cluster)
        rules = rules_of(world)
        jobs = [
            make_job("a1", gpus=4, tenant="A"),
            make_job("a2", at=1.0, gpus=2, tenant="A"),  # beyond the quota
            reshapable("a3", 4, at=2.0, tenant="A", plan=SLOW_PLAN, cpus=4),  # one GPU is enough for it
            make_job("b1", at=3.0, gpus=2, tenant="B", job_class="best-effort"),
            make_job("b2", at=4.0, gpus=2, tenant="B"),
            make_job("c1", at=5.0, gpus=1, tenant="C"),  # C has no quota
        ]
        guaranteed = world.observe(9.0, rules.guaranteed_jobs, *map(JobSubmitted, jobs))
        assert guaranteed == {"a1", "a3", "b2"}

    def test_without_quotas_there_are_no_guarantees(self) -> None:
        world = World()
        rules = rules_of(world)
        assert world.observe(0.0, rules.guaranteed_jobs, JobSubmitted(make_job("a"))) == set()

    def test_another_job_is_guaranteed_when_one_has_ended(self) -> None:
        cluster = msgspec.structs.replace(A800, tenants=(Tenant("A", 4.0),))
        world = World(cluster)
        rules = rules_of(world)
        world.start(0.0, make_job("a1", gpus=4, tenant="A"), on(0, 1, 2, 3))
        assert world.observe(1.0, rules.guaranteed_jobs, JobSubmitted(make_job("a2", gpus=1, tenant="A"))) == {"a1"}
        assert world.observe(2.0, rules.guaranteed_jobs, RunFinished("a1", 1)) == {"a2"}

    def test_a_safety_factor_below_one_is_rejected(self) -> None:
        for wrong in (0.9, -inf):
            with pytest.raises(BadValue, match="safety_factor"):
                rules_of(World(), safety_factor=wrong)
